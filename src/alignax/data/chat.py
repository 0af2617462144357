# SPDX-License-Identifier: Apache-2.0
"""A tokenizer's chat template → renderings, and what the template does, probed once at start-up."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers import PreTrainedTokenizerBase

from alignax.data.formats.turns import RowProblem
from alignax.errors import DataError, UsageError
from alignax.records import Message

QUESTION: Message = {"role": "user", "content": "hi"}
ANSWER: Message = {"role": "assistant", "content": "okay"}
SYSTEM: Message = {"role": "system", "content": "Brevity matters"}


def load_template(tokenizer: PreTrainedTokenizerBase, file: str) -> None:
    """Give a tokenizer the chat template of a Jinja file.

    Raises:
        UsageError: The file cannot be read.
    """
    try:
        tokenizer.chat_template = Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read data.chat_template {file}: {error.strerror}") from error


@dataclass(frozen=True)
class TemplateProbe:
    """What a chat template does.

    Attributes:
        prefix_stable: The prompt with generation header is an id prefix of the conversation.
        stop_text: What follows an assistant's content at the end of a conversation.
        stop_ids: Ids in ``stop_text`` that end a turn; empty if it writes none.
        system: ``"kept"``, ``"refused"`` (the template raises) or ``"lost"`` (text not shown).
        alternation: Whether two turns of one role in a row are refused.
        bos_count: BOS ids at the start of a rendering.
        bos_is_marker: BOS also marks turns (as SmolLM2's ``<|im_start|>``).
        tools: Whether tool definitions show up.
    """

    prefix_stable: bool
    stop_text: str
    stop_ids: tuple[int, ...]
    system: str
    alternation: bool
    bos_count: int
    bos_is_marker: bool
    tools: bool
    prompt_text: str
    full_text: str


class ChatTemplate:
    """Rendering through the tokenizer's own template, in the sandbox of ``transformers``."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        """Require a template.

        Raises:
            DataError: The tokenizer has none.
        """
        self.tokenizer = tokenizer
        if not tokenizer.chat_template:
            raise DataError(
                f"the tokenizer of {tokenizer.name_or_path or 'this model'} has no chat template, "
                "and the rows are chat turns",
                hint="give one with --data.chat_template FILE (Jinja)",
            )

    @property
    def digest(self) -> str:
        """Hash of the template's text."""
        text = json.dumps(self.tokenizer.chat_template, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def render(
        self, messages: Sequence[Message], tools: Sequence[Any] = (), *, generation: bool = False
    ) -> str:
        """Render turns to text; ``generation`` adds the header of an answer.

        Raises:
            RowProblem: The template refuses these turns.
        """
        try:
            return self.tokenizer.apply_chat_template(  # type: ignore[return-value]
                [dict(m) for m in messages],
                tools=[dict(t) for t in tools] or None,  # type: ignore[arg-type]
                tokenize=False,
                add_generation_prompt=generation,
            )
        except TemplateError as error:
            raise RowProblem("template_refuses", str(error)) from error
        except (TypeError, ValueError, KeyError) as error:
            raise RowProblem("template_fails", f"{type(error).__name__}: {error}") from error

    def ids(self, text: str) -> list[int]:
        """Tokenise a rendering; the template alone decides about BOS."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]


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
            f"the chat template cannot render a question: {problem.detail}"
        ) from problem
    prompt_ids, full_ids = template.ids(prompt), template.ids(full)
    tail = full.rsplit(ANSWER["content"], 1)[1]
    special = set(template.tokenizer.all_special_ids) | set(stop_ids)
    # The stop token closes the answer: the first special id that the template writes after it.
    ends = [i for i in template.ids(tail) if i in special][:1]
    bos = template.tokenizer.bos_token_id
    leading = 0
    while bos is not None and leading < len(full_ids) and full_ids[leading] == bos:
        leading += 1
    return TemplateProbe(
        prefix_stable=full_ids[: len(prompt_ids)] == prompt_ids,
        stop_text=tail,
        stop_ids=tuple(ends),
        system=_system(template),
        alternation=_refuses(template, [QUESTION, QUESTION]),
        bos_count=leading,
        bos_is_marker=bos is not None and full_ids.count(bos) > leading,
        tools=_shows_tools(template),
        prompt_text=prompt,
        full_text=full,
    )


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
            arguments = function.get("arguments")
            values = arguments.values() if isinstance(arguments, Mapping) else ()
            wanted += [("call argument", v) for v in values if isinstance(v, str)]
        if message["role"] in ("system", "tool"):
            wanted.append((f"{message['role']} text", message["content"].strip()))
    return [
        what
        for what, piece in wanted
        if piece not in text and json.dumps(piece, ensure_ascii=False)[1:-1] not in text
    ]


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return tool.get("function", tool)
