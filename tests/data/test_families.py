# SPDX-License-Identifier: Apache-2.0
"""The habits of other model families' tokenizers and templates, rebuilt with toy vocabularies."""

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from alignax.errors import DataError
from alignax.records import Dropped
from tests.data.toys import assistant, characters, encoder, example, user

SYSTEM = {"role": "system", "content": "Be brief"}
LLAMA3 = (
    "{% for m in messages %}{% set turn = '<|head|>' + m.role + '<|/head|>\n\n' + m.content | trim "
    "+ '<|eot|>' %}{% if loop.first %}{% set turn = bos_token + turn %}{% endif %}{{ turn }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|head|>assistant<|/head|>\n\n' }}{% endif %}"
)
LLAMA2 = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
)
TURN_ENDS_TWICE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def pair(chosen, rejected="no", prompt=None, **more):
    turns = prompt if prompt is not None else [user("hi")]
    return {
        "prompt": turns,
        "chosen": [assistant(chosen)],
        "rejected": [assistant(rejected)],
    } | more


def sentencepiece(template):
    """A small SentencePiece-like tokenizer: marks instead of spaces, one in front of a text."""
    pieces = ["<unk>", "<s>", "</s>", "▁", *map(chr, range(33, 127)), "▁h", "▁n", "hi", "▁hi"]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [("▁", "h"), ("▁h", "i"), ("▁", "n"), ("h", "i")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first", split=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    fast.chat_template = template
    return fast


def llama3(**options):
    tokenizer = characters(
        "<|begin|>", "<|text_end|>", "<|head|>", "<|/head|>", "<|eot|>", "<|eom|>",
        template=LLAMA3, bos="<|begin|>", eos="<|eot|>", adds_bos=True,
    )  # fmt: skip
    stops = tokenizer.convert_tokens_to_ids(["<|text_end|>", "<|eom|>", "<|eot|>"])
    return encoder(tokenizer, stop_ids=stops, **options), dict(
        zip(("text_end", "eom", "eot"), stops, strict=True)
    )


def whole(encoded, side):
    return [*encoded.prompt.tolist(), *encoded.answers[side].tolist()]


def test_llama3_writes_its_bos_and_trims_answers():
    enc, ids = llama3()
    assert set(enc.stop_ids) == set(ids.values())
    encoded = enc.encode(example(pair("\n  yes \n", prompt=[SYSTEM, user(" hi ")])))
    assert enc.decode(encoded.answers[0]) == "yes<|eot|>"
    assert enc.decode(encoded.prompt).startswith("<|begin|><|head|>system<|/head|>\n\nBe brief")
    assert whole(encoded, 0).count(enc.tokenizer.bos_token_id) == 1
    assert encoded.prompt.tolist() == enc.prompt_ids([SYSTEM, user(" hi ")])
    assert enc.notices == []


@pytest.mark.parametrize(
    ("said", "result"),
    [
        ("yes<|eot|>", "yes<|eot|>"),
        ("yes<|eom|>", "yes<|eot|>"),
        ("yes<|eot|>more", "stop_token_inside"),
        ("a<|text_end|>b", "stop_token_inside"),
        ("<|eot|>", "empty_chosen"),
        ("say <|begin|>", "second_bos"),
    ],
)
def test_llama3_special_tokens_spelled_in_an_answer(said, result):
    enc, _ = llama3()
    encoded = enc.encode(example(pair(said)))
    shown = encoded.reason if isinstance(encoded, Dropped) else enc.decode(encoded.answers[0])
    assert shown == result


def test_pairs_that_a_template_makes_equal_are_identical():
    enc, _ = llama3(whitespace_pairs="keep")
    assert enc.encode(example(pair("yes", "yes\n"))).reason == "identical_pair"


def test_llama3_plain_text_has_the_tokenizers_bos_and_one_end():
    enc, ids = llama3()
    encoded = enc.encode(example({"prompt": "Q: a\nA: ", "chosen": "yes", "rejected": "no"}))
    assert encoded.prompt[0] == enc.tokenizer.bos_token_id
    assert encoded.answers[0].tolist() == [*map(ord, "yes"), ids["eot"]]
    none, _ = llama3(add_bos=False)
    assert enc.tokenizer.bos_token_id not in none.prompt_ids([user("hi")])


def test_llama2_begins_every_exchange_with_a_bos():
    enc = encoder(sentencepiece(LLAMA2))
    prompt = [user("hi"), assistant("hi"), user("</s> hi")]
    encoded = enc.encode(example(pair("hi", "no", prompt)))
    assert whole(encoded, 0).count(1) == 2
    assert enc.decode(whole(encoded, 0)).count("</s>") == 3  # one of them spelled by the user
    assert encoded.answers[0].tolist()[-1] == 2
    assert encoded.answers[0].tolist().count(2) == 1
    assert encoded.prompt.tolist() == enc.prompt_ids(prompt)
    # The space before the answer is the answer's: it may merge with it.
    assert enc.tokenizer.convert_ids_to_tokens(encoded.answers[0].tolist())[0] == "▁hi"


def test_turns_that_a_template_refuses_drop_the_row():
    enc = encoder(sentencepiece(LLAMA2))
    dropped = enc.encode(example(pair("hi", "no", [user("hi"), user("hi")])))
    assert dropped.reason == "template_refuses"
    assert "alternate" in dropped.detail
    with pytest.raises(DataError, match="alternate"):
        enc.prompt_ids([user("hi"), user("hi")])


def test_a_refused_system_turn_opens_the_first_question():
    enc = encoder(sentencepiece(LLAMA2))
    encoded = enc.encode(example(pair("hi", "no", [SYSTEM, user("hi")])))
    merged = enc.encode(example(pair("hi", "no", [user("Be brief\n\nhi")])))
    assert whole(encoded, 0) == whole(merged, 0)
    assert whole(encoded, 1) == whole(merged, 1)
    assert encoded.system_merged
    assert not merged.system_merged
    assert encoded.prompt.tolist() == enc.prompt_ids([SYSTEM, user("hi")])
    assert any("system turn is refused" in notice for notice in enc.notices)


def test_a_merged_system_text_stays_when_old_turns_are_cut():
    prompt = [SYSTEM, user("one"), assistant("two"), user("three")]
    whole_length = len(encoder(sentencepiece(LLAMA2)).prompt_ids(prompt))
    enc = encoder(sentencepiece(LLAMA2), max_length=whole_length, prompt_cut="turns")
    encoded = enc.encode(example(pair("hi", "no", prompt)))
    assert encoded.prompt.tolist() == enc.prompt_ids([SYSTEM, user("three")])
    assert encoded.prompt_cut == whole_length - len(encoded.prompt)


def test_the_system_setting_and_column_are_merged_too():
    expected = encoder(sentencepiece(LLAMA2)).prompt_ids([SYSTEM, user("hi")])
    by_setting = encoder(sentencepiece(LLAMA2), system="Be brief")
    assert by_setting.encode(example(pair("yes"))).prompt.tolist() == expected
    assert by_setting.prompt_ids([user("hi")]) == expected
    by_column = encoder(sentencepiece(LLAMA2)).encode(example(pair("yes", system="Be brief")))
    assert by_column.prompt.tolist() == expected


def test_sentencepiece_text_keeps_its_bos_and_merges_at_the_boundary():
    enc = encoder(sentencepiece(None))
    encoded = enc.encode(example({"prompt": "Say: ", "chosen": "hi", "rejected": "no"}))
    pieces = enc.tokenizer.convert_ids_to_tokens(whole(encoded, 0))
    assert pieces == ["<s>", "▁", "S", "a", "y", ":", "▁hi", "</s>"]
    assert encoded.boundary_merged
    assert len(encoded.prompt) == 6


def test_qwen_has_no_bos():
    tokenizer = characters("<|text_end|>", "<|im_start|>", "<|im_end|>", template=CHATML,
                           eos="<|im_end|>")  # fmt: skip
    enc = encoder(tokenizer, stop_ids=[202, 200])
    assert enc.stop_ids == (202, 200)
    encoded = enc.encode(example(pair("yes")))
    assert enc.decode(encoded.answers[0]) == "yes<|im_end|>"
    with pytest.raises(DataError, match="no BOS token"):
        encoder(tokenizer, add_bos=True)


def test_a_marker_that_is_the_bos_stays_when_bos_is_forbidden():
    tokenizer = characters("<|im_start|>", "<|im_end|>", template=CHATML, bos="<|im_start|>",
                           eos="<|im_end|>")  # fmt: skip
    prompt = encoder(tokenizer, add_bos=False).prompt_ids([user("hi")])
    assert prompt == encoder(tokenizer).prompt_ids([user("hi")])
    assert prompt[0] == tokenizer.bos_token_id


def test_a_text_that_begins_with_markers_is_its_own_business():
    tokenizer = characters("<|im_start|>", "<|im_end|>", template=CHATML, bos="<|im_start|>",
                           eos="<|im_end|>")  # fmt: skip
    row = {"prompt": "<|im_start|><|im_start|>q ", "chosen": "yes", "rejected": "no"}
    assert encoder(tokenizer).encode(example(row)).prompt.tolist()[:2] == [200, 200]


def test_a_template_that_ends_turn_and_text_keeps_the_end_of_turn():
    tokenizer = characters("<|text_end|>", "<|end|>", "<|user|>", "<|assistant|>",
                           template=TURN_ENDS_TWICE, eos="<|text_end|>")  # fmt: skip
    enc = encoder(tokenizer, stop_ids=[200])
    encoded = enc.encode(example(pair("yes")))
    assert enc.decode(encoded.answers[0]) == "yes<|end|>"
    assert enc.stop_ids == (200, 201)


def test_a_tokenizer_without_end_of_text():
    tokenizer = characters("<|im_start|>", "<|im_end|>", template=CHATML)
    enc = encoder(tokenizer)
    assert enc.decode(enc.encode(example(pair("yes"))).answers[0]) == "yes<|im_end|>"
    with pytest.raises(DataError, match=r"rows\.jsonl:1.*no stop token") as caught:
        enc.encode(example({"prompt": "q ", "chosen": "yes", "rejected": "no"}))
    assert "data.stop_token" in str(caught.value)


def test_an_unknown_stop_token_is_refused():
    with pytest.raises(DataError, match=r"'<\|no\|>' is not a token"):
        encoder(characters("</s>", eos="</s>"), stop_token="<|no|>")


def test_chat_rows_without_a_template_name_the_setting():
    enc = encoder(characters("</s>", eos="</s>"))
    with pytest.raises(DataError, match="no chat template") as caught:
        enc.encode(example(pair("yes")))
    assert "--data.chat_template" in str(caught.value)


def test_a_template_that_cuts_reasoning_out_of_answers_drops_them():
    template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content.split('</think>')[-1] "
        "+ '</s>' }}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    enc = encoder(characters("</s>", template=template, eos="</s>"))
    dropped = enc.encode(example(pair("<think>so</think>yes")))
    assert dropped.reason == "answer_lost"
    assert not isinstance(enc.encode(example(pair("yes"))), Dropped)
    row = pair("yes") | {"chosen": [assistant("yes", reasoning_content="because of this")]}
    assert enc.encode(example(row)).reason == "answer_lost"


def test_a_prompt_that_changes_once_an_answer_follows_is_not_scored():
    # The last turn is marked, so that the question stands elsewhere in the whole dialogue.
    template = (
        "{% for m in messages %}{% if loop.last and m.role == 'user' %}{{ '[LAST]' }}{% endif %}"
        "{{ '[' + m.role + ']' + m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    enc = encoder(characters("</s>", template=template, eos="</s>"))
    dropped = enc.encode(example(pair("yes")))
    assert dropped.reason == "prompt_changes"
    assert "LAST][user]hi" in dropped.detail


def test_a_header_that_opens_thinking_is_left_to_the_model():
    # "hi" also stands in "<think>", which the conversation does not have.
    template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '[assistant]<think>\n' }}{% endif %}"
    )
    enc = encoder(characters("</s>", template=template, eos="</s>"))
    encoded = enc.encode(example(pair("yes")))
    assert enc.decode(encoded.prompt) == "[user]hi</s>[assistant]"
    assert encoded.prompt.tolist() == enc.prompt_ids([user("hi")])
    assert encoded.boundary_merged
    assert "not prefix-stable" in enc.notices[0]


def test_a_template_with_todays_date_says_so():
    template = "{{ strftime_now('%Y') }}" + CHATML
    enc = encoder(characters("<|im_start|>", "<|im_end|>", template=template))
    assert any("date" in notice for notice in enc.notices)


def test_a_system_text_that_a_template_loses_opens_the_first_question():
    template = (
        "{% for m in messages %}{% if m.role != 'system' %}{{ '[' + m.role + ']' + m.content "
        "+ '</s>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}"
        "{% endif %}"
    )
    enc = encoder(characters("</s>", template=template, eos="</s>"))
    encoded = enc.encode(example(pair("yes", prompt=[SYSTEM, user("hi")])))
    assert enc.decode(encoded.prompt) == "[user]Be brief\n\nhi</s>[assistant]"
    assert any("system turn is lost" in notice for notice in enc.notices)
    late = [user("hi"), assistant("ho"), SYSTEM, user("hi")]
    assert enc.encode(example(pair("yes", prompt=late))).reason == "system_lost"


CALL = {"type": "function", "function": {"name": "look", "arguments": {"path": 'C:\\new "x"\n'}}}


@pytest.mark.parametrize(
    "shown",
    ["call.function | tojson", "call.function.name + call.function.arguments", "call | string"],
)
def test_tool_calls_as_json_text_or_repr_are_not_lost(shown):
    template = (
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content | trim }}"
        "{% for call in m.tool_calls or [] %}{{ " + shown + " }}{% endfor %}{{ '</s>' }}"
        "{% endfor %}{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
    )
    enc = encoder(characters("</s>", template=template, eos="</s>"))
    prompt = [user("hi"), {"role": "assistant", "content": None, "tool_calls": [CALL]},
              {"role": "tool", "content": ' {"a": "b"}\n'}]  # fmt: skip
    encoded = enc.encode(example(pair("yes", prompt=prompt)))
    assert not isinstance(encoded, Dropped)
    assert "look" in enc.decode(encoded.prompt)


def test_half_a_surrogate_pair_drops_the_row():
    enc, _ = llama3()
    good, bad = example(pair("yes")), example(pair("\ud800"))
    results = enc.encode_many([bad, good])
    assert results[0].reason == "not_unicode"
    assert enc.decode(results[1].answers[0]) == "yes<|eot|>"


def test_text_becomes_turns_on_request_with_its_system_text():
    enc, _ = llama3(render="chat")
    row = {"system": "Be brief", "prompt": " hi\n", "chosen": " yes", "rejected": "no"}
    encoded = enc.encode(example(row))
    assert encoded.prompt.tolist() == enc.prompt_ids([SYSTEM, user("hi")])
    assert enc.decode(encoded.answers[0]) == "yes<|eot|>"
    forbidden, _ = llama3(render="text")
    assert forbidden.encode(example(pair("yes"))).reason == "turns_as_text"


def test_the_settings_system_turn_stands_where_rows_have_none():
    enc, _ = llama3(system="Be brief")
    plain = enc.encode(example(pair("yes")))
    assert plain.prompt.tolist() == enc.prompt_ids([user("hi")])
    assert "Be brief" in enc.decode(plain.prompt)
    own = enc.encode(example(pair("yes", prompt=[SYSTEM | {"content": "Sing"}, user("hi")])))
    assert "Be brief" not in enc.decode(own.prompt)


def test_sft_takes_the_chosen_answer_of_a_pair():
    enc, _ = llama3()
    both = enc.encode(example(pair("yes")))
    one = enc.encode(example(pair("yes"), kind="sft"))
    assert one.prompt.tolist() == both.prompt.tolist()
    assert [a.tolist() for a in one.answers] == [both.answers[0].tolist()]
    assert one.complete == (True,)


DIALOGUE = [SYSTEM, user("first " * 5), assistant("an answer"), user("last")]


@pytest.mark.parametrize("overlong", ["truncate", "drop", "error"])
def test_the_oldest_turns_go_first(overlong):
    enc, _ = llama3(prompt_cut="turns", max_length=70, overlong=overlong)
    encoded = enc.encode(example(pair("yes", prompt=DIALOGUE)))
    assert encoded.prompt.tolist() == enc.prompt_ids([SYSTEM, user("last")])
    assert encoded.complete == (True, True)
    full = llama3()[0].encode(example(pair("yes", prompt=DIALOGUE)))
    assert encoded.prompt_cut == len(full.prompt) - len(encoded.prompt)


def test_text_rows_as_turns_can_lose_turns_too():
    enc, _ = llama3(prompt_cut="turns", render="chat", max_length=40)
    row = {"prompt": "hi", "chosen": "yes " * 20, "rejected": "no"}
    encoded = enc.encode(example(row))
    assert encoded.prompt_cut == 0
    assert encoded.complete == (False, True)


def test_over_long_rows_are_dropped_or_stop_the_reading():
    drop, _ = llama3(max_length=40, overlong="drop")
    row = pair("yes " * 20)
    assert drop.encode(example(row)).reason == "too_long"
    error, _ = llama3(max_length=40, overlong="error")
    with pytest.raises(DataError, match=r"rows\.jsonl:1.*data\.max_length is 40"):
        error.encode(example(row))


def test_generation_leaves_white_space_that_an_answer_may_merge_with():
    enc = encoder(sentencepiece(None))
    encoded = enc.encode(example({"prompt": "Say: ", "chosen": "hi", "rejected": "no"}))
    assert enc.prompt_ids("Say:") == encoded.prompt.tolist()
    with pytest.raises(DataError, match="no token"):
        encoder(characters("</s>", eos="</s>")).prompt_ids("")
