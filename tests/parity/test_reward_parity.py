# SPDX-License-Identifier: Apache-2.0
"""An exported reward model scores in transformers as here, also in a padded batch."""

import jax
import numpy as np
import pytest

from alignax.export.card import RunFacts
from alignax.export.huggingface import write_merged
from alignax.export.reward import verify_reward
from alignax.models.lora import LoraSpec, merged
from alignax.models.reward import add_score, text_rewards
from alignax.models.weights import load_model
from tests.export.conftest import END, EOS, config_for, tiny_tokenizer, with_adapter, write_base

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

LORA = LoraSpec(4, 6.0, 0.05, ("q_proj", "v_proj"))
TEXTS = ("Hi<|end|>", "What is rain? Water.<|end|>", "On 2024-12-31", "12+30=42<|end|>")


@pytest.mark.parametrize("tied", [True, False])
def test_rewards_equal_those_of_sequence_classification(tied, tmp_path):
    tokenizer = tiny_tokenizer()
    base = load_model(write_base(tmp_path / "base", config_for(tied=tied), tokenizer))
    model = with_adapter(base.model, LORA)
    add_score(model, beside_adapter=True)
    drawn = jax.random.normal(jax.random.key(3), model.score.weight[...].shape)
    model.score.weight[...] = drawn
    facts = RunFacts(str(tmp_path / "base"), base.weights_hash, "reward", "rows.jsonl", {}, {})
    folder = tmp_path / "merged"
    write_merged(folder, model, base, tokenizer, facts, stop_ids=[END, EOS], dtype="float32")
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]
    assert verify_reward(folder, model, ids).max_reward_difference < 1e-4
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    reader = transformers.AutoTokenizer.from_pretrained(folder)
    batch = reader(list(TEXTS), return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        want = theirs(**batch).logits[:, 0].numpy()
    np.testing.assert_allclose(text_rewards(merged(model), ids), want, rtol=0, atol=2e-5)
    assert np.ptp(want) > 0.1
