# SPDX-License-Identifier: Apache-2.0
"""Opinions on disk, by the content of what was asked; only verdicts, so that failures are retried.

One small file an opinion, written as soon as it is final: an interrupted evaluation goes on where
it stopped, and a changed judge, prompt or answer is another key.
"""

import hashlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from alignax.judge.base import Opinion
from alignax.records import WORTH, Outcome


class OpinionCache:
    """A folder of opinions."""

    def __init__(self, folder: Path | None):
        """Use ``folder``; None keeps nothing."""
        self._folder = folder

    @staticmethod
    def key(*parts: Any) -> str:
        """Hash everything that decides an opinion."""
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def get(self, key: str) -> Opinion | None:
        """Look an opinion up; a damaged file counts as none."""
        if self._folder is None:
            return None
        try:
            value = json.loads(self._file(self._folder, key).read_text(encoding="utf-8"))
            outcome, raw = value["outcome"], value["raw"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        known: Outcome | None = next((name for name in WORTH if name == outcome), None)
        return Opinion(known, raw) if known and isinstance(raw, str) else None

    def put(self, key: str, opinion: Opinion) -> None:
        """Keep a verdict, atomically; anything else is not kept."""
        if self._folder is None or opinion.outcome not in WORTH:
            return
        file = self._file(self._folder, key)
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        content = {"outcome": opinion.outcome, "raw": opinion.raw}
        partial.write_text(json.dumps(content), encoding="utf-8")
        partial.replace(file)

    @staticmethod
    def _file(folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"
