# SPDX-License-Identifier: Apache-2.0
"""Answers to MT-Bench questions ↔ the official rows of ``model_answer/MODEL.jsonl``."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from alignax.errors import DataError


def answer_rows(
    model: str, answers: Mapping[int, Sequence[str]], *, tstamp: float
) -> list[dict[str, Any]]:
    """Write answers as official rows, in the order of the questions.

    Args:
        model: Name of the model.
        answers: Text of each turn, by question id.
        tstamp: When they were given, in seconds of the epoch.
    """
    rows = []
    for question in sorted(answers):
        turns = list(answers[question])
        text = json.dumps([model, question, turns])
        rows.append(
            {
                "question_id": question,
                "answer_id": hashlib.sha256(text.encode()).hexdigest()[:22],
                "model_id": model,
                "choices": [{"index": 0, "turns": turns}],
                "tstamp": tstamp,
            }
        )
    return rows


def read_answers(
    rows: Iterable[tuple[str, Any]], *, source: str
) -> tuple[dict[str, dict[int, list[str]]], dict[str, str]]:
    """Read official rows, and those of the first form, which hold one ``text``.

    Returns:
        Turns by model and question id, and the model of every answer id.

    Raises:
        DataError: Rows of another form, or two answers of one model to one question.
    """
    answers: dict[str, dict[int, list[str]]] = {}
    names: dict[str, str] = {}
    problems = []
    for place, row in rows:
        turns = _turns(row)
        model = row.get("model_id") if isinstance(row, Mapping) else None
        if turns is None or not isinstance(model, str):
            problems.append(f"{place}: no question_id, model_id and choices[0].turns (or text)")
            continue
        theirs = answers.setdefault(model, {})
        if row["question_id"] in theirs:
            problems.append(f"{place}: a second answer of {model} to {row['question_id']}")
        theirs[row["question_id"]] = turns
        names[str(row.get("answer_id", ""))] = model
    if problems:
        raise DataError(
            f"{source} is no file of answers",
            problems=problems,
            hint="see model_answer/MODEL.jsonl of MT-Bench",
        )
    return answers, names


def _turns(row: Any) -> list[str] | None:
    """Find the turns of a row; None if it is of another form."""
    if not isinstance(row, Mapping) or not isinstance(row.get("question_id"), int):
        return None
    if isinstance(row.get("text"), str):
        return [row["text"]]
    try:
        turns = row["choices"][0]["turns"]
    except (KeyError, IndexError, TypeError):
        return None
    whole = isinstance(turns, list) and turns and all(isinstance(t, str) for t in turns)
    return list(turns) if whole else None
