# SPDX-License-Identifier: Apache-2.0
"""``--grid KEY=V1,V2`` → variants of a recipe, each of them validated as a run of its own."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignax.cli.options import value_of
from alignax.errors import UsageError
from alignax.recipe import Recipe, known_keys, unknown_key

VECTORISED = ("loss.", "optimizer.", "lora.rank", "lora.alpha")
"""Settings (or sections) in which variants may differ while they share one program."""

SEED = "train.seed"


@dataclass(frozen=True)
class Variant:
    """One run of a sweep.

    Attributes:
        name: ``v1``, ``v2``, …
        settings: The settings in which variants differ, by dotted key.
        recipe: All settings.
    """

    name: str
    settings: Mapping[str, Any]
    recipe: Recipe

    @property
    def label(self) -> str:
        """Its settings for people: ``beta=0.1 learning_rate=1e-05``."""
        return " ".join(f"{key.rpartition('.')[2]}={v}" for key, v in self.settings.items())


def parse_grid(words: Iterable[str]) -> dict[str, list[Any]]:
    """Read ``KEY=V1,V2`` words; a comma within parentheses or brackets belongs to a value.

    Raises:
        UsageError: Bad form, unknown keys, keys that cannot be vectorised, or repetitions.
    """
    grid: dict[str, list[Any]] = {}
    for word in words:
        key, equals, text = word.partition("=")
        key = key.strip().removeprefix("--")
        values = [part.strip() for part in re.split(r",(?![^(\[]*[)\]])", text)]
        if not equals or not all(values):
            raise UsageError(f"--grid takes KEY=V1,V2, got {word!r}", hint="--grid loss.beta=0.1,1")
        if key not in known_keys():
            raise unknown_key(key)
        if not key.startswith(VECTORISED):
            raise UsageError(
                f"--grid {key}: variants share one program and one order of rows, so this cannot "
                "differ between them",
                hint="--seeds N varies train.seed"
                if key == SEED
                else f"what can: every loss.… and optimizer.… setting, {', '.join(VECTORISED[2:])}",
            )
        if key in grid:
            raise UsageError(f"--grid {key} is given twice", hint="name all values at once")
        grid[key] = [value_of(key, value) for value in values]
        for place, value in enumerate(grid[key]):
            if value in grid[key][:place]:
                raise UsageError(f"--grid {key}: {value} is given twice")
    return grid


def expand(
    load: Callable[[Mapping[str, Any]], Recipe], grid: Mapping[str, Sequence[Any]], seeds: int
) -> list[Variant]:
    """Make the cross product of all values, and of the seeds.

    Args:
        load: Builds a validated recipe in which the given settings are as given.
        grid: Values by key.
        seeds: How many seeds, from the recipe's own one on.

    Raises:
        UsageError: A variant is no valid run, or there are no two variants.
    """
    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, got {seeds}")
    columns = {key: list(values) for key, values in grid.items()}
    if seeds > 1:
        # Without the grid the recipe need not be valid yet; its first variant must be.
        first = load({key: values[0] for key, values in columns.items()}).train.seed
        columns[SEED] = list(range(first, first + seeds))
    variants: list[Variant] = []
    problems: list[str] = []
    for values in itertools.product(*columns.values()):
        settings = dict(zip(columns, values, strict=True))
        try:
            recipe = load(settings)
        except UsageError as error:
            problems += error.problems or [error.message]
            continue
        variants.append(Variant(f"v{len(variants) + 1}", settings, recipe))
    if problems:
        raise UsageError("the grid is not valid", problems=list(dict.fromkeys(problems)))
    if len(variants) < 2:
        raise UsageError(
            "a sweep needs at least two variants",
            hint="--grid loss.beta=0.05,0.1,0.5 or --seeds 3; a single run is `alignax dpo`",
        )
    require_sweepable(variants)
    return variants


def require_sweepable(variants: Sequence[Variant]) -> None:
    """Refuse what no sweep can do.

    Raises:
        UsageError: Full training, or several ranks of one given adapter.
    """
    first = variants[0].recipe
    if not first.lora.enabled:
        raise UsageError(
            "a sweep trains adapters over one frozen base: lora.enabled false cannot be swept",
            hint="run `alignax dpo` once for each setting",
        )
    shaped = [key for key in ("lora.rank", "lora.alpha") if key in variants[0].settings]
    if shaped and first.model.adapter is not None:
        raise UsageError(
            f"--grid {shaped[0]} has no effect on the adapter that is continued, whose shape is "
            "its own",
            hint="leave it out, or start without model.adapter",
        )


def shared_recipe(variants: Sequence[Variant]) -> Recipe:
    """The first variant's recipe with the widest adapter: what all of them fit into."""
    widest = max(variants, key=lambda variant: variant.recipe.lora.rank).recipe.lora
    first = variants[0].recipe
    if widest == first.lora:
        return first
    return first.model_copy(update={"lora": widest})
