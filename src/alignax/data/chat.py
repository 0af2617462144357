# SPDX-License-Identifier: Apache-2.0
"""A tokenizer's chat template → renderings, and what the template does, probed once at start-up."""

import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from alignax.data.clock import time_limit
from alignax.data.formats.turns import THOUGHTS, RowProblem
from alignax.errors import DataError, UsageError
from alignax.records import Message

RENDER_SECONDS = 10.0
"""Time in which a template must have rendered one conversation."""

SPARE_CHARACTERS, RENDER_FACTOR = 1 << 20, 64
"""A rendering may be this much longer than what was to be rendered."""

QUESTION: Message = {"role": "user", "content": "hi"}
ANSWER: Message = {"role": "assistant", "content": "okay"}
SYSTEM: Message = {"role": "system", "content": "Brevity matters"}


def load_template(tokenizer: PreTrainedTokenizerBase, file: str) -> None:
    """Give a tokenizer the chat template of a Jinja file.

    Raises:
        UsageError: The file cannot be read, or is empty.
    """
    try:
        text = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read data.chat_template {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(
            f"data.chat_template {file} is not UTF-8 text: {error.reason}",
            hint="name the file of the Jinja template itself",
        ) from error
    if not text.strip():
        raise UsageError(f"data.chat_template {file} is empty")
    tokenizer.chat_template = text


@dataclass(frozen=True)
class TemplateProbe:
    """What a chat template does.

    Attributes:
        prefix_stable: The prompt with generation header is an id prefix of the conversation.
        stop_text: What follows an assistant's content at the end of a conversation.
        stop_ids: Ids in ``stop_text`` that end a turn; empty if it writes none.
        system: ``"kept"``, ``"refused"`` (the template raises) or ``"lost"`` (text not shown).
        alternation: Whether two turns of one role in a row are refused.
        stop_count: Stop tokens in ``stop_text``; the first one is the answer's own.
        bos_count: BOS ids at the start of a rendering.
        bos_is_marker: BOS also stands before or after later turns (as in SmolLM2 and Llama 2).
        tools: Whether tool definitions show up.
        header: What the generation header adds to a question.
        dated: Whether the template can write today's date.
    """

    prefix_stable: bool
    stop_text: str
    stop_ids: tuple[int, ...]
    stop_count: int
    system: str
    alternation: bool
    bos_count: int
    bos_is_marker: bool
    tools: bool
    header: str
    dated: bool
    prompt_text: str
    full_text: str


class ChatTemplate:
    """Rendering through the tokenizer's own template, in the sandbox of ``transformers``."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        """Wrap a tokenizer, with or without a template."""
        self.tokenizer = tokenizer
        self.name = tokenizer.name_or_path or "this model"

    @property
    def digest(self) -> str:
        """Hash of the template's text; ``"none"`` without one."""
        if not self.tokenizer.chat_template:
            return "none"
        text = json.dumps(self.tokenizer.chat_template, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] = (), *, generation: bool = False
    ) -> str:
        """Render turns to text; ``generation`` adds the header of an answer.

        Templates disagree about whether a call's arguments are an object or JSON text: the object
        is tried first.

        Raises:
            DataError: There is no template.
            RowProblem: The template refuses these turns.
        """
        if not self.tokenizer.chat_template:
            raise DataError(
                f"the tokenizer of {self.name} has no chat template, and the rows are chat turns",
                hint="give one with --data.chat_template FILE (Jinja)",
            )
        try:
            return self._apply(messages, tools, generation)
        except RowProblem:
            if not any(m.get("tool_calls") for m in messages):
                raise
            return self._apply([_arguments_as_text(m) for m in messages], tools, generation)

    def _apply(self, messages: Sequence[Message], tools: Sequence[Any], generation: bool) -> str:
        try:
            with time_limit(RENDER_SECONDS, "the chat template"):
                text: str = self.tokenizer.apply_chat_template(  # type: ignore[assignment]
                    [dict(m) for m in messages],
                    tools=[dict(t) for t in tools] or None,  # type: ignore[arg-type]
                    tokenize=False,
                    add_generation_prompt=generation,
                )
        except TemplateError as error:
            raise RowProblem("template_refuses", str(error)) from error
        except Exception as error:
            # A template is a stranger's program in a sandbox: whatever it dies of is its own fault.
            raise RowProblem("template_fails", f"{type(error).__name__}: {error}") from error

        given = sum(len(str(part)) for part in (*messages, *tools))
        if len(text) > SPARE_CHARACTERS + RENDER_FACTOR * given:
            raise RowProblem(
                "template_fails", f"it makes {len(text)} characters of {given} that it was given"
            )
        return text

    def ids(self, text: str) -> list[int]:
        """Tokenise a rendering; the template alone decides about BOS."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]


def _arguments_as_text(message: Message) -> Message:
    """Spell the arguments of tool calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(call["function"].get("arguments"), ensure_ascii=False),
            },
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def probe(template: ChatTemplate, stop_ids: Sequence[int]) -> TemplateProbe:
    """Find out what a template does, from a few renderings.

    Args:
        template: The template.
        stop_ids: Ids that the tokenizer and the model call end of text or turn.

    Raises:
        DataError: The template cannot render a question and an answer.
    """
    try:
        prompt = template.render([QUESTION], generation=True)
        full = template.render([QUESTION, ANSWER])
    except RowProblem as problem:
        raise DataError(
            f"the chat template of {template.name} cannot render a question: {problem.detail}",
            hint="correct it, or give another with --data.chat_template FILE",
        ) from problem
    if ANSWER["content"] not in full:
        raise DataError(f"the chat template does not show an assistant's answer: {full!r}")
    prompt_ids, full_ids = template.ids(prompt), template.ids(full)
    tail = full.rsplit(ANSWER["content"], 1)[1]
    ends = _ends(template, template.ids(tail), stop_ids)
    bos: Any = template.tokenizer.bos_token_id
    leading = 0
    while bos is not None and leading < len(full_ids) and full_ids[leading] == bos:
        leading += 1
    return TemplateProbe(
        prefix_stable=full_ids[: len(prompt_ids)] == prompt_ids,
        stop_text=tail,
        stop_ids=tuple(ends[:1]),
        stop_count=len(ends),
        system=_system(template),
        alternation=_refuses(template, [QUESTION, QUESTION]),
        bos_count=leading,
        bos_is_marker=bos is not None and _dialogue_ids(template).count(bos) > leading,
        tools=_shows_tools(template),
        header=_header(template, prompt),
        dated="strftime_now" in str(template.tokenizer.chat_template),
        prompt_text=prompt,
        full_text=full,
    )


def _ends(template: ChatTemplate, tail: Sequence[int], stop_ids: Sequence[int]) -> list[int]:
    """List the stop tokens in what a template writes after an answer.

    A known stop id closes the answer; where the template writes none of them, the first special
    token that it writes does.
    """
    tokenizer = template.tokenizer
    added = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = added | set(tokenizer.all_special_ids)
    first = next((i for i in tail if i in special), None)
    known = {*stop_ids, *([first] if first is not None else [])}
    return [i for i in tail if i in known]


def _header(template: ChatTemplate, prompt: str) -> str:
    """Cut the question off a prompt; empty for a template that renders no open question."""
    try:
        question = template.render([QUESTION])
    except RowProblem:
        return ""
    return prompt.removeprefix(question) if prompt.startswith(question) else ""


def _dialogue_ids(template: ChatTemplate) -> list[int]:
    """Tokenise two questions with their answers; nothing for a template that refuses them."""
    try:
        return template.ids(template.render([QUESTION, ANSWER, QUESTION, ANSWER]))
    except RowProblem:
        return []


def _refuses(template: ChatTemplate, messages: Sequence[Message]) -> bool:
    try:
        template.render(messages)
    except RowProblem:
        return True
    return False


def _system(template: ChatTemplate) -> str:
    if _refuses(template, [SYSTEM, QUESTION]):
        return "refused"
    shown = template.render([SYSTEM, QUESTION])
    return "kept" if SYSTEM["content"] in shown else "lost"


def _shows_tools(template: ChatTemplate) -> bool:
    function = {"name": "probe_tool", "description": "d", "parameters": {}}
    try:
        shown = template.render([QUESTION], [{"type": "function", "function": function}])
    except RowProblem:
        return False
    return "probe_tool" in shown


def lost_pieces(
    text: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> list[str]:
    """List the tool names, call arguments and system texts that a rendering does not show."""
    wanted = [(f"tool {_function(t).get('name')}", str(_function(t).get("name"))) for t in tools]
    for message in messages:
        for call in message.get("tool_calls") or ():
            function = call["function"]
            wanted.append((f"call of {function['name']}", function["name"]))
            wanted += [("call argument", value) for value in _values(function.get("arguments"))]
        if message["role"] in ("system", "developer", "tool"):
            name = "tool" if message["role"] == "tool" else "system"
            wanted.append((f"{name} text", message["content"]))
    return [what for what, piece in wanted if not _shown(piece, text)]


def lost_answer(text: str, turns: Sequence[Message]) -> str:
    """Name the field of an answer that a rendering does not show; empty if it shows all."""
    for message in turns:
        for field in ("content", *THOUGHTS):
            said = message.get(field)
            if isinstance(said, str) and not _shown(said, text):
                return field
    return ""


def _values(arguments: Any) -> list[str]:
    """List the texts and whole numbers in a call's arguments, however deep."""
    if isinstance(arguments, Mapping):
        return [v for value in arguments.values() for v in _values(value)]
    if isinstance(arguments, list):
        return [v for value in arguments for v in _values(value)]
    if isinstance(arguments, str | int) and not isinstance(arguments, bool):
        return [str(arguments)]
    return []


def _shown(piece: str, text: str) -> bool:
    """Tell whether a rendering holds a piece, trimmed or escaped as it may be."""
    return piece in text or _squeezed(piece) in _squeezed(text)


def _squeezed(text: str) -> str:
    """Reduce a text to what trimming and the escapes of JSON and HTML leave as it is."""
    spelled = re.sub(
        r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), html.unescape(text)
    )
    return "".join(c for c in re.sub(r"\\[nrtbf]", "", spelled) if c.isalnum())


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("function", tool)
