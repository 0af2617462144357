# SPDX-License-Identifier: Apache-2.0
"""Recorded rounds → medians, ratios, the figures of ``peers.json`` and tables in Markdown.

A round is ``{"set", "round", "machine", "records": {mode: record}}``; a record is what
``benchmarks.cases.read`` gives, or ``{"failed": reason, "stderr": tail}``. Ratios are taken inside
a round, so that a load that comes and goes hits both sides, and then their median over the rounds.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Round = Mapping[str, Any]

RATIOS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "pairs_per_s_vs_tunix": ("pairs_per_s", "ours-live", ("tunix", "tunix-remat")),
    "pairs_per_s_vs_trl": ("pairs_per_s", "ours-live", ("trl",)),
    "pairs_per_s_vs_trl_precomputed": ("pairs_per_s", "ours-cached", ("trl-precomputed",)),
    "pairs_per_s_cached_vs_tunix": ("pairs_per_s", "ours-cached", ("tunix", "tunix-remat")),
    "pairs_per_s_cached_vs_trl": ("pairs_per_s", "ours-cached", ("trl",)),
    "rss_vs_tunix": ("rss_gib", "ours-live", ("tunix",)),
    "rss_vs_tunix_remat": ("rss_gib", "ours-live", ("tunix-remat",)),
    "rss_vs_trl": ("rss_gib", "ours-live", ("trl",)),
}
"""Figure → field, our mode, and the peer's modes, of which the fastest in the round counts."""

OWN: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], float]]] = {
    "row_fill": ("ours-cached", lambda record: record["raw"]["fill"]),
    "data_wait_share": ("ours-cached", lambda record: record["raw"]["data_wait_share"]),
    "compile_s": ("ours-cached", lambda record: record["compile_s"]),
    "compile_cached_s": ("ours-warm", lambda record: record["compile_s"]),
}
"""Figure → our mode, and how to read it."""

GOALS: Mapping[str, tuple[str, str, Callable[[float], bool]]] = {
    "pairs_per_s_vs_tunix": ("pairs/s against Tunix, its faster setting", "≥ 8", lambda x: x >= 8),
    "pairs_per_s_vs_trl": ("pairs/s against TRL", "≥ 3", lambda x: x >= 3),
    "pairs_per_s_vs_trl_precomputed": (
        "pairs/s against TRL, references precomputed; ours cached", "≥ 2", lambda x: x >= 2,
    ),
    "pairs_per_s_cached_vs_tunix": (
        "the same against Tunix, ours with cached references", "", lambda _: True,
    ),
    "pairs_per_s_cached_vs_trl": (
        "the same against TRL, ours with cached references", "", lambda _: True,
    ),
    "rss_vs_tunix": ("peak memory against Tunix as shipped", "≤ 0.2", lambda x: x <= 0.2),
    "rss_vs_tunix_remat": ("… rematerialised", "≤ 0.5", lambda x: x <= 0.5),
    "rss_vs_trl": ("peak memory against TRL", "≤ 0.6", lambda x: x <= 0.6),
    "useful_flop_share": ("useful FLOPs over the GEMM rate", "≥ 0.5", lambda x: x >= 0.5),
    "row_fill": ("row fill", "≥ 0.95", lambda x: x >= 0.95),
    "compile_s": ("compile, first run, s", "≤ 45", lambda x: x <= 45),
    "compile_cached_s": ("compile, with its cache, s", "≤ 5", lambda x: x <= 5),
    "data_wait_share": ("share of time waiting for data", "≤ 0.02", lambda x: x <= 0.02),
    "max_pair_loss_difference": ("largest difference of a pair's loss", "≤ 1e-4",
                                 lambda x: x <= 1e-4),
}  # fmt: skip
"""Figure → what it is, the goal in words (none: empty) and whether a value reaches it."""

COLUMNS = (
    "pairs/s", "distinct tokens/s", "useful FLOPs", "peak GiB", "compile s", "first step after s",
    "loss",
)  # fmt: skip


def median(values: Sequence[float | None]) -> float | None:
    """Median of what was measured; None when nothing was."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def done(one: Round, mode: str) -> Mapping[str, Any] | None:
    """The record of a mode that ran to its end, or None."""
    record = one["records"].get(mode)
    return None if record is None or "failed" in record else record


def ratio(one: Round, field: str, ours: str, peers: Sequence[str]) -> float | None:
    """Our value over the peer's in one round; of several peer modes the largest value counts."""
    mine = done(one, ours)
    theirs = [record[field] for mode in peers if (record := done(one, mode)) is not None]
    return mine[field] / max(theirs) if mine is not None and theirs else None


def peak_rate(one: Round) -> float | None:
    """The round's largest measured matrix-product rate, FLOP/s."""
    rates = [rate for rate in one["machine"]["gemm_gflops"].values() if rate is not None]
    rates += [
        record["raw"]["gemm_gflops"]
        for mode in one["records"]
        if mode.startswith("ours") and (record := done(one, mode)) is not None
    ]
    return max(rates) * 1e9 if rates else None


def useful_share(one: Round, mode: str) -> float | None:
    """Useful FLOPs of the timed pairs over what the machine could do in that time.

    The policy's forward and backward over each distinct token and the head on answer tokens, for
    every side alike: what else a side computes (repeated prompts, padding, the reference) is not
    useful here. The FLOPs of a token come from our records in the same round.
    """
    record, rate = done(one, mode), peak_rate(one)
    like = "ours-full" if mode.endswith("full") else None
    models = [done(one, name) for name in ("ours-cached", "ours-live", "ours-warm")]
    model = done(one, like) if like else next((m for m in models if m is not None), None)
    if record is None or rate is None or model is None:
        return None
    useful = record["tokens"] * model["raw"]["body_flops"]
    useful += record["answer_tokens"] * model["raw"]["head_flops"]
    return useful / (record["seconds"] * rate)


def figures(rounds: Sequence[Round], losses: Mapping[str, Any] | None) -> dict[str, float | None]:
    """Work out the figures of ``peers.json`` from the rounds of one set.

    Args:
        rounds: Rounds of the set.
        losses: ``{"ours": [...], "trl": [...]}``, the loss of each pair on both sides, or None.
    """
    values = {
        name: median([ratio(one, field, ours, peers) for one in rounds])
        for name, (field, ours, peers) in RATIOS.items()
    }
    values["useful_flop_share"] = median([useful_share(one, "ours-cached") for one in rounds])
    for name, (mode, value) in OWN.items():
        records = [done(one, mode) for one in rounds]
        values[name] = median([value(record) for record in records if record is not None])
    values["max_pair_loss_difference"] = None
    if losses is not None:
        values["max_pair_loss_difference"] = max(
            abs(a - b) for a, b in zip(losses["ours"], losses["trl"], strict=True)
        )
    return values


def show(value: float | None, digits: int = 3) -> str:
    """Write a number with some significant digits; a dash for none."""
    if value is None:
        return "–"
    if value == 0 or abs(value) < 1e-3:
        return f"{value:.1e}" if value else "0"
    return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"


def table(rounds: Sequence[Round], titles: Mapping[str, str]) -> list[str]:
    """Write the medians of one set, a line a mode; failures say why."""
    lines = [f"| | {' | '.join(COLUMNS)} |", "|---" * (1 + len(COLUMNS)) + "|"]
    for mode in dict.fromkeys(mode for one in rounds for mode in one["records"]):
        records = [record for one in rounds if (record := done(one, mode)) is not None]
        if not records:
            reason = next(
                one["records"][mode]["failed"] for one in rounds if mode in one["records"]
            )
            lines.append(f"| {titles[mode]} | {reason} |" + " |" * (len(COLUMNS) - 1))
            continue
        cells = [
            median([record["pairs_per_s"] for record in records]),
            median([record["tokens"] / record["seconds"] for record in records]),
            median([useful_share(one, mode) for one in rounds]),
            *(
                median([record[name] for record in records])
                for name in ("rss_gib", "compile_s", "first_step_at_s", "loss")
            ),
        ]
        shown = [show(cell) for cell in cells]
        shown[2] = "–" if cells[2] is None else f"{cells[2]:.0%}"
        lines.append(f"| {titles[mode]} | {' | '.join(shown)} |")
    return lines


def machine_table(rounds: Sequence[Round]) -> list[str]:
    """Write what the machine was doing in each round."""
    lines = [
        "| round | GEMM GFLOP/s, JAX | GEMM GFLOP/s, torch | load before | load after |",
        "|---|---|---|---|---|",
    ]
    for one in rounds:
        facts = one["machine"]
        rates = facts["gemm_gflops"]
        loads = [show(facts.get(f"load_{when}")) for when in ("before", "after")]
        lines.append(
            f"| {one['set']} {one['round']} | {show(rates.get('jax'))} | "
            f"{show(rates.get('torch'))} | {' | '.join(loads)} |"
        )
    return lines


def section(
    measured: Mapping[str, Sequence[Round]],
    values: Mapping[str, Mapping[str, float | None]],
    titles: Mapping[str, str],
) -> list[str]:
    """Write all sets: table of medians, then figures against their goals; then the machine.

    Args:
        measured: Set → its rounds.
        values: Set → its figures.
        titles: Mode → what tables call it.
    """
    flat = [one for rounds in measured.values() for one in rounds]
    facts = flat[-1]["machine"]
    lines = [
        f"{facts['date']}, {facts['cpus']} cores, {facts['system']}; alignax at "
        f"{', '.join(sorted({str(one['machine']['commit']) for one in flat}))}.",
    ]
    for name, rounds in measured.items():
        if rounds:
            plural = "" if len(rounds) == 1 else "s"
            lines += ["", f"### {name}: medians of {len(rounds)} round{plural}", ""]
            lines += table(rounds, titles)
            lines += ["", *goals(values[name])]
    return [*lines, "", "### The machine in each round", "", *machine_table(flat)]


def goals(values: Mapping[str, float | None]) -> list[str]:
    """Write the figures that were measured, each against its goal."""
    lines = ["| | measured | must | |", "|---|---|---|---|"]
    for name, (title, goal, reached) in GOALS.items():
        value = values[name]
        if value is not None:
            verdict = ("met" if reached(value) else "**not met**") if goal else ""
            lines.append(f"| {title} | {show(value)} | {goal} | {verdict} |")
    return lines if len(lines) > 2 else []


def splice(page: str, name: str, lines: Sequence[str]) -> str:
    """Put lines between the markers ``<!-- name:begin -->`` and ``<!-- name:end -->`` of a page.

    Raises:
        ValueError: The page lacks the markers.
    """
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page has no section {begin} … {end}")
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    body = "\n".join(lines)
    return f"{head}{begin}\n\n{body}\n\n{end}{tail}"
