# SPDX-License-Identifier: Apache-2.0
"""Cases that users of other tools ran into: boundaries, stop tokens, truncation, dirty rows."""

import json

import numpy as np
import pytest

from alignax.data.dataset import build_dataset
from alignax.errors import DataError
from alignax.records import Dropped
from tests.data.toys import assistant, characters, chatml, encoder, example, user, words

END = 201  # <|end|> of the ChatML toy


def ids(array):
    return array.tolist()


def text(enc, *parts):
    return enc.decode([i for part in parts for i in ids(part)])


def test_c1_a_prompt_that_ends_with_a_space():
    vocabulary = {
        "<unk>": 0, "</s>": 2, "[INST]": 4, "[/INST]": 5, " ": 6, " $": 7, "$": 8, "46": 9,
        "Price?": 11, " now": 12, "now": 13,
    }  # fmt: skip
    enc = encoder(words(vocabulary, eos="</s>"))
    row = {"prompt": "[INST]Price?[/INST] ", "chosen": "46 now", "rejected": "$46 now"}
    encoded = enc.encode(example(row))
    # Result (b): the boundary moves back for both sides.
    assert ids(encoded.prompt) == [4, 11, 5]
    assert ids(encoded.answers[0]) == [6, 9, 12, 2]
    assert ids(encoded.answers[1]) == [7, 9, 12, 2]
    assert encoded.boundary_merged
    for answer, said in zip(encoded.answers, ("46 now", "$46 now"), strict=True):
        assert text(enc, encoded.prompt, answer[:-1]) == row["prompt"] + said


@pytest.mark.parametrize("writes_bos", [True, False])
def test_c2_one_bos_as_the_template_says(writes_bos):
    head = "{{ '<s>' }}" if writes_bos else ""
    template = (
        head + "{% for m in messages %}{% if m.role == 'user' %}{{ '[' + m.content + ']' }}"
        "{% else %}{{ m.content + '</s>' }}{% endif %}{% endfor %}"
    )
    tokenizer = characters("<s>", "</s>", template=template, bos="<s>", eos="</s>", adds_bos=True)
    enc = encoder(tokenizer)
    row = {
        "prompt": [user("hello")],
        "chosen": [assistant("hi")],
        "rejected": [assistant("go away")],
    }
    encoded = enc.encode(example(row))
    bos = tokenizer.bos_token_id
    for whole in (*(np.concatenate([encoded.prompt, a]) for a in encoded.answers),
                  np.array(enc.prompt_ids([user("hello")]))):  # fmt: skip
        assert (whole == bos).sum() == writes_bos
        assert (whole[0] == bos) == writes_bos
    assert ids(np.array(enc.prompt_ids([user("hello")]))) == ids(encoded.prompt)


def test_c2_two_sources_of_bos_stop_the_reading():
    template = "{{ '<s>' }}{% for m in messages %}{{ m.content + '</s>' }}{% endfor %}"
    tokenizer = characters("<s>", "</s>", template=template, bos="<s>", eos="</s>")
    with pytest.raises(DataError, match="row 0.*template.*data.add_bos"):
        encoder(tokenizer, add_bos=True)
    plain = characters("<s>", "</s>", bos="<s>", eos="</s>", adds_bos=True)
    row = {"prompt": "<s>hello ", "chosen": "hi", "rejected": "go"}
    with pytest.raises(DataError, match=r"rows\.jsonl:1.*two BOS.*own text.*tokenizer"):
        encoder(plain).encode(example(row))
    one = encoder(plain).encode(example({**row, "prompt": "hello "}))
    assert ids(one.prompt)[0] == plain.bos_token_id
    assert ids(one.prompt).count(plain.bos_token_id) == 1


def test_c4_pad_is_eos(tmp_path):
    vocabulary = {"<unk>": 0, "</s>": 2, "a": 5, "b": 6, "c": 7, "d": 8, "e": 9}
    tokenizer = words(vocabulary, eos="</s>")
    tokenizer.pad_token = "</s>"
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": "ab", "response": "cd"}, {"prompt": "a", "response": "e"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    dataset, report = build_dataset(
        str(file), format="auto", split="train", encoder=encoder(tokenizer), kind="sft",
        cache_dir=tmp_path,
    )  # fmt: skip
    assert [ids(dataset[i].answers[0]) for i in range(2)] == [[7, 8, 2], [9, 2]]
    assert report.stop_token.startswith("2 of 2")


def test_c5_exactly_one_stop_token():
    enc = encoder(chatml())
    for said in ("hi", "hi<|end|>", "hi<|end|>\n", "hi<|end|><|end|>"):
        row = {"prompt": [user("x")], "chosen": [assistant(said)], "rejected": [assistant("no")]}
        assert ids(enc.encode(example(row)).answers[0]) == [*map(ord, "hi"), END]
    plain = encoder(characters("</s>", eos="</s>"))
    for said in ("hi", "hi</s>"):
        encoded = plain.encode(example({"prompt": "x ", "chosen": said, "rejected": "no"}))
        assert ids(encoded.answers[0]) == [*map(ord, "hi"), 200]
        assert encoded.complete == (True, True)


def test_c5_template_without_stop_token():
    template = "{% for m in messages %}{{ m.role + ':' + m.content + '\n' }}{% endfor %}"
    tokenizer = characters("</s>", template=template, eos="</s>")
    with pytest.raises(DataError, match="writes no stop token"):
        encoder(tokenizer)
    named = encoder(tokenizer, stop_token="</s>")
    row = {"prompt": [user("x")], "chosen": [assistant("yes")], "rejected": [assistant("no")]}
    answer = ids(named.encode(example(row)).answers[0])
    assert answer[-1] == 200
    assert answer.count(200) == 1


def test_c5_a_cut_answer_has_no_stop_token():
    enc = encoder(characters("</s>", eos="</s>"), max_length=8)
    encoded = enc.encode(example({"prompt": "12345", "chosen": "abcdef", "rejected": "x"}))
    assert ids(encoded.answers[0]) == [*map(ord, "abc")]
    assert encoded.complete == (False, True)
    assert encoded.answer_cut == (4, 0)


def test_c7_the_answer_is_the_last_differing_assistant_turn():
    enc = encoder(chatml())
    shared = [user("U1"), assistant("A1"), user("U2")]
    row = {"chosen": [*shared, assistant("A2")], "rejected": [*shared, assistant("B2")]}
    parsed = example(row)
    assert [m["content"] for m in parsed.prompt] == ["U1", "A1", "U2"]
    encoded = enc.encode(parsed)
    assert text(enc, encoded.answers[0]) == "A2<|end|>"
    assert text(enc, encoded.answers[1]) == "B2<|end|>"
    differs = {"chosen": row["chosen"],
               "rejected": [*shared[:2], user("other"), assistant("B2")]}  # fmt: skip
    assert example(differs).reason == "prompt_differs"
    ends = {"chosen": [*shared, assistant("A2"), user("U3")], "rejected": row["rejected"]}
    assert example(ends).reason == "roles_not_alternating"


@pytest.mark.parametrize(
    ("prompt", "chosen", "rejected", "limit", "kept", "cut"),
    [
        (20, 40, 30, 50, (30, 30), (10, 0)),
        (20, 5000, 600, 2048, (2028, 600), (2972, 0)),
        (10, 20, 20, 50, (20, 20), (0, 0)),
        (60, 10, 12, 50, None, None),
    ],
)
def test_c8_each_answer_has_its_own_budget(prompt, chosen, rejected, limit, kept, cut):
    enc = encoder(characters("</s>", eos="</s>"), max_length=limit)
    # One token less of text: the stop token counts.
    row = {"prompt": "p" * prompt, "chosen": "c" * (chosen - 1), "rejected": "r" * (rejected - 1)}
    encoded = enc.encode(example(row))
    if kept is None:
        assert isinstance(encoded, Dropped)
        assert encoded.reason == "no_room"
        return
    assert tuple(map(len, encoded.answers)) == kept
    assert encoded.answer_cut == cut
    assert all(len(encoded.prompt) + len(a) <= limit for a in encoded.answers)


DIRTY = {
    "r1": {"prompt": "q ", "chosen": "good", "rejected": "bad"},
    "r2": {"prompt": "q ", "chosen": "same", "rejected": "same"},
    "r3": {"prompt": "q ", "chosen": "text", "rejected": "text\n"},
    "r4": {"prompt": "q ", "chosen": "text", "rejected": ""},
    "r5": {"prompt": "q ", "chosen": None, "rejected": "text"},
    "r6": {"prompt": [user("q")], "chosen": [assistant("yes")], "rejected": [user("no")]},
    "r7": {"system": "Be brief", "prompt": [user("q")], "chosen": [assistant("yes")],
           "rejected": [assistant("no")]},
}  # fmt: skip


def test_c10_dirty_rows_are_counted_by_reason(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in DIRTY.values()))
    settings = {"format": "auto", "split": "train", "kind": "pair", "cache_dir": tmp_path}
    enc = encoder(chatml())
    with pytest.raises(DataError, match="5 of 7 rows are unusable"):
        build_dataset(str(file), encoder=enc, **settings)
    dataset, report = build_dataset(str(file), encoder=enc, max_bad_share=1.0, **settings)
    reasons = {reason: found["count"] for reason, found in report.dropped.items()}
    assert reasons == {
        "identical_pair": 1,
        "identical_after_normalisation": 1,
        "empty_rejected": 1,
        "null_field": 1,
        "roles_not_alternating": 1,
    }
    assert [report.dropped_rows[i].place[-1] for i in range(1, 6)] == ["2", "3", "4", "5", "6"]
    assert "Be brief" in text(enc, dataset[1].prompt)
    kept, report = build_dataset(
        str(file), encoder=encoder(chatml(), whitespace_pairs="keep"), max_bad_share=1.0, **settings
    )
    assert "identical_after_normalisation" not in report.dropped
    assert len(kept) == 3


def test_c10_system_column_of_plain_text_is_named_as_unused_or_used(tmp_path):
    file = tmp_path / "rows.jsonl"
    row = {"system": "Be brief", "prompt": "q ", "chosen": "yes", "rejected": "no"}
    file.write_text(json.dumps(row))
    enc = encoder(chatml())
    dataset, report = build_dataset(
        str(file), format="auto", split="train", encoder=enc, kind="pair", cache_dir=tmp_path
    )
    used = "Be brief" in text(enc, dataset[0].prompt)
    assert used or any("system" in warning for warning in report.warnings)


def test_c10_a_constant_rejected_sentence_is_trivially_separable(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": f"q{i} ", "chosen": f"answer {i}", "rejected": "I cannot."} for i in range(9)
    ]
    file.write_text("\n".join(map(json.dumps, rows)))
    _, report = build_dataset(
        str(file), format="auto", split="train", encoder=encoder(chatml()), kind="pair",
        cache_dir=tmp_path,
    )  # fmt: skip
    assert any("trivially separable" in w and "rejected" in w for w in report.warnings)


FUNCTION = {"name": "get_weather", "description": "Weather", "parameters": {"city": "string"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}
TOOL_TEMPLATE = (
    "{% if tools %}{{ '<|start|>tools\n' + (tools | tojson) + '<|end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{{ 'CALL ' + (c.function | tojson) }}{% endfor %}"
    "{{ '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)


def tool_row():
    prompt = [user("Weather there?"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
              {"role": "tool", "content": "7C"}]  # fmt: skip
    return {"tools": TOOLS, "prompt": prompt, "chosen": [assistant("It is mild.")],
            "rejected": [assistant("It is sunny.")]}  # fmt: skip


def test_c11_tool_calls_reach_the_template():
    enc = encoder(characters("<|start|>", "<|end|>", template=TOOL_TEMPLATE, eos="<|end|>"))
    encoded = enc.encode(example(tool_row()))
    shown = text(enc, encoded.prompt)
    assert shown.count("get_weather") == 2
    assert shown.count("Oslo") == 1
    assert shown.count("7C") == 1
    assert text(enc, encoded.answers[0]) == "It is mild.<|end|>"


def test_c11_an_answer_that_is_a_tool_call_is_scored():
    enc = encoder(characters("<|start|>", "<|end|>", template=TOOL_TEMPLATE, eos="<|end|>"))
    chosen = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    row = tool_row() | {"prompt": [user("Weather in Oslo?")], "chosen": chosen}
    answer = text(enc, enc.encode(example(row)).answers[0])
    assert answer.startswith("CALL ")
    assert "get_weather" in answer
    assert "Oslo" in answer


def test_c11_a_template_that_cannot_show_tools_is_an_error():
    with pytest.raises(DataError) as caught:
        encoder(chatml()).encode(example(tool_row()))
    assert "rows.jsonl:1" in str(caught.value)
    assert "get_weather" in str(caught.value)


def test_c12_a_thinking_template_that_is_not_prefix_stable():
    vocabulary = {"<unk>": 0, "U": 1, "hi": 2, "\n": 3, "A": 4, "<think>": 5, "\n\n": 6,
                  "</think>": 7, "ok": 8, "no": 9, "<end>": 10, "okay": 11}  # fmt: skip
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ 'U' + m.content + '\n' }}"
        "{% else %}{{ 'A<think>\n\n</think>\n\n' + m.content + '<end>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'A<think>\n' }}{% endif %}"
    )
    tokenizer = words(vocabulary, template=template, eos="<end>")
    enc = encoder(tokenizer)
    row = {"prompt": [user("hi")], "chosen": [assistant("ok")], "rejected": [assistant("no")]}
    encoded = enc.encode(example(row))
    assert ids(encoded.prompt) == [1, 2, 3, 4, 5]
    assert ids(encoded.answers[0]) == [6, 7, 6, 8, 10]
    assert ids(encoded.answers[1]) == [6, 7, 6, 9, 10]
    assert enc.prompt_ids([user("hi")]) == [1, 2, 3, 4, 5]
    (notice,) = enc.notices[:1]
    assert "not prefix-stable" in notice
    assert "A<think>" in notice
    with pytest.raises(DataError, match="not prefix-stable"):
        encoder(tokenizer, strict_template=True)


def test_c13_the_cache_knows_what_changed(tmp_path):
    file, copy = tmp_path / "rows.jsonl", tmp_path / "elsewhere.jsonl"
    rows = [{"prompt": [user(f"q{i}")], "chosen": [assistant("y" * i + "y")],
             "rejected": [assistant("n")]} for i in range(10)]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, rows)))

    def build(path=file, tokenizer=None, **options):
        settings = {"format": "auto", "split": "train", "kind": "pair", "cache_dir": tmp_path / "c"}
        enc = encoder(tokenizer or chatml(), **options)
        return build_dataset(str(path), encoder=enc, **settings)

    assert build()[1].cache == {"hit": False, "changed": ["first build"]}
    other_template = chatml()
    other_template.chat_template += "\n"
    bigger = characters("<|start|>", "<|end|>", "<|new|>", template=chatml().chat_template,
                        eos="<|end|>")  # fmt: skip
    changes = {
        "tokenizer": {"tokenizer": bigger},
        "template": {"tokenizer": other_template},
        "data.max_length": {"max_length": 100},
        "data.prompt_cut": {"prompt_cut": "turns"},
        "data.stop_token": {"stop_token": "<|end|>"},
    }
    for part, change in changes.items():
        cache = build(**change)[1].cache
        assert not cache["hit"]
        assert cache["changed"] == [part]
    rows[0]["chosen"][0]["content"] = "z"
    changed = tmp_path / "changed.jsonl"
    changed.write_text("\n".join(map(json.dumps, rows)))
    assert build(changed)[1].cache == {"hit": False, "changed": ["data"]}
    assert build()[1].cache["hit"]
    copy.write_bytes(file.read_bytes())
    dataset, report = build(copy)
    assert report.cache["hit"]
    assert dataset.places[0].startswith(str(copy))
