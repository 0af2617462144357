# SPDX-License-Identifier: Apache-2.0
"""The rules judge: every kind of rule by hand, and rules that cannot be used."""

import pytest

from alignax.errors import DataError
from alignax.judge.base import Question
from alignax.judge.rules import RulesJudge
from alignax.judge.schema import schema_problems, violations


def meets(rule, answer, *, reference="", prompt="p"):
    """Whether an answer meets a rule that an empty answer, or one of zeros, does not."""
    judge = RulesJudge([rule], source="r")
    return judge.judge([Question(prompt, answer, "\0", reference)])[0].outcome


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        ({"kind": "exact", "value": "42"}, " 42\n", "42."),
        ({"kind": "exact", "value": "Yes", "ignore_case": True}, "yes", "no"),
        ({"kind": "regex", "pattern": r"\bcat\b"}, "a cat sat", "concatenate"),
        ({"kind": "regex", "pattern": r"\d+", "full": True}, "123", "123 "),
        ({"kind": "keyword", "all": ["Red", "blue"]}, "BLUE and red", "red"),
        ({"kind": "keyword", "any": ["red", "blue"], "none": ["green"]}, "blue", "blue, green"),
        ({"kind": "length", "min": 3, "max": 4}, "abcd", "abcde"),
        ({"kind": "length", "unit": "words", "min": 3}, "a b  c", "abc d"),
        ({"kind": "length", "unit": "lines", "min": 2, "max": 2}, "a\nb", "a\nb\nc"),
        ({"kind": "json"}, '{"a": [1]}', "{a: 1}"),
        ({"kind": "json"}, '```json\n{"a": 1}\n```', 'Here: {"a": 1}'),
        ({"kind": "json", "schema": {"type": "object", "required": ["a"]}}, '{"a": 1}', '{"b": 1}'),
    ],
)
def test_each_kind(rule, good, bad):
    assert meets(rule, good) == "win"
    assert meets(rule, bad) == "tie"


def test_exact_uses_the_items_reference_and_nothing_without_one():
    assert meets({"kind": "exact"}, "7", reference="7") == "win"
    assert meets({"kind": "exact"}, "", reference="") == "tie"


def test_points_add_up_and_the_prompt_limits_a_rule():
    """First: 3. Second: 2 + 2 = 4 where the prompt asks for code, else 2."""
    judge = RulesJudge(
        {"rules": [
            {"kind": "keyword", "any": ["alpha"], "points": 3, "name": "has alpha"},
            {"kind": "keyword", "any": ["beta"], "points": 2},
            {"kind": "keyword", "any": ["beta"], "points": 2, "prompt": "code"},
        ]},
        source="r",
    )  # fmt: skip
    one, two = judge.judge([Question(p, "alpha", "beta") for p in ("write code", "write")])
    assert (one.outcome, two.outcome) == ("loss", "win")
    assert one.raw == "first: 3 (has alpha); second: 4 (2. keyword, 3. keyword)"


def test_negative_points_are_a_penalty():
    assert meets({"kind": "keyword", "any": ["as an AI"], "points": -1}, "As an AI, no") == "loss"


def test_the_fingerprint_is_the_content():
    rule = {"kind": "length", "max": 5}
    one, two = (
        RulesJudge([rule], source="a"),
        RulesJudge([dict(reversed(rule.items()))], source="b"),
    )
    assert one.fingerprint == two.fingerprint
    assert one.fingerprint != RulesJudge([rule | {"max": 6}], source="a").fingerprint


@pytest.mark.parametrize(
    ("content", "needle"),
    [
        ({}, "no list of rules"), ([], "no list of rules"), (["x"], "'x' is not an object"),
        ([{"kind": "magic"}], "kind is 'magic'; known: exact"),
        ([{"kind": "regex", "pattern": "("}], "not a regular expression"),
        ([{"kind": "regex", "pattern": "a", "max": 1}], "regex does not know max"),
        ([{"kind": "length"}], "needs `min` or `max`"),
        ([{"kind": "length", "min": 5, "max": 2}], "min 5 is above max 2"),
        ([{"kind": "length", "max": -1}], "max is -1"),
        ([{"kind": "length", "max": 1, "unit": "pages"}], "unit is 'pages'"),
        ([{"kind": "keyword"}], "needs a list"), ([{"kind": "keyword", "any": "a"}], "any is 'a'"),
        ([{"kind": "json", "schema": {"oneOf": []}}], "'oneOf' is not supported"),
        ([{"kind": "exact", "points": 0}], "points are 0"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_used(content, needle):
    with pytest.raises(DataError) as caught:
        RulesJudge(content, source="r.json")
    assert needle in str(caught.value)
    assert "r.json" in str(caught.value)


SCHEMA = {
    "type": "object",
    "required": ["n", "tags"],
    "additionalProperties": False,
    "properties": {
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
        "tags": {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z]+$"},
            "maxItems": 2,
        },
        "kind": {"enum": ["x", 1, None]},
        "free": {"anyOf": [{"type": "null"}, {"type": "string", "minLength": 2}]},
        "one": {"const": 1},
    },
}


@pytest.mark.parametrize(
    ("change", "count"),
    [
        ({}, 0), ({"n": 3.0}, 0), ({"n": 3.5}, 1), ({"n": True}, 1), ({"n": 10}, 1), ({"n": -1}, 1),
        ({"tags": []}, 0), ({"tags": ["a", "b", "c"]}, 1), ({"tags": ["A", 1]}, 2),
        ({"kind": 1}, 0), ({"kind": True}, 1), ({"kind": None}, 0), ({"kind": "y"}, 1),
        ({"free": None}, 0), ({"free": "ab"}, 0), ({"free": "a"}, 1), ({"one": 1.0}, 0),
        ({"one": True}, 1), ({"extra": 1}, 1),
    ],
)  # fmt: skip
def test_schema_keywords(change, count):
    value = {"n": 1, "tags": ["a"]} | change
    assert len(violations(value, SCHEMA)) == count


def test_schema_requires_its_keys():
    assert violations({}, SCHEMA) == ["$: no 'n'", "$: no 'tags'"]
    assert violations([], SCHEMA) == ["$: not object"]


def test_unknown_keywords_are_found_at_any_depth():
    schema = {"properties": {"a": {"items": {"format": "date"}}}, "type": "thing"}
    assert schema_problems(schema) == [
        "schema: type 'thing' is unknown",
        "schema.properties.a.items: 'format' is not supported",
    ]
