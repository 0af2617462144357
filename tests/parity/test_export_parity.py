# SPDX-License-Identifier: Apache-2.0
"""Both exports load in transformers and peft and act there as the trained model does here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.export.huggingface import write_merged
from alignax.export.peft import read_adapter, write_adapter
from alignax.generate.sampler import Sampler
from alignax.models.lora import LoraSpec, adapter_to_peft, add_lora, peft_to_adapter
from alignax.models.weights import load_model
from tests.export.conftest import END, EOS, config_for, tiny_tokenizer, with_adapter, write_base

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")

# Other libraries warn about themselves.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

LORA = LoraSpec(4, 6.0, 0.05, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"))
TEXTS = ("Hi", "What is rain?", "On 2024-12-31 it cost $1,234.56.", "naïve café — 你好", "12+30=")
NEW_TOKENS = 24


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def export(request, tmp_path_factory):
    """A base, a trained adapter on it, and both exports."""
    from alignax.export.card import RunFacts

    root = tmp_path_factory.mktemp("parity")
    tokenizer = tiny_tokenizer()
    base = load_model(write_base(root / "base", config_for(tied=request.param), tokenizer))
    model = with_adapter(base.model, LORA)
    facts = RunFacts(str(root / "base"), base.weights_hash, "dpo", "rows.jsonl", {}, {})
    write_adapter(root / "adapter", model, LORA, tokenizer, facts, stop_ids=[END, EOS])
    write_merged(
        root / "merged", model, base, tokenizer, facts, stop_ids=[END, EOS], dtype="float32"
    )
    return root, model, tokenizer


def theirs(root, form):
    """Load one form in float32."""
    if form == "merged":
        model = transformers.AutoModelForCausalLM.from_pretrained(
            root / "merged", dtype=torch.float32
        )
    else:
        base = transformers.AutoModelForCausalLM.from_pretrained(root / "base", dtype=torch.float32)
        model = peft.PeftModel.from_pretrained(base, root / "adapter")
    return model.eval()


def prompts(tokenizer):
    """Rendered prompts as ids."""
    texts = [f"user: {text}<|end|>assistant: " for text in TEXTS]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def our_logits(model, ids):
    """Logits of one sequence."""
    ids_bt = jnp.asarray([ids])
    ones, zeros = jnp.ones_like(ids_bt), jnp.zeros_like(ids_bt)
    positions = jnp.arange(len(ids))[None]
    tiles = jnp.full((1, 1, 2), -1)
    hidden = model.hidden(ids_bt, positions, ones, zeros, tiles, attention="dense")
    return np.asarray(hidden @ model.head_vd.T)[0]


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_logits_and_greedy_ids(export, form):
    """Logits within 1e-4; every greedy answer is the same, and ends on the same stop ids."""
    root, model, tokenizer = export
    other = theirs(root, form)
    if form == "merged":
        assert other.generation_config.eos_token_id == [END, EOS]
    ids = prompts(tokenizer)
    sampler = Sampler(model, stop_ids=[END, EOS], decode=tokenizer.decode, batch_size=2)
    for prompt, answer in zip(ids, sampler.generate(ids, max_new_tokens=NEW_TOKENS), strict=True):
        with torch.no_grad():
            got = other(torch.tensor([prompt])).logits[0].numpy()
            whole = other.generate(
                input_ids=torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False,
                eos_token_id=[END, EOS], pad_token_id=0,
            )  # fmt: skip
        np.testing.assert_allclose(got, our_logits(model, prompt), rtol=0, atol=1e-4)
        assert whole[0, len(prompt) :].tolist() == list(answer.ids)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_tokenizer_and_template(export, form):
    """AutoTokenizer cuts texts as ours does and renders the same turns."""
    root, _, tokenizer = export
    other = transformers.AutoTokenizer.from_pretrained(root / form)
    turns = [{"role": "user", "content": "Hi"}]
    for text in TEXTS:
        assert other.encode(text) == tokenizer.encode(text)
        assert other.decode(other.encode(text)) == tokenizer.decode(tokenizer.encode(text))
    settings = {"add_generation_prompt": True, "tokenize": False}
    rendered = other.apply_chat_template(turns, **settings)
    assert rendered == tokenizer.apply_chat_template(turns, **settings)
    assert other.eos_token_id == EOS


def test_peft_finds_every_tensor_in_its_place(export):
    """No adapter matrix is left at its start, and what PEFT saves again reads back here."""
    root, model, _ = export
    other = theirs(root, "adapter")
    state = peft.get_peft_model_state_dict(other)
    want = adapter_to_peft(model)
    assert state.keys() == want.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(tensor.numpy(), want[name])
    other.save_pretrained(root / "again")
    tensors, spec, base_hash = read_adapter(root / "again")
    assert base_hash is None
    assert (spec.rank, spec.alpha, set(spec.targets)) == (4, 6.0, set(LORA.targets))
    copy = nnx.merge(*nnx.split(load_model(root / "base").model))
    add_lora(copy, spec, key=jax.random.key(0))
    peft_to_adapter(copy, tensors)
    ids = list(range(40))
    np.testing.assert_array_equal(our_logits(copy, ids), our_logits(model, ids))


def test_adapter_without_a_target_pattern_reads_by_names(export, tmp_path):
    """PEFT's own all-linear adapter, freshly trained there, acts the same here."""
    root, _, _ = export
    base = transformers.AutoModelForCausalLM.from_pretrained(root / "base", dtype=torch.float32)
    settings = peft.LoraConfig(
        task_type="CAUSAL_LM", r=3, lora_alpha=5, use_rslora=True, target_modules="all-linear"
    )
    torch.manual_seed(0)
    other = peft.get_peft_model(base, settings).eval()
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    other.save_pretrained(tmp_path / "theirs")
    tensors, spec, _ = read_adapter(tmp_path / "theirs")
    model = load_model(root / "base").model
    add_lora(model, spec, key=jax.random.key(0))
    peft_to_adapter(model, tensors)
    ids = list(range(50))
    with torch.no_grad():
        got = other(torch.tensor([ids])).logits[0].numpy()
    np.testing.assert_allclose(got, our_logits(model, ids), rtol=0, atol=1e-4)
