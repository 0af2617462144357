# SPDX-License-Identifier: Apache-2.0
"""A step that is not finite → what an engineer needs to know of it."""

from collections.abc import Callable, Mapping
from typing import Any

import jax

from alignax.cli.setup import Setup
from alignax.errors import StoppedByGuard
from alignax.models.sharding import place_batch
from alignax.train.evidence import NamedRows, keep_evidence
from alignax.train.fault import FaultFinder
from alignax.train.feed import Fed
from alignax.train.step import TrainState


def explainer(
    setup: Setup, frozen: Any, live: Any
) -> Callable[[TrainState, Fed, Mapping[str, float]], StoppedByGuard]:
    """Make the function that the loop calls with a bad step; see ``Parts.explain``."""
    finder = FaultFinder(
        setup.network,
        setup.objective,
        setup.reference_plan,
        setup.policy.loaded.config,
        lambda tree: place_batch(tree, setup.policy.mesh),
    )
    rows = NamedRows(setup.train.row_ids, setup.train.places)

    def explain(state: TrainState, fed: Fed, values: Mapping[str, float]) -> StoppedByGuard:
        cached = jax.device_get(fed.cached)
        fault = finder.find(state, frozen, live, fed.batch, cached)
        step = fed.index + 1
        story = keep_evidence(setup.folder.faults, step, fault, values, fed.batch, cached, rows)
        named = [rows.name(index) for index in fault.blamed]
        return StoppedByGuard(
            f"step {step}: loss {values['loss']}, gradient norm {values['grad_norm']}; first bad "
            f"tensor: {fault.first_bad}; the update was not applied, the batch is kept in {story}",
            problems=[f"row {row['row_id']} ({row['place']})" for row in named],
            hint="look at these rows with `alignax data show` and take them out; if nothing is "
            "wrong with them, lower optimizer.learning_rate",
        )

    return explain
