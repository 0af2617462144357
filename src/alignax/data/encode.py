# SPDX-License-Identifier: Apache-2.0
"""Examples → token ids, with one boundary rule for SFT, DPO, scoring and generation.

The whole conversation is rendered and tokenised once for each answer. The answers start at the
longest common id prefix of (prompt with generation header), (prompt + each answer), the same for
both sides. A complete answer ends with exactly one stop token, which is scored; what the template
writes after it is not part of the answer; a cut answer has none.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from alignax.data.boundary import Ids, common_prefix, fit
from alignax.data.chat import ANSWER, ChatTemplate, TemplateProbe, probe
from alignax.data.formats.turns import RowProblem
from alignax.data.render import SYSTEM_ROLES, Rendered, Renderer
from alignax.data.tokens import Split, TokenRules, row_name, token_id, tokenizer_hash
from alignax.errors import DataError
from alignax.recipe import DataSection
from alignax.records import Dropped, EncodedExample, Example

ENCODING_VERSION = "3"
"""Raised whenever the ids of some row change; part of every cache key."""

WAYS_OUT = {
    "tools_lost": "give a template that shows tools with --data.chat_template FILE",
    "tools_in_text": "--data.render chat makes turns of plain text",
}
"""What to do about problems that stop the reading."""

LIKELY_ANSWERS = (ANSWER["content"], "$")
"""How answers may begin, where generation must guess whether a prompt's end merges with them."""


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


class Encoder:
    """Turns examples into ids.

    Attributes:
        notices: What a person should know about tokenizer and template.
        stop_ids: Every id that ends an answer.
        probe: What the chat template does; None: there is no template.
        parts: Name → hash or value of everything that decides the ids.
        digest: Hash of all parts.
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
        self.has_template = bool(tokenizer.chat_template)
        named = token_id(tokenizer, options.stop_token)
        eos: Any = tokenizer.eos_token_id
        stop_id = named if named is not None else eos
        known = [i for i in (named, eos, *stop_ids) if i is not None]
        template = ChatTemplate(tokenizer)
        self.probe = probe(template, known) if self.has_template else None
        if self.probe:
            known += self.probe.stop_ids
        self._rules = TokenRules(
            tokenizer, found=self.probe, add_bos=options.add_bos, stop_id=stop_id, stop_ids=known
        )
        self.notices = _notices(self.probe, options, template.name, self._rules.text_bos)
        self.stop_ids = self._rules.stop_ids
        self._renderer = Renderer(
            template,
            mode=options.render,
            system=options.system,
            merge_system=self.probe is not None and self.probe.system != "kept",
            keep_whitespace_pairs=options.whitespace_pairs == "keep",
            stop_texts=self._rules.stop_texts,
            tail=_unended(self.probe),
            header=self.probe.header if self.probe else "",
        )
        self.tokenizer_hash = tokenizer_hash(tokenizer)
        self.template_hash = template.digest
        self.parts = {
            "code version": ENCODING_VERSION,
            "tokenizer": self.tokenizer_hash,
            "template": self.template_hash,
            "stop ids": str(sorted(self.stop_ids)),
            **{f"data.{name}": str(value) for name, value in asdict(options).items()},
        }
        self.digest = _hash(json.dumps(self.parts, sort_keys=True))

    def encode(self, example: Example) -> EncodedExample | Dropped:
        """Encode one example."""
        return self.encode_many([example])[0]

    def encode_many(self, examples: Sequence[Example]) -> list[EncodedExample | Dropped]:
        """Encode examples; texts are tokenised in one batch.

        Raises:
            DataError: A template cannot show what a row holds; a row would begin with two BOS
                tokens; an over-long row under ``overlong: error``.
        """
        (results,) = self.encode_batches([examples])
        return results

    def encode_batches(
        self, batches: Iterable[Sequence[Example]]
    ) -> Iterator[list[EncodedExample | Dropped]]:
        """Encode batches in order; one is tokenised while the next one is read and rendered.

        Raises:
            DataError: As for ``encode_many``.
        """
        for rendered, found in _ahead(map(self._render_all, batches), self._rules):
            ids = iter(found)
            yield [
                item if isinstance(item, Dropped) else self._encoded(item, ids) for item in rendered
            ]

    def prompt_ids(self, prompt: Any, tools: Sequence[Any] = ()) -> list[int]:
        """Encode a prompt for generation: text, or chat turns with the generation header.

        The ids end where training's boundary lies. What an answer's first token may merge with
        (white space at the end of a text) or does not share with a conversation (the header of a
        template that is not prefix-stable) is left for the model to write.

        Raises:
            DataError: The template refuses the prompt, or there is none; nothing is left.
        """
        if isinstance(prompt, str):
            texts, chat = [prompt, *(prompt + answer for answer in LIKELY_ANSWERS)], False
        else:
            texts, chat = _prompt_texts(self._renderer, self.probe, tuple(prompt), tools), True
        sequences = self._rules.with_bos(self._rules.tokenise(texts), chat=chat)
        self._rules.refuse_two_bos(sequences[0], "the prompt", chat=chat)
        ids = sequences[0][: common_prefix(sequences)]
        if not ids:
            raise DataError(f"the prompt {prompt!r} has no token", hint="give a longer prompt")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Turn ids into text, special tokens included."""
        return self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)  # type: ignore[return-value]

    def _render_all(self, examples: Sequence[Example]) -> list[Rendered | Dropped]:
        rendered: list[Rendered | Dropped] = []
        for example in examples:
            try:
                rendered.append(self._renderer.render(example))
            except RowProblem as problem:
                rendered.append(_dropped(example, problem))
        return rendered

    def _encoded(self, item: Rendered, ids: Iterator[Ids]) -> EncodedExample | Dropped:
        """Cut one example's ids into prompt and answers, and fit them into ``max_length``."""
        sequences = [next(ids) for _ in item.texts]
        try:
            whole = split = self._rules.split(item, sequences)
            limit = self.options.max_length
            if item.chat and split.longest > limit and self.options.prompt_cut == "turns":
                split = _without_oldest(split, self._renderer, self._rules, limit)
            return _fitted(split, self.options, len(whole.prompt) - len(split.prompt))
        except RowProblem as problem:
            return _dropped(item.example, problem)


def _ahead(
    batches: Iterable[list[Rendered | Dropped]], rules: TokenRules
) -> Iterator[tuple[list[Rendered | Dropped], list[Ids]]]:
    """Tokenise each batch in a thread while the next one is being made."""
    under_way: tuple[list[Rendered | Dropped], Future[list[Ids]]] | None = None
    with ThreadPoolExecutor(1) as pool:
        for batch in batches:
            texts = [text for r in batch if isinstance(r, Rendered) for text in r.texts]
            begun = batch, pool.submit(rules.tokenise, texts)
            if under_way is not None:
                yield under_way[0], under_way[1].result()
            under_way = begun
        if under_way is not None:
            yield under_way[0], under_way[1].result()


def _prompt_texts(
    renderer: Renderer, found: TemplateProbe | None, turns: tuple[Any, ...], tools: Sequence[Any]
) -> list[str]:
    """Render a prompt, and with an answer where a template needs to be compared."""
    template = renderer.template
    messages = renderer.for_template(renderer.with_system(turns))
    try:
        text = template.render(messages, tools, generation=True)
        if found is not None and found.prefix_stable:
            return [text]
        return [text, template.render([*messages, ANSWER], tools)]
    except RowProblem as problem:
        raise DataError(f"the chat template refuses the prompt: {problem.detail}") from problem


def _dropped(example: Example, problem: RowProblem) -> Dropped:
    """Count a row under its reason; a fatal one stops the reading."""
    if problem.fatal:
        raise DataError(
            f"{row_name(example)}: {problem.detail}", hint=WAYS_OUT.get(problem.reason)
        ) from problem
    return Dropped(example.row_id, problem.reason, problem.detail, example.place)


def _fitted(split: Split, options: EncodeOptions, prompt_cut: int) -> EncodedExample:
    """Apply the rule for over-long rows.

    Raises:
        RowProblem: The row is dropped for its length.
        DataError: It is too long under ``overlong: error``.
    """
    example = split.item.example
    if split.longest > options.max_length and options.overlong != "truncate":
        if options.overlong == "drop":
            raise RowProblem("too_long", f"{split.longest} tokens")
        raise DataError(
            f"{row_name(example)} has {split.longest} tokens, data.max_length is "
            f"{options.max_length}",
            hint="raise data.max_length, or set data.overlong to truncate or drop",
        )
    cut = fit(len(split.prompt), split.answers, options.max_length)
    marks = [np.array(m[: len(a)], bool) for m, a in zip(split.scored, cut.answers, strict=True)]
    return EncodedExample(
        row_id=example.row_id,
        prompt=np.array(split.prompt, np.int32),
        answers=tuple(np.array(answer, np.int32) for answer in cut.answers),
        complete=tuple(lost == 0 for lost in cut.lost),
        answer_cut=cut.lost,
        prompt_cut=prompt_cut,
        boundary_merged=split.merged,
        system_merged=split.item.system_merged,
        scored=() if all(m.all() for m in marks) else tuple(marks),
    )


def _without_oldest(split: Split, renderer: Renderer, rules: TokenRules, limit: int) -> Split:
    """Leave out the oldest turns until the row fits, or only the last question is left."""
    item = split.item
    head = item.messages[:1] if item.messages[0]["role"] in SYSTEM_ROLES else ()
    turns = item.messages[len(head) :]
    for start in (i for i, m in enumerate(turns) if m["role"] == "user" and i > 0):
        shorter = renderer.render_turns(item.example, head + turns[start:], item.answers)
        split = rules.split(shorter, rules.tokenise(shorter.texts))
        if split.longest <= limit:
            break
    return split


def _notices(
    found: TemplateProbe | None, options: EncodeOptions, name: str, text_bos: bool
) -> list[str]:
    """Refuse what would train wrongly without a sign; list what a person should know."""
    if found is None:
        return []
    if not found.stop_ids and options.stop_token is None:
        raise DataError(
            f"the chat template of {name} writes no stop token after an answer "
            f"(it writes {found.stop_text!r})",
            hint="name the token that ends an answer with --data.stop_token",
        )
    if options.add_bos and found.bos_count:
        raise DataError(
            "row 0 would begin with two BOS tokens: the chat template writes one, and data.add_bos "
            "adds one",
            hint="leave data.add_bos out",
        )
    notices = []
    if not found.prefix_stable:
        message = (
            "the chat template is not prefix-stable: the prompt renders to "
            f"{found.prompt_text!r}, the conversation to {found.full_text!r}; the boundary is "
            "their longest common id prefix"
        )
        if options.strict_template:
            raise DataError(message, hint="turn data.strict_template off, or give a template")
        notices.append(message)
    if found.system != "kept":
        notices.append(
            f"the chat template's system turn is {found.system}: its text is put before the first "
            "question, in training, scoring and generation"
        )
    if found.dated:
        notices.append(
            "the chat template can write today's date: cached rows keep the day they were encoded"
        )
    if text_bos and not found.bos_count and not options.add_bos:
        notices.append(
            "plain text begins with a BOS token and the chat template writes none: chat rows have "
            "no BOS (data.add_bos true adds one)"
        )
    return notices


def _unended(found: TemplateProbe | None) -> str:
    """White space after an answer that a template does not end with a stop token."""
    if found is None or found.stop_count:
        return ""
    return found.stop_text[len(found.stop_text.rstrip()) :]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
