# SPDX-License-Identifier: Apache-2.0
"""What listens to a run: files for machines; the terminal's listener lives in ``cli``."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tensorboardX import SummaryWriter

from alignax.files import read_lines


class Hook(Protocol):
    """A listener; all calls come from the training loop, in step order."""

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """One update was done; ``step`` counts from 1."""

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """The held-out rows were evaluated after ``step`` updates."""

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Something worth keeping happened."""

    def close(self) -> None:
        """The run ended, well or not."""


def drop_later_lines(file: Path, step: int) -> None:
    """Cut records of steps after ``step``, which a resumed run does again."""
    if not file.exists():
        return
    kept = []
    for line in file.read_text().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except ValueError:  # the last line of a killed run may be cut
            continue
    partial = file.with_suffix(".tmp")
    partial.write_text("".join(f"{line}\n" for line in kept))
    partial.replace(file)


def set_aside_after(folder: Path, step: int) -> None:
    """Move metrics of later steps, which a rollback undid, to ``undone.jsonl``."""
    undone = [r for r in read_lines(folder / "metrics.jsonl") if r["step"] > step]
    with (folder / "undone.jsonl").open("a") as file:
        file.writelines(f"{json.dumps(record)}\n" for record in undone)
    drop_later_lines(folder / "metrics.jsonl", step)


class JsonLines:
    """Writes ``metrics.jsonl`` and ``events.jsonl``."""

    def __init__(self, folder: Path, *, start_step: int, log_steps: int):
        """Open both files, cut back to ``start_step``; a run that starts anew starts empty."""
        for name in ("metrics.jsonl", "events.jsonl"):
            drop_later_lines(folder / name, start_step or -1)
        self._metrics = (folder / "metrics.jsonl").open("a", buffering=1)
        self._events = (folder / "events.jsonl").open("a", buffering=1)
        self._log_steps = log_steps

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Append a training line every ``log_steps``."""
        if step % self._log_steps == 0 or step == 1:
            self._metrics.write(json.dumps({"step": step, "kind": "train", **values}) + "\n")

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Append an evaluation line."""
        self._metrics.write(json.dumps({"step": step, "kind": "eval", **values}) + "\n")

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Append an event line."""
        record = {"step": step, "kind": kind, "message": message, "time": round(time.time(), 1)}
        self._events.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Close both files."""
        self._metrics.close()
        self._events.close()


class TensorBoard:
    """Writes scalars for TensorBoard below ``tensorboard/``."""

    def __init__(self, folder: Path, *, start_step: int):
        """Open an event file; points after ``start_step`` of a killed run are hidden."""
        self._writer = SummaryWriter(str(folder), purge_step=start_step + 1)

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Write ``train/…`` scalars."""
        for name, value in values.items():
            self._writer.add_scalar(f"train/{name}", value, step)

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Write ``eval/…`` scalars."""
        for name, value in values.items():
            self._writer.add_scalar(f"eval/{name}", value, step)

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Write the event as text."""
        self._writer.add_text(f"events/{kind}", message, step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
