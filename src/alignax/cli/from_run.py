# SPDX-License-Identifier: Apache-2.0
"""Settings that name a run as their model → settings of its weights, its encoding and its loss."""

from typing import Any, TypeVar

from alignax.cli.run_folder import RunFolder, result_recipe
from alignax.data.encode import EncodeOptions
from alignax.errors import ModelError
from alignax.recipe import Recipe, Section

S = TypeVar("S", bound=Section)

ENCODING = ("chat_template", *EncodeOptions.__dataclass_fields__)
"""Data settings that a run's model should be asked with, as it was trained with them."""


def run_model(path: str) -> tuple[str, str | None]:
    """Turn a run folder into (base model, adapter); any other path is returned as it is."""
    folder = RunFolder(path)
    if not folder.recipe_file.exists():
        return path, None
    if (folder.export / "adapter").exists():
        return folder.recipe().model.path, str(folder.export / "adapter")
    if (folder.export / "merged").exists():
        return str(folder.export / "merged"), None
    raise ModelError(f"run {path} has exported nothing yet", hint=f"alignax export {path}")


def run_recipe(path: str) -> Recipe | None:
    """Read the recipe of a run; None if the path holds no run."""
    folder = RunFolder(path)
    return result_recipe(folder) if folder.recipe_file.exists() else None


def with_run_settings(recipe: Recipe) -> Recipe:
    """Name the weights below a run, and take what was not given from the run's recipe."""
    run = run_recipe(recipe.model.path)
    if run is None:
        return recipe
    base, adapter = run_model(recipe.model.path)
    # What was merged is plain: only an adapter needs the quantised base that it was trained on.
    names = ("dtype",) if adapter is None else ("dtype", "quantize")
    model = _filled(recipe.model, run.model, names)
    model = model.model_copy(update={"path": base, "adapter": recipe.model.adapter or adapter})
    update: dict[str, Any] = {"model": model, "data": _filled(recipe.data, run.data, ENCODING)}
    if run.method == recipe.method:
        update["loss"] = _filled(recipe.loss, run.loss, tuple(type(run.loss).model_fields))
    return recipe.model_copy(update=update)


def _filled(given: S, run: S, names: tuple[str, ...]) -> S:
    """Take the named fields from the run, unless they were given."""
    taken = {name: getattr(run, name) for name in names if name not in given.model_fields_set}
    return given.model_copy(update=taken)
