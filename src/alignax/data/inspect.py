# SPDX-License-Identifier: Apache-2.0
"""Encoded rows and reports → something that a person can read in a terminal."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from alignax.data.audit import DataReport
from alignax.records import EncodedExample

DONE = {"keep": "kept", "warn": "kept", "drop": "dropped", "fail": "refused"}
"""What an action did to the rows."""

STYLES = {"prompt": "cyan", "chosen": "green", "rejected": "red", "answer": "green"}


def explain(
    encoded: EncodedExample, tokenizer: PreTrainedTokenizerBase
) -> list[tuple[int, str, str, bool]]:
    """List the tokens of an example as (id, piece, branch, in-loss)."""
    names = ("chosen", "rejected") if len(encoded.answers) == 2 else ("answer",)
    parts = [("prompt", encoded.prompt, set())]
    for place, (name, ids) in enumerate(zip(names, encoded.answers, strict=True)):
        parts.append((name, ids, set(encoded.scored_places(place).tolist())))
    return [
        (int(token), tokenizer.decode([int(token)]), name, place in scored)  # type: ignore[misc]
        for name, ids, scored in parts
        for place, token in enumerate(ids)
    ]


def render_rows(encoded: EncodedExample, tokenizer: PreTrainedTokenizerBase) -> RenderableType:
    """Draw one example: a coloured line a branch, ids under the last tokens of each."""
    rows = explain(encoded, tokenizer)
    lines: list[RenderableType] = [Text(f"row {encoded.row_id}", "bold")]
    for branch in dict.fromkeys(row[2] for row in rows):
        tokens = [row for row in rows if row[2] == branch]
        count = sum(token[3] for token in tokens)
        scored = "in the loss" if count == len(tokens) else f"{count} in the loss"
        scored = scored if count else "not in the loss"
        lines.append(Text(f"{branch}: {len(tokens)} tokens, {scored}", f"bold {STYLES[branch]}"))
        lines.append(Text.assemble(*_pieces(tokens)))
        edge = tokens[:3] + ([(-1, "…", branch, False)] if len(tokens) > 6 else []) + tokens[-3:]
        shown = "  ".join(f"{i}={piece!r}" if i >= 0 else piece for i, piece, *_ in edge)
        lines.append(Text(f"  ids: {shown}", "dim"))
    flags = [
        f"{name} cut by {cut} tokens, so it has no stop token"
        for name, cut in zip(("chosen", "rejected"), encoded.answer_cut, strict=False)
        if cut
    ]
    flags += [f"prompt cut by {encoded.prompt_cut} tokens"] if encoded.prompt_cut else []
    flags += ["boundary moved left of the prompt's end"] if encoded.boundary_merged else []
    flags += ["system text put before the first question"] if encoded.system_merged else []
    lines += [Text(f"  {flag}", "yellow") for flag in flags]
    return Group(*lines, Text())


def _pieces(tokens: list[tuple[int, str, str, bool]]) -> Iterator[tuple[str, str]]:
    """Alternate two shades, so that token borders can be seen."""
    for number, (_, piece, branch, scored) in enumerate(tokens):
        shown = piece.replace("\n", "⏎\n")
        style = STYLES[branch] + (" on grey11" if number % 2 else "")
        yield shown, f"{style} underline" if scored and number == len(tokens) - 1 else style


def render_audit(result: Mapping[str, Any]) -> RenderableType:
    """Draw what an audit found, for a person."""
    title = Text(f"{', '.join(result['source'])}: format {result['format']}")
    table = Table("reason", "rows", "share", "is", "row numbers", title=title, title_justify="left")
    table.add_row("read", str(result["rows"]), "", "", "")
    table.add_row("kept", str(result["kept"]), _share(result["kept"], result["rows"]), "", "")
    for code, rows in sorted(result["reasons"].items(), key=lambda item: -len(item[1])):
        shown = " ".join(map(str, rows[:5])) + (" …" if len(rows) > 5 else "")
        share = _share(len(rows), result["rows"])
        table.add_row(code, str(len(rows)), share, DONE[result["actions"][code]], shown)
    advice = [Text(f"- {sentence}", "yellow") for sentence in result["advice"]]
    return Group(table, render_statistics(result["statistics"]), *advice)


def render_statistics(numbers: Mapping[str, Any]) -> RenderableType:
    """Draw lengths, separators, languages and diversity."""
    lines: list[RenderableType] = []
    for name, found in numbers["characters"].items():
        shown = ", ".join(f"{k} {v:g}" for k, v in found.items())
        lines.append(Text(f"characters of {name}: {shown}"))
    bias = numbers.get("length_bias", {})
    if bias.get("accuracy") is not None:
        lines.append(
            Text(
                f"'longer is chosen' is right in {bias['accuracy']:.1%} "
                f"[{bias['low']:.1%}, {bias['high']:.1%}] of {bias['n']} pairs"
            )
        )
    words = numbers.get("bag_of_words", {})
    if words.get("accuracy") is not None:
        lines.append(Text(f"single words tell the sides apart in {words['accuracy']:.1%} of pairs"))
    diverse = numbers.get("diversity", {})
    if diverse.get("distinct") is not None:
        lines.append(
            Text(
                f"rejected answers: {diverse['distinct']:.1%} distinct "
                f"(goal {diverse['goal']:.0%}), distinct-2 {diverse['distinct_2']}, "
                f"mean similarity {diverse['similarity']}"
            )
        )
    named = ("refusals", "languages")
    lines += [Text(f"{name}: {numbers[name]}") for name in named if numbers.get(name)]
    return Group(*lines)


def _share(count: int, total: int) -> str:
    return f"{count / max(total, 1):.1%}"


def render_report(report: DataReport) -> RenderableType:
    """Draw a data report."""
    title = Text(f"{', '.join(report.source)}: format {report.format}")
    table = Table("what", "rows", "row ids", title=title, title_justify="left")
    table.add_row("read", str(report.rows), "")
    table.add_row("kept", str(report.kept), "")
    groups = (("dropped", report.dropped), ("cut", report.cut), ("seen", report.duplicates))
    for heading, entries in groups:
        for name, found in entries.items():
            tokens = f" ({found['tokens']} tokens)" if "tokens" in found else ""
            count = f"{found['count']}{tokens}"
            table.add_row(f"{heading}: {name}", count, " ".join(found["rows"][:3]))
    notes = (
        ("boundary merge", report.boundary_merged),
        ("system merge", report.system_merged),
        ("answers of several turns", report.several_turns),
    )
    for name, found in notes:
        if found["count"]:
            table.add_row(name, str(found["count"]), " ".join(found["rows"][:3]))
    lines: list[RenderableType] = [table]
    for name, numbers in report.lengths.items():
        if isinstance(numbers, dict):
            shown = ", ".join(f"{k} {v:g}" for k, v in numbers.items())
            lines.append(Text(f"tokens of {name}: {shown}"))
    if report.lengths.get("chosen_longer") is not None:
        lines.append(Text(f"chosen is the longer answer in {report.lengths['chosen_longer']:.0%}"))
    lines.append(Text(f"stop token in the loss: {report.stop_token}"))
    lines += [Text(f"note: {notice}", "yellow") for notice in report.notices]
    lines += [Text(f"warning: {warning}", "yellow") for warning in report.warnings]
    state = "from the cache" if report.cache.get("hit") else "encoded anew"
    changed = ", ".join(report.cache.get("changed", []))
    lines.append(Text(f"tokens: {state}" + (f" (changed: {changed})" if changed else ""), "dim"))
    return Group(*lines)
