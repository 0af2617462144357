# SPDX-License-Identifier: Apache-2.0
"""Plan + data set → packed batches, step by step, read ahead by Grain.

The order is the plan's: a pure function of (seed, epoch, step). An iterator's state is the next
step and nothing else, so a fresh process continues exactly where another stopped.
"""

from collections.abc import Mapping
from typing import Any, SupportsIndex

import grain

from alignax.data.pack import ExampleSource, pack
from alignax.data.plan import Plan
from alignax.errors import RunError
from alignax.records import PackedBatch


class StepSource:
    """Random access to packed steps, for Grain."""

    def __init__(self, dataset: ExampleSource, plan: Plan):
        """Hold what a step is made from."""
        self._dataset = dataset
        self._plan = plan

    def __len__(self) -> int:
        """Steps of the run."""
        return self._plan.steps

    def __getitem__(self, index: SupportsIndex) -> tuple[int, PackedBatch]:
        """Pack one step."""
        step = int(index)
        return step, pack(self._dataset, self._plan.step(step), self._plan.shape)


class StepBatches:
    """Iterator of ``(step, PackedBatch)`` with a state that fits into a checkpoint."""

    def __init__(
        self, dataset: ExampleSource, plan: Plan, *, start_step: int = 0, prefetch: int = 2
    ):
        """Start at a step.

        Args:
            dataset: Encoded examples.
            plan: Their layout.
            start_step: First step to return.
            prefetch: Steps packed ahead in a thread; 0 packs when asked.
        """
        self._steps = plan.steps
        options = grain.ReadOptions(num_threads=1 if prefetch else 0, prefetch_buffer_size=prefetch)
        source = grain.MapDataset.source(StepSource(dataset, plan))
        self._iterator = iter(source.to_iter_dataset(options))
        self.set_state({"next_step": start_step})

    def __iter__(self) -> "StepBatches":
        """Return itself."""
        return self

    def __next__(self) -> tuple[int, PackedBatch]:
        """Return the next step; after the last one the reading thread is gone."""
        if self.next_step >= self._steps:
            self.close()
            raise StopIteration
        step, batch = next(self._iterator)
        # Grain moves on past an element that failed, so a caught error must not lose a step.
        if step != self.next_step:
            raise RunError(f"data pipeline returned step {step}, {self.next_step} was due")
        self.next_step = step + 1
        return step, batch

    def get_state(self) -> dict[str, Any]:
        """Position to save: the next step."""
        return {"next_step": self.next_step}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; steps that were packed ahead are forgotten.

        Raises:
            RunError: The position lies outside the plan.
        """
        step = state["next_step"]
        if not 0 <= step <= self._steps:
            raise RunError(f"data position {step} lies outside the run's {self._steps} steps")
        self._iterator.set_state({"next_index": step})
        self.next_step = step

    def close(self) -> None:
        """End the reading thread; steps that it has not begun are not packed."""
        self._iterator.close()


def step_batches(
    dataset: ExampleSource, plan: Plan, *, start_step: int = 0, prefetch: int = 2
) -> StepBatches:
    """Iterate over the packed steps of a plan from ``start_step`` on."""
    return StepBatches(dataset, plan, start_step=start_step, prefetch=prefetch)
