# SPDX-License-Identifier: Apache-2.0
"""A tiny base on the disk, a trained adapter on it, and what a run tells about itself."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

from alignax.export.card import RunFacts
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.layers import LoRAParam
from alignax.models.lora import LoraSpec, adapted, add_lora
from alignax.models.weights import export_tensors, hf_config, load_model

EOS = 257
END = 260
"""Id of <|end|>, which the template writes after each turn."""

LORA = LoraSpec(4, 8.0, 0.05, ("q_proj", "down_proj"))
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tiny_tokenizer():
    """Bytes, three special tokens and a chat template whose stop token is not the EOS."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|eos|>",
        bos_token="<|bos|>",
        clean_up_tokenization_spaces=False,
    )
    while len(fast) < END:
        fast.add_tokens([f"<|unused{len(fast)}|>"], special_tokens=True)
    fast.add_tokens(["<|end|>"], special_tokens=True)
    fast.chat_template = TEMPLATE
    return fast


def config_for(*, tied=True):
    """A decoder as large as the tokenizer needs."""
    return DecoderConfig(
        family="llama", vocab_size=264, d_model=32, mlp_dim=48, layer_count=2, head_count=4,
        kv_head_count=2, head_dim=8, max_positions=256, tie_embeddings=tied,
    )  # fmt: skip


def write_base(folder, config, tokenizer):
    """Write a random base as a Hugging Face folder."""
    folder.mkdir()
    model = random_model(config, seed=0)
    model.embed.weight[...] *= 20.0
    save_file(export_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    content = hf_config(config) | {"eos_token_id": tokenizer.eos_token_id}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    tokenizer.save_pretrained(str(folder))
    return folder


def with_adapter(model, spec=LORA):
    """A copy with an adapter that matters."""
    model = nnx.merge(*nnx.split(model))
    add_lora(model, spec, key=jax.random.key(1))
    for index, linear in enumerate(adapted(model).values()):
        drawn = jax.random.normal(jax.random.key(index), linear.lora_b[...].shape)
        linear.lora_b = nnx.data(LoRAParam(0.2 * drawn.astype(jnp.float32)))
    return model


@pytest.fixture(scope="session")
def tokenizer():
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def base(tmp_path_factory, tokenizer):
    """The base, loaded from its folder."""
    folder = tmp_path_factory.mktemp("models") / "base"
    return load_model(write_base(folder, config_for(), tokenizer))


@pytest.fixture(scope="session")
def trained(base):
    """The base with a trained adapter."""
    return with_adapter(base.model)


@pytest.fixture(scope="session")
def facts(base):
    """What a run tells about itself."""
    evaluation = {"n": 64.0, "loss": 0.6931, "accuracy": 0.0, "margin": 0.0}
    after = {
        "n": 64.0, "loss": 0.6402, "loss_low": 0.61, "loss_high": 0.67, "accuracy": 0.7031,
        "accuracy_low": 0.5823, "accuracy_high": 0.8006, "margin": 0.12, "margin_low": 0.05,
        "margin_high": 0.19, "perplexity": 5.5, "kl/token": 0.021,
    }  # fmt: skip
    return RunFacts(
        base=str(base.path), base_hash=base.weights_hash, method="dpo", data="pairs.jsonl",
        settings={
            "output": "runs/one",
            "lora": {"enabled": True, "rank": 4, "alpha": 8.0, "targets": ["q_proj", "down_proj"]},
            "loss": {"beta": 0.1, "type": "sigmoid"},
            "train": {"seed": 0, "resume": False},
            "export": {"dtype": "float32"},
        },
        summary={"before": evaluation, "after": after, "steps": 100, "best_step": 80},
    )  # fmt: skip


@pytest.fixture(scope="session")
def other_run(facts):
    """The facts of a run with another seed."""
    return dataclasses.replace(facts, settings={**facts.settings, "train": {"seed": 1}})


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Probe prompts of several lengths."""
    texts = ("Hi", "What is rain?", "Name three colours, please.", "12+30=")
    return [
        tokenizer.encode(f"user: {text}<|end|>assistant: ", add_special_tokens=False)
        for text in texts
    ]
