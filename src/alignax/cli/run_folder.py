# SPDX-License-Identifier: Apache-2.0
"""The folder of one run: what lies where, and whether it may be written to."""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from alignax.cli.run_lock import LOCK_FILES
from alignax.errors import RunError
from alignax.files import read_json, read_lines, write_json, write_text
from alignax.recipe import Recipe, build_recipe, dump_recipe, flatten

IRRELEVANT_TO_RESUME = (
    "output", "train.resume", "train.keep", "train.log_steps", "train.profile", "export.",
    "data.cache", "mesh.", "data.path", "data.eval_path", "data.chat_template", "model.path",
    "model.adapter", "model.attention", "train.memory_limit_gib", "train.memory_check", "guards.",
)  # fmt: skip
"""Settings that may change between a run and its continuation (another machine, for example).

Rows, template and weights are known by their content, which the fingerprints hold, wherever the
files lie.
"""


class RunFolder:
    """Paths below one run's output folder."""

    def __init__(self, path: str | Path):
        """Name the folder; nothing is created."""
        self.path = Path(path)
        self.recipe_file = self.path / "recipe.yaml"
        self.fingerprints_file = self.path / "fingerprints.json"
        self.data_report_file = self.path / "data_report.json"
        self.summary_file = self.path / "summary.json"
        self.rollbacks_file = self.path / "rollbacks.json"
        self.report_file = self.path / "report.html"
        self.sweep_file = self.path / "sweep.json"
        self.best_recipe_file = self.path / "recipe.best.yaml"
        self.checkpoints = self.path / "checkpoints"
        self.samples = self.path / "samples"
        self.faults = self.path / "faults"
        self.export = self.path / "export"
        self.tensorboard = self.path / "tensorboard"

    def require_run(self) -> "RunFolder":
        """Refuse a folder that holds no run.

        Raises:
            RunError: The folder is missing or is not a run folder.
        """
        if not self.recipe_file.exists():
            state = "is not a run folder (no recipe.yaml)" if self.path.exists() else "is missing"
            raise RunError(f"{self.path} {state}", hint="name the --output folder of a run")
        return self

    def require_usable(self, *, resume: bool) -> None:
        """Refuse a folder in which no run can be begun, or (``resume``) continued."""
        if resume:
            self.require_run().require_unfinished()
        else:
            self.require_free()

    def require_unfinished(self) -> None:
        """Refuse to continue a run that came to its end.

        Raises:
            RunError: The run has a summary.
        """
        if self.summary_file.exists():
            raise RunError(
                f"{self.path} is finished; there is nothing to resume",
                hint="start another run with another --output",
            )

    def require_free(self) -> None:
        """Refuse to write over another run or over foreign files.

        Raises:
            RunError: The folder is in use.
        """
        if self.path.is_file():
            raise RunError(f"output {self.path} is a file; nothing was written")
        if self.recipe_file.exists():
            raise RunError(
                f"{self.path} already holds a run; nothing was written",
                hint="--train.resume continues it; another --output starts anew",
            )
        names = sorted(p.name for p in self.path.iterdir()) if self.path.exists() else []
        names = [name for name in names if name not in LOCK_FILES][:3]
        if names:
            raise RunError(
                f"{self.path} is not empty ({', '.join(names)}, …) and holds no run; "
                "nothing was written",
                hint="name a new or empty folder with --output",
            )

    def create(
        self, recipe: Recipe, fingerprints: Mapping[str, Any], reports: Mapping[str, Any]
    ) -> None:
        """Create the folder and write what identifies the run; the recipe last makes it one."""
        try:
            self.samples.mkdir(parents=True, exist_ok=True)
            write_json(self.fingerprints_file, fingerprints)
            write_json(self.data_report_file, reports)
            write_text(self.recipe_file, dump_recipe(recipe))
        except (OSError, RunError) as error:
            self._remove_what_create_wrote()
            reason = error.strerror if isinstance(error, OSError) else error.message
            raise RunError(f"cannot begin a run in {self.path}: {reason}") from error

    def _remove_what_create_wrote(self) -> None:
        """Leave no half of a run behind."""
        for file in (self.fingerprints_file, self.data_report_file, self.recipe_file):
            file.unlink(missing_ok=True)
        for folder in (self.samples, self.path):
            with contextlib.suppress(OSError):  # absent, or the user's own and not empty
                folder.rmdir()

    def rewrite_recipe(self, recipe: Recipe) -> list[str]:
        """Store the settings with which a run is continued, so that later verbs find its files.

        Returns:
            What changed, a line each.
        """
        recipe = recipe.model_copy(
            update={"train": recipe.train.model_copy(update={"resume": False})}
        )
        old, new = (flatten(r.model_dump(mode="json")) for r in (self.recipe(), recipe))
        changed = [f"{k}: {old[k]!r} → {new[k]!r}" for k in new if old[k] != new[k]]
        if changed:
            write_text(self.recipe_file, dump_recipe(recipe))
        return changed

    def recipe(self) -> Recipe:
        """Read the resolved recipe of the run."""
        return _read_recipe(self.require_run().recipe_file)

    def fingerprints(self) -> dict[str, Any]:
        """Read the run's fingerprints."""
        return read_json(self.fingerprints_file)

    def evaluations(self, *, up_to: int) -> dict[int, dict[str, float]]:
        """Read held-out metrics from ``metrics.jsonl``: step → values."""
        found = {}
        for record in read_lines(self.path / "metrics.jsonl"):
            if record.pop("kind") == "eval" and record["step"] <= up_to:
                found[record.pop("step")] = record
        return found

    def require_same(self, fingerprints: Mapping[str, Any]) -> None:
        """Refuse to continue with other weights, rows or settings.

        Raises:
            RunError: Fingerprints differ; stored and present ones are shown.
        """
        stored = self.fingerprints()
        problems = [
            f"{name}: the run has {stored.get(name)}, now {fingerprints.get(name)}"
            for name in sorted(stored.keys() | fingerprints.keys())
            if stored.get(name) != fingerprints.get(name) and name not in ("versions", "settings")
        ]
        if problems:
            old, new = stored.get("settings", {}), fingerprints.get("settings", {})
            problems += [
                f"{key}: the run has {old.get(key)!r}, now {new.get(key)!r}"
                for key in sorted(old.keys() | new.keys())
                if old.get(key) != new.get(key)
            ]
            raise RunError(
                f"{self.path} cannot be continued: it is another run",
                problems=problems,
                hint="repeat the command of the run with --train.resume, or start a new --output",
            )


def result_recipe(folder: RunFolder) -> Recipe:
    """Read the recipe of what a run came to: of a sweep, the recommended variant's."""
    best = folder.best_recipe_file
    return _read_recipe(best) if best.exists() else folder.recipe()


def _read_recipe(file: Path) -> Recipe:
    """Read a recipe that we wrote."""
    return build_recipe(flatten(yaml.safe_load(file.read_text(encoding="utf-8"))))


def skipped_steps(folder: RunFolder, *, up_to: int) -> int:
    """Count the steps of a run that were left out because they were not finite."""
    events = read_lines(folder.path / "events.jsonl")
    return sum(e.get("kind") == "skipped" and e.get("step", 0) <= up_to for e in events)


def rollback_count(folder: RunFolder) -> int:
    """Count the rollbacks of a run."""
    file = folder.rollbacks_file
    return len(read_json(file)["rollbacks"]) if file.exists() else 0


def settings_that_matter(recipe: Recipe) -> dict[str, Any]:
    """Dotted settings that a continuation must share."""
    flat = flatten(recipe.model_dump(mode="json"))
    return {k: v for k, v in flat.items() if not k.startswith(IRRELEVANT_TO_RESUME)}


def digest(value: Any) -> str:
    """Hash a JSON value (16 hex digits)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
