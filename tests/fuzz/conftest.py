# SPDX-License-Identifier: Apache-2.0
"""How many inputs are tried: a few dozen in the test suite, thousands in ``make fuzz``."""

import tempfile

from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

# What it keeps does not belong into the source folder.
set_hypothesis_home_dir(tempfile.gettempdir() + "/alignax-fuzz")

SLOW = list(HealthCheck)
settings.register_profile(
    "quick", max_examples=40, deadline=None, derandomize=True, database=None,
    suppress_health_check=SLOW,
)  # fmt: skip
settings.register_profile(
    "fuzz", max_examples=4000, deadline=None, suppress_health_check=SLOW, print_blob=True
)
settings.load_profile("quick")
