# SPDX-License-Identifier: Apache-2.0
"""Where alignax keeps what can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for alignax (``$ALIGNAX_CACHE`` or ``$XDG_CACHE_HOME``)."""
    root = os.environ.get("ALIGNAX_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "alignax"
