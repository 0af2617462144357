# SPDX-License-Identifier: Apache-2.0
"""Tokenizers built from GGUF metadata, against a slow oracle, and those of folders."""

import json

import gguf
import pytest

from alignax.errors import ModelError
from alignax.models.tokenizer import PRE_TOKENIZERS, load_tokenizer
from tests.models.tiny_llama import write_folder, write_gguf

TEXTS = ("ab abc", "a", " ab  cab", "abcab\nab", "ünï ab 漢", "")
NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6


def write_tokenizer(path, model, tokens, **extra):
    """Write a GGUF file that holds a tokenizer: list of (piece, score, type)."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(77)
    writer.add_tokenizer_model(model)
    writer.add_token_list([piece for piece, _, _ in tokens])
    writer.add_token_scores(extra.pop("token_scores", [score for _, score, _ in tokens]))
    writer.add_token_types([kind for _, _, kind in tokens])
    for name, value in extra.items():
        getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def sentence_pieces():
    """A small SentencePiece vocabulary with all bytes."""
    pieces = [("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)]
    pieces += [(f"<0x{byte:02X}>", 0.0, BYTE) for byte in range(256)]
    words = ["ab", "▁a", "▁ab", "bc", "abc", "▁▁", "ca", "▁abc", "cab"]
    pieces += [(word, -float(rank), NORMAL) for rank, word in enumerate(words)]
    singles = ["▁", "a", "b", "c", "n", "\n"]
    pieces += [(single, -100.0 - rank, NORMAL) for rank, single in enumerate(singles)]
    return [*pieces, ("<|mark|>", 0.0, USER)]


def slow_sentence_piece(text, pieces):
    """Merge the neighbours whose union scores best, leftmost first, until none is a piece."""
    ids = {piece: index for index, (piece, _, _) in enumerate(pieces)}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        unions = [
            (-pieces[ids[left + right]][1], place)
            for place, (left, right) in enumerate(zip(parts, parts[1:], strict=False))
            if left + right in ids
        ]
        if not unions:
            break
        place = min(unions)[1]
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return [
        index
        for part in parts
        for index in (
            [ids[part]] if part in ids else [ids[f"<0x{byte:02X}>"] for byte in part.encode()]
        )
    ]


@pytest.fixture(scope="module")
def sentence_piece(tmp_path_factory):
    """Tokenizer and its pieces."""
    path = tmp_path_factory.mktemp("spm") / "a.gguf"
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0}
    return load_tokenizer(write_tokenizer(path, "llama", sentence_pieces(), **ids))


@pytest.mark.parametrize("text", TEXTS)
def test_sentence_piece_equals_a_slow_merger(sentence_piece, text):
    """Merges by score, bytes for what no piece covers, a BOS by default, and back to the text."""
    ids = sentence_piece.encode(text, add_special_tokens=False)
    assert ids == slow_sentence_piece(text, sentence_pieces())
    assert sentence_piece.encode(text) == [1, *ids]
    assert sentence_piece.decode(ids) == text


def test_special_pieces_are_whole(sentence_piece):
    """Control and user-defined pieces are never cut; only control ones are skipped."""
    ids = sentence_piece.encode("ab<|mark|></s>", add_special_tokens=False)
    last = len(sentence_pieces()) - 1
    assert ids[-2:] == [last, 2]
    assert sentence_piece.decode(ids, skip_special_tokens=True) == "ab<|mark|>"
    assert sentence_piece.model_max_length == 77


def byte_pieces():
    """Every byte in the byte-level alphabet, two merges and two control tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    singles = sorted(ByteLevel.alphabet())
    return [(piece, 0.0, NORMAL) for piece in [*singles, "Ġa", "ab", "Ġab"]] + [
        ("<|start|>", 0.0, CONTROL),
        ("<|end|>", 0.0, CONTROL),
    ]


def byte_level(path, **extra):
    """Write and load a byte-level tokenizer."""
    merges = ["Ġ a", "a b", "Ġa b"]
    ids = {"bos_token_id": 259, "eos_token_id": 260, "pad_token_id": 260}
    settings = {"token_merges": merges} | ids | extra
    return load_tokenizer(write_tokenizer(path, "gpt2", byte_pieces(), **settings))


def test_byte_level_merges_in_order_of_rank(tmp_path):
    """`` ab`` becomes ``Ġa b`` first (rank 0), then ``Ġab``; every text comes back."""
    tokenizer = byte_level(tmp_path / "a.gguf", tokenizer_pre="gpt-2")
    names = {piece: index for index, (piece, _, _) in enumerate(byte_pieces())}
    assert tokenizer.encode("ab ab") == [names["ab"], names["Ġab"]]
    assert tokenizer.encode("<|start|>ab<|end|>") == [259, names["ab"], 260]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|start|>", "<|end|>")
    assert (tokenizer.pad_token_id, tokenizer.unk_token) == (260, None)


@pytest.mark.parametrize(
    ("settings", "adds_bos"),
    [
        ({}, False),
        ({"tokenizer_pre": "llama-bpe"}, True),
        ({"tokenizer_pre": "llama-bpe", "add_bos_token": False}, False),
        ({"add_bos_token": True}, True),
    ],
)
def test_bos_as_the_file_says_or_the_kind_implies(tmp_path, settings, adds_bos):
    """The flag wins; without it Llama 3 adds a BOS and GPT-2 does not."""
    tokenizer = byte_level(tmp_path / "a.gguf", **settings)
    assert (tokenizer.encode("ab")[0] == 259) == adds_bos
    assert 259 not in tokenizer.encode("ab", add_special_tokens=False)


def test_chat_template_comes_from_the_file(tmp_path):
    """It is rendered with the file's own tokens."""
    template = "{{ bos_token }}{% for m in messages %}{{ m['content'] }}{% endfor %}{{ eos_token }}"
    tokenizer = byte_level(tmp_path / "a.gguf", chat_template=template)
    turns = [{"role": "user", "content": "ab"}]
    assert tokenizer.apply_chat_template(turns, tokenize=False) == "<|start|>ab<|end|>"
    assert byte_level(tmp_path / "b.gguf").chat_template is None


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ċ", "Ċ", "3", "Ġ", "ĠOK", "!"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "3", "Ġ", "ĠOK", "!"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "ĊĊ", "3", "Ġ", "ĠOK", "!"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "3", "Ġ", "ĠOK", "!"]),
    ],
)
def test_words_are_cut_by_the_named_rule(rule, words):
    """The rules differ in how they keep digits together."""
    found = [word for word, _ in PRE_TOKENIZERS[rule]().pre_tokenize_str("It's 12345\n\n3  OK!")]
    assert found == words


@pytest.mark.parametrize(
    ("model", "settings", "reason"),
    [
        ("bert", {}, "tokenizer of kind 'bert'; known are gpt2, llama"),
        ("gpt2", {"token_merges": ["a b"], "tokenizer_pre": "odd"}, "rule 'odd'"),
        ("gpt2", {}, "no metadata key 'tokenizer.ggml.merges'"),
        ("gpt2", {"token_merges": ["a b"], "eos_token_id": 999}, "eos_token_id is 999"),
        ("gpt2", {"token_merges": ["a b", "a zz"]}, r"merges .*: \['a zz'\]"),
        ("llama", {"unk_token_id": 999}, "unknown_token_id is 999"),
        ("llama", {"token_scores": [0.0]}, "1 scores for 261 tokens"),
    ],
)
def test_tokenizer_that_cannot_be_built_is_refused(tmp_path, model, settings, reason):
    """What the file has and what is known."""
    path = write_tokenizer(tmp_path / "a.gguf", model, byte_pieces(), **settings)
    with pytest.raises(ModelError, match=reason):
        load_tokenizer(path)


def test_gguf_without_tokenizer_is_refused(tmp_path):
    """The missing key is named."""
    with pytest.raises(ModelError, match=r"no metadata key 'tokenizer\.ggml\.model'"):
        load_tokenizer(write_gguf(tmp_path / "a.gguf"))


def test_folder_gives_back_what_was_saved(tmp_path):
    """Splitting rule, template, special tokens and ids survive saving and loading."""
    settings = {"tokenizer_pre": "smollm", "chat_template": "{{ messages }}", "add_bos_token": True}
    tokenizer = byte_level(tmp_path / "a.gguf", **settings)
    folder = write_folder(tmp_path / "model")
    tokenizer.save_pretrained(folder)
    loaded = load_tokenizer(folder)
    for text in (*TEXTS, "12 34\n\n5"):
        assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.chat_template == "{{ messages }}"
    assert loaded.special_tokens_map == tokenizer.special_tokens_map


def test_tokenizer_json_wins_over_the_named_class(tmp_path):
    """SmolLM2's folder names GPT2Tokenizer, whose own splitting rule keeps digits together."""
    tokenizer = byte_level(tmp_path / "a.gguf", tokenizer_pre="smollm")
    folder = write_folder(tmp_path / "model")
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = json.loads(file.read_text()) | {"tokenizer_class": "GPT2Tokenizer"}
    file.write_text(json.dumps(settings))
    rule = load_tokenizer(folder).backend_tokenizer.pre_tokenizer
    assert [word for word, _ in rule.pre_tokenize_str("12\n\n3")] == ["1", "2", "ĊĊ", "3"]


def test_bad_folders_are_refused(tmp_path):
    """No folder, no tokenizer files, damaged files."""
    with pytest.raises(ModelError, match="neither a folder nor a GGUF file"):
        load_tokenizer(tmp_path / "none")
    folder = write_folder(tmp_path / "model")
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(folder)
    (folder / "tokenizer.json").write_text('{"version": 1')
    with pytest.raises(ModelError, match="cannot read the tokenizer"):
        load_tokenizer(folder)
