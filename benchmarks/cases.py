# SPDX-License-Identifier: Apache-2.0
"""What is compared: sets of pairs, modes, the command of each and how its output is read.

Every reader turns a script's JSON into a record with the same names: ``pairs``, ``seconds`` (of
the timed steps together), ``tokens`` and ``answer_tokens`` (of the timed pairs, each prompt counted
once, whoever computes it how often), ``rss_gib``, ``compile_s``, ``first_step_at_s``, ``loss`` and
``raw``. No JAX here: on Linux the peak memory of a child starts at that of its parent.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Pairs:
    """A set of pairs and how each side batches it.

    Attributes:
        name: Key in records and results.
        file: ``{file}_pairs.jsonl`` and ``{file}_lengths.json`` in the peers' folder.
        timed: Pairs that every side except Tunix trains on under the clock; Tunix, whose steps all
            cost the same, does one step.
        max_length: Longest prompt + answer.
        batch: Pairs a step of TRL and Tunix.
        widths: Tunix's prompt and answer widths.
        rounds: Default number of rounds.
        modes: Keys of ``MODES`` in the order of a round.
        layers: Layers of the model; None for all.
        epochs: Passes of alignax over the timed pairs.
        weight: Cost of a mode here against HH-RLHF with LoRA, for the ETA.
    """

    name: str
    file: str
    timed: int
    max_length: int
    batch: int
    widths: int
    rounds: int
    modes: tuple[str, ...]
    layers: int | None = None
    epochs: int = 1
    weight: float = 1.0

    def quick(self, layers: int) -> "Pairs":
        """Shrink to what shows that everything runs: few layers, one step."""
        return replace(self, timed=self.batch, rounds=1, layers=layers)


LORA = ("tunix-remat", "ours-cached", "trl", "ours-live", "trl-precomputed", "ours-warm", "tunix")
SETS = {
    pairs.name: pairs
    for pairs in (
        Pairs("hh-lora", "hh", 32, 512, 4, 256, 3, LORA),
        Pairs("uf-lora", "uf", 16, 1024, 2, 512, 1, LORA[:-1], weight=1.7),
        Pairs("hh-full", "hh", 16, 512, 4, 256, 1, ("trl-full", "ours-full"), epochs=2),
    )
}
"""Tunix without rematerialisation is left out on UltraFeedback: it does not fit into memory."""


@dataclass(frozen=True)
class Place:
    """Where things are.

    Attributes:
        peers: Folder with the peers' scripts and pairs.
        work: Git-ignored folder for models, caches and records.
        trl: Python with TRL.
        tunix: Python with Tunix.
    """

    peers: Path
    work: Path
    trl: Path
    tunix: Path

    def model(self, pairs: Pairs) -> Path:
        """The model's folder."""
        return self.work / ("model" if pairs.layers is None else f"model-{pairs.layers}-layers")

    def lengths(self, pairs: Pairs) -> list[list[int]]:
        """Tokens of prompt, chosen and rejected of every pair in the file."""
        file = self.peers / f"{pairs.file}_lengths.json"
        return json.loads(file.read_text(encoding="utf-8"))

    def window(self, pairs: Pairs) -> Path:
        """The file with exactly the timed pairs; the peers' warm-up takes those before them."""
        lines = (self.peers / f"{pairs.file}_pairs.jsonl").read_text(encoding="utf-8").splitlines()
        chosen = lines[pairs.batch : pairs.batch + pairs.timed]
        file = self.work / f"{pairs.file}_{pairs.batch}_{pairs.timed}.jsonl"
        file.write_text("".join(f"{line}\n" for line in chosen), encoding="utf-8")
        return file


@dataclass(frozen=True)
class Mode:
    """One way to train.

    Attributes:
        title: What tables call it.
        side: ``"ours"``, ``"trl"`` or ``"tunix"``.
        flags: Flags of the side's script.
        needs_gib: Free memory below which it is not tried.
        seconds: Rough time on a quiet machine with the default settings, for the ETA.
        cache: alignax's cache folder in a round; modes that share one find it warm.
        cold: Whether that folder is emptied first.
    """

    title: str
    side: str
    flags: tuple[str, ...]
    needs_gib: float
    seconds: float
    cache: str = ""
    cold: bool = True


MODES = {
    "trl": Mode("TRL, reference each step", "trl", (), 9, 240),
    "trl-precomputed": Mode(
        "TRL, references precomputed", "trl", ("--precompute-ref",), 9, 215
    ),
    "trl-full": Mode("TRL, full fine-tuning", "trl", ("--full",), 12, 200),
    "tunix": Mode("Tunix as shipped", "tunix", (), 18.5, 210),
    "tunix-remat": Mode("Tunix, remat decoder", "tunix", ("--remat", "decoder"), 7, 225),
    "ours-cached": Mode("alignax, reference cached", "ours", (), 4, 130, "cached"),
    "ours-warm": Mode("alignax, second start (caches warm)", "ours", (), 4, 55, "cached", False),
    "ours-live": Mode(
        "alignax, reference each step", "ours", ("--reference", "live"), 4, 120, "live"
    ),
    "ours-full": Mode(
        "alignax, full fine-tuning", "ours", ("--reference", "live", "--full"), 6, 200, "full"
    ),
}  # fmt: skip


def command(place: Place, pairs: Pairs, mode: Mode, out: Path) -> list[str]:
    """Build the command that writes its JSON to ``out``."""
    return [str(part) for part in COMMANDS[mode.side](place, pairs, out)] + list(mode.flags)


def _trl(place: Place, pairs: Pairs, out: Path) -> Sequence[Any]:
    return [
        place.trl, place.peers / "bench_trl.py", "--model", place.model(pairs),
        "--data", place.peers / f"{pairs.file}_pairs.jsonl", "--batch-size", pairs.batch,
        "--max-length", pairs.max_length, "--steps", pairs.timed // pairs.batch, "--warmup", 1,
        "--threads", os.cpu_count(), "--json", out,
    ]  # fmt: skip


def _tunix(place: Place, pairs: Pairs, out: Path) -> Sequence[Any]:
    layers = [] if pairs.layers is None else ["--layers", pairs.layers]
    return [
        place.tunix, place.peers / "bench_tunix.py", place.peers / f"{pairs.file}_lengths.json",
        "--batch-size", pairs.batch, "--max-prompt-length", pairs.widths,
        "--max-response-length", pairs.widths, "--steps", 2, "--warmup", 1, "--out", out, *layers,
    ]  # fmt: skip


def _ours(place: Place, pairs: Pairs, out: Path) -> Sequence[Any]:
    batch = min(16, pairs.timed)
    return [
        sys.executable, "-m", "benchmarks.step", "--model", place.model(pairs),
        "--data", place.window(pairs), "--max-length", pairs.max_length,
        "--format", "trl", "--dropout", 0,
        "--batch-size", batch, "--steps", pairs.epochs * pairs.timed // batch, "--out", out,
    ]  # fmt: skip


COMMANDS: Mapping[str, Callable[..., Sequence[Any]]] = {
    "trl": _trl, "tunix": _tunix, "ours": _ours,
}  # fmt: skip


def read(place: Place, pairs: Pairs, mode: Mode, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a script's output into a record."""
    record = READERS[mode.side](raw, place.lengths(pairs), pairs)
    return record | {"pairs_per_s": record["pairs"] / record["seconds"], "raw": raw}


def _count(lengths: Sequence[Sequence[int]]) -> dict[str, int]:
    """Distinct tokens and answer tokens of pairs."""
    answers = sum(chosen + rejected for _, chosen, rejected in lengths)
    return {"tokens": answers + sum(prompt for prompt, _, _ in lengths), "answer_tokens": answers}


def read_trl(raw: Mapping[str, Any], lengths: Any, pairs: Pairs) -> dict[str, Any]:
    """Read ``bench_trl.py``: the first step is its warm-up; nothing is compiled."""
    first, *steady = raw["step_seconds"]
    losses = [entry["loss"] for entry in raw["logs"][1 : 1 + len(steady)]]
    trained = len(steady) * pairs.batch
    return {
        "pairs": trained, "seconds": sum(steady),
        **_count(lengths[pairs.batch : pairs.batch + trained]),
        "rss_gib": raw["peak_rss_gib"], "compile_s": None,
        "first_step_at_s": raw["import_s"] + raw["build_s"] + first,
        "loss": sum(losses) / len(losses),
    }  # fmt: skip


def read_tunix(raw: Mapping[str, Any], lengths: Any, pairs: Pairs) -> dict[str, Any]:
    """Read ``bench_tunix.py``: its steps all cost the same; longer texts are cut to its widths."""
    _, *steady = raw["step_s_each"]
    trained = len(steady) * pairs.batch
    cut = [[min(n, pairs.widths) for n in one] for one in lengths]
    return {
        "pairs": trained, "seconds": sum(steady),
        **_count(cut[pairs.batch : pairs.batch + trained]),
        "rss_gib": raw["peak_rss_gb"], "compile_s": raw["compile_s"],
        "first_step_at_s": raw["import_s"] + raw["build_s"] + raw["first_step_s"],
        "loss": raw["loss"][-1],
    }  # fmt: skip


def read_ours(raw: Mapping[str, Any], lengths: Any, pairs: Pairs) -> dict[str, Any]:
    """Read ``benchmarks.step``: the first step compiles.

    Raises:
        ValueError: The pairs have other tokens here than in the peers' list of lengths.
    """
    expected = _count(lengths[pairs.batch : pairs.batch + pairs.timed])["tokens"]
    if raw["set_tokens"] != expected:
        raise ValueError(f"alignax reads {raw['set_tokens']} tokens in the pairs, not {expected}")
    after = {name: raw[name][1:] for name in ("pairs", "seconds", "tokens", "answer_tokens")}
    return {
        **{name: sum(values) for name, values in after.items()},
        "rss_gib": raw["peak_rss_gib"], "compile_s": raw["compile_s"],
        "first_step_at_s": raw["first_step_at_s"],
        "loss": sum(raw["losses"][1:]) / len(raw["losses"][1:]),
    }  # fmt: skip


READERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "trl": read_trl, "tunix": read_tunix, "ours": read_ours,
}  # fmt: skip
