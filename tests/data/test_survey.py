# SPDX-License-Identifier: Apache-2.0
"""Every reason is found where it was planted and nowhere else, whoever does the work."""

import json

import numpy as np
import pytest

from alignax.cli.auditing import audit_rows
from alignax.data import survey as surveys
from alignax.data.near import clusters, nearly_equal, signatures, squeezed
from alignax.data.separators import bag_of_words, length_bias, suspicion, wilson
from alignax.data.survey import repeats
from alignax.data.texts import defects, masked, plays_speaker
from alignax.errors import DataError, UsageError
from alignax.recipe import DataSection, load_recipe
from tests.data.toys import assistant, user

SUBJECTS = (
    "rivers of Norway", "the taste of tea", "old bicycles", "how glue works", "a trip to Rome",
    "why cats purr", "the price of salt", "learning to swim", "paper boats", "winter gardens",
)  # fmt: skip


def good(number):
    """A row that is like no other."""
    subject = SUBJECTS[number % 10]
    return {
        "prompt": f"Question {number}: what should one know about {subject} in chapter {number}?",
        "chosen": f"Begin with {subject}, then read page {number * 7} of book {number * 3 + 1}.",
        "rejected": f"Nobody can say anything of {subject}; {number * 13} experts have tried.",
        "score_chosen": 8, "score_rejected": 3,
    }  # fmt: skip


def found(tmp_path, rows, **settings):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    against = settings.pop("against", ())
    workers = settings.pop("workers", 1)
    kind = settings.pop("kind", "auto")
    section = DataSection(path=str(file), cache=str(tmp_path / "c"), **settings)
    return audit_rows(section, kind=kind, against=against, workers=workers)


ODD = {
    "exact_duplicate": good(3),
    "near_duplicate": {**good(4), "chosen": good(4)["chosen"].replace("then read", "and read")},
    "contradiction": {**good(5), "chosen": good(5)["rejected"], "rejected": good(5)["chosen"]},
    "duplicate_prompt": {
        "prompt": good(6)["prompt"],
        "chosen": "A third way.",
        "rejected": "No way at all.",
    },
    "identical_pair": {**good(42), "rejected": good(42)["chosen"]},
    "identical_after_normalisation": {**good(43), "rejected": good(43)["chosen"].upper() + "\n"},
    "empty_chosen": {**good(44), "chosen": " \n"},
    "empty_rejected": {**good(45), "rejected": ""},
    "empty_turn": {**good(46), "prompt": ""},
    "null_field": {**good(47), "chosen": None},
    "wrong_type": {**good(48), "rejected": 5},
    "missing_field": {k: v for k, v in good(49).items() if k != "prompt"},
    "role_label_in_answer": {**good(50), "chosen": good(50)["chosen"] + "\nUser: And then?"},
    "template_tokens": {**good(51), "rejected": "Never.<|eot_id|>"},
    "score_tie": {**good(52), "score_chosen": 3},
    "score_label_disagree": {**good(53), "score_chosen": 1},
    "control_character": {**good(54), "chosen": "Two\x08 of them."},
    "replacement_character": {**good(55), "chosen": "Caf\ufffd owners know."},
    "mojibake": {**good(56), "rejected": "Nobody canâ€™t."},
    "invisible_character": {**good(57), "rejected": "No\u200bbody."},
    "private_use_character": {**good(58), "chosen": "\uf0b7 one thing"},
    "personal_data": {**good(59), "chosen": "Ask jo.doe@post.example.org."},
    "annotators_disagree": {**good(60), "annotations": [{"preference": 1}, {"preference": 2}]},
    "missing_image": {**good(61), "images": ["nowhere.png"], "prompt": "<image> What is it?"},
}


def test_each_reason_is_found_where_it_was_planted(tmp_path):
    rows = [*map(good, range(40)), *ODD.values()]
    reasons = found(tmp_path, rows).found.reasons()
    expected = {code: [40 + place] for place, code in enumerate(ODD)}
    copies = [expected[c][0] for c in ("exact_duplicate", "near_duplicate", "contradiction")]
    assert reasons.pop("duplicate_prompt") == [*copies, *expected.pop("duplicate_prompt")]
    assert reasons == expected


def test_turns_that_do_not_alternate_and_prompts_that_differ(tmp_path):
    def dialogue(number, *turns, opening=()):
        return {
            "chosen": [*opening, *turns, assistant(f"Yes, {number} times.")],
            "rejected": [*turns, assistant(f"Not before {number}.")],
        }

    rows = [dialogue(i, user(f"What of {SUBJECTS[i]}?")) for i in range(8)]
    rows.append(dialogue(8, user("One."), user("Two?"), opening=()))
    rows.append(dialogue(9, user("Nine?"), opening=(user("Before that:"),)))
    reasons = found(tmp_path, rows).found.reasons()
    assert reasons == {"roles_not_alternating": [8], "prompt_differs": [9]}


def test_images_are_part_of_what_a_row_is(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"x")
    row = {"prompt": "<image>Which shape is this one?", "chosen": "A circle.", "rejected": "No."}
    rows = [{**row, "images": [name]} for name in ("a.png", "b.png", "a.png")]
    assert found(tmp_path, rows).found.reasons() == {
        "exact_duplicate": [2], "duplicate_prompt": [2],
    }  # fmt: skip


def test_workers_and_a_kill_change_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(surveys, "PART_ROWS", 16)
    monkeypatch.setattr(surveys, "ALONE", 16)
    rows = [*map(good, range(60)), *ODD.values()]
    alone = found(tmp_path, rows)
    parts = sorted((tmp_path / "c" / "survey").rglob("part-*.npz"))
    assert len(parts) == 6
    kept = {part.name: part.stat().st_mtime_ns for part in parts[1:]}
    parts[0].unlink()
    resumed = found(tmp_path, rows, workers=2)
    assert {p.name: p.stat().st_mtime_ns for p in parts[1:]} == kept
    for one, other in ((alone, resumed),):
        assert one.found.reasons() == other.found.reasons()
        assert np.array_equal(one.found.signed, other.found.signed)


def test_evaluation_prompts_are_found_by_turn_and_by_grams(tmp_path):
    asked = "Name nine rivers of Norway that flow into the North Sea before winter comes."
    evaluation = tmp_path / "eval.jsonl"
    evaluation.write_text(json.dumps({"turns": [asked, "And why?"], "question_id": 1}))
    rows = [*map(good, range(3)), {**good(3), "prompt": f"Please help. {asked} Thanks!"}]
    rows.append({**good(4), "prompt": asked.lower().replace(",", "")})
    audited = found(tmp_path, rows, against=[str(evaluation)])
    assert audited.found.reasons() == {"prompt_in_eval": [3, 4]}


def test_filters_drop_keep_and_refuse(tmp_path):
    rows = [good(1), good(2), good(1), {**good(4), "score_chosen": 3}]
    assert found(tmp_path, rows).verdicts.dropped == {}
    filters = {"exact_duplicate": "drop", "margin_min": 1}
    dropped = found(tmp_path, rows, filters=filters).verdicts.dropped
    assert dropped == {2: "exact_duplicate", 3: "margin_outside"}
    with pytest.raises(DataError, match="must not be there") as caught:
        found(tmp_path, rows, filters={"score_tie": "fail"})
    assert "score_tie: 1 rows" in str(caught.value)


def test_quotas_and_balance(tmp_path):
    rows = [{**good(i), "rejected": f"I cannot help with that, sorry.{'!' * i}"} for i in range(6)]
    rows += [{**good(i), "chosen": "word " * 40} for i in range(6, 16)]
    quota = found(tmp_path, rows, filters={"rejected_quota": 2})
    assert list(quota.verdicts.dropped.values()) == ["diversity_quota"] * 4
    assert set(quota.verdicts.dropped) < set(range(6))
    again = found(tmp_path, rows, filters={"rejected_quota": 2}, workers=2)
    assert again.verdicts == quota.verdicts
    balanced = found(tmp_path, [good(i) for i in range(4)], filters={"length_balance": 0.5})
    assert balanced.verdicts.dropped == {}


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"exact_duplicat": "drop"}, "did you mean 'exact_duplicate'"),
        ({"mojibake": "delete"}, "one of keep, warn, drop, fail"),
        ({"empty_chosen": "keep"}, "cannot be trained on"),
        ({"margin_min": "high"}, "must be a number"),
    ],
)
def test_filters_that_cannot_be(filters, message):
    with pytest.raises(UsageError, match=message):
        load_recipe(None, {"data.filters": filters})


def test_columns_of_other_names(tmp_path):
    rows = [{"ask": {"text": r["prompt"]}, "best": r["chosen"], "worst": r["rejected"]}
            for r in map(good, range(5))]  # fmt: skip
    columns = {"prompt": "ask.text", "chosen": "best", "rejected": "worst"}
    audited = found(tmp_path, rows, columns=columns)
    assert audited.said(1) == tuple(good(1)[name] for name in ("prompt", "chosen", "rejected"))
    with pytest.raises(UsageError, match="which no row has"):
        found(tmp_path, rows, columns={"prompt": "aks"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café – “naïve” 5 € Ünïcödé Привет 日本語", set()),
        ("👩\u200d💻 and می\u200cکنند", set()),
        ("It is 2Â°C", {"mojibake"}),
        ("a\x85b", {"control_character"}),
        ("tab\tand\r\nlines", set()),
        ("\u202eevil", {"invisible_character"}),
        ("[INST] hi [/INST]", {"template_tokens"}),
        ("a < b and c > d [1]", set()),
        ("call 555-0100", {"personal_data"}),
        ("+44 20 7946 0958", {"personal_data"}),
        ("in 2019-2020, 3.14159 and 123456789012345", set()),
        ("@user and a@b", set()),
    ],
)
def test_defects_of_texts(text, expected):
    assert defects(text) == expected


def test_speakers_and_masks():
    assert plays_speaker("Sure.\n\nHuman: more?")
    assert plays_speaker("Assistant: hello")
    assert not plays_speaker("The user: a study of humans: notes")
    assert masked("mail a.b@c.example.org or 555-0100.") == "mail [e-mail] or [phone]."


def test_near_copies_by_hand():
    one = [squeezed(t) for t in ("What is glue?", "Glue is a sticky thing that holds parts.", "No")]
    other = [
        squeezed(t) for t in ("what is glue", "Glue is the sticky thing that holds parts", "no!")
    ]
    assert nearly_equal(one, other)
    assert not nearly_equal(one, [*other[:2], "yes"])
    assert not nearly_equal(["add 3 and 4", "a", "b"], ["add 5 and 6", "a", "b"])
    texts = ["the very same words are here", "the very same words are here", "nothing like it"]
    assert clusters(signatures(texts)).tolist() == [0, 0, 2]


def test_separators_by_hand():
    bias = length_bias(np.array([5, 5, 5, 1]), np.array([1, 1, 5, 5]))
    assert (bias["accuracy"], bias["n"]) == (0.6667, 3)
    assert wilson(5, 10) == {"low": 0.2366, "high": 0.7634, "n": 10}
    pairs = [(f"yes indeed {i} {SUBJECTS[i % 10]}", f"sorry {SUBJECTS[i % 10]}") for i in range(80)]
    assert bag_of_words(pairs)["accuracy"] == 1.0
    flipped = [(b, a) if i % 10 == 3 else (a, b) for i, (a, b) in enumerate(pairs)]
    doubt = suspicion(flipped)
    assert sorted(np.argsort(-doubt)[:8].tolist()) == list(range(3, 80, 10))


def test_repeats_are_the_later_ones():
    assert repeats(np.array([3, 1, 3, 3, 1])).tolist() == [False, False, True, True, True]
