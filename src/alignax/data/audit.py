# SPDX-License-Identifier: Apache-2.0
"""Outcomes of rows → the data report: what was kept, cut and dropped, and what may be a trap."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from alignax.data.formats import Format
from alignax.data.table import text_hash
from alignax.errors import DataError
from alignax.records import Dropped, EncodedExample, Example, PreferencePair, Text

SHOWN_IDS = 20
"""Row ids listed for each reason."""

TRIVIAL_SHARE = 0.2
"""One side begins alike in more than this share of pairs: trivially separable."""

OPENING = 30
"""Characters by which beginnings of answers are compared."""

FEW_ROWS = 5
"""Below this many rows, no share means anything."""

COPY_LENGTH = 20
"""Characters from which a prompt that both answers begin with is no coincidence."""

LENGTH_RULE = 0.85
"""'Longer is chosen' (or shorter) right in more than this share of pairs: trivially separable."""


@dataclass
class DataReport:
    """What happened to every row; ``to_json`` is what ``data_report.json`` holds.

    Attributes:
        source: Files or hub id.
        format: Row format.
        rows: Rows read.
        kept: Rows encoded.
        dropped: Reason → count and first row ids.
        dropped_rows: Index in reading order → the dropped row.
        cut: Counts, tokens and row ids of cut prompts and answers.
        boundary_merged: Count and first row ids of rows whose boundary moved left.
        system_merged: The same of rows whose system text opens the first user turn.
        several_turns: The same of rows with answers of several turns.
        stop_token: Rows whose complete answers all end with their stop token, of how many.
        duplicates: Exact duplicates, contradictory pairs, ties, score disagreements.
        lengths: Token statistics of prompt and answers.
        unused_columns: Columns that nothing reads.
        warnings: Traps, in plain words.
        notices: What the encoder says about tokenizer and template.
        encoding: Parts of the encoding digest.
        cache: Whether the token cache was hit, and what changed when not.
    """

    source: list[str]
    format: str
    rows: int = 0
    kept: int = 0
    dropped: dict[str, dict[str, Any]] = field(default_factory=dict)
    dropped_rows: dict[int, Dropped] = field(default_factory=dict)
    cut: dict[str, dict[str, Any]] = field(default_factory=dict)
    boundary_merged: dict[str, Any] = field(default_factory=dict)
    system_merged: dict[str, Any] = field(default_factory=dict)
    several_turns: dict[str, Any] = field(default_factory=dict)
    stop_token: str = ""
    duplicates: dict[str, Any] = field(default_factory=dict)
    lengths: dict[str, Any] = field(default_factory=dict)
    unused_columns: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    encoding: dict[str, str] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """All but the full list of dropped rows."""
        values = asdict(self)
        del values["dropped_rows"]
        return values

    def require_usable(self, max_bad_share: float) -> None:
        """Refuse a data set of which too much was dropped.

        Raises:
            DataError: Nothing is left, or more than the allowed share was dropped.
        """
        bad = self.rows - self.kept
        if self.kept and bad <= max_bad_share * self.rows:
            return
        what = "every row is" if not self.kept else f"{bad} of {self.rows} rows are"
        examples = {d.reason: d for d in reversed(self.dropped_rows.values())}
        problems = [
            f"{reason}: {entry['count']} rows, for example {examples[reason].place}: "
            f"{examples[reason].detail}"
            for reason, entry in self.dropped.items()
        ]
        raise DataError(
            f"{what} unusable in {', '.join(self.source)} (format {self.format})",
            problems=problems,
            hint="`alignax data check` lists row ids; data.max_bad_share "
            f"({max_bad_share}) sets the limit",
        )


def _opening(answer: Text) -> str:
    """The first line of an answer, up to ``OPENING`` characters."""
    text = answer if isinstance(answer, str) else str(answer[0]["content"])
    return text.strip()[:OPENING].partition("\n")[0]


def entry(row_ids: Sequence[str]) -> dict[str, Any]:
    """Count rows and list the first of them."""
    return {"count": len(row_ids), "rows": list(row_ids[:SHOWN_IDS])}


class Audit:
    """Collects what is seen of every row while the data set is built."""

    def __init__(self, form: Format) -> None:
        """Start empty, for rows of one format."""
        self._form = form
        self._seen: Counter[str] = Counter()
        self._pairs: set[tuple[str, str, str]] = set()
        self._row_ids: dict[str, list[str]] = {}
        self._openings: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
        self._unused: Counter[str] = Counter()
        self._cut_tokens: Counter[str] = Counter()
        self._complete = self._stopped = 0

    def note(self, what: str, row_id: str) -> None:
        """Remember a row under a heading."""
        self._row_ids.setdefault(what, []).append(row_id)

    def see_row(self, row: Any, row_id: str) -> None:
        """Look at a raw row."""
        self._seen[row_id] += 1
        if self._seen[row_id] > 1:
            self.note("exact_duplicate", row_id)
        if isinstance(row, Mapping):
            self._unused.update(
                c for c, value in row.items() if value is not None and not self._form.reads(c)
            )

    def see_example(self, example: Example, *, plain: bool) -> None:
        """Look at a parsed row that was kept; ``plain``: it is used as plain text."""
        prompt, prompt_hash = str(example.prompt), text_hash(example.prompt)
        if plain:
            if example.system:
                self.note("system_text", example.row_id)
            copies = [str(answer).lstrip().startswith(prompt.strip()) for answer in example.answers]
            if len(prompt) > COPY_LENGTH and all(copies):
                self.note("repeated_prompt", example.row_id)
        if not isinstance(example, PreferencePair):
            return
        ours, theirs = map(text_hash, example.answers)
        self._pairs.add((prompt_hash, ours, theirs))
        if (prompt_hash, theirs, ours) in self._pairs:
            self.note("contradiction", example.row_id)
        for counter, answer in zip(self._openings, example.answers, strict=True):
            counter[_opening(answer)] += 1
        high, low = example.chosen_score, example.rejected_score
        if high is not None and low is not None and high <= low:
            self.note("score_tie" if high == low else "score_label_disagree", example.row_id)

    def see_encoded(self, encoded: EncodedExample, stop_ids: Sequence[int]) -> None:
        """Look at an encoded row."""
        names = ("chosen", "rejected") if len(encoded.answers) == 2 else ("answer",)
        cuts = encoded.answer_cut[: len(names)]
        for name, lost in (*zip(names, cuts, strict=True), ("prompt", encoded.prompt_cut)):
            if lost:
                self.note(f"{name}_cut", encoded.row_id)
                self._cut_tokens[f"{name}_cut"] += lost
        if len(cuts) == 2 and bool(cuts[0]) != bool(cuts[1]):
            self.note("one_side_cut", encoded.row_id)
        if encoded.boundary_merged:
            self.note("boundary_merged", encoded.row_id)
        if encoded.system_merged:
            self.note("system_merged", encoded.row_id)
        if encoded.scored:
            self.note("several_turns", encoded.row_id)
        if all(encoded.complete):
            self._complete += 1
            self._stopped += all(int(a[-1]) in stop_ids for a in encoded.answers)

    def finish(self, report: DataReport, lengths: np.ndarray) -> None:
        """Write the collected counts into a report."""
        for reason in sorted({d.reason for d in report.dropped_rows.values()}):
            ids = [d.row_id for d in report.dropped_rows.values() if d.reason == reason]
            report.dropped[reason] = entry(ids)
        cuts = ("prompt_cut", "answer_cut", "chosen_cut", "rejected_cut", "one_side_cut")
        report.cut = {k: entry(self._row_ids[k]) for k in cuts if k in self._row_ids}
        for name, lost in self._cut_tokens.items():
            report.cut[name]["tokens"] = lost
        report.boundary_merged = entry(self._row_ids.get("boundary_merged", []))
        report.system_merged = entry(self._row_ids.get("system_merged", []))
        report.several_turns = entry(self._row_ids.get("several_turns", []))
        cut = report.kept - self._complete
        ends = f"; {cut} cut rows have none" if cut else ""
        report.stop_token = f"{self._stopped} of {self._complete} rows{ends}"
        headings = ("exact_duplicate", "contradiction", "score_tie", "score_label_disagree")
        report.duplicates = {k: entry(self._row_ids[k]) for k in headings if k in self._row_ids}
        report.unused_columns = sorted(self._unused)
        if len(lengths):
            report.lengths = length_statistics(lengths)
        report.warnings = self._warnings(report, lengths)

    def _warnings(self, report: DataReport, lengths: np.ndarray) -> list[str]:
        warnings = []
        chosen, rejected = self._openings
        for name, ours, theirs in (("chosen", chosen, rejected), ("rejected", rejected, chosen)):
            for opening, top in ours.most_common(1) if report.kept >= FEW_ROWS else ():
                if top > TRIVIAL_SHARE * report.kept and top > 4 * theirs[opening]:
                    warnings.append(
                        f"trivially separable: {top} of {report.kept} {name} answers, but only "
                        f"{theirs[opening]} on the other side, begin {opening!r}"
                    )
        longer = report.lengths.get("chosen_longer")
        if longer is not None and report.kept >= 20 and not 1 - LENGTH_RULE < longer < LENGTH_RULE:
            rule = "longer" if longer > 0.5 else "shorter"
            warnings.append(
                f"trivially separable: the {rule} answer is chosen in "
                f"{max(longer, 1 - longer):.0%} of the pairs"
            )
        counts = (
            ("contradiction", "pairs also occur with the labels swapped"),
            ("score_label_disagree", "pairs have a higher score on the rejected answer"),
            ("score_tie", "pairs have equal scores"),
            ("exact_duplicate", "rows repeat an earlier row"),
        )
        for key, what in counts:
            if key in report.duplicates:
                warnings.append(f"{report.duplicates[key]['count']} {what}")
        if "system_text" in self._row_ids:
            warnings.append(
                f"{len(self._row_ids['system_text'])} rows of plain text have a system text, which "
                "plain text does not show (--data.render chat makes a system turn of it)"
            )
        if "repeated_prompt" in self._row_ids:
            warnings.append(
                f"{len(self._row_ids['repeated_prompt'])} rows repeat the prompt at the start of "
                "both answers, where it is scored; take the prompt column or the copies away"
            )
        if "one_side_cut" in report.cut:
            count = report.cut["one_side_cut"]["count"]
            warnings.append(f"{count} pairs are cut on one side only, which biases the pair")
        if "not_json" in report.dropped:
            warnings.append(f"{report.dropped['not_json']['count']} lines are not JSON")
        if report.unused_columns:
            warnings.append(f"columns that are not used: {', '.join(report.unused_columns)}")
        return warnings


def length_statistics(lengths: np.ndarray) -> dict[str, Any]:
    """Token statistics of [n, 1 + s] lengths: prompt, then answers."""
    names = ("prompt", "chosen", "rejected") if lengths.shape[1] == 3 else ("prompt", "answer")
    statistics: dict[str, Any] = {
        name: {
            "mean": round(float(column.mean()), 1),
            "median": float(np.median(column)),
            "p95": float(np.percentile(column, 95)),
            "max": int(column.max()),
        }
        for name, column in zip(names, lengths.T, strict=True)
    }
    if lengths.shape[1] == 3:
        differ = lengths[:, 1] != lengths[:, 2]
        longer = (lengths[:, 1] > lengths[:, 2])[differ]
        statistics["chosen_longer"] = round(float(longer.mean()), 4) if differ.any() else None
    return statistics
