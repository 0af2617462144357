# SPDX-License-Identifier: Apache-2.0
"""Every format: found by itself, read exactly, bad rows dropped with a reason and never raising."""

import copy

import pytest

from alignax.data.formats import FORMATS, detect, parse_row
from alignax.data.table import content_hash
from alignax.errors import DataError, UsageError
from alignax.records import Conversation, Dropped, PreferencePair
from tests.data.toys import assistant, user

HUMAN, GPT = {"from": "human", "value": "q é"}, {"from": "gpt", "value": "a"}
TURNS = (user("q é"),)
GOOD = {
    "oasst": {
        "made_of": "oasst", "prompt": [user("q é")], "chosen": [assistant("a")],
        "rejected": [assistant("b")], "score_chosen": 0, "score_rejected": -1,
    },
    "ranked": {
        "made_of": "ranked", "prompt": [user("q é")], "chosen": [assistant("a")],
        "rejected": [assistant("b")], "score_chosen": 2, "score_rejected": 1,
    },
    "comparison": {"instruction": "q é", "output_1": "b", "output_2": "a", "preference": 2},
    "texts": {
        "text": ["## Human:\nq é\n\n## Assistant:\nb", "## Human:\nq é\n\n## Assistant:\na"],
        "score": [0.5, 1.5],
    },
    "hh": {
        "chosen": "\n\nHuman: q é\n\nAssistant: a", "rejected": "\n\nHuman: q é\n\nAssistant: b",
    },
    "sharegpt": {"conversations": [HUMAN], "chosen": GPT, "rejected": {**GPT, "value": "b"}},
    "ultrafeedback": {
        "prompt": "q é", "chosen": [user("q é"), assistant("a")],
        "rejected": [user("q é"), assistant("b")], "score_chosen": 7.5, "score_rejected": 3,
    },
    "trl": {"prompt": [user("q é")], "chosen": [assistant("a")], "rejected": [assistant("b")]},
    "alpaca-pairs": {"question": "q é", "chosen": "a", "rejected": "b"},
    "messages": {"messages": [user("q é"), assistant("a")]},
    "prompt-response": {"prompt": [user("q é")], "completion": [assistant("a")]},
    "alpaca": {"instruction": "q é", "input": "", "output": "a"},
}  # fmt: skip


def read(row, form="auto", kind="pair"):
    name = detect(form, [row], kind=kind, source="rows.jsonl")
    return parse_row(name, row, kind=kind, row_id=content_hash(row), place="rows.jsonl:1")


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_found_and_read(name):
    row, kind = GOOD[name], FORMATS[name].kind
    before = copy.deepcopy(row)
    assert detect("auto", [row], kind=kind, source="x") == name
    example = read(row, kind=kind)
    assert example.prompt == TURNS
    assert example.answers == ((assistant("a"),), (assistant("b"),))[: len(example.answers)]
    assert isinstance(example, PreferencePair if kind == "pair" else Conversation)
    assert example == read(dict(reversed(row.items())), kind=kind)
    assert row == before
    assert all(FORMATS[name].reads(column) for column in row)


@pytest.mark.parametrize("bad", [None, 3, "", [], {}, {"role": "user"}, [1], [{"role": "x"}], True])
@pytest.mark.parametrize("name", FORMATS)
def test_bad_values_drop_the_row(name, bad):
    for column in GOOD[name]:
        if "score" in column or (column == "input" and bad != 3):
            continue
        row = {**GOOD[name], column: bad}
        example = parse_row(name, row, kind=FORMATS[name].kind, row_id="1", place="p")
        # An empty text is the encoder's to refuse; what is read must be text or turns.
        if not isinstance(example, Dropped):
            assert all(isinstance(part, str | tuple) for part in (example.prompt, *example.answers))
        missing = {k: v for k, v in GOOD[name].items() if k != column}
        parse_row(name, missing, kind=FORMATS[name].kind, row_id="1", place="p")


@pytest.mark.parametrize("row", [None, 3, "text", [1, 2]])
def test_rows_that_are_no_objects(row):
    example = parse_row("trl", row, kind="pair", row_id="1", place="p")
    assert isinstance(example, Dropped)
    assert example.reason == "wrong_type"


PAIR = ((assistant("a"),), (assistant("b"),))
SYSTEM = {"role": "system", "content": "Be brief"}
READ_AS = [
    ("no blank lines in front",
     {"chosen": "Human: q é\n\nAssistant: a", "rejected": "Human: q é\n\nAssistant: b"}, TURNS),
    ("one line break between turns",
     {"chosen": "Human: q é\nAssistant: a", "rejected": "Human: q é\nAssistant: b"}, TURNS),
    ("line ends of another system",
     {"chosen": "\r\n\r\nHuman: q é\r\n\r\nAssistant: a",
      "rejected": "\r\n\r\nHuman: q é\r\n\r\nAssistant: b"}, TURNS),
    ("transcript in the prompt column",
     {"prompt": "\n\nHuman: q é\n\nAssistant:", "chosen": " a", "rejected": " b"}, TURNS),
    ("several turns",
     {"chosen": "\n\nHuman: x\n\nAssistant: y\n\nHuman: q é\n\nAssistant: a",
      "rejected": "\n\nHuman: x\n\nAssistant: y\n\nHuman: q é\n\nAssistant: b"},
     (user("x"), assistant("y"), *TURNS)),
    ("prompt text, one turn a side",
     {"prompt": "q é", "chosen": [assistant("a")], "rejected": [assistant("b")]}, TURNS),
    ("prompt text, a turn that is no list",
     {"prompt": "q é", "chosen": assistant("a"), "rejected": assistant("b")}, TURNS),
    ("prompt of turns, sides of text",
     {"prompt": [user("q é")], "chosen": "a", "rejected": "b"}, TURNS),
    ("implicit prompt",
     {"chosen": [*TURNS, assistant("a")], "rejected": [*TURNS, assistant("b")]}, TURNS),
    ("an implicit prompt that the assistant opens",
     {"chosen": [assistant("hello"), *TURNS, assistant("a")],
      "rejected": [assistant("hello"), *TURNS, assistant("b")]}, (assistant("hello"), *TURNS)),
    ("prompt repeated on both sides",
     {"prompt": list(TURNS), "chosen": [*TURNS, assistant("a")],
      "rejected": [*TURNS, assistant("b")]}, TURNS),
    ("prompt repeated without its system turn",
     {"prompt": [SYSTEM, *TURNS], "chosen": [*TURNS, assistant("a")],
      "rejected": [*TURNS, assistant("b")]}, (SYSTEM, *TURNS)),
    ("message list beside two turns",
     {"messages": list(TURNS), "chosen": assistant("a"), "rejected": assistant("b")}, TURNS),
    ("conversations, sides of lists, system and empty tools columns",
     {"conversations": [HUMAN], "chosen": [GPT], "rejected": [{**GPT, "value": "b"}],
      "system": "Be brief", "tools": "[]"}, (SYSTEM, *TURNS)),
    ("sharegpt with role and content",
     {"conversations": list(TURNS), "chosen": assistant("a"), "rejected": assistant("b")}, TURNS),
    ("sharegpt with a system turn",
     {"conversations": [{"from": "system", "value": "Be brief"}, HUMAN], "chosen": GPT,
      "rejected": {**GPT, "value": "b"}}, (SYSTEM, *TURNS)),
    ("a question with a system text",
     {"system": "Be brief", "question": "q é", "chosen": "a", "rejected": "b"}, (SYSTEM, *TURNS)),
    ("an instruction with input",
     {"instruction": "q", "input": "é", "chosen": "a", "rejected": "b"}, (user("q\né"),)),
    ("content in parts",
     {"prompt": [{"role": "user", "content": [{"type": "text", "text": "q é"}]}],
      "chosen": [assistant("a")], "rejected": [assistant("b")]}, TURNS),
    ("null fields of a table",
     {"prompt": [{**user("q é"), "tool_calls": None, "name": None}],
      "chosen": [{**assistant("a"), "tool_calls": None}],
      "rejected": [{**assistant("b"), "tool_calls": None}], "tools": None}, TURNS),
]  # fmt: skip


@pytest.mark.parametrize(("row", "prompt"), [r[1:] for r in READ_AS], ids=[r[0] for r in READ_AS])
def test_spellings_of_one_pair(row, prompt):
    example = read(row)
    assert isinstance(example, PreferencePair), example
    assert example.prompt == prompt
    assert example.answers == PAIR


@pytest.mark.parametrize(
    ("chosen", "rejected", "result"),
    [
        ("The cat sat", "The cat ran", ("The cat", " sat", " ran")),
        ("The cat sat", "The cat said", ("The cat", " sat", " said")),
        ("Yes it is", "Yes  no", ("Yes", " it is", "  no")),
        ("same", "same", "identical_pair"),
        ("The cat", "The cat sat", "prefix_pair"),
        ("ab", "ac", "no_prompt"),
    ],
)
def test_implicit_prompt_of_plain_text(chosen, rejected, result):
    example = read({"chosen": chosen, "rejected": rejected})
    if isinstance(result, str):
        assert example.reason == result
        return
    assert (example.prompt, *example.answers) == result
    assert example.prompt + example.chosen == chosen
    assert example.prompt + example.rejected == rejected


@pytest.mark.parametrize(
    ("chosen", "rejected", "reason"),
    [
        ("\n\nHuman: q\n\nAssistant: a", "\n\nHuman: r\n\nAssistant: b", "prompt_differs"),
        (
            "\n\nHuman: q\n\nAssistant: a\n\nHuman: x",
            "\n\nHuman: q\n\nAssistant: b",
            "roles_not_alternating",
        ),
        ("\n\nAssistant: a", "\n\nAssistant: b", "no_prompt"),
        ("no speaker", "\n\nHuman: q\n\nAssistant: b", "no_transcript"),
        ("", "\n\nHuman: q\n\nAssistant: b", "empty_chosen"),
        (None, "\n\nHuman: q\n\nAssistant: b", "null_field"),
    ],
)
def test_transcripts_that_are_no_pair(chosen, rejected, reason):
    row = {"chosen": chosen, "rejected": rejected}
    assert read(row, "hh").reason == reason


def test_c7_dialogues_split_at_the_first_differing_assistant_turn():
    shared = [user("U1"), assistant("A1"), user("U2")]
    good = {"chosen": [*shared, assistant("A2")], "rejected": [*shared, assistant("B2")]}
    assert read(good).prompt == tuple(shared)
    same = read({**good, "rejected": good["chosen"]})
    assert same.reason == "identical_pair"
    longer = read({**good, "rejected": [*good["chosen"], user("U3"), assistant("A3")]})
    assert longer.reason == "prefix_pair"
    early = read({**good, "rejected": [user("U1"), assistant("B1"), user("U2"), assistant("B2")]})
    assert early.prompt == (user("U1"),)
    assert early.chosen == (assistant("A1"), user("U2"), assistant("A2"))
    assert early.rejected == (assistant("B1"), user("U2"), assistant("B2"))


CALL = {"function": {"name": "look", "arguments": {"at": "sky"}}}
CALLS = assistant(None, tool_calls=[CALL])
SEEN = {"role": "tool", "content": "7"}


@pytest.mark.parametrize(
    ("chosen", "rejected", "result"),
    [
        # What both sides share goes to the prompt, also after an explicit one.
        ([assistant("A1"), user("U2"), assistant("A2")],
         [assistant("A1"), user("U2"), assistant("B2")], (3, 1, 1)),
        ([CALLS, SEEN, assistant("A")], [CALLS, SEEN, assistant("B")], (3, 1, 1)),
        ([CALLS, SEEN, assistant("A")], [assistant("B")], (1, 3, 1)),
        ([assistant("A1"), user("U2"), assistant("A2")],
         [assistant("B1"), user("V2"), assistant("B2")], (1, 3, 3)),
        ([assistant("A1"), user("U2"), assistant("A2")], [assistant("A1")], "prefix_pair"),
        ([assistant("A1"), user("U2"), assistant("A2")],
         [assistant("A1"), user("V2"), assistant("B2")], "prompt_differs"),
        ([assistant("A1"), user("U2")], [assistant("B1")], "roles_not_alternating"),
        ([user("A1"), assistant("A2")], [assistant("B1")], "roles_not_alternating"),
        ([assistant("A1"), SYSTEM, assistant("A2")], [assistant("B1")], "roles_not_alternating"),
    ],
)  # fmt: skip
def test_answers_of_several_turns_after_an_explicit_prompt(chosen, rejected, result):
    """The same in TRL's and in ShareGPT's form."""
    for column in ("prompt", "conversations"):
        example = read({column: [user("U1")], "chosen": chosen, "rejected": rejected})
        if isinstance(result, str):
            assert example.reason == result
            continue
        assert tuple(map(len, (example.prompt, *example.answers))) == result
        joined = [[m["content"] for m in (*example.prompt, *side)] for side in example.answers]
        assert joined == [
            ["U1", *(m["content"] or "" for m in side)] for side in (chosen, rejected)
        ]


def test_prompt_text_before_sides_of_several_turns():
    chosen, rejected = ([assistant(t), user("U"), assistant(t * 2)] for t in "ab")
    example = read({"prompt": "q", "chosen": chosen, "rejected": rejected})
    assert (example.prompt, example.chosen) == ((user("q"),), tuple(chosen))


def test_function_call_and_observation_turns():
    calls = '[{"name": "look", "arguments": {"at": "sky"}}, {"name": "wait", "arguments": "{}"}]'
    row = {
        "conversations": [
            HUMAN, {"from": "function_call", "value": calls}, {"from": "observation", "value": "7"},
        ],
        "tools": '[{"name": "look", "parameters": {}}, {"name": "wait", "parameters": {}}]',
        "chosen": GPT, "rejected": {**GPT, "value": "b"},
    }  # fmt: skip
    example = read(row)
    assert [m["role"] for m in example.prompt] == ["user", "assistant", "tool"]
    assert [c["function"] for c in example.prompt[1]["tool_calls"]] == [
        {"name": "look", "arguments": {"at": "sky"}}, {"name": "wait", "arguments": {}},
    ]  # fmt: skip
    assert [t["function"]["name"] for t in example.tools] == ["look", "wait"]
    assert read({**row, "tools": '["look"'}).reason == "wrong_type"
    assert read({**row, "tools": [3]}).reason == "wrong_type"


@pytest.mark.parametrize(
    "scores",
    [
        {"score_chosen": 2, "score_rejected": 1.5}, {"chosen_score": "2", "rejected_score": "1.5"},
        {"chosen-rating": 2.0, "rejected-rating": 1.5},
        {"metadata": {"score_chosen": 2, "score_rejected": 1.5}},
        {"chosen_reward": 2, "rejected_reward": 1.5},
    ],
)  # fmt: skip
def test_scores_under_their_many_names(scores):
    row = {"prompt": "q", "chosen": "a", "rejected": "b", **scores}
    assert detect("auto", [row], kind="pair", source="x") == "ultrafeedback"
    example = read(row)
    assert (example.chosen_score, example.rejected_score) == (2.0, 1.5)
    assert all(FORMATS["ultrafeedback"].reads(column) for column in row)


def test_rows_that_their_label_calls_bad_are_not_imitated():
    row = {"prompt": "q", "completion": "a", "label": False}
    assert read(row, kind="sft").reason == "undesired"
    assert read({**row, "label": True}, kind="sft").response == "a"


def test_history_of_alpaca_rows():
    row = {"instruction": "q", "output": "a", "history": [["x", "y"]], "system": "Be brief"}
    assert read(row, kind="sft").prompt == (SYSTEM, user("x"), assistant("y"), user("q"))
    assert read({**row, "history": ["x"]}, kind="sft").reason == "wrong_type"


def test_no_format_fits_names_columns_and_nearest():
    with pytest.raises(DataError) as caught:
        detect("auto", [{"promt": "q", "chosen": "a"}], kind="pair", source="rows.jsonl")
    assert "chosen, promt" in str(caught.value)
    assert "rejected" in str(caught.value)
    assert "rename 'promt' to 'prompt'?" in str(caught.value)
    with pytest.raises(DataError, match="alignax sft"):
        detect("auto", [GOOD["prompt-response"]], kind="pair", source="rows.jsonl")
    with pytest.raises(UsageError, match="did you mean 'sharegpt'"):
        detect("sharegp", [], kind="pair", source="x")
    with pytest.raises(UsageError, match="one answer a row"):
        detect("alpaca", [], kind="pair", source="x")


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_a_misspelt_side_beside_a_question_is_no_known_format(side):
    row = {"question": "q", "chosen": "a", "rejected": "b"}
    row[side + "_"] = row.pop(side)
    with pytest.raises(DataError, match="no known format") as caught:
        detect("auto", [row], kind="pair", source="rows.jsonl")
    lines = str(caught.value).splitlines()
    assert all(column in lines[0] for column in row)
    assert lines[1].startswith("  - alpaca-pairs wants ")
    assert f"rename '{side}_' to '{side}'?" in lines[-1]


def test_right_columns_with_wrong_values_are_judged_row_by_row():
    row = {"prompt": None, "chosen": None, "rejected": None}
    assert read(row).reason == "null_field"


def test_images_are_refused_by_name():
    row = {**GOOD["trl"], "images": ["a.png"]}
    with pytest.raises(DataError, match="images"):
        detect("auto", [row], kind="pair", source="x")
    part = {"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]}
    assert read({**GOOD["trl"], "prompt": [part]}).images == ("a.png",)
    film = {"role": "user", "content": [{"type": "video", "video": "a.mp4"}]}
    assert read({**GOOD["trl"], "prompt": [film]}).reason == "not_text"
