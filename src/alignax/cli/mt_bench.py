# SPDX-License-Identifier: Apache-2.0
"""Summarise MT-Bench judgment files.

  alignax evaluate mt-bench --judgments gpt-4_single.jsonl --html mt.html
  alignax evaluate mt-bench --judgments gpt-4_pair.jsonl --baseline gpt-3.5-turbo
  alignax evaluate mt-bench --judgments review_bard_vicuna-13b.jsonl

Reads single-answer grades, pairwise judgments in both orders, and two-score reviews of the first
Vicuna benchmark, as FastChat writes them. Prints means per turn and category with 95 % intervals,
or wins, losses and ties; judgements without a grade or a winner are counted, never averaged.
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from alignax.cli.options import Parser
from alignax.errors import DataError, UsageError

ABOUT = "Tables of MT-Bench judgment files: per turn, per category, pairwise."
KINDS = {"single": ("model",), "pair": ("model_1", "model_2"), "review": ("answer1_id",)}
"""What tells the kind of a file: the keys of its first row."""


MODELS_A_TABLE = 3
"""Columns that fit a terminal of 80."""


def add_arguments(verbs: Any) -> None:
    """Add the sub-verb and its flags."""
    sub: Parser = verbs.add_parser("mt-bench", help=ABOUT, description=__doc__)
    files: dict[str, Any] = {"nargs": "+", "metavar": "FILE"}
    sub.add_argument("--judgments", required=True, help="judgment files", **files)
    sub.add_argument("--questions", metavar="FILE", help="question.jsonl; default: official ids")
    sub.add_argument("--answers", default=[], help="answer files, which name models", **files)
    sub.add_argument("--judge", metavar="NAME", help="which judge, if there are several")
    sub.add_argument("--baseline", metavar="MODEL", help="pairwise: only matches against it")
    sub.add_argument("--html", metavar="FILE", help="write tables and a radar plot as a page")
    sub.add_argument("--json", action="store_true", help="print JSON")
    sub.set_defaults(parser=sub, run=main)


def main(arguments: argparse.Namespace) -> int:
    """Print the tables."""
    from alignax.cli.documents import read_rows

    files = {path: read_rows(path, flag="--judgments") for path in arguments.judgments}
    kinds = {_kind(path, rows) for path, rows in files.items()}
    if len(kinds) > 1:
        raise UsageError(f"judgments of several kinds: {', '.join(sorted(kinds))}",
                         hint="one kind at a time")  # fmt: skip
    if kinds == {"single"}:
        return _show_grades(arguments, files)
    if arguments.html:
        raise UsageError("--html draws single-answer grades only", hint="leave it out")
    return _show_matches(arguments, files, kinds.pop())


def _kind(path: str, rows: Sequence[tuple[str, Any]]) -> str:
    """Tell what kind of judgments a file holds."""
    first = rows[0][1] if rows else None
    if isinstance(first, Mapping):
        for kind, keys in KINDS.items():
            if all(key in first for key in keys):
                return kind
    seen = ", ".join(map(str, first)) if isinstance(first, Mapping) else "no rows of objects"
    raise DataError(
        f"{path} is no judgment file: its first row has {seen}",
        hint="known: single-answer (model, score), pairwise (model_1, g1_winner), reviews "
        "(answer1_id, score)",
    )


def _show_grades(arguments: argparse.Namespace, files: Mapping[str, Any]) -> int:
    """Print means of single-answer grades, and draw them."""
    from alignax.cli import terminal
    from alignax.evaluate.mt_bench import read_grades, summarize
    from alignax.files import write_text

    grades = [g for path, rows in files.items() for g in read_grades(rows, source=path)]
    grades = _of_judge(grades, arguments.judge)
    scores = summarize(grades, _categories(arguments.questions))
    notes = _notes(grades, scores)
    if arguments.html:
        from alignax.report.benchmark import benchmark_page

        write_text(Path(arguments.html), benchmark_page(f"MT-Bench, {grades[0].judge}", scores))
        terminal.say(f"page: {arguments.html}")
    if arguments.json:
        models = {model: asdict(score) for model, score in scores.items()}
        result = {"judge": grades[0].judge, "models": models, "warnings": notes}
        terminal.write_result(terminal.finite(result))
        return 0
    names = list(dict.fromkeys(name for s in scores.values() for name in s.categories))
    turns = sorted({turn for s in scores.values() for turn in s.turns})
    head = ("model", *(f"turn {turn}" for turn in turns), "average", "n", "no grade", "missing")
    rows = [
        (model, *(s.turns[t].shown(2) for t in turns), s.average.shown(2), str(s.average.n),
         str(s.unparsed), str(s.missing))
        for model, s in scores.items()
    ]  # fmt: skip
    terminal.show_table(f"MT-Bench by {grades[0].judge}, 95 % intervals", head, rows)
    models = list(scores)
    for start in range(0, len(models), MODELS_A_TABLE):
        part = models[start : start + MODELS_A_TABLE]
        cells = [(n, *(scores[m].categories[n].shown(2) if n in scores[m].categories else "-"
                       for m in part)) for n in names]  # fmt: skip
        terminal.show_table("both turns, by category", ("category", *part), cells)
    for note in notes:
        terminal.warn(note)
    return 0


def _of_judge(items: list[Any], judge: str | None) -> list[Any]:
    """Keep the items of one judge."""
    known = sorted({item.judge for item in items})
    kept = [item for item in items if judge in (None, item.judge)]
    if not kept:
        raise DataError(f"no judgment by {judge!r}", hint=f"judges: {', '.join(known)}")
    return kept


def _categories(path: str | None) -> dict[int, str] | None:
    """Read the questions' categories."""
    if path is None:
        return None
    from alignax.cli.documents import read_rows

    found = {}
    for place, row in read_rows(path, flag="--questions"):
        if not isinstance(row, dict) or not {"question_id", "category"} <= set(row):
            raise DataError(f"{place}: no question_id and category", hint="check --questions")
        found[row["question_id"]] = str(row["category"])
    return found


def _notes(grades: Sequence[Any], scores: Mapping[str, Any]) -> list[str]:
    """Say what a reader of the tables should know."""
    found = []
    for model, score in scores.items():
        if score.missing or score.unparsed:
            found.append(
                f"{model}: {score.missing} answers were not judged, {score.unparsed} judgements "
                "hold no grade; both are left out of the means"
            )
        if score.repeats:
            found.append(
                f"{model}: {score.repeats} answers were graded repeatedly (mean spread "
                f"{score.spread:.2f}); their means count"
            )
    contradicted = sum(grade.contradicted for grade in grades)
    if contradicted:
        found.append(f"{contradicted} records hold another score than their judgement's text")
    return found


def _show_matches(arguments: argparse.Namespace, files: Mapping[str, Any], kind: str) -> int:
    """Print wins, losses and ties."""
    from alignax.cli import terminal
    from alignax.cli.documents import read_rows
    from alignax.evaluate.mt_answers import read_answers
    from alignax.evaluate.pairwise import read_matches, read_reviews, standings
    from alignax.judge.orders import reliability

    names: dict[str, str] = {}
    for path in arguments.answers:
        names |= read_answers(read_rows(path, flag="--answers"), source=path)[1]
    matches = []
    for path, rows in files.items():
        if kind == "pair":
            matches += read_matches(rows, source=path)
        else:
            matches += read_reviews(rows, source=path, names=names, default=_names_in(path))
    matches = _of_judge(matches, arguments.judge)
    table = standings(matches, arguments.baseline)
    verdicts = [match.verdict for match in matches]
    judge = reliability(verdicts)
    failed = sum(not verdict.decided for verdict in verdicts)
    notes = [f"{failed} of {len(verdicts)} matches have no verdict and are not counted"]
    notes = notes if failed else []
    if arguments.json:
        models = {model: asdict(standing) for model, standing in table.items()}
        result = {"judge": matches[0].judge, "models": models, "orders": asdict(judge)}
        terminal.write_result(terminal.finite(result | {"warnings": notes}))
        return 0
    with_scores = any(s.total_score is not None for s in table.values())
    head = ("model", "won", "tied", "lost", "failed", "win rate, ties half")
    rows = [
        (model, str(s.wins), str(s.ties), str(s.losses), str(s.failed), s.adjusted.shown(),
         *((f"{s.total_score:g}", f"{s.mean_score.value:.3f}") if s.mean_score else ()))
        for model, s in table.items()
    ]  # fmt: skip
    head += ("total", "mean") if with_scores else ()
    terminal.show_table(f"pairwise by {matches[0].judge}", head, rows)
    if judge.flip_rate.n:
        terminal.print_result(
            f"orders disagree: {judge.flip_rate.shown()}; ties: {judge.tie_rate.shown()}; "
            f"the answer shown first wins: {judge.first_wins.shown()}"
        )
    for note in notes:
        terminal.warn(note)
    return 0


def _names_in(path: str) -> tuple[str, str]:
    """Find two models in a file name like ``review_bard_vicuna-13b.jsonl``."""
    parts = re.sub(r"\.jsonl?(\.gz)?$", "", Path(path).name).split("_")
    return (parts[1], parts[2]) if len(parts) == 3 else ("assistant 1", "assistant 2")
