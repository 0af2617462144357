# SPDX-License-Identifier: Apache-2.0
"""Packages that need no accelerator library start without it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "module", ["alignax.data.encode", "alignax.report.render", "alignax.cli.dpo", "alignax.recipe"]
)
def test_imports_without_jax(module):
    code = f"import sys, {module}; assert 'jax' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
