# SPDX-License-Identifier: Apache-2.0
"""Talk to a person: everything here goes to stderr, results go to stdout."""

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

console = Console(stderr=True, highlight=False)


def say(message: str) -> None:
    """Write one line of talk."""
    console.print(message, markup=False, soft_wrap=True)


def warn(message: str) -> None:
    """Write one line that should not be overlooked."""
    console.print("note:", message, style="yellow", markup=False, soft_wrap=True)


def write_result(values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a result as JSON to stdout."""
    json.dump(values, sys.stdout, indent=1, ensure_ascii=False)
    sys.stdout.write("\n")


def finite(value: Any) -> Any:
    """Replace numbers that JSON does not know (NaN, infinities) by null, at any depth."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def write_lines(records: Iterable[Any]) -> None:
    """Write JSON lines to stdout."""
    for record in records:
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")


def print_result(renderable: Any) -> None:
    """Print text, a table or another rich renderable to stdout."""
    Console(highlight=False, soft_wrap=True).print(renderable)


def show_answers(records: Iterable[Mapping[str, Any]]) -> None:
    """Print generated answers for a person to stdout."""
    for record in records:
        print_result(Text(str(record["prompt"]), style="bold"))
        print_result(Text(record["text"]))
        print_result(Text(f"[{record['tokens']} tokens, {record['finish_reason']}]\n", "dim"))


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table to stdout, for a person."""
    table = Table(*columns, title=title, title_justify="left", title_style="bold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def show_profile(profile: Mapping[str, Any]) -> None:
    """Write where the time of some steps went, as talk."""
    table = Table("", "s a step", "share", title_justify="left", title_style="bold")
    table.title = f"{profile['steps']} steps of {profile['seconds_per_step']:.2f} s"
    for part in profile["kinds"]:
        seconds = part["seconds"] / profile["steps"]
        table.add_row(part["kind"], f"{seconds:.3f}", f"{part['share']:.1%}")
    console.print(table)


def with_interval(values: Mapping[str, float], name: str, digits: int = 3) -> str:
    """Format a metric with its 95 % interval: ``0.670 [0.657, 0.683]``."""
    if name not in values or math.isnan(values[name]):
        return "-"
    text = f"{values[name]:.{digits}f}"
    if f"{name}_low" in values:
        text += f" [{values[f'{name}_low']:.{digits}f}, {values[f'{name}_high']:.{digits}f}]"
    return text


@contextmanager
def progress(title: str, total: int) -> Iterator[Any]:
    """Show a bar while a count grows; yields ``advance(n)``. Without a terminal: one line."""
    if not console.is_terminal:
        say(f"{title}: {total}")
        yield lambda n: None
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task(title, total=total)
        yield lambda n: bar.advance(task, n)


def counter(title: str) -> Callable[[int, int], None]:
    """Make ``show(done, total)``, which rewrites one line of a terminal."""

    def show(done: int, total: int) -> None:
        if console.is_terminal:
            console.print(f"{title}: {done} of {total}", end="\n" if done == total else "\r")

    return show


class TrainingProgress:
    """The live line of a run, and a printed line at each evaluation; a training hook."""

    def __init__(self, total: int, done: int):
        """Start the bar at ``done`` of ``total`` steps."""
        self._bar = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=18),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("train", total=total, completed=done, values="")
        self._plain = not console.is_terminal
        self._total = total
        self._bar.start()

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Refresh the live line; without a terminal, print about forty lines a run."""
        text = step_line(values)
        self._bar.update(self._task, completed=step, values=text)
        every = max(self._total // 40, 1)
        if self._plain and (step % every == 0 or step in (1, self._total)):
            say(f"step {step}/{self._total}  {text}")

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Print the held-out figures."""
        parts = [f"{name} {with_interval(values, name)}" for name in ("loss", "accuracy", "margin")]
        parts += [f"{n} {values[n]:.4g}" for n in ("perplexity", "kl/token") if n in values]
        say(f"held-out, step {step}:  " + "  ".join(p for p in parts if not p.endswith(" -")))

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Print the event."""
        say(f"{kind}, step {step}: {message}")

    def close(self) -> None:
        """End the live line."""
        self._bar.stop()


def compiled_line(totals: Mapping[str, Any]) -> str:
    """Say how many programs a run needed, and how long they took."""
    return (
        f"{totals['programs'] - totals['found']} programs compiled and {totals['found']} found on "
        f"disk in {totals['seconds']:.1f} s, traced in {totals['prepare_seconds']:.1f} s"
    )


def step_line(values: Mapping[str, float]) -> str:
    """Write a step's figures on one line."""
    parts = [f"loss {values['loss']:.4f}"]
    if "margin" in values:
        parts += [
            f"margin {values['margin']:+.3f}",
            f"acc {values['accuracy']:.2f}",
        ]
    if "chosen_logratio" in values:
        parts += [
            f"Δchosen {values['chosen_logratio']:+.3f}",
            f"Δrejected {values['rejected_logratio']:+.3f}",
        ]
    parts += [
        f"lr {values['learning_rate']:.1e}",
        f"{values['pairs_per_s']:.2f} rows/s",
        f"{values['tokens_per_s']:.0f} tok/s",
        f"pad {values['padding']:.0%}",
        f"useful {values['useful_flop_share']:.0%}",
        f"wait {values['data_wait_share']:.1%}",
    ]
    return "  ".join(parts)
