# SPDX-License-Identifier: Apache-2.0
"""A bad step → files that hold its batch and tell its story, kept beside the run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from alignax.errors import RunError
from alignax.files import write_json
from alignax.records import PackedBatch
from alignax.train.fault import Fault


@dataclass(frozen=True)
class NamedRows:
    """Row ids and places (``file:line``) of a data set."""

    row_ids: Sequence[str]
    places: Sequence[str]

    def name(self, index: int) -> dict[str, str]:
        """Name one row."""
        return {"row_id": str(self.row_ids[index]), "place": str(self.places[index])}


def keep_evidence(
    folder: Path,
    step: int,
    fault: Fault,
    values: Mapping[str, float],
    batch: PackedBatch,
    cached: Mapping[str, Any] | None,
    rows: NamedRows,
) -> Path:
    """Write ``step-N.npz`` (ids, masks, row ids of every slot, cached values) and ``step-N.json``.

    Returns:
        The JSON file.

    Raises:
        RunError: The disk refused them.
    """
    example = np.asarray(batch.example)
    named = np.where(example >= 0, np.asarray(rows.row_ids, object)[np.maximum(example, 0)], "")
    arrays = {name: np.asarray(value) for name, value in batch._asdict().items()}
    arrays["row_ids"] = named.astype(str)
    arrays |= {f"cached_{name}": np.asarray(value) for name, value in (cached or {}).items()}
    file = folder / f"step-{step:06d}.npz"
    partial = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(
            f"step {step} is not finite, and its batch cannot be kept in {file}: "
            f"{error.strerror or error}",
            hint="free disk space and go on with --train.resume",
        ) from error
    others = sorted({int(i) for i in example[example >= 0]} - set(fault.blamed))
    story = file.with_suffix(".json")
    write_json(
        story,
        {
            "step": step,
            # As words: NaN is not JSON.
            "loss": str(values["loss"]),
            "grad_norm": str(values["grad_norm"]),
            "first_bad": fault.first_bad,
            "rows": [rows.name(index) for index in fault.blamed],
            "other_rows": [rows.name(index) for index in others],
            "batch": file.name,
        },
    )
    return story
