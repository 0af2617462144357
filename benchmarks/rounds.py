# SPDX-License-Identifier: Apache-2.0
"""The measurements so far: a file a round in a git-ignored folder; a stop loses nothing."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alignax.files import write_json
from benchmarks.cases import Pairs, Place


class Rounds:
    """The measurements so far, one file a round."""

    def __init__(self, place: Place, sets: Sequence[Pairs]):
        """Find the folders of sets that were measured with the same settings."""
        self._folders = {}
        for pairs in sets:
            # How often a round is repeated and which modes it has do not change what it measures.
            settings = {k: v for k, v in vars(pairs).items() if k not in ("rounds", "modes")}
            digest = hashlib.sha256(repr(settings).encode()).hexdigest()[:8]
            self._folders[pairs.name] = place.work / "rounds" / f"{pairs.name}-{digest}"

    def folder(self, pairs: Pairs) -> Path:
        """Folder of a set."""
        return self._folders[pairs.name]

    def read(self, pairs: Pairs, number: int) -> dict[str, Any]:
        """Read a round, or begin it."""
        file = self.folder(pairs) / f"{number}.json"
        if file.exists():
            return json.loads(file.read_text(encoding="utf-8"))
        return {"set": pairs.name, "round": number, "machine": {}, "records": {}}

    def write(self, pairs: Pairs, one: Mapping[str, Any]) -> None:
        """Write a round, whole or not at all."""
        file = self.folder(pairs) / f"{one['round']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, one)

    def of(self, pairs: Pairs) -> list[dict[str, Any]]:
        """All rounds of a set that hold something."""
        files = sorted(self.folder(pairs).glob("[0-9]*.json"), key=lambda file: int(file.stem))
        return [json.loads(file.read_text(encoding="utf-8")) for file in files]

    def losses(self, pairs: Pairs) -> Any:
        """Losses of each pair on both sides, or None."""
        file = self.folder(pairs) / "pair_losses.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
