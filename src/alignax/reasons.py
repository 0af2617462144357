# SPDX-License-Identifier: Apache-2.0
"""Why a row may be bad: one vocabulary for reports, files, flags and filters.

A hard reason means that no pair can be made of the row: such rows are dropped (or stop the run),
never kept. All other reasons are properties of rows that can be trained on.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Action = Literal["keep", "warn", "drop", "fail"]
ACTIONS: tuple[Action, ...] = ("keep", "warn", "drop", "fail")


@dataclass(frozen=True)
class Reason:
    """One reason.

    Attributes:
        meaning: What is wrong, in the plural: "rows whose …".
        harm: What it does to training, and what to do.
        action: What happens unless the filters say otherwise.
        hard: No pair can be made of the row.
    """

    meaning: str
    harm: str
    action: Action = "warn"
    hard: bool = False


def _hard(meaning: str, harm: str = "the row teaches nothing; correct it at its source") -> Reason:
    return Reason(meaning, harm, "drop", hard=True)


REASONS: dict[str, Reason] = {
    "exact_duplicate": Reason(
        "repeat an earlier row", "repeated rows weigh more than the others; drop the copies"
    ),
    "near_duplicate": Reason(
        "nearly repeat an earlier row",
        "near copies weigh more than the others, and leak over a split by rows; drop them",
    ),
    "duplicate_prompt": Reason(
        "have the prompt of an earlier row",
        "harmless if the answers differ; split by prompt, and cap the rows of one prompt",
        "keep",
    ),
    "identical_pair": _hard(
        "have the same text as chosen and rejected", "the loss stays at ln 2 on them"
    ),
    "identical_after_normalisation": _hard(
        "differ in white space or case only", "the model learns spacing instead of content"
    ),
    "empty_chosen": _hard("have an empty chosen answer", "the model learns to say nothing"),
    "empty_rejected": _hard("have an empty rejected answer", "any answer beats silence"),
    "empty_turn": Reason(
        "have an empty turn in the prompt", "the model answers nothing; drop them or fill it in"
    ),
    "null_field": _hard("have null where a text belongs"),
    "wrong_type": _hard("have a value of another type than the format says"),
    "missing_field": _hard("lack a field that the format needs"),
    "prompt_differs": _hard(
        "have sides that differ before the last turn", "the sides answer different questions"
    ),
    "roles_not_alternating": Reason(
        "have two turns of one role in a row, or a turn of the wrong role",
        "many templates refuse them; join the turns",
    ),
    "role_label_in_answer": Reason(
        "have an answer that plays another speaker (a line that begins 'User:')",
        "the model learns to go on with the user's turn; cut the answer before the label",
    ),
    "template_tokens": Reason(
        "spell tokens of a chat template", "the template is applied twice; take the tokens away"
    ),
    "contradiction": Reason(
        "repeat an earlier pair with the labels swapped",
        "the two rows cancel out; find out which one is right, or drop both",
    ),
    "score_label_disagree": Reason(
        "have the higher score on the rejected answer",
        "label or score is wrong; look at some, then flip or drop them",
    ),
    "score_tie": Reason(
        "have equal scores on both sides", "the label is a coin toss; drop them"
    ),
    "label_tie": _hard("call both answers equally good", "there is nothing to prefer"),
    "annotators_disagree": Reason(
        "have annotators who disagree", "the label is uncertain; keep clear majorities only"
    ),
    "control_character": Reason(
        "hold control characters", "the model learns to write them; take them out"
    ),
    "replacement_character": Reason(
        "hold U+FFFD, the mark of bytes that were lost", "the text is damaged; drop them"
    ),
    "mojibake": Reason(
        "hold text decoded by the wrong character set", "decode them anew (ftfy repairs most)"
    ),
    "invisible_character": Reason(
        "hold zero-width or bidirectional marks", "they split words into odd tokens; take them out"
    ),
    "private_use_character": Reason(
        "hold private-use characters, mostly icons of a word processor", "take them out"
    ),
    "personal_data": Reason(
        "hold an e-mail address or a telephone number",
        "the model may repeat them; `data convert --mask` replaces them",
    ),
    "prompt_in_eval": Reason(
        "have a prompt that the evaluation asks", "its figures will be too good; drop them"
    ),
    "missing_image": Reason(
        "refer to an image that is not there", "the question cannot be understood; drop them"
    ),
    "too_long": _hard("have more tokens than data.max_length", "raise data.max_length"),
    "no_room": _hard("have a prompt that leaves no room for an answer", "raise data.max_length"),
    "not_json": _hard("are not JSON"),
    "other_format": _hard("have another format than most of the file"),
    "no_prompt": _hard("have no prompt"),
    "no_transcript": _hard("are no transcript"),
    "prefix_pair": _hard("have one side that is the beginning of the other"),
    "not_text": _hard("hold pictures or sound where alignax reads text"),
    "not_unicode": _hard("hold half of a surrogate pair"),
    "no_pair": _hard("have fewer than two answers to compare"),
    "unclear_label": _hard("do not say which answer is better"),
    "undesired": _hard("are rated bad, and so are nothing to imitate"),
    "margin_outside": Reason("have a score margin outside the window", "as asked for", "keep"),
    "length_ratio": Reason("have answers of too different lengths", "as asked for", "keep"),
    "length_balance": Reason("were left out to balance lengths", "as asked for", "keep"),
    "diversity_quota": Reason("have a rejected answer seen too often", "as asked for", "keep"),
    "prompt_quota": Reason("are beyond the quota of their prompt", "as asked for", "keep"),
    "suspicious_label": Reason("have a label that looks flipped", "as asked for", "keep"),
    "similar_answers": Reason("have answers that are too much alike", "as asked for", "keep"),
}  # fmt: skip
"""Code → reason; what the encoder adds for one tokenizer and template is in docs/data.md."""

OPTIONS: dict[str, tuple[str, str]] = {
    "margin_min": ("margin_outside", "lowest score margin (chosen − rejected) that is kept"),
    "margin_max": ("margin_outside", "highest score margin that is kept"),
    "length_ratio_max": ("length_ratio", "longer answer over shorter, in characters, at most"),
    "length_balance": (
        "length_balance", "how far the share of pairs with a longer chosen answer may be from 0.5"
    ),
    "rejected_quota": ("diversity_quota", "rows whose rejected answers are (nearly) the same"),
    "prompt_quota": ("prompt_quota", "rows that one prompt may have"),
    "similarity_max": ("similar_answers", "highest similarity of the two answers that is kept"),
    "suspicious_share": (
        "suspicious_label", "share of the rows, those whose labels look most like flips"
    ),
}  # fmt: skip
"""Number that a filter takes → the reason that it gives, and what it means."""


@dataclass(frozen=True)
class Filters:
    """What to do about each reason.

    Attributes:
        actions: Code → action, for every known code.
        options: Number → value, for those that were given.
    """

    actions: Mapping[str, Action]
    options: Mapping[str, float]

    def action(self, code: str) -> Action:
        """What happens to rows with a reason; those that only an encoder knows are dropped."""
        return self.actions.get(code, "drop")


def parse_filters(given: Mapping[str, Any]) -> Filters:
    """Read ``reason: action`` and ``number: value``; the rest stays at its default.

    Raises:
        ValueError: An unknown name or action, a number that is none, or a hard reason to be kept;
            all of them at once.
    """
    actions: dict[str, Action] = {code: reason.action for code, reason in REASONS.items()}
    options: dict[str, float] = {}
    problems = []
    for name, value in given.items():
        try:
            if name in OPTIONS:
                options[name] = _number(name, value)
            else:
                actions[_code(name)] = _action(name, value)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise ValueError("; ".join(problems))
    for name in options:
        code = OPTIONS[name][0]
        if code not in given:
            actions[code] = "drop"
    return Filters(actions, options)


def _code(name: str) -> str:
    if name in REASONS:
        return name
    near = difflib.get_close_matches(name, [*REASONS, *OPTIONS], 1)
    hint = f"did you mean {near[0]!r}?" if near else "docs/data.md lists all"
    raise ValueError(f"unknown filter {name!r}: {hint}")


def _action(name: str, value: Any) -> Action:
    if value not in ACTIONS:
        raise ValueError(f"{name} must be one of {', '.join(ACTIONS)}, got {value!r}")
    if _known_hard(name) and value in ("keep", "warn"):
        raise ValueError(f"{name} cannot be {value!r}: rows that {REASONS[name].meaning} "
                         "cannot be trained on (drop or fail)")  # fmt: skip
    return value


def _known_hard(name: str) -> bool:
    return name in REASONS and REASONS[name].hard


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    lowest = 0.0 if name not in ("margin_min", "margin_max") else float("-inf")
    if not lowest <= number < float("inf"):
        raise ValueError(f"{name} must be a number from {lowest:g} on, got {value!r}")
    return number
