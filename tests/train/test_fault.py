# SPDX-License-Identifier: Apache-2.0
"""The first bad tensor of a bad step is named, and the rows that are bad on their own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alignax.models.published import published_name
from alignax.train.fault import FaultFinder
from alignax.train.reference import gather_cached
from tests.train.tiny import CONFIG, Rows, Run, policy

RARE = 63


def rows_with(*poisoned):
    """Sixteen rows; the poisoned ones hold a token that no other has."""
    rows = Rows(16)
    for index in range(len(rows)):
        example = rows[index]
        for part in (example.prompt, *example.answers):
            part[part == RARE] = 5
        if index in poisoned:
            example.prompt[1] = RARE
    return rows


def changed(tree, path, change):
    """Change the leaf whose dotted path begins so."""

    def each(keys, leaf):
        name = jax.tree_util.keystr(keys, simple=True, separator=".")
        return change(leaf) if name.startswith(path) else leaf

    return jax.tree_util.tree_map_with_path(each, tree)


@pytest.fixture(scope="module")
def run():
    return Run(rows_with(2, 9), model=policy(tie_embeddings=False), batch_size=16)


@pytest.fixture(scope="module")
def find(run):
    """Look at the first step, some of its parts changed."""
    finder = FaultFinder(run.network, run.objective, run.reference_plan, CONFIG, run.place)
    batch = run.batch(0)

    def look(frozen=run.frozen, trainable=run.trainable, table=run.table):
        state = run.state._replace(trainable=trainable)
        cached = {"reference": gather_cached(table, batch.example)}
        return finder.find(state, frozen, None, batch, cached)

    return look


def test_the_embedding_of_a_rare_token(run, find):
    """Packed neighbours of the rows that hold it are not blamed."""
    assert run.batch(0).example.shape[-1] > 1
    frozen = changed(run.frozen, "embed.weight", lambda x: x.at[RARE].set(jnp.nan))
    fault = find(frozen=frozen)
    assert fault.first_bad.startswith(f"model.embed_tokens.weight, row {RARE}")
    assert fault.blamed == (2, 9)


def test_a_bad_weight_comes_before_what_it_spoils(run, find):
    trainable = changed(
        run.trainable, "layers.attention.v_proj.lora_b", lambda x: x.at[1].set(jnp.nan)
    )
    fault = find(trainable=trainable)
    assert fault.first_bad == "weight model.layers.1.self_attn.v_proj.lora_B"
    assert fault.blamed == tuple(range(16))


def test_a_projection_that_overflows(run, find):
    frozen = changed(
        run.frozen, "layers.attention.v_proj.kernel", lambda x: x.at[1].set(3e38 * jnp.sign(x[1]))
    )
    assert find(frozen=frozen).first_bad == "model.layers.1.self_attn.v_proj"


def test_a_reference_without_a_value(run, find):
    table = run.table.copy()
    table[5, 1] = np.inf
    fault = find(table=table)
    assert fault.first_bad.startswith("reference: reference_rejected")
    assert fault.blamed == (5,)


def test_a_gradient_that_overflows(run, find):
    """B is zero, so the forward pass is finite; the gradient of B is as large as x A."""
    trainable = changed(
        run.trainable, "layers.attention.q_proj.lora_a", lambda x: jnp.full_like(x, 1e37)
    )
    fault = find(trainable=trainable)
    assert "model.layers.1.self_attn.q_proj.lora_B" in fault.first_bad or (
        "the sum over the step overflows" in fault.first_bad
    )


def test_names_are_those_of_checkpoints():
    names = [
        published_name(CONFIG, path, layer)
        for path, layer in (
            ("embed.weight", None), ("final_norm.scale", None), ("layers.input_norm.scale", 1),
            ("layers.mlp.gate_proj.kernel", 0), ("layers.attention.q_proj.lora_a", 3),
        )
    ]  # fmt: skip
    assert names == [
        "model.embed_tokens.weight", "model.norm.weight", "model.layers.1.input_layernorm.weight",
        "model.layers.0.mlp.gate_proj.weight", "model.layers.3.self_attn.q_proj.lora_A",
    ]  # fmt: skip
