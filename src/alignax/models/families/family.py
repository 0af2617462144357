# SPDX-License-Identifier: Apache-2.0
"""What a model family is: ways to read its configuration, and a table of tensor names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from alignax.models.config import DecoderConfig
from alignax.models.families.fields import Fields
from alignax.models.families.metadata import Metadata
from alignax.models.gguf import GGUFFile


@dataclass(frozen=True)
class TensorName:
    """One tensor of the decoder and its names in files; ``{l}`` stands for the layer.

    Attributes:
        param: Dotted path in the decoder; tensors of all layers are stacked under one path.
        hf: Name in safetensors files; ``{e}`` stands for the expert.
        gguf: Name in GGUF files, which hold all experts of a layer in one tensor.
        transposed: Files store (out, in), the decoder (in, out).
        rotary_heads: GGUF files interleave the rows of these heads.
        rows: (first, end, all) rows of a tensor in the file that holds several of ours.
        gguf_shift: GGUF files hold the value plus this.
    """

    param: str
    hf: str
    gguf: str
    transposed: bool = False
    rotary_heads: Literal["query", "key"] | None = None
    rows: tuple[int, int, int] | None = None
    gguf_shift: float = 0.0

    @property
    def stacked(self) -> bool:
        """Whether every layer has one."""
        return "{l}" in self.hf


@dataclass(frozen=True)
class Family:
    """Everything that loading and export need to know about one family.

    Attributes:
        name: Key of ``FAMILIES``.
        model_types: Values of ``model_type`` in ``config.json``.
        architectures: Values of ``architectures`` in ``config.json``.
        read: ``config.json`` → decoder configuration; adds what is wrong to ``Fields.problems``.
        to_hf: Decoder configuration → ``config.json``.
        tensor_names: Tensors of a decoder of this configuration.
        understands: Keys of ``fields.FEATURES`` that ``read`` reads; all others are refused where
            they change the computation.
        defaults: What a key means that ``config.json`` leaves out.
        gguf_architecture: Value of ``general.architecture`` in GGUF files; None: not read.
        read_gguf: As ``read``, for a GGUF file.
        ignored: Patterns (regular expressions) of names in files that hold no weights of ours.
        inner: Key of ``config.json`` under which a multimodal folder has its text part.
        renamed: (prefix in files, ours), for tensors of such a folder.
        scores_as: Value of ``architectures`` for reward models, where it is not the usual one.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    read: Callable[[Fields], DecoderConfig]
    to_hf: Callable[[DecoderConfig], dict[str, Any]]
    tensor_names: Callable[[DecoderConfig], list[TensorName]]
    understands: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    gguf_architecture: str | None = None
    read_gguf: Callable[[Metadata], DecoderConfig] | None = None
    ignored: tuple[str, ...] = ()
    inner: str | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    scores_as: str | None = None

    @property
    def scoring_architecture(self) -> str:
        """Value of ``architectures`` for a reward model of the family."""
        usual = self.architectures[0].replace("ForCausalLM", "ForSequenceClassification")
        return self.scores_as or usual

    def from_hf(self, config: Mapping[str, Any], problems: list[str]) -> DecoderConfig | None:
        """Read a ``config.json``; None when problems were found, which are added to the list."""
        fields = Fields(dict(self.defaults) | dict(config), [])
        fields.refuse_features(self.understands)
        decoder = self.read(fields)
        problems += fields.problems
        return None if fields.problems else decoder

    def from_gguf(self, file: GGUFFile, problems: list[str]) -> DecoderConfig | None:
        """Read the metadata of a GGUF file; None when problems were found."""
        assert self.read_gguf is not None
        assert self.gguf_architecture is not None
        metadata = Metadata(file, self.gguf_architecture, [])
        decoder = self.read_gguf(metadata)
        problems += metadata.problems
        return None if metadata.problems else decoder

    def text_part(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """``config.json`` of the language model alone, with the token ids of the whole."""
        if self.inner is None or self.inner not in config:
            return dict(config)
        kept = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "tie_word_embeddings")
        outer = {key: config[key] for key in kept if config.get(key) is not None}
        classes = {"architectures": [self.architectures[0]], "model_type": self.model_types[0]}
        return outer | dict(config[self.inner]) | outer | classes

    def our_name(self, name: str) -> str:
        """Name of a tensor without the prefix that multimodal folders give it."""
        for prefix, ours in self.renamed:
            if name.startswith(prefix):
                return ours + name.removeprefix(prefix)
        return name
