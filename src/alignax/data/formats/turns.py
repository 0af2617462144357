# SPDX-License-Identifier: Apache-2.0
"""Spellings of chat turns → ``role``/``content`` messages, and where a pair's answers begin."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from alignax.data.images import IMAGE_MARK, IMAGE_PARTS
from alignax.records import Message

ROLES = {
    "human": "user", "user": "user", "prompter": "user",
    "gpt": "assistant", "assistant": "assistant", "model": "assistant", "bot": "assistant",
    "chatgpt": "assistant", "function_call": "assistant",
    "system": "system", "developer": "developer",
    "tool": "tool", "observation": "tool", "function": "tool", "ipython": "tool",
}  # fmt: skip

CONTENT = ("content", "value", "text")
"""Keys that hold what a turn says; the first that is there counts."""

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys that hold what an assistant thought before it answered."""


class RowProblem(Exception):
    """A row cannot be used; it is dropped and counted under ``reason``.

    ``fatal`` problems (a template that cannot show what the row holds) stop the whole reading.
    """

    def __init__(self, reason: str, detail: str = "", *, fatal: bool = False):
        """Keep the reason under which the row is counted, and what was seen."""
        super().__init__(detail or reason)
        self.reason = reason
        self.detail = detail
        self.fatal = fatal


def required(row: Mapping[str, Any], *names: str) -> Any:
    """Give the first of some columns that is there.

    Raises:
        RowProblem: None is there (``missing_field``), or it is null (``null_field``).
    """
    found = next((name for name in names if name in row), None)
    if found is None:
        raise RowProblem("missing_field", f"{' or '.join(names)} is missing")
    if row[found] is None:
        raise RowProblem("null_field", f"{found} is null")
    return row[found]


def empty(field: str) -> RowProblem:
    """Make the problem of an answer, or of something else, that says nothing."""
    side = field if field in ("chosen", "rejected") else "turn"
    return RowProblem(f"empty_{side}", f"{field} is empty")


def is_turns(value: Any) -> bool:
    """Tell whether a value is a list of chat turns."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, Mapping) and ("role" in m or "from" in m) for m in value)
    )


def turn(value: Any, field: str) -> Message:
    """Normalise one turn; absent (null) fields are left out.

    Raises:
        RowProblem: It is no turn, or has an unknown role or no content.
    """
    if not isinstance(value, Mapping):
        raise RowProblem("wrong_type", f"{field} holds {type(value).__name__}, a turn expected")
    if "role" not in value and "from" not in value:
        keys = ", ".join(map(str, value)) or "none"
        raise RowProblem("missing_field", f"{field} has a turn without role (keys: {keys})")
    spoken = value.get("role", value.get("from"))
    role = ROLES.get(str(spoken).strip().lower())
    if role is None:
        raise RowProblem("wrong_type", f"{field} has role {spoken!r}")
    content = next((value[key] for key in CONTENT if key in value), None)
    known = ("role", "from", *CONTENT)
    message = {k: v for k, v in value.items() if v is not None and k not in known}
    message = {"role": role, **message, "content": content}
    if str(spoken).strip().lower() == "function_call":
        message |= {"content": "", "tool_calls": content}
    if not message.get("tool_calls"):
        # An empty list is no call; templates ask only whether the field is there.
        message.pop("tool_calls", None)
    else:
        message["tool_calls"] = [_call(c, field) for c in _as_list(message["tool_calls"])]
        message["content"] = message["content"] or ""
    if isinstance(message["content"], list):
        message["content"] = _parts(message["content"], field)
    if message["content"] is None:
        reason = "null_field" if any(key in value for key in CONTENT) else "missing_field"
        raise RowProblem(reason, f"{field} has a turn without content")
    if not isinstance(message["content"], str):
        raise RowProblem("wrong_type", f"{field} has content of {type(content).__name__}")
    return message


def _parts(parts: Sequence[Any], field: str) -> str:
    """Join text parts; of images only the place is kept, other kinds are refused by name."""
    texts = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type", "text") == "text":
            texts.append(str(part.get("text") or ""))
        elif isinstance(part, Mapping) and part.get("type") in IMAGE_PARTS:
            texts.append(IMAGE_MARK)
        else:
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise RowProblem("not_text", f"{field} has a content part of type {kind!r}")
    return "".join(texts)


def _as_list(value: Any) -> list[Any]:
    """Parse a list that may be given as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise RowProblem("wrong_type", f"tool field is not JSON: {error}") from error
    return value if isinstance(value, list) else [value]


def _call(value: Any, field: str) -> dict[str, Any]:
    """Normalise a tool call: arguments given as JSON text become the object that they are."""
    nested = value.get("function", value) if isinstance(value, Mapping) else value
    if not isinstance(nested, Mapping) or not isinstance(nested.get("name"), str):
        raise RowProblem("wrong_type", f"{field} has a tool call without a name: {value!r:.60}")
    call = {k: v for k, v in nested.items() if v is not None and k not in ("id", "type")}
    if isinstance(call.get("arguments"), str):
        try:
            call["arguments"] = json.loads(call["arguments"].strip() or "{}")
        except ValueError as error:
            raise RowProblem("wrong_type", f"{field}: arguments are not JSON: {error}") from error
    if not isinstance(call.get("arguments", {}), Mapping):
        raise RowProblem(
            "wrong_type", f"{field}: the arguments of {call['name']} are no JSON object"
        )
    extra = {"id": value["id"]} if value.get("id") else {}
    return {"type": "function", **extra, "function": call}


def turns(value: Any, field: str) -> tuple[Message, ...]:
    """Normalise a list of turns, one turn, or a text that is one assistant turn."""
    if value is None:
        raise RowProblem("null_field", f"{field} is null")
    if isinstance(value, str):
        return ({"role": "assistant", "content": value},)
    if isinstance(value, Mapping):
        return (turn(value, field),)
    if not isinstance(value, list):
        raise RowProblem("wrong_type", f"{field} is {type(value).__name__}, turns expected")
    if not value:
        raise empty(field)
    return tuple(turn(v, field) for v in value)


def tools(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Read a row's tool definitions: a list, or a list as JSON text.

    Raises:
        RowProblem: Something in it is no definition.
    """
    found = []
    for value in _as_list(row.get("tools") or []):
        tool = next(iter(_as_list(value)), None) if isinstance(value, str) else value
        if not isinstance(tool, Mapping):
            raise RowProblem("wrong_type", f"tools holds {type(tool).__name__}, definitions wanted")
        bare = "function" not in tool and "name" in tool
        found.append({"type": "function", "function": tool} if bare else tool)
    return tuple(found)


def system_text(row: Mapping[str, Any]) -> str:
    """Read the text of a ``system`` column; empty for none.

    Raises:
        RowProblem: It holds something else, which would be lost.
    """
    text = row.get("system", row.get("system_prompt"))
    if text is None or text != text:  # tables spell "nothing" as NaN  # noqa: PLR0124
        return ""
    if not isinstance(text, str):
        raise RowProblem("wrong_type", f"system is {type(text).__name__}, text expected")
    return text if text.strip() else ""


def with_system(messages: tuple[Message, ...], row: Mapping[str, Any]) -> tuple[Message, ...]:
    """Put the text of a ``system`` column in front, unless the turns have one."""
    text = system_text(row)
    if not text or (messages and messages[0]["role"] in ("system", "developer")):
        return messages
    return ({"role": "system", "content": text}, *messages)


def undesired(row: Mapping[str, Any]) -> None:
    """Refuse to imitate an answer that its ``label`` calls bad (rows of KTO data)."""
    if row.get("label") is False:
        raise RowProblem("undesired", "label is false")


def shared_turns(ours: Sequence[Message], theirs: Sequence[Message]) -> int:
    """Count the turns in which two dialogues agree, in what a template can show."""
    count = 0
    for one, other in zip(ours, theirs, strict=False):
        if any(one.get(k) != other.get(k) for k in ("role", "content", "tool_calls", *THOUGHTS)):
            break
        count += 1
    return count


def split_common(
    chosen: tuple[Message, ...], rejected: tuple[Message, ...]
) -> tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Split two dialogues before the first assistant turn in which they differ.

    What follows on each side is its answer, which may go on for several turns.

    Raises:
        RowProblem: They do not differ, differ in a turn that is not the assistant's, or one ends
            where the other goes on.
    """
    shared = shared_turns(chosen, rejected)
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if side[-1]["role"] != "assistant":
            raise RowProblem("roles_not_alternating", f"{name} ends with a {side[-1]['role']} turn")
    if shared == len(chosen) == len(rejected):
        raise RowProblem("identical_pair", "both dialogues are the same")
    if shared in (len(chosen), len(rejected)):
        raise RowProblem("prefix_pair", "one dialogue is the beginning of the other")
    for name, side in (("chosen", chosen), ("rejected", rejected)):
        if side[shared]["role"] != "assistant":
            raise RowProblem(
                "prompt_differs",
                f"the first difference is in turn {shared + 1} of {name}, a "
                f"{side[shared]['role']} turn",
            )
    return chosen[:shared], chosen[shared:], rejected[shared:]


def without_prompt(side: tuple[Message, ...], prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    """Take a repeated prompt off the front of an answer; it may be repeated without its system."""
    for given in (prompt, tuple(m for m in prompt if m["role"] != "system")):
        if given and len(side) > len(given) == shared_turns(side, given):
            return side[len(given) :]
    return side


def require_answer(messages: tuple[Message, ...], field: str) -> tuple[Message, ...]:
    """Require that an answer begins and ends with an assistant turn.

    Raises:
        RowProblem: It begins or ends with another role, or holds a system turn.
    """
    roles = [m["role"] for m in messages]
    if roles[0] != "assistant":
        raise RowProblem(
            "roles_not_alternating", f"{field} has role {roles[0]!r}, assistant expected"
        )
    if roles[-1] != "assistant" or not {"assistant", "user", "tool"}.issuperset(roles):
        raise RowProblem("roles_not_alternating", f"{field} has turns of {', '.join(roles)}")
    return messages


def require_prompt(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Require that a prompt has turns and ends with one that asks for an answer."""
    if not messages:
        raise RowProblem("no_prompt", "the answers have no prompt before them")
    if messages[-1]["role"] not in ("user", "tool"):
        raise RowProblem(
            "roles_not_alternating", f"the prompt's last turn is the {messages[-1]['role']}'s"
        )
    return messages
