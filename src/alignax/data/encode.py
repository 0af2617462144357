# SPDX-License-Identifier: Apache-2.0
"""Examples → token ids, with one boundary rule for SFT, DPO, scoring and generation.

The whole conversation is rendered and tokenised once for each answer. The answers start at the
longest common id prefix of (prompt with generation header), (prompt + each answer), the same for
both sides. A complete answer ends with exactly one stop token, which is scored; what the template
writes after it is not part of the answer; a cut answer has none.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from alignax.data.chat import ChatTemplate, TemplateProbe, lost_pieces, probe
from alignax.data.formats.turns import RowProblem
from alignax.errors import DataError
from alignax.recipe import DataSection
from alignax.records import Dropped, EncodedExample, Example, Message, Text

ENCODING_VERSION = "1"
"""Raised whenever the ids of some row change; part of every cache key."""


@dataclass(frozen=True)
class EncodeOptions:
    """Settings that decide which ids a row becomes; as in ``recipe.DataSection``."""

    max_length: int = 512
    overlong: str = "truncate"
    prompt_cut: str = "none"
    render: str = "auto"
    add_bos: bool | None = None
    stop_token: str | None = None
    strict_template: bool = False
    system: str | None = None
    whitespace_pairs: str = "drop"

    @classmethod
    def from_section(cls, section: DataSection) -> "EncodeOptions":
        """Take the settings of a recipe."""
        return cls(**{name: getattr(section, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True)
class Rendered:
    """Texts of one example: the prompt with generation header, and prompt + each answer."""

    example: Example
    chat: bool
    prompt: str
    fulls: tuple[str, ...]
    messages: tuple[Message, ...] = ()


class Encoder:
    """Turns examples into ids.

    Attributes:
        notices: What a person should know about tokenizer and template.
        stop_ids: Every id that ends an answer.
        stop_id: The id that a complete answer of plain text ends with.
        parts: Name → hash or value of everything that decides the ids.
        has_template: Whether chat turns can be rendered.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        options: EncodeOptions,
        *,
        stop_ids: Sequence[int] = (),
    ):
        """Probe the template.

        Args:
            tokenizer: The model's tokenizer.
            options: Settings.
            stop_ids: Stop ids that the model's generation config names.

        Raises:
            DataError: The template writes no stop token and the options name none; the stop token
                is unknown; strict mode and a template that is not prefix-stable.
        """
        self.tokenizer = tokenizer
        self.options = options
        self.notices: list[str] = []
        self.has_template = bool(tokenizer.chat_template)
        known = [
            *stop_ids,
            *([tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []),
        ]
        self._named_stop = self._stop_token(options.stop_token)
        if self._named_stop is not None:
            known.insert(0, self._named_stop)
        self.template = ChatTemplate(tokenizer) if self.has_template else None
        self.probe: TemplateProbe | None = None
        if self.template is not None:
            self.probe = probe(self.template, known)
            known += self.probe.stop_ids
            self._check_template(self.probe, known)
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys(int(i) for i in known))
        self.stop_id = self._named_stop if self._named_stop is not None else tokenizer.eos_token_id
        self._stop_texts = tuple(tokenizer.convert_ids_to_tokens(list(self.stop_ids)))
        self._text_bos = self._default_bos()
        self.tokenizer_hash = _hash(tokenizer.backend_tokenizer.to_str())
        self.template_hash = self.template.digest if self.template else "none"
        self.parts = {
            "code version": ENCODING_VERSION,
            "tokenizer": self.tokenizer_hash,
            "template": self.template_hash,
            "stop ids": str(sorted(self.stop_ids)),
            **{f"data.{name}": str(value) for name, value in asdict(options).items()},
        }
        self.digest = _hash(json.dumps(self.parts, sort_keys=True))

    def _stop_token(self, token: str | None) -> int | None:
        """Look up the named stop token."""
        if token is None:
            return None
        found = self.tokenizer.convert_tokens_to_ids(token)
        if found is None or found == self.tokenizer.unk_token_id:
            raise DataError(f"data.stop_token {token!r} is not a token of this model")
        return int(found)  # type: ignore[arg-type]

    def _default_bos(self) -> bool:
        """Tell whether plain text gets a BOS: as the options say, else as the tokenizer does."""
        bos = self.tokenizer.bos_token_id
        if self.options.add_bos is not None:
            if self.options.add_bos and bos is None:
                raise DataError("data.add_bos is true, but the tokenizer has no BOS token")
            return self.options.add_bos
        return bos is not None and self.tokenizer("a")["input_ids"][0] == bos

    def _check_template(self, found: TemplateProbe, known: Sequence[int]) -> None:
        """Refuse what would train wrongly without a sign; note what a person should know."""
        if not set(found.stop_ids) & set(known) and self._named_stop is None:
            raise DataError(
                "the chat template writes no stop token after an answer "
                f"(it writes {found.stop_text!r})",
                hint="name the token that ends an answer with --data.stop_token",
            )
        if not found.prefix_stable:
            message = (
                "the chat template is not prefix-stable: the prompt renders to "
                f"{found.prompt_text!r}, the conversation to {found.full_text!r}; the boundary is "
                "their longest common id prefix"
            )
            if self.options.strict_template:
                raise DataError(message, hint="turn data.strict_template off, or give a template")
            self.notices.append(message)
        if found.system != "kept":
            self.notices.append(f"the chat template's system turn is {found.system}")
        if self.options.add_bos and found.bos_count:
            raise DataError(
                "row 0 would begin with two BOS tokens: the chat template writes one, and "
                "data.add_bos adds one",
                hint="leave data.add_bos out",
            )

    def encode(self, example: Example) -> EncodedExample | Dropped:
        """Encode one example."""
        return self.encode_many([example])[0]

    def encode_many(self, examples: Sequence[Example]) -> list[EncodedExample | Dropped]:
        """Encode examples; texts are tokenised in one batch.

        Raises:
            DataError: A template cannot show what a row holds; a row would carry two BOS tokens;
                an over-long row under ``overlong: error``.
        """
        rendered: list[Rendered | Dropped] = []
        for example in examples:
            try:
                rendered.append(self._render(example))
            except RowProblem as problem:
                if problem.fatal:
                    raise DataError(
                        f"{example.place} (row {example.row_id}): {problem.detail}"
                    ) from problem
                rendered.append(
                    Dropped(example.row_id, problem.reason, problem.detail, example.place)
                )
        texts = [t for r in rendered if isinstance(r, Rendered) for t in (r.prompt, *r.fulls)]
        ids = iter(self._tokenise(texts))
        results: list[EncodedExample | Dropped] = []
        for item in rendered:
            if isinstance(item, Dropped):
                results.append(item)
                continue
            prompt, *fulls = [next(ids) for _ in range(1 + len(item.fulls))]
            try:
                results.append(self._assemble(item, prompt, fulls))
            except RowProblem as problem:
                where = item.example
                results.append(Dropped(where.row_id, problem.reason, problem.detail, where.place))
        return results

    def prompt_ids(self, prompt: Any, tools: Sequence[Any] = ()) -> list[int]:
        """Encode a prompt for generation: text, or chat turns with the generation header.

        The ids end where training's boundary lies: for a template that is not prefix-stable, the
        part of the header that a conversation does not share is left out.
        """
        if isinstance(prompt, str):
            return self._with_bos([self._tokenise([prompt])[0]], chat=False)[0]
        if self.template is None:
            ChatTemplate(self.tokenizer)
            raise AssertionError
        messages = self._with_system(tuple(prompt))
        try:
            text = self.template.render(messages, tools, generation=True)
            full = self.template.render(
                [*messages, {"role": "assistant", "content": "okay"}], tools
            )
        except RowProblem as problem:
            raise DataError(f"the chat template refuses the prompt: {problem.detail}") from problem
        ids, whole = self._with_bos(self._tokenise([text, full]), chat=True)
        return ids if self.probe and self.probe.prefix_stable else ids[: _common([ids, whole])]

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens included."""
        return self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)  # type: ignore[return-value]

    def _tokenise(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.tokenizer(list(texts), add_special_tokens=False)["input_ids"]  # type: ignore[return-value]

    def _with_system(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        if not self.options.system or messages[0]["role"] == "system":
            return messages
        return ({"role": "system", "content": self.options.system}, *messages)

    def _render(self, example: Example) -> Rendered:
        """Render an example's texts.

        Raises:
            RowProblem: An answer is empty, or the template refuses or loses something.
        """
        prompt, answers = example.prompt, example.answers
        if isinstance(prompt, str) and self.options.render == "chat":
            prompt = ({"role": "user", "content": prompt.strip()},)
            answers = tuple(({"role": "assistant", "content": str(a).strip()},) for a in answers)
        self._check_texts(answers)
        if isinstance(prompt, str):
            fulls = tuple(prompt + self._bare(str(a)) for a in answers)
            return Rendered(example, False, prompt, fulls)
        if self.options.render == "text":
            raise RowProblem("turns_as_text", "data.render is text, the row holds chat turns")
        if self.template is None:
            ChatTemplate(self.tokenizer)
        return self._render_turns(example, self._with_system(prompt), answers)

    def _render_turns(
        self, example: Example, messages: tuple[Message, ...], answers: Sequence[Text]
    ) -> Rendered:
        assert self.template is not None
        tools = example.tools
        text = self.template.render(messages, tools, generation=True)
        fulls = []
        for answer in answers:
            turns = [{**m, "content": self._bare(m["content"])} for m in answer]  # type: ignore[union-attr]
            full = self.template.render([*messages, *turns], tools)
            lost = lost_pieces(full, [*messages, *turns], tools)
            if lost:
                fatal = not lost[0].startswith("system")
                raise RowProblem(
                    "system_lost" if not fatal else "tools_lost",
                    f"the chat template does not show: {', '.join(lost)}",
                    fatal=fatal,
                )
            fulls.append(full)
        return Rendered(example, True, text, tuple(fulls), messages)

    def _bare(self, text: str) -> str:
        """Take stop tokens that are already there off the end of an answer."""
        stripped = text
        while any(stripped.rstrip().endswith(stop) for stop in self._stop_texts):
            stop = next(s for s in self._stop_texts if stripped.rstrip().endswith(s))
            stripped = stripped.rstrip().removesuffix(stop)
        return stripped

    def _check_texts(self, answers: Sequence[Text]) -> None:
        """Refuse empty answers and pairs that do not differ."""
        said = [a if isinstance(a, str) else _said(a) for a in answers]
        if any(not text.strip() for text in said):
            side = "chosen" if not said[0].strip() else "rejected"
            raise RowProblem("empty_side", f"{side if len(said) > 1 else 'the answer'} is empty")
        if len(said) < 2:
            return
        if said[0] == said[1]:
            raise RowProblem("identical", "chosen and rejected are the same")
        plain = ["".join(text.split()) for text in said]
        if plain[0] == plain[1] and self.options.whitespace_pairs == "drop":
            raise RowProblem("whitespace_only", "chosen and rejected differ in white space only")

    def _with_bos(self, sequences: Sequence[list[int]], *, chat: bool) -> list[list[int]]:
        """Apply the BOS rule: a template decides for chat, the tokenizer for text."""
        bos = self.tokenizer.bos_token_id
        if chat and self.options.add_bos is False and self.probe and self.probe.bos_count:
            return [ids[1:] for ids in sequences]
        if self.options.add_bos if chat else self._text_bos:
            return [[bos, *ids] for ids in sequences]  # type: ignore[list-item]
        return list(sequences)

    def _check_bos(self, item: Rendered, whole: Sequence[int]) -> None:
        """Refuse a second BOS: at the start it stops the run, inside a text it drops the row."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return
        if list(whole[:2]) == [bos, bos]:
            source = "the chat template" if item.chat else "the row's own text"
            adder = "data.add_bos" if self.options.add_bos else "the tokenizer"
            raise DataError(
                f"{item.example.place} (row {item.example.row_id}) begins with two BOS tokens: one "
                f"from {source}, one from {adder}",
                hint="set --data.add_bos false",
            )
        marker = self.probe is not None and self.probe.bos_is_marker
        if not marker and list(whole[1:]).count(bos):
            raise RowProblem("second_bos", f"the text spells {self.tokenizer.bos_token!r}")

    def _assemble(
        self, item: Rendered, prompt: list[int], fulls: list[list[int]]
    ) -> EncodedExample:
        """Cut ids into prompt and answers, and fit them into ``max_length``."""
        prompt, *fulls = self._with_bos([prompt, *fulls], chat=item.chat)
        for full in fulls:
            self._check_bos(item, full)
        boundary = _common([prompt, *fulls])
        if not boundary:
            raise RowProblem("empty_prompt", "no token comes before the answers")
        answers = [self._end(full[boundary:], chat=item.chat) for full in fulls]
        longest = max(map(len, answers))
        if boundary + longest > self.options.max_length:
            if self.options.overlong == "drop":
                raise RowProblem("too_long", f"{boundary + longest} tokens")
            if self.options.overlong == "error":
                raise DataError(
                    f"{item.example.place} (row {item.example.row_id}) has {boundary + longest} "
                    f"tokens, data.max_length is {self.options.max_length}"
                )
            if self.options.prompt_cut == "turns" and item.chat:
                shorter = self._without_oldest(item, boundary)
                if shorter is not None:
                    return shorter
        return self._fit(item, prompt[:boundary], answers, len(prompt) > boundary)

    def _end(self, answer: list[int], *, chat: bool) -> list[int]:
        """Let an answer end with exactly one stop token.

        Raises:
            RowProblem: A stop token lies inside the answer.
        """
        if chat and self.probe is not None and set(self.probe.stop_ids) & set(self.stop_ids):
            last = max((i for i, t in enumerate(answer) if t in self.stop_ids), default=None)
            if last is not None and not self.decode(answer[last + 1 :]).strip():
                answer = answer[: last + 1]
        elif answer and answer[-1] not in self.stop_ids:
            if self.stop_id is None:
                raise DataError(
                    "the tokenizer has no end-of-text token, so an answer has no stop token",
                    hint="name one with --data.stop_token",
                )
            answer = [*answer, self.stop_id]
        if set(answer[:-1]) & set(self.stop_ids):
            raise RowProblem("stop_token_inside", "a stop token lies inside an answer")
        if len(answer) < 2:
            raise RowProblem("empty_side", "an answer has no token besides its stop token")
        return answer

    def _fit(
        self, item: Rendered, prompt: list[int], answers: list[list[int]], merged: bool,
        prompt_cut: int = 0,
    ) -> EncodedExample:  # fmt: skip
        """Cut each answer to what its own prompt leaves of ``max_length``.

        Raises:
            RowProblem: No room for an answer, or nothing is left that differs.
        """
        budget = self.options.max_length - len(prompt)
        if budget < 1:
            raise RowProblem(
                "no_room", f"the prompt has {len(prompt)} of {self.options.max_length} tokens"
            )
        kept = [a[:budget] for a in answers]
        if len(kept) > 1 and kept[0] == kept[1]:
            raise RowProblem(
                "identical_after_cut", f"the first {budget} answer tokens are the same"
            )
        return EncodedExample(
            row_id=item.example.row_id,
            prompt=np.array(prompt, np.int32),
            answers=tuple(np.array(a, np.int32) for a in kept),
            complete=tuple(len(a) <= budget and a[-1] in self.stop_ids for a in answers),
            answer_cut=tuple(max(len(a) - budget, 0) for a in answers),
            prompt_cut=prompt_cut,
            boundary_merged=merged,
        )

    def _without_oldest(self, item: Rendered, whole: int) -> EncodedExample | None:
        """Leave out the oldest turns until the row fits; None if no smaller prompt fits."""
        head = item.messages[:1] if item.messages[0]["role"] == "system" else ()
        turns = item.messages[len(head) :]
        starts = [i for i, m in enumerate(turns) if m["role"] == "user" and i > 0]
        for start in starts:
            shorter = self._render_turns(item.example, head + turns[start:], item.example.answers)
            prompt, *fulls = self._with_bos(
                self._tokenise([shorter.prompt, *shorter.fulls]), chat=True
            )
            boundary = _common([prompt, *fulls])
            answers = [self._end(full[boundary:], chat=True) for full in fulls]
            fits = boundary + max(map(len, answers)) <= self.options.max_length
            if fits or start == starts[-1]:
                merged = len(prompt) > boundary
                return self._fit(shorter, prompt[:boundary], answers, merged, whole - boundary)
        return None


def _said(messages: Sequence[Message]) -> str:
    """Text of an answer, its tool calls included."""
    parts = [
        m["content"] + (json.dumps(m["tool_calls"]) if m.get("tool_calls") else "")
        for m in messages
    ]
    return "\n".join(parts)


def _common(sequences: Sequence[Sequence[int]]) -> int:
    """Length of the longest common prefix."""
    length = min(map(len, sequences))
    first = sequences[0]
    for index in range(length):
        if any(other[index] != first[index] for other in sequences[1:]):
            return index
    return length


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
