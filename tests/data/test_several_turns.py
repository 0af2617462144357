# SPDX-License-Identifier: Apache-2.0
"""Answers that go on for several turns: what the assistant says is scored, nothing between."""

import json

import numpy as np
import pytest

from alignax.data.boundary import close_turns
from alignax.data.dataset import build_dataset
from alignax.data.formats.turns import RowProblem
from alignax.data.inspect import explain
from alignax.data.pack import pack
from alignax.data.plan import scoring_plan
from alignax.records import EncodedExample
from tests.data.toys import assistant, characters, chatml, encoder, example, user

LONG = [assistant("one"), user("more?"), assistant("two")]
ROW = {"prompt": [user("hi")], "chosen": LONG, "rejected": [assistant("no")]}
THINKS = (
    "{% for m in messages %}{{ '[' + m.role + ']' }}"
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</t>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}{{ '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]<t>' }}{% endif %}"
)
ENDS_ONCE = (
    "{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% else %}{{ '</s>' }}{% endif %}"
)
MARKS_LAST = (
    "{% for m in messages %}{% if loop.last and m.role != 'assistant' %}{{ '!' }}{% endif %}"
    "{{ '[' + m.role + ']' + m.content + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def scored_text(enc, encoded, side):
    """Scored tokens of an answer, a dot for every other token."""
    answer, places = encoded.answers[side], set(encoded.scored_places(side).tolist())
    return "".join(enc.decode([t]) if i in places else "." for i, t in enumerate(answer))


def test_only_the_assistants_turns_are_scored():
    enc = encoder(chatml())
    encoded = enc.encode(example(ROW))
    between = "\n<|start|>user\nmore?<|end|>\n<|start|>assistant\n"
    dots = "." * len(between.replace("<|start|>", "S").replace("<|end|>", "E"))
    assert enc.decode(encoded.answers[0]) == f"one<|end|>{between}two<|end|>"
    assert scored_text(enc, encoded, 0) == f"one<|end|>{dots}two<|end|>"
    assert scored_text(enc, encoded, 1) == "no<|end|>"
    assert encoded.complete == (True, True)
    shown = explain(encoded, enc.tokenizer)
    assert "".join(p for _, p, name, on in shown if name == "chosen" and on) == (
        "one<|end|>two<|end|>"
    )
    one_turn = enc.encode(example({**ROW, "chosen": LONG[:1]}))
    assert one_turn.scored == ()
    assert one_turn.prompt.tolist() == encoded.prompt.tolist()


def test_a_cut_answer_keeps_the_marks_of_what_is_left():
    enc = encoder(chatml(), max_length=len(encoder(chatml()).prompt_ids([user("hi")])) + 9)
    encoded = enc.encode(example(ROW))
    assert scored_text(enc, encoded, 0) == "one<|end|>....."
    assert encoded.complete == (False, True)


def test_a_thinking_header_is_left_to_the_model_in_every_turn():
    enc = encoder(characters("</s>", template=THINKS, eos="</s>"))
    encoded = enc.encode(example(ROW))
    assert enc.decode(encoded.answers[0]) == "one</s>[user]more?</s>[assistant]two</s>"
    assert scored_text(enc, encoded, 0) == "one</s>" + "." * len("[user]more?E[assistant]") + (
        "two</s>"
    )


@pytest.mark.parametrize(
    ("template", "first", "reason"),
    [
        (THINKS, "<t>so</t>one", "answer_lost"),
        (ENDS_ONCE, "one", "several_turns"),
        (MARKS_LAST, "one", "several_turns"),
        (None, "o<|end|>ne", "stop_token_inside"),
    ],
)
def test_rows_whose_turns_cannot_be_told_apart_are_dropped(template, first, reason):
    tokenizer = characters("</s>", template=template, eos="</s>") if template else chatml()
    row = {**ROW, "chosen": [assistant(first), *LONG[1:]]}
    assert encoder(tokenizer).encode(example(row)).reason == reason


def test_close_turns_by_hand():
    """Stop ids 1 and 2; turns begin at 0 and 5; the template writes 2 and a line break (9)."""
    answer = [7, 8, 2, 9, 6, 7, 2, 9]
    closed, scored = close_turns(answer, [0, 5], (1, 2), stop_id=2, written=1)
    assert closed == [7, 8, 2, 9, 6, 7, 2]
    assert scored == [True, True, True, False, False, True, True]
    with pytest.raises(RowProblem, match="no stop token"):
        close_turns([7, 8, 9, 7, 2], [0, 3], (2,), stop_id=2, written=1)


def test_marks_survive_the_disk_and_are_counted(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [
        ROW,
        {**ROW, "chosen": [assistant("yes")]},
        {**ROW, "rejected": [assistant("x"), *LONG]},
    ]
    rows[2]["rejected"][1:2] = [user("u"), assistant("one")]
    file.write_text("\n".join(map(json.dumps, rows)))
    enc = encoder(chatml())
    dataset, report = build_dataset(
        str(file), format="auto", split="train", encoder=enc, kind="pair", cache_dir=tmp_path / "c"
    )
    assert report.several_turns["count"] == 2
    assert any("2 rows have answers of several turns" in notice for notice in report.notices)
    for index, row in enumerate(rows):
        direct = enc.encode(example(row))
        for ours, theirs in zip(dataset[index].answers, direct.answers, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        for side in range(2):
            np.testing.assert_array_equal(
                dataset[index].scored_places(side), direct.scored_places(side)
            )


def test_packed_rows_predict_scored_tokens_only():
    marks = np.array([1, 1, 0, 0, 1], bool)
    row = EncodedExample(
        "r", np.array([5, 6], np.int32), (np.array([11, 12, 13, 14, 15], np.int32),), (True,),
        scored=(marks,),
    )  # fmt: skip
    plan = scoring_plan(np.array([[2, 5]]))
    batch = pack([row], plan.step(0), plan.shape)
    count = int(batch.answer_count[0, 0])
    assert count == 3
    assert batch.answer_index[0, 0, :count].tolist() == [1, 2, 5]
    assert batch.answer_target[0, 0, :count].tolist() == [11, 12, 15]
    assert batch.ids[0, 0, :7].tolist() == [5, 6, 11, 12, 13, 14, 15]
