# SPDX-License-Identifier: Apache-2.0
"""One batch of real pairs: ids, log-probs, loss and LoRA gradients equal those of TRL.

The adapter is written here, read by PEFT and put into the model that TRL's trainer built; the loss
is TRL's own ``compute_loss``. One thing differs by intention: where a chat template writes text
after the stop token of a turn (SmolLM2: a newline), TRL scores that text as part of the answer and
we do not, because no answer that is sampled ever contains it. The tests require that this is the
only difference in ids, and take it away on TRL's side before they compare numbers.
"""

from dataclasses import dataclass

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from alignax.data.dataset import build_dataset
from alignax.data.encode import EncodeOptions, Encoder
from alignax.export.card import RunFacts
from alignax.export.peft import write_adapter
from alignax.models.layers import LoRAParam
from alignax.models.lora import LoraSpec, adapted, adapter_to_peft, add_lora
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import load_model
from tests.parity import rows
from tests.train.tiny import Run

torch = pytest.importorskip("torch")
trl = pytest.importorskip("trl")
peft = pytest.importorskip("peft")

import transformers  # noqa: E402
from datasets import Dataset  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers  # noqa: E402

from tests.parity.make_llama import randomise  # noqa: E402

BETA = 0.1
LORA = LoraSpec(8, 12.0, 0.0, ("q_proj", "v_proj"))
SPECIAL = ("<pad>", "<s>", "</s>")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
CASES = {
    "small-text": ("small", "text", 128, "live"),
    "small-chat": ("small", "chat", 512, "cached"),
    "wide-text": ("wide", "text", 512, "cached"),
    "wide-chat": ("wide", "chat", 170, "live"),
    "smollm2-text": ("smollm2", "text", 512, "cached"),
    "smollm2-chat": ("smollm2", "chat", 170, "cached"),
}
"""Name → model, form of the rows, longest sequence, where the reference comes from."""


@dataclass
class Batch:
    """What one side says about the pairs.

    Attributes:
        ids: Prompt and scored ids of each answer: [(prompt, answer), …], chosen ones first.
        policy: [2, n] summed log-probs of chosen and rejected answers.
        reference: The same of the reference.
        loss: Mean loss.
        gradient: PEFT's name → gradient.
    """

    ids: list
    policy: np.ndarray
    reference: np.ndarray
    loss: float
    gradient: dict


def small_tokenizer(texts):
    """Byte-level merges learnt from the rows; plain text gets a BOS; padding is no stop token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    names = dict(zip(("pad_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.chat_template = TEMPLATE
    return fast


def random_llama(folder, tokenizer, *, tied):
    """Write a random Llama with its tokenizer."""
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        tie_word_embeddings=tied, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    randomise(model, seed=3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folder_of(pairs, request, tmp_path_factory):
    """Name of a model → its folder."""

    def find(name):
        if name == "smollm2":
            return request.getfixturevalue("smollm2")
        folder = tmp_path_factory.mktemp(name)
        if name == "small":
            texts = [text for pair in pairs for text in rows.as_text(pair).values()]
            return random_llama(folder, small_tokenizer(texts), tied=False)
        tokenizer = load_tokenizer(request.getfixturevalue("smollm2"))
        return random_llama(folder, tokenizer, tied=True)

    return find


def warm(model):
    """Give a model an adapter whose B is not zero: the policy differs from the reference."""
    add_lora(model, LORA, key=jax.random.key(1))
    for index, linear in enumerate(adapted(model).values()):
        drawn = jax.random.normal(jax.random.key(index + 2), linear.lora_b[...].shape)
        linear.lora_b = nnx.data(LoRAParam(0.03 * drawn))
    return model


def ours(file, folder, form, max_length, mode, tmp_path):
    """Do one training step whose "optimizer" keeps the gradient; write the adapter it began with.

    Two micro-batches, packed rows, tiled attention: all as in a run.
    """
    loaded, tokenizer = load_model(folder), load_tokenizer(folder)
    model = warm(loaded.model)
    encoder = Encoder(tokenizer, EncodeOptions(max_length=max_length), stop_ids=loaded.stop_ids)
    dataset, report = build_dataset(
        str(file), format="auto", split="train", encoder=encoder, kind="pair", cache_dir=tmp_path
    )
    assert report.kept == len(dataset) == 8, report.to_json()
    facts = RunFacts(str(folder), loaded.weights_hash, "dpo", str(file), {}, {})
    write_adapter(tmp_path / "adapter", model, LORA, tokenizer, facts)
    run = Run(
        dataset, model=model, mode=mode, beta=BETA, optimizer=optax.trace(0.0), remat="dots",
        batch_size=8, microbatches=2,
    )  # fmt: skip
    policy = run.score(run.start)
    reference = run.score(run.start, adapter=False)
    metrics = run.update(0)
    gradient = nnx.merge(run.network.graphdef, run.frozen, run.state.opt_state.trace)
    examples = [dataset[index] for index in range(8)]
    return Batch(
        [(e.prompt.tolist(), e.answers[side].tolist()) for side in (0, 1) for e in examples],
        policy.T,
        reference.T,
        metrics["loss"],
        adapter_to_peft(gradient),
    )


def build_trainer(content, folder, form, max_length, tmp_path):
    """Give TRL the rows and the adapter."""
    config = peft.LoraConfig.from_pretrained(tmp_path / "adapter")
    config.inference_mode = False
    base = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = trl.DPOTrainer(
        model=base,
        args=trl.DPOConfig(
            output_dir=str(tmp_path / "trl"), beta=BETA, max_length=max_length, use_cpu=True,
            bf16=False, gradient_checkpointing=False, report_to="none", disable_tqdm=True,
            per_device_train_batch_size=8,
        ),
        train_dataset=Dataset.from_list(content),
        processing_class=transformers.AutoTokenizer.from_pretrained(folder),
        peft_config=config,
    )  # fmt: skip
    weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    result = peft.set_peft_model_state_dict(trainer.model, weights)
    assert not result.unexpected_keys
    return trainer


def without_tail(row, tail):
    """Take the text after the stop token off the answers of one of TRL's encoded rows."""
    return {
        side: row[side][: -len(tail)] if tail and row[side][-len(tail) :] == tail else row[side]
        for side in ("chosen_ids", "rejected_ids")
    }


def theirs(content, folder, form, max_length, tail, tmp_path):
    """Compute the loss of one batch with TRL and differentiate it."""
    trainer = build_trainer(content, folder, form, max_length, tmp_path)
    encoded = trainer.train_dataset
    assert len(encoded) == 8
    if tail:
        for row in encoded:
            for side in ("chosen_ids", "rejected_ids"):
                assert row[side][-len(tail) :] == tail
        encoded = encoded.map(without_tail, fn_kwargs={"tail": tail})
    batch = trainer.data_collator([encoded[index] for index in range(8)])
    outputs = []
    hook = trainer.model.register_forward_hook(lambda *parts: outputs.append(parts[-1]))
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, batch)
    hook.remove()
    loss.backward()
    policy, reference = (output.log_probs.detach().sum(1).numpy() for output in outputs)
    gradient = {
        name.replace(".default.", "."): weight.grad.numpy()
        for name, weight in trainer.model.named_parameters()
        if weight.requires_grad
    }
    scored = []
    for ids, used, mask in zip(
        batch["input_ids"], batch["attention_mask"].bool(), batch["completion_mask"], strict=True
    ):
        is_answer = mask[used].bool()
        scored.append((ids[used][~is_answer].tolist(), ids[used][is_answer].tolist()))
    return Batch(
        scored, policy.reshape(2, 8), reference.reshape(2, 8), float(loss.detach()), gradient
    )


@pytest.mark.parametrize("case", CASES)
def test_one_batch(case, pairs, folder_of, write_rows, tmp_path, record_property):
    """Ids exactly; log-probs, loss and every LoRA gradient within 1e-4 relative."""
    name, form, max_length, mode = CASES[case]
    folder = folder_of(name)
    content = [rows.as_text(pair) for pair in pairs] if form == "text" else pairs
    got = ours(write_rows(content), folder, form, max_length, mode, tmp_path)
    tokenizer = load_tokenizer(folder)
    tail = tokenizer.encode("\n", add_special_tokens=False)
    has_tail = form == "chat" and name != "small"
    want = theirs(content, folder, form, max_length, tail if has_tail else [], tmp_path)

    assert got.ids == want.ids
    stopped = [ids[-1] == tokenizer.eos_token_id for _, ids in got.ids]
    assert any(stopped)
    if rows.ULTRAFEEDBACK.exists():
        assert all(stopped) == (max_length == 512), "this case is there to have cut answers"
    assert np.abs(want.policy - want.reference).min() > 1e-3
    for field in ("policy", "reference", "loss"):
        values, expected = getattr(got, field), getattr(want, field)
        record_property(field, float(np.abs(values / expected - 1).max()))
        np.testing.assert_allclose(values, expected, rtol=1e-4, err_msg=field)
    assert abs(want.loss - np.log(2)) > 1e-3
    assert got.gradient.keys() == want.gradient.keys()
    worst = 0.0
    for weight, gradient in want.gradient.items():
        largest = np.abs(gradient).max()
        assert largest > 0, weight
        worst = max(worst, np.abs(got.gradient[weight] - gradient).max() / largest)
    record_property("gradient", float(worst))
    assert worst < 1e-4
