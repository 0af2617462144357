# SPDX-License-Identifier: Apache-2.0
"""Two answers side by side and a verdict → a pair.

One table of column names serves AlpacaEval annotations, PandaLM, Auto-J, LLMBar, HelpSteer, SHP,
WebGPT, summarize-from-feedback, arena votes, and DSP's ``text`` with ``score``. A verdict is a
label (1 or 2, A or B, "model_a", a tie), a strength of preference, or two scores.
"""

from collections.abc import Mapping
from typing import Any

from alignax.data.formats import hh, trl
from alignax.data.formats.turns import RowProblem, is_turns, turns

SIDES = (
    ("output_1", "output_2"), ("response1", "response2"), ("response_1", "response_2"),
    ("response 1", "response 2"), ("answer_0", "answer_1"), ("human_ref_A", "human_ref_B"),
    ("response_a", "response_b"), ("conversation_a", "conversation_b"), ("answer_a", "answer_b"),
    ("answer1", "answer2"), ("output1", "output2"), ("completion_a", "completion_b"),
    ("response_0", "response_1"), ("response_A", "response_B"), ("completion_1", "completion_2"),
)  # fmt: skip
"""How the two answers may be called."""

ASKED = ("prompt", "instruction", "question", "context", "history", "query", "post", "input")
LABELS = (
    "preference", "label", "labels", "winner", "overall_preference", "preference_strength",
    "choice", "better", "preferred", "better_response_id", "chosen_index", "final_label", "score",
)  # fmt: skip
SCORES = (("score_0", "score_1"), ("score_A", "score_B"), ("score_1", "score_2"),
          ("score_a", "score_b"), ("score1", "score2"), ("scores_a", "scores_b"))  # fmt: skip

FIRST = ("a", "model_a", "first", "answer_a", "response_a", "left", "output_1", "response_1", "1st")
SECOND = ("b", "model_b", "second", "answer_b", "response_b", "right", "output_2", "response_2")
TIES = ("tie", "tie (bothbad)", "both", "both_bad", "neither", "draw", "equal", "c", "same")

COLUMNS = (
    *(name for pair in SIDES for name in pair), *ASKED, *LABELS,
    *(name for pair in SCORES for name in pair), "text", "summaries", "info", "system",
    "system_prompt", "tools", "domain", "annotations",
)  # fmt: skip


def _sides(row: Mapping[str, Any]) -> tuple[str, str] | None:
    return next((pair for pair in SIDES if pair[0] in row and pair[1] in row), None)


def matches(row: Mapping[str, Any]) -> bool:
    """Recognise two answers with a verdict."""
    if "chosen" in row:
        return False
    sides = _sides(row) is not None or isinstance(row.get("summaries"), list)
    labelled = any(name in row for name in (*LABELS, *(n for pair in SCORES for n in pair)))
    return sides and (labelled or any(name.startswith("annotator") for name in row))


def matches_texts(row: Mapping[str, Any]) -> bool:
    """Recognise DSP's rows: two whole texts with two scores."""
    return isinstance(row.get("text"), list) and isinstance(row.get("score"), list)


def parse_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read two whole texts with two scores: transcripts, or texts with a common beginning."""
    texts, scores = row.get("text"), row.get("score")
    if not isinstance(texts, list) or not isinstance(scores, list):
        name = "text" if not isinstance(texts, list) else "score"
        raise RowProblem("null_field" if name in row else "missing_field", f"{name} is no list")
    if len(texts) != 2 or len(scores) != 2:
        raise RowProblem("wrong_type", f"{len(texts)} texts and {len(scores)} scores, two wanted")
    if not all(isinstance(text, str) for text in texts):
        raise RowProblem("wrong_type", "text holds something else than texts")
    marked = [_transcript(text) for text in texts]
    high, low = (trl.number(score) for score in scores)
    if high is None or low is None:
        raise RowProblem("unclear_label", f"scores {scores!r}")
    return _ordered(marked[0], marked[1], high, low, _read, scored=True)


def _transcript(text: str) -> str:
    """Spell DSP's headings (``## Human:``) as HH's speakers."""
    for name in ("Human", "Assistant"):
        text = text.replace(f"\n\n## {name}:\n", f"\n\n{name}: ")
        if text.startswith(f"## {name}:\n"):
            text = f"\n\n{name}: " + text.removeprefix(f"## {name}:\n")
    return text


def _read(chosen: str, rejected: str) -> dict[str, Any]:
    row = {"chosen": chosen, "rejected": rejected}
    return hh.parse(row) if hh.matches(row) else trl.parse(row)


def parse(row: Mapping[str, Any]) -> dict[str, Any]:
    """Read the two answers in the order of the verdict."""
    first, second = _answers(row)
    ours, theirs = _verdict(row, (first, second))
    asked = _asked(row)

    def read(chosen: Any, rejected: Any) -> dict[str, Any]:
        whole = is_turns(chosen) and is_turns(rejected) and len(chosen) > 1
        base = {k: row[k] for k in ("system", "system_prompt", "tools") if k in row}
        if whole or asked is None:
            return trl.parse({**base, "chosen": chosen, "rejected": rejected})
        prompt = asked if is_turns(asked) else [{"role": "user", "content": asked}]
        sides = {"chosen": turns(chosen, "chosen"), "rejected": turns(rejected, "rejected")}
        return trl.parse({**base, "prompt": prompt, **{k: list(v) for k, v in sides.items()}})

    scored = any(row.get(one) is not None for one, _ in SCORES)
    return _ordered(first, second, ours, theirs, read, scored=scored)


def _ordered(
    first: Any, second: Any, ours: float, theirs: float, read: Any, *, scored: bool
) -> dict[str, Any]:
    """Put the better answer first.

    Raises:
        RowProblem: The verdict is a tie.
    """
    if ours == theirs:
        reason = "score_tie" if scored else "label_tie"
        raise RowProblem(reason, "both answers are called equally good")
    fields = read(first, second) if ours > theirs else read(second, first)
    return {**fields, "chosen_score": max(ours, theirs), "rejected_score": min(ours, theirs)}


def _answers(row: Mapping[str, Any]) -> tuple[Any, Any]:
    names = _sides(row)
    if names is None:
        held = row.get("summaries")
        if not isinstance(held, list) or len(held) != 2:
            raise RowProblem("missing_field", "the row has not two answers")
        values = tuple(h.get("text") if isinstance(h, Mapping) else h for h in held)
    else:
        values = (row[names[0]], row[names[1]])
    if any(value is None for value in values):
        raise RowProblem("null_field", "an answer is null")
    return values[0], values[1]


def _asked(row: Mapping[str, Any]) -> Any:
    """The prompt: a text, turns, or a text with an ``input`` after it."""
    info = row.get("info")
    if isinstance(info, Mapping):
        return info.get("post") or info.get("article")
    name = next((name for name in ASKED if row.get(name)), None)
    if name is None:
        return None
    value = row[name]
    if isinstance(value, Mapping):
        value = value.get("full_text") or value.get("text")
    if isinstance(value, str) and name == "instruction" and isinstance(row.get("input"), str):
        value = f"{value}\n{row['input']}" if row["input"].strip() else value
    if isinstance(value, list) and not is_turns(value):
        raise RowProblem("wrong_type", f"{name} is a list that holds no turns")
    return value


def _verdict(row: Mapping[str, Any], answers: tuple[Any, Any]) -> tuple[float, float]:
    """Worth of the first and of the second answer.

    Raises:
        RowProblem: No verdict can be read.
    """
    for one, other in SCORES:
        ours, theirs = trl.number(row.get(one)), trl.number(row.get(other))
        if ours is not None and theirs is not None and not _labelled(row, ("labels",)):
            return ours, theirs
    votes = [v for k, v in row.items() if k.startswith("annotator") and k[-1:].isdigit()]
    for name in LABELS:
        if row.get(name) is not None:
            return _label(name, row, answers)
    if votes:
        ones, twos = (sum(str(v) == side for v in votes) for side in ("1", "2"))
        return float(ones), float(twos)
    raise RowProblem("unclear_label", "the row has no verdict")


def _labelled(row: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(row.get(name) is not None for name in names)


def _label(name: str, row: Mapping[str, Any], answers: tuple[Any, Any]) -> tuple[float, float]:
    """Read one label in the manner of its column and of the answers' names."""
    value = row[name]
    number = trl.number(value)
    if number is None:
        return _spelt(str(value).strip().lower(), value)
    sides = _sides(row) or ("choice_0", "choice_1")
    if name in ("preference_strength", "overall_preference") or number < 0:
        return (0.0, number) if number > 0 else (-number, 0.0)
    if name == "labels":
        return (1.0, 0.0) if number == 1 else (0.0, 1.0)
    counted_from_0 = sides[0].endswith("0") or name == "choice" or sides[0] == "response 1"
    if counted_from_0:
        return {0.0: (1.0, 0.0), 1.0: (0.0, 1.0), 2.0: (0.0, 0.0)}.get(number) or _unclear(value)
    if number in (0.0, 1.5):
        return 0.0, 0.0
    if not 1 <= number <= 2:
        return _unclear(value)
    return 2.0 - number, number - 1.0


def _spelt(text: str, value: Any) -> tuple[float, float]:
    if text in FIRST:
        return 1.0, 0.0
    if text in SECOND:
        return 0.0, 1.0
    return (0.0, 0.0) if text in TIES else _unclear(value)


def _unclear(value: Any) -> tuple[float, float]:
    raise RowProblem("unclear_label", f"the label {value!r} names neither answer")
