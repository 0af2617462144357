# SPDX-License-Identifier: Apache-2.0
"""A two-layer policy and random rows for the tests of training."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from alignax.data.pack import pack
from alignax.data.plan import plan_epochs, scoring_plan
from alignax.losses import build_loss
from alignax.models.config import DecoderConfig
from alignax.models.decoder import random_model
from alignax.models.lora import LoraSpec, adapted, add_lora
from alignax.models.sharding import build_mesh, commit, place_batch, place_model
from alignax.records import EncodedExample
from alignax.train.forward import split_model
from alignax.train.reference import build_score_step, gather_cached, score_rows
from alignax.train.step import ReferencePlan, build_train_step, init_state

CONFIG = DecoderConfig("llama", 64, 32, 64, 2, 4, 2, 8, tie_embeddings=True)
SPEC = LoraSpec(4, 8.0, 0.0, ("q_proj", "v_proj"))


class Rows:
    """Random pairs (or single answers) as a data set."""

    def __init__(self, count, *, answers=2, seed=0):
        rng = np.random.default_rng(seed)
        self.lengths = rng.integers(3, 30, (count, 1 + answers))
        self.row_ids = [f"row{i}" for i in range(count)]
        self._examples = [
            EncodedExample(
                self.row_ids[i],
                rng.integers(3, 64, sizes[0]).astype(np.int32),
                tuple(rng.integers(3, 64, n).astype(np.int32) for n in sizes[1:]),
                (True,) * answers,
            )
            for i, sizes in enumerate(self.lengths)
        ]

    def __len__(self):
        return len(self._examples)

    def __getitem__(self, index):
        return self._examples[index]


def policy(*, spec=SPEC, warm=False, seed=0, mesh=None, dtype=jnp.float32, **config):
    """A random decoder with an adapter; ``warm`` makes the adapter differ from zero."""
    model = random_model(replace(CONFIG, **config), seed=seed, dtype=dtype)
    if spec is not None:
        add_lora(model, spec, key=jax.random.key(1))
        for index, linear in enumerate(adapted(model).values() if warm else ()):
            shape = linear.lora_b[...].shape
            linear.lora_b[...] = 0.3 * jax.random.normal(jax.random.key(index), shape)
    if mesh is not None:
        place_model(model, mesh)
    return model


class Run:
    """Everything between rows and updates, with the parts exposed."""

    def __init__(self, dataset, *, mode="cached", model=None, trains="adapter", mesh=(1, 1, 1),
                 reference_adapter=False, learning_rate=1e-2, beta=0.1, remat="none",
                 optimizer=None, kind="pair", compute_dtype="float32", loss=None, knobs=None,
                 moving=None, **plan):  # fmt: skip
        self.rows = dataset
        self.mesh = build_mesh(*mesh)
        model = model or policy()
        place_model(model, self.mesh)
        answers = 2 if kind == "pair" else 1
        self.network, self.start = split_model(
            model, trains=trains, answers=answers, remat=remat, compute_dtype=compute_dtype
        )
        self.trainable, self.frozen = self.network.part(self.start)
        self.reference = jax.tree.map(lambda x: x.copy(), self.start)
        self.reference_plan = ReferencePlan(mode if kind == "pair" else "none", reference_adapter)
        self.reference_plan = moving or self.reference_plan
        settings = {"batch_size": 8, "epochs": 1, "rows": mesh[0] * mesh[1]} | plan
        self.plan = plan_epochs(dataset.lengths, **settings)
        beta = beta if kind == "pair" and loss is None else None
        objective = build_loss(loss, kind=kind, beta=beta, **(knobs or {}))
        self.objective = objective.over(self.plan.steps)
        schedule = optax.constant_schedule(learning_rate)
        self.optimizer = optimizer or optax.adamw(schedule, weight_decay=0.0)
        self.table = (
            self.score(self.reference, reference_adapter)
            if self.reference_plan.mode == "cached"
            else None
        )
        self.state = commit(
            init_state(
                self.trainable,
                self.optimizer,
                jax.random.key(0),
                memory=self.objective.start_memory(),
                moving_reference=self.reference_plan.mode == "moving",
            ),
            self.mesh,
        )
        self.step = build_train_step(
            self.network, self.objective, self.optimizer, schedule, self.reference_plan, self.state
        )

    def score(self, weights, adapter=True):
        """[n, s] log-probs of all rows."""
        plan = scoring_plan(self.rows.lengths, microbatch_tokens=512, rows=self.plan.shape.b)
        batches = (self.place(self.batch(i, plan)) for i in range(plan.steps))
        step = build_score_step(self.network, adapter=adapter)
        return score_rows(step, weights, batches, len(self.rows), self.network.answers)[0]

    def batch(self, index, plan=None):
        plan = plan or self.plan
        return pack(self.rows, plan.step(index), plan.shape)

    def place(self, tree):
        return place_batch(tree, self.mesh)

    def update(self, index):
        """Do one step and return its metrics as numbers."""
        batch = self.batch(index)
        cached = None
        if self.table is not None:
            cached = {"reference": gather_cached(self.table, batch.example)}
        live = self.reference if self.reference_plan.mode == "live" else None
        placed, cached = self.place((batch, cached))
        self.state, metrics = self.step(self.state, self.frozen, live, placed, cached)
        return {
            name: float(v.total / v.weight) if isinstance(v, tuple) else float(v)
            for name, v in metrics.items()
        }

    def losses(self, steps):
        return [self.update(i)["loss"] for i in range(steps)]


def flat(tree):
    """All entries of a tree as one vector."""
    return np.concatenate([np.ravel(jnp.asarray(x)) for x in jax.tree.leaves(tree)])
