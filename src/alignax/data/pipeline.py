# SPDX-License-Identifier: Apache-2.0
"""Plan + data set → packed batches, step by step, read ahead by Grain.

The order is the plan's: a pure function of (seed, epoch, step). An iterator's state is the next
step and nothing else, so a fresh process continues exactly where another stopped.
"""

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
            prefetch: Steps packed ahead in a thread.
        """
        self.next_step = start_step
        self._stop = plan.steps
        steps = grain.MapDataset.source(StepSource(dataset, plan))[start_step:]
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=prefetch)
        self._iterator = iter(steps.to_iter_dataset(options)) if start_step < plan.steps else None

    def __iter__(self) -> "StepBatches":
        """Return itself."""
        return self

    def __next__(self) -> tuple[int, PackedBatch]:
        """Return the next step."""
        if self._iterator is None or self.next_step >= self._stop:
            raise StopIteration
        step, batch = next(self._iterator)
        if step != self.next_step:
            raise RunError(f"data pipeline returned step {step}, {self.next_step} was due")
        self.next_step = step + 1
        return step, batch

    def get_state(self) -> dict[str, Any]:
        """Position to save: the next step."""
        return {"next_step": self.next_step}

    def close(self) -> None:
        """Let go of the reading thread."""
        self._iterator = None


def step_batches(
    dataset: ExampleSource, plan: Plan, *, start_step: int = 0, prefetch: int = 2
) -> StepBatches:
    """Iterate over the packed steps of a plan from ``start_step`` on."""
    return StepBatches(dataset, plan, start_step=start_step, prefetch=prefetch)
