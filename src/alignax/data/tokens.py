# SPDX-License-Identifier: Apache-2.0
"""Texts of one example → ids of the prompt and of its answers, before they are cut to length.

Holds what a tokenizer decides: which ids stop an answer, and where a BOS stands. For chat that is
what the template writes, for plain text what the tokenizer does by default; ``add_bos`` overrules.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from alignax.data.answers import EMPTY
from alignax.data.boundary import Ids, close_turns, common_prefix
from alignax.data.chat import TemplateProbe
from alignax.data.formats.turns import RowProblem
from alignax.data.render import Rendered
from alignax.errors import DataError
from alignax.records import Example


@dataclass(frozen=True)
class Split:
    """Ids of one example before they are fitted into ``max_length``."""

    item: Rendered
    prompt: Ids
    answers: list[Ids]
    scored: list[list[bool]]
    merged: bool

    @property
    def longest(self) -> int:
        """Tokens of the prompt with its longer answer."""
        return len(self.prompt) + max(map(len, self.answers))


class TokenRules:
    """One tokenizer's rules.

    Attributes:
        stop_ids: Every id that ends an answer.
        stop_id: The id that ends an answer where no template writes one; None: the model has none.
        text_bos: Whether plain text begins with a BOS.
        stop_texts: Texts that become stop ids wherever they stand.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        *,
        found: TemplateProbe | None,
        add_bos: bool | None,
        stop_id: int | None,
        stop_ids: Sequence[int],
    ):
        """Store the rules.

        Args:
            tokenizer: The model's tokenizer.
            found: What the chat template does, if there is one.
            add_bos: Force or forbid a BOS; None: as template and tokenizer do.
            stop_id: Ends an answer where no template writes a stop token.
            stop_ids: Every id that ends an answer.

        Raises:
            DataError: A BOS is wanted that the tokenizer does not have.
        """
        self.tokenizer = tokenizer
        self._backend = _plain_backend(tokenizer)
        self.found = found
        self.add_bos = add_bos
        self.stop_id = stop_id
        self.stop_ids = tuple(dict.fromkeys(map(int, stop_ids)))
        added = tokenizer.added_tokens_decoder
        self.stop_texts = tuple(added[i].content for i in self.stop_ids if i in added)
        self.text_bos = self._default_bos()

    def tokenise(self, texts: Sequence[str]) -> list[Ids]:
        """Tokenise texts on all cores; no special token is added, nothing is cut."""
        found = self._backend.encode_batch_fast([*texts], add_special_tokens=False)
        return [item.ids for item in found]

    def _default_bos(self) -> bool:
        """Tell whether plain text gets a BOS: as the options say, else as the tokenizer does."""
        bos = self.tokenizer.bos_token_id
        if self.add_bos is not None:
            if self.add_bos and bos is None:
                raise DataError("data.add_bos is true, but the tokenizer has no BOS token")
            return self.add_bos
        return bos is not None and self.tokenizer("a")["input_ids"][:1] == [bos]  # type: ignore[index]

    def with_bos(self, sequences: Sequence[Ids], *, chat: bool) -> list[Ids]:
        """Apply the BOS rule: a template decides for chat, the tokenizer for text."""
        bos = self.tokenizer.bos_token_id
        found = self.found
        if chat and self.add_bos is False and found and not found.bos_is_marker:
            return [ids[found.bos_count :] for ids in sequences]
        if self.add_bos if chat else self.text_bos:
            return [[bos, *ids] for ids in sequences]  # type: ignore[list-item]
        return list(sequences)

    def refuse_two_bos(self, ids: Sequence[int], what: str, *, chat: bool) -> None:
        """Refuse two BOS tokens at the start, with the two places they come from."""
        bos = self.tokenizer.bos_token_id
        if bos is None or list(ids[:2]) != [bos, bos] or not (chat or self.text_bos):
            return
        own = "the row's own text"
        if self.add_bos:
            source, adder = "the chat template" if chat else own, "data.add_bos"
        else:
            source, adder = own, "the chat template" if chat else "the tokenizer"
        raise DataError(
            f"{what} begins with two BOS tokens: one from {source}, one from {adder}",
            hint="set --data.add_bos false, or take the BOS out of the rows",
        )

    def split(self, item: Rendered, sequences: Sequence[Ids]) -> Split:
        """Find the boundary and close the answers.

        Raises:
            RowProblem: Nothing comes before the answers; a second BOS or an early stop token; both
                answers have the same ids.
            DataError: Two BOS tokens at the start; the model has no stop token.
        """
        prompt, *more = self.with_bos(sequences, chat=item.chat)
        fulls, starts = more[: len(item.fulls)], iter(more[len(item.fulls) :])
        bos = self.tokenizer.bos_token_id
        marker = bos in self.stop_ids or (self.found is not None and self.found.bos_is_marker)
        for full in fulls:
            self.refuse_two_bos(full, row_name(item.example), chat=item.chat)
            if bos is not None and not marker and bos in full[1:]:
                raise RowProblem("second_bos", f"the text spells {self.tokenizer.bos_token!r}")
        boundary = common_prefix([prompt, *fulls])
        if not boundary:
            raise RowProblem("empty_prompt", "no token comes before the answers")
        written = self.found.stop_count if item.chat and self.found else 0
        stop_id = self.found.stop_ids[0] if written and self.found else self.stop_id
        if stop_id is None:
            raise DataError(
                f"{row_name(item.example)}: the tokenizer has no end-of-text token, so an answer "
                "has no stop token",
                hint="name one with --data.stop_token",
            )
        answers, scored = [], []
        for full, texts in zip(fulls, item.starts or [()] * len(fulls), strict=True):
            begins = [boundary, *(common_prefix([next(starts), full]) for _ in texts)]
            try:
                answer, marks = close_turns(
                    full[boundary:], [begin - boundary for begin in begins], self.stop_ids,
                    stop_id=stop_id, written=written,
                )  # fmt: skip
            except RowProblem as problem:
                if problem.reason == "empty_answer":
                    problem.reason = EMPTY[len(answers)]
                raise
            answers.append(answer)
            scored.append(marks)
        if len(answers) > 1 and answers[0] == answers[1]:
            raise RowProblem("identical_pair", "chosen and rejected become the same tokens")
        return Split(item, prompt[:boundary], answers, scored, len(prompt) > boundary)


def _plain_backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Take the tokenizer proper, which gives ids without masks, offsets and conversions.

    It is set up here and never again: another thread may be using it.
    """
    backend: Any = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def token_id(tokenizer: PreTrainedTokenizerBase, token: str | None) -> int | None:
    """Look up the named stop token."""
    if token is None:
        return None
    found = tokenizer.convert_tokens_to_ids(token)
    if found is None or (found == tokenizer.unk_token_id and token != tokenizer.unk_token):
        raise DataError(f"data.stop_token {token!r} is not a token of this model")
    return int(found)  # type: ignore[arg-type]


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash what decides the ids: the tokenizer file and the roles of special tokens."""
    backend: Any = tokenizer.backend_tokenizer
    values = json.loads(backend.to_str())
    # What the last call asked for, not what the tokenizer is.
    values.pop("padding", None)
    values.pop("truncation", None)
    roles = {name: str(token) for name, token in tokenizer.special_tokens_map.items()}
    starts = tokenizer("a")["input_ids"]
    text = json.dumps([values, roles, starts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def row_name(example: Example) -> str:
    """Name a row in a message: its place and id."""
    return f"{example.place} (row {example.row_id})"
