# SPDX-License-Identifier: Apache-2.0
"""Examples → texts: the prompt with generation header, and the whole text for each answer.

Chat turns go through the tokenizer's template; plain text stays verbatim. What a template refuses,
loses or renders differently once an answer follows is a problem of the row, never a silent change.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from alignax.data.answers import require_answers
from alignax.data.chat import ChatTemplate, lost_answer, lost_pieces
from alignax.data.formats.turns import RowProblem
from alignax.records import Example, Message, Text

SYSTEM_ROLES = ("system", "developer")
TURN_MARKS = (
    "<|im_start|>", "[INST]", "<start_of_turn>", "<|start_header_id|>", "<|user|>",
    "<\uff5cUser\uff5c>", "<|start|>",
)  # fmt: skip
"""What a chat template writes at the start of a turn."""


@dataclass(frozen=True)
class Rendered:
    """Texts of one example.

    Attributes:
        example: Where they come from.
        prompt: The prompt's text, with the header of an answer for chat.
        fulls: Prompt + answer, one for each answer.
        messages: The prompt's turns, system turn included; empty for plain text.
        answers: The answers as they were rendered.
        system_merged: The template takes no system turn; its text opens the first user turn.
        starts: For each answer, the texts (with the header of an answer) after which its second,
            third, … assistant turn begins; none for an answer of one turn.
    """

    example: Example
    prompt: str
    fulls: tuple[str, ...]
    messages: tuple[Message, ...] = ()
    answers: tuple[Text, ...] = ()
    system_merged: bool = False
    starts: tuple[tuple[str, ...], ...] = ()

    @property
    def chat(self) -> bool:
        """Whether the template wrote it."""
        return bool(self.messages)

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts: the prompt, the whole for each answer, then the starts of later turns."""
        return (self.prompt, *self.fulls, *(text for texts in self.starts for text in texts))


class Renderer:
    """Renders examples under fixed settings."""

    def __init__(
        self,
        template: ChatTemplate,
        *,
        mode: str,
        system: str | None,
        merge_system: bool,
        keep_whitespace_pairs: bool,
        stop_texts: Sequence[str],
        tail: str,
        header: str,
    ):
        """Store the settings.

        Args:
            template: Renders chat turns.
            mode: ``data.render``: auto, chat or text.
            system: System turn for conversations that have none.
            merge_system: The template takes no system turn: put its text before the first
                question.
            keep_whitespace_pairs: Keep pairs that differ in white space only.
            stop_texts: Spellings of the stop tokens.
            tail: White space that the template writes after an answer and no stop token follows.
            header: What the template writes before an answer.
        """
        self.template = template
        self.mode = mode
        self.system = system
        self.merge_system = merge_system
        self.keep_whitespace_pairs = keep_whitespace_pairs
        self.stop_texts = tuple(stop_texts)
        self.tail = tail
        self.header = header

    def render(self, example: Example) -> Rendered:
        """Render an example's texts.

        Raises:
            RowProblem: An answer is empty, a pair does not differ, or the template refuses or
                loses something.
        """
        prompt, answers = example.prompt, example.answers
        if example.images:
            raise RowProblem("not_text", f"the row refers to {len(example.images)} images")
        if isinstance(prompt, str) and self.mode == "chat":
            _require_untemplated(prompt)
            prompt, answers = as_turns(prompt, answers, example.system)
        require_answers(answers, keep_whitespace_pairs=self.keep_whitespace_pairs)
        if isinstance(prompt, str):
            if example.tools:
                raise RowProblem(
                    "tools_in_text", "a row of plain text cannot show its tools", fatal=True
                )
            fulls = tuple(prompt + self._bare(str(a)) for a in answers)
            return _encodable(Rendered(example, prompt, fulls))
        if self.mode == "text":
            raise RowProblem("turns_as_text", "data.render is text, the row holds chat turns")
        return self.render_turns(example, self.with_system(prompt), answers)

    def render_turns(
        self, example: Example, messages: tuple[Message, ...], answers: Sequence[Text]
    ) -> Rendered:
        """Render prompt turns with each answer.

        Raises:
            RowProblem: The template refuses or loses something.
        """
        tools = example.tools
        asked = self.for_template(messages)
        prompt = self.template.render(asked, tools, generation=True)
        fulls, starts = [], []
        for answer in answers:
            turns = [{**m, "content": self._bare(m["content"])} for m in answer]  # type: ignore[union-attr]
            full = self.template.render([*asked, *turns], tools)
            _require_shown(full, messages, turns, tools, self.template.name)
            fulls.append(full.removesuffix(self.tail))
            before = [n for n, turn in enumerate(turns) if n and turn["role"] == "assistant"]
            starts.append(tuple(self._start(full, [*asked, *turns[:n]], tools) for n in before))
            if before:
                _require_unended(turns[:-1], self.stop_texts)
        rendered = Rendered(
            example, prompt, tuple(fulls), messages, tuple(answers), asked is not messages,
            tuple(starts) if any(starts) else (),
        )  # fmt: skip
        self._require_same_prompt(rendered)
        return _encodable(rendered)

    def with_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Put the settings' system turn in front, unless there is one."""
        if not self.system or messages[0]["role"] in SYSTEM_ROLES:
            return messages
        return ({"role": "system", "content": self.system}, *messages)

    def for_template(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """Give the turns as the template takes them: the very same if nothing must be merged."""
        return system_in_question(messages) if self.merge_system else messages

    def _start(self, full: str, before: Sequence[Message], tools: Sequence[Any]) -> str:
        """Render the turns before a later assistant turn of an answer.

        Raises:
            RowProblem: They are rendered otherwise once more follows: where the turn begins would
                be a guess.
        """
        start = self.template.render(before, tools, generation=True)
        if not full.startswith(start.removesuffix(self.header)):
            raise RowProblem(
                "several_turns",
                "the chat template renders an answer's earlier turns otherwise once more follow",
            )
        return start

    def _require_same_prompt(self, rendered: Rendered) -> None:
        """Require that the last turn before the answer is rendered alike with and without answers.

        Otherwise the common prefix would end before it, and a question would be scored as answer.
        """
        if all(full.startswith(rendered.prompt) for full in rendered.fulls):
            return
        shared = os.path.commonprefix((rendered.prompt, *rendered.fulls))
        asked = str(rendered.messages[-1]["content"]).strip()
        body = rendered.prompt.removesuffix(self.header)
        if asked and asked in body and len(shared) < body.rfind(asked) + len(asked):
            raise RowProblem(
                "prompt_changes",
                "the chat template renders the prompt differently once an answer follows: "
                f"{rendered.prompt[len(shared) : len(shared) + 60]!r}",
            )

    def _bare(self, text: str) -> str:
        """Take stop tokens that are already there off the end of an answer."""
        while True:
            trimmed = text.rstrip()
            stop = next((s for s in self.stop_texts if trimmed.endswith(s)), None)
            if stop is None:
                return text
            text = trimmed.removesuffix(stop)


def system_in_question(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Put the text of leading system turns before the first question, with a blank line between.

    Returns the very turns that were given if there is nothing to merge.
    """
    count = next((i for i, m in enumerate(messages) if m["role"] not in SYSTEM_ROLES), 0)
    first = next((i for i, m in enumerate(messages) if m["role"] == "user"), None)
    if not count or first is None:
        return messages
    texts = [m["content"] for m in (*messages[:count], messages[first])]
    asked = {**messages[first], "content": "\n\n".join(texts)}
    return (*messages[count:first], asked, *messages[first + 1 :])


def _require_untemplated(prompt: str) -> None:
    """Refuse to put a prompt into a template that is already in one."""
    mark = next((mark for mark in TURN_MARKS if mark in prompt), None)
    if mark:
        raise RowProblem("template_tokens", f"the prompt is rendered already: it holds {mark!r}")


def _require_shown(
    full: str,
    messages: Sequence[Message],
    turns: Sequence[Message],
    tools: Sequence[Any],
    name: str,
) -> None:
    """Refuse what the template leaves out: tools stop the run, other texts drop the row."""
    lost = lost_pieces(full, [*messages, *turns], tools)
    if lost:
        fatal = any(not what.startswith("system") for what in lost)
        raise RowProblem(
            "tools_lost" if fatal else "system_lost",
            f"the chat template of {name} does not show: {', '.join(lost)}",
            fatal=fatal,
        )
    changed = lost_answer(full, turns)
    if changed:
        raise RowProblem("answer_lost", f"the chat template leaves out the answer's {changed}")


def _require_unended(turns: Sequence[Message], stop_texts: Sequence[str]) -> None:
    """Require that no earlier turn of an answer spells a stop token: it would end too soon."""
    said = [turn["content"] for turn in turns if turn["role"] == "assistant"]
    if any(stop in text for text in said for stop in stop_texts):
        raise RowProblem("stop_token_inside", "a stop token lies inside an answer's turn")


def as_turns(
    prompt: str, answers: Sequence[Text], system: str
) -> tuple[tuple[Message, ...], tuple[Text, ...]]:
    """Make chat turns of plain text."""
    turns: tuple[Message, ...] = ({"role": "user", "content": prompt.strip()},)
    if system.strip():
        turns = ({"role": "system", "content": system}, *turns)
    return turns, tuple(({"role": "assistant", "content": str(a).strip()},) for a in answers)


def _encodable(rendered: Rendered) -> Rendered:
    """Require texts that are Unicode: JSON can spell halves of surrogate pairs."""
    try:
        for text in rendered.texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise RowProblem("not_unicode", f"the text holds {error.object[error.start]!r}") from error
    return rendered
