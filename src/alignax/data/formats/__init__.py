# SPDX-License-Identifier: Apache-2.0
"""Rows of any known format → examples.

To add a format: one file with ``matches(row)`` and ``parse(row)``, one line in ``FORMATS``, three
rows (good, tie, broken) for the battery in ``tests/data``.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from alignax.data.formats import comparison, hh, question, ranked, sft, sharegpt, trl
from alignax.data.formats.turns import RowProblem
from alignax.data.images import references
from alignax.data.readers import Broken, as_turns
from alignax.errors import DataError, UsageError
from alignax.records import Conversation, Dropped, Example, PreferencePair


@dataclass(frozen=True)
class Format:
    """One row format.

    Attributes:
        kind: ``"pair"`` (chosen and rejected) or ``"sft"`` (one answer).
        matches: Whether a row looks like it.
        parse: Row → fields of ``PreferencePair`` or ``Conversation``; raises ``RowProblem``.
        columns: Columns that it reads.
        example: What a row looks like, for error messages.
    """

    kind: Literal["pair", "sft"]
    matches: Callable[[Mapping[str, Any]], bool]
    parse: Callable[[Mapping[str, Any]], dict[str, Any]]
    columns: tuple[str, ...]
    example: str

    def reads(self, column: str) -> bool:
        """Tell whether it reads a column; pairs bring scores under many names."""
        return column in self.columns or (self.kind == "pair" and trl.is_score(column))


_PAIR = ("prompt", "chosen", "rejected", "system", "system_prompt", "tools", "metadata")
_ASKED = (*trl.ASKING, "input", "history", "system", "system_prompt")

FORMATS: dict[str, Format] = {
    "oasst": Format(
        "pair", ranked.matches_tree, ranked.parse, (*_PAIR, ranked.MARK, "tree"),
        "prompt: a message with nested, ranked replies",
    ),
    "ranked": Format(
        "pair", ranked.matches_ranked, ranked.parse, (*_PAIR, ranked.MARK, "images", "image"),
        "prompt; responses, answers or completions with scores or ranks",
    ),
    "hh": Format(
        "pair", hh.matches, hh.parse, ("prompt", "chosen", "rejected"),
        "chosen, rejected: Human/Assistant transcripts",
    ),
    "sharegpt": Format(
        "pair", sharegpt.matches, sharegpt.parse,
        (*sharegpt.COLUMNS, *_PAIR[1:]), "conversations: turns; chosen, rejected: one turn",
    ),
    "ultrafeedback": Format(
        "pair", trl.matches_scored, trl.parse, (*_PAIR, "prompt_id", "messages"),
        "[prompt,] chosen, rejected: turns or text; scores",
    ),
    "trl": Format(
        "pair", trl.matches, trl.parse, _PAIR, "[prompt,] chosen, rejected: text or turns"
    ),
    "alpaca-pairs": Format(
        "pair", question.matches_pair, question.parse_pair, (*_ASKED, "chosen", "rejected"),
        "question or instruction, [input,] chosen, rejected: text",
    ),
    "comparison": Format(
        "pair", comparison.matches, comparison.parse, comparison.COLUMNS,
        "prompt; two answers (output_1, output_2; response_a, response_b; …); label or scores",
    ),
    "texts": Format(
        "pair", comparison.matches_texts, comparison.parse_texts, ("text", "score"),
        "text: two transcripts; score: two numbers",
    ),
    "messages": Format(
        "sft", sft.matches_messages, sft.parse_messages,
        ("messages", "conversations", "system", "system_prompt", "tools", "label"),
        "messages: turns",
    ),
    "prompt-response": Format(
        "sft", sft.matches_prompt, sft.parse_prompt,
        ("prompt", *sft.RESPONSES, "system", "system_prompt", "tools", "label"),
        "prompt, response: text or turns",
    ),
    "alpaca": Format(
        "sft", question.matches, question.parse, (*_ASKED, *question.OUTPUTS, "label"),
        "instruction or question, [input,] output",
    ),
}  # fmt: skip

RATINGS = ("label", "kto_tag")
"""Columns that call one answer good or bad."""

IMAGE_COLUMNS = ("image", "images", "video", "videos", "audio", "audios")


def detect(name: str, rows: Sequence[Any], *, kind: str, source: str, images: bool = False) -> str:
    """Choose the format of a data set from its first rows.

    Args:
        name: A format, or ``"auto"``.
        rows: First rows.
        kind: ``"pair"``, or ``"sft"``, which takes pairs too (their chosen answer).
        source: For messages.
        images: Rows may refer to images.

    Raises:
        UsageError: Unknown format name.
        DataError: No format fits; columns and nearest formats are listed.
    """
    objects = [
        {name: as_turns(value) for name, value in row.items()}
        for row in rows
        if isinstance(row, Mapping)
    ]
    kinds = IMAGE_COLUMNS[2:] if images else IMAGE_COLUMNS
    refused = sorted({c for row in objects for c in kinds if row.get(c)})
    if refused:
        raise DataError(
            f"{source} has images, film or sound (column {', '.join(refused)})",
            hint="alignax reads text only; take the column away to train on the text alone",
        )
    fitting = {n: f for n, f in FORMATS.items() if kind == "sft" or f.kind == "pair"}
    if name != "auto":
        if name not in FORMATS:
            near = difflib.get_close_matches(name, FORMATS, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(FORMATS)}"
            raise UsageError(f"unknown data.format {name!r}", hint=hint)
        if name not in fitting:
            raise UsageError(
                f"data.format {name!r} has one answer a row; pairs are needed",
                hint=f"formats with pairs: {', '.join(fitting)}",
            )
        return name
    counts = {n: sum(f.matches(row) for row in objects) for n, f in fitting.items()}
    best = max(counts, key=lambda n: counts[n])
    if counts[best]:
        return best
    columns = sorted({column for row in objects for column in row})
    if {"chosen", "rejected"} <= set(columns):
        # The columns are right; what is wrong with the values is said row by row.
        return "sharegpt" if set(sharegpt.COLUMNS[:2]) & set(columns) else "trl"
    single = [n for n, f in FORMATS.items() if f.kind == "sft" and any(map(f.matches, objects))]
    raise DataError(
        f"{source} has no known format for {kind} rows: its columns are "
        f"{', '.join(columns) or 'none (rows are not objects)'}",
        problems=[f"{n} wants {fitting[n].example}" for n in _nearest(columns, fitting, kind)],
        hint=f"the rows have one answer each (format {single[0]}): `alignax sft` imitates them"
        if single
        else _renaming(columns, fitting)
        or "rename the columns, or name the format with --data.format",
    )


def _renaming(columns: Sequence[str], formats: Mapping[str, Format]) -> str:
    """Guess which columns are misspelt; empty if none looks like one that a format reads."""
    known = {column for form in formats.values() for column in form.columns}
    absent = sorted(known - set(columns))
    pairs = [
        f"{column!r} to {near[0]!r}"
        for column in columns
        if column not in known
        and (near := difflib.get_close_matches(column.lower(), absent, 1, 0.75))
    ]
    return f"rename {', '.join(pairs)}?" if pairs else ""


def _nearest(columns: Sequence[str], formats: Mapping[str, Format], kind: str) -> list[str]:
    """Order formats by how many of their columns are there, those of the wanted kind first."""
    return sorted(
        formats,
        key=lambda n: (-len(set(columns) & set(formats[n].columns)), formats[n].kind != kind),
    )[:4]


SPECIFIC = ("hh", "sharegpt", "alpaca-pairs")
"""Formats that no row has by accident: such a row among others was put there by mistake."""


def other_format(format_name: str, row: Mapping[str, Any]) -> str:
    """Name the other format that a row plainly has; empty for none."""
    form, names = FORMATS[format_name], list(FORMATS)
    if row.get("prompt") and form.matches(row):
        # Prompt and answers stand apart, as in the rest of the file, however the prompt is written.
        return ""
    for name in SPECIFIC:
        sooner = names.index(name) < names.index(format_name)
        if name != format_name and (sooner or not form.matches(row)) and FORMATS[name].matches(row):
            return name
    return ""


def parse_row(
    format_name: str, row: Any, *, kind: str, row_id: str, place: str, detected: bool = False
) -> Example | Dropped:
    """Parse one row; whatever is wrong with it becomes ``Dropped`` with a reason.

    Args:
        format_name: The format of the data set.
        row: What was read.
        kind: ``"pair"``, ``"sft"``, or ``"kto"``: one answer, good or bad.
        row_id: For the example.
        place: For the example and for messages.
        detected: The format was found, not named: rows that plainly have another are dropped.

    Raises:
        DataError: The row shows that the whole data set cannot be used.
    """
    form = FORMATS[format_name]
    if isinstance(row, Broken):
        return Dropped(row_id, "not_json", row.error, place)
    if not isinstance(row, Mapping):
        return Dropped(row_id, "wrong_type", f"the row is {type(row).__name__}", place)
    images = references(row)
    rated = kind == "kto"
    row = {n: as_turns(value) for n, value in row.items() if not (rated and n in RATINGS)}
    other = other_format(format_name, row) if detected else ""
    if other:
        detail = f"the row has format {other}, most of the file {format_name}"
        return Dropped(row_id, "other_format", detail, place)
    try:
        fields = form.parse(row)
    except RowProblem as problem:
        if problem.fatal:
            raise DataError(f"{place} (row {row_id}): {problem.detail}") from problem
        return Dropped(row_id, problem.reason, problem.detail, place)
    if kind == "pair":
        return PreferencePair(row_id=row_id, place=place, images=images, **fields)
    response = fields["chosen"] if form.kind == "pair" else fields["response"]
    return Conversation(
        row_id, fields["prompt"], response, fields.get("tools", ()), place,
        fields.get("system", ""), images,
    )  # fmt: skip
