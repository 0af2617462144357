# SPDX-License-Identifier: Apache-2.0
"""A file of rules → a judge that needs no model: the answer that meets more of them wins.

A rule's points go to each answer that meets it. `prompt` (a regular expression) limits a rule to
the prompts that match. See ``RULES`` for the kinds:

    {"name": "cites a source", "rules": [
      {"kind": "exact"},                                        the item's reference answer
      {"kind": "regex", "pattern": "(?i)source:", "points": 2},
      {"kind": "keyword", "all": ["because"], "none": ["as an AI"]},
      {"kind": "length", "unit": "words", "min": 5, "max": 120},
      {"kind": "json", "schema": {"type": "object", "required": ["answer"]}}
    ]}
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignax.errors import DataError
from alignax.judge.base import Opinion, Question
from alignax.judge.schema import schema_problems, violations

Test = Callable[[str, Question], bool]
"""Whether an answer to a question meets the rule."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One test, what it is worth, and for which prompts."""

    about: str
    test: Test
    points: float
    prompt: re.Pattern[str] | None


class RulesJudge:
    """Counts the points of both answers; equal points are a tie."""

    family = ""
    symmetric = True

    def __init__(self, content: Any, *, source: str):
        """Read rules.

        Args:
            content: What the file holds, parsed.
            source: Its name.

        Raises:
            DataError: Whatever is wrong with the rules, all at once.
        """
        self.name = f"rules {source}"
        self._rules = _read(content, source)
        text = json.dumps(content, sort_keys=True)
        self.fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]

    def judge(
        self, questions: Sequence[Question], *, done: Callable[[int], None] = lambda _: None
    ) -> list[Opinion]:
        """Judge all questions; one to which no rule applies is a tie."""
        opinions = [self._one(question) for question in questions]
        done(len(questions))
        return opinions

    def _one(self, question: Question) -> Opinion:
        rules = [r for r in self._rules if r.prompt is None or r.prompt.search(question.prompt)]
        one, two = (
            {rule.about: rule.points for rule in rules if rule.test(answer, question)}
            for answer in (question.first, question.second)
        )
        gap = sum(one.values()) - sum(two.values())
        raw = f"first: {sum(one.values()):g} ({', '.join(one) or 'no rule met'}); "
        raw += f"second: {sum(two.values()):g} ({', '.join(two) or 'no rule met'})"
        return Opinion("win" if gap > 0 else "loss" if gap < 0 else "tie", raw)


def _exact(rule: Mapping[str, Any]) -> Test:
    """Equal to ``value``, or to the item's reference answer; outer white space apart."""
    value = _text(rule, "value", optional=True)
    ignore_case = bool(rule.get("ignore_case", False))

    def test(answer: str, question: Question) -> bool:
        wanted, given = (value or question.reference).strip(), answer.strip()
        same = wanted.casefold() == given.casefold() if ignore_case else wanted == given
        return bool(wanted) and same

    return test


def _regex(rule: Mapping[str, Any]) -> Test:
    """``pattern`` occurs; the whole answer matches it with ``"full": true``."""
    pattern = _pattern(_text(rule, "pattern"))
    find = pattern.fullmatch if rule.get("full") else pattern.search
    return lambda answer, question: find(answer) is not None


def _keyword(rule: Mapping[str, Any]) -> Test:
    """All of ``all``, any of ``any`` and none of ``none`` occur, whatever their case."""
    lists = {name: _words(rule, name) for name in ("all", "any", "none")}
    if not any(lists.values()):
        raise ValueError("needs a list under `all`, `any` or `none`")

    def test(answer: str, question: Question) -> bool:
        text = answer.casefold()
        found = {name: [word in text for word in words] for name, words in lists.items()}
        return (
            all(found["all"]) and (not found["any"] or any(found["any"])) and not any(found["none"])
        )

    return test


UNITS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "words": lambda text: len(text.split()),
    "lines": lambda text: len(text.splitlines()),
}


def _length(rule: Mapping[str, Any]) -> Test:
    """Between ``min`` and ``max`` ``unit``s (characters, words, lines), both included."""
    unit = rule.get("unit", "characters")
    if unit not in UNITS:
        raise ValueError(f"unit is {unit!r}; known: {', '.join(UNITS)}")
    low, high = (_count(rule, name) for name in ("min", "max"))
    if low is None and high is None:
        raise ValueError("needs `min` or `max`")
    if low is not None and high is not None and low > high:
        raise ValueError(f"min {low} is above max {high}")
    least, most, measure = low or 0, high, UNITS[unit]
    return lambda answer, question: (
        least <= measure(answer) and (most is None or measure(answer) <= most)
    )


def _json(rule: Mapping[str, Any]) -> Test:
    """The answer is JSON (a code fence around it is allowed) that fits ``schema``, if given."""
    schema = rule.get("schema", True)
    problems = schema_problems(schema)
    if problems:
        raise ValueError("; ".join(problems))

    def test(answer: str, question: Question) -> bool:
        fenced = re.fullmatch(r"\s*```(?:json)?\s*\n(.*?)\n?```\s*", answer, re.DOTALL)
        try:
            value = json.loads(fenced[1] if fenced else answer)
        except ValueError:
            return False
        return not violations(value, schema)

    return test


RULES: dict[str, tuple[Callable[[Mapping[str, Any]], Test], tuple[str, ...]]] = {
    "exact": (_exact, ("value", "ignore_case")),
    "regex": (_regex, ("pattern", "full")),
    "keyword": (_keyword, ("all", "any", "none")),
    "length": (_length, ("unit", "min", "max")),
    "json": (_json, ("schema",)),
}
"""Kinds of rules, with the keys that each knows."""

COMMON = ("kind", "name", "points", "prompt")


def _read(content: Any, source: str) -> list[Rule]:
    """Read all rules; every problem is named."""
    rules = content.get("rules") if isinstance(content, Mapping) else content
    problems, read = [], []
    if not isinstance(rules, list) or not rules:
        problems.append("no list of rules")
        rules = []
    for number, rule in enumerate(rules, 1):
        try:
            read.append(_rule(rule, number))
        except ValueError as error:
            problems.append(f"rule {number}: {error}")
    if problems:
        raise DataError(
            f"the rules in {source} cannot be used",
            problems=problems,
            hint=f"kinds: {', '.join(RULES)}; see the judges' page of the documentation",
        )
    return read


def _rule(rule: Any, number: int) -> Rule:
    """Read one rule; ValueError says what is wrong."""
    if not isinstance(rule, Mapping):
        raise ValueError(f"{rule!r} is not an object")
    kind = rule.get("kind")
    if kind not in RULES:
        raise ValueError(f"kind is {kind!r}; known: {', '.join(RULES)}")
    build, known = RULES[kind]
    unknown = [str(key) for key in rule if key not in (*known, *COMMON)]
    if unknown:
        raise ValueError(f"{kind} does not know {', '.join(unknown)}; it knows {', '.join(known)}")
    points = rule.get("points", 1)
    if isinstance(points, bool) or not isinstance(points, int | float) or points == 0:
        raise ValueError(f"points are {points!r}, not a number other than 0")
    prompt = _text(rule, "prompt", optional=True)
    about = str(rule.get("name", f"{number}. {kind}"))
    return Rule(about, build(rule), float(points), _pattern(prompt) if prompt else None)


def _text(rule: Mapping[str, Any], key: str, *, optional: bool = False) -> str:
    value = rule.get(key, "" if optional else None)
    if not isinstance(value, str) or not (value or optional):
        raise ValueError(f"{key} is {value!r}, not text")
    return value


def _words(rule: Mapping[str, Any], key: str) -> list[str]:
    value = rule.get(key, [])
    if not isinstance(value, list) or not all(isinstance(word, str) and word for word in value):
        raise ValueError(f"{key} is {value!r}, not a list of words")
    return [word.casefold() for word in value]


def _count(rule: Mapping[str, Any], key: str) -> int | None:
    value = rule.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise ValueError(f"{key} is {value!r}, not a count")
    return value


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is not a regular expression: {error}") from error
