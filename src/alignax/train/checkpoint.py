# SPDX-License-Identifier: Apache-2.0
"""State ↔ disk: checkpoints that are whole or absent, restored strictly.

Orbax writes a step into a temporary folder and renames it. A manifest with sizes and hashes,
written last, commits the step: without a manifest that fits, the step does not exist for us.
``index.json`` names the last, the best and all committed steps.
"""

import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as policies

from alignax.errors import RunError
from alignax.files import read_json, write_json

HIGHER_IS_BETTER = {"loss": False, "accuracy": True, "margin": True, "perplexity": False}


ROOM = 1.1
"""Free space that a save needs, in its own size: manifests and records are written too."""


def named_leaves(tree: Any) -> dict[str, Any]:
    """Flatten a tree to dotted names."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


class Checkpoints:
    """The checkpoints of one run: the newest ``keep``, and the best by one metric."""

    def __init__(self, folder: Path, *, keep: int, best_metric: str, reading: bool = False):
        """Open the folder.

        The one process that writes creates it, and removes what a killed save left behind. Readers
        change nothing: what looks torn to them may be a save that is going on.

        Attributes:
            discarded: Names of torn saves that were found and removed.
        """
        self.folder = folder.absolute()
        self.manifests = self.folder / "manifests"
        self.best_metric = best_metric
        self.discarded: list[str] = []
        if not reading:
            self.manifests.mkdir(parents=True, exist_ok=True)
            self.discarded = discard_torn(self.folder, self.manifests)
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics[best_metric],
            reverse=not HIGHER_IS_BETTER[best_metric],
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        policy = policies.AnyPreservationPolicy([policies.LatestN(keep), best, _LastHealthy(self)])
        self.manager = ocp.CheckpointManager(
            self.folder,
            item_handlers={
                "state": ocp.StandardCheckpointHandler(),
                "record": ocp.JsonCheckpointHandler(),
            },
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policy, enable_async_checkpointing=False, create=not reading
            ),
        )
        self._torn = torn_steps(self.folder, self.manifests) if reading else set()
        self._healthy = {step for step in self.steps if self.record(step).get("healthy")}

    @property
    def steps(self) -> list[int]:
        """Committed steps, oldest first."""
        return sorted(set(self.manager.all_steps()) - self._torn)

    def save(self, step: int, state: Any, record: Mapping[str, Any]) -> None:
        """Save a state with its record (data position, fingerprints, held-out metrics).

        Args:
            step: Updates done.
            state: Any tree of arrays.
            record: JSON-serialisable; ``record["metrics"]`` ranks the step if it holds the metric.

        Raises:
            RunError: The disk refused the save, or has no room; earlier checkpoints are untouched.
        """
        saved = self.steps
        if step in saved:
            return
        metrics = record.get("metrics") or {}
        require_room(self.folder, step, state, saved)
        if record.get("healthy"):
            self._healthy.add(step)
        try:
            self.manager.save(
                step,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(named_leaves(state)),  # type: ignore[call-arg]
                    record=ocp.args.JsonSave(dict(record)),  # type: ignore[call-arg]
                ),
                metrics=dict(metrics) if self.best_metric in metrics else None,
            )
            self.manager.wait_until_finished()
            write_json(self.manifests / f"{step}.json", file_hashes(self.folder / str(step)))
            write_json(self.folder / "index.json", self.index())
        except (OSError, ValueError, RunError) as error:
            reason = refusal(error)
            if reason is None:
                raise
            # What is half written holds the space that a full disk lacks.
            discard_torn(self.folder, self.manifests)
            raise RunError(
                f"cannot save step {step} in {self.folder}: {reason}; "
                f"saved before: {', '.join(map(str, saved)) or 'nothing'}",
                hint="free disk space and go on with --train.resume",
            ) from error

    @property
    def healthy_step(self) -> int:
        """The newest step that no guard objected to; 0 if there is none."""
        return max(self._healthy & set(self.steps), default=0)

    def forget_after(self, step: int) -> list[int]:
        """Remove the steps after one; name them."""
        later = [saved for saved in self.steps if saved > step]
        for saved in later:
            self.manager.delete(saved)
        write_json(self.folder / "index.json", self.index())
        return later

    def index(self) -> dict[str, Any]:
        """Describe the committed steps: last, best by the metric, all."""
        for manifest in self.manifests.glob("*.json"):
            if int(manifest.stem) not in self.steps:
                manifest.unlink()
        return {
            "last": self.steps[-1] if self.steps else None,
            "best": self.best_step,
            "best_metric": self.best_metric,
            "steps": self.steps,
        }

    @property
    def best_step(self) -> int | None:
        """The committed step with the best held-out metric; None before any evaluation."""
        sign = -1.0 if HIGHER_IS_BETTER[self.best_metric] else 1.0
        scored = [
            (sign * metrics[self.best_metric], step)
            for step in self.steps
            if (metrics := (self.record(step).get("metrics") or {})).get(self.best_metric)
            is not None
        ]
        return min(scored)[1] if scored else None

    def record(self, step: int) -> dict[str, Any]:
        """Read the record of a step."""
        restored = self.manager.restore(
            step,
            args=ocp.args.Composite(record=ocp.args.JsonRestore()),  # type: ignore[call-arg]
        )
        return dict(restored["record"])

    def restore(self, step: int, template: Any) -> Any:
        """Read a state into the structure, dtypes and placement of ``template``.

        Raises:
            RunError: Leaves are missing, unexpected or mis-shaped; all are listed at once.
        """
        wanted = named_leaves(template)
        stored = self.manager.item_metadata(step)["state"]
        require_same_leaves(stored, wanted, f"checkpoint {step} in {self.folder}")
        abstract = {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
            for name, leaf in wanted.items()
        }
        restored = self.manager.restore(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)),  # type: ignore[call-arg]
        )
        leaves = [restored["state"][name] for name in wanted]
        return jax.tree.unflatten(jax.tree.structure(template), leaves)


def require_room(folder: Path, step: int, state: Any, saved: Sequence[int]) -> None:
    """Refuse to begin a save that cannot end.

    What is needed is what the last one took; before the first, the bytes of the arrays.
    """
    if saved:
        files = (folder / str(saved[-1])).rglob("*")
        needed = sum(file.stat().st_size for file in files if file.is_file())
    else:
        needed = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    free = shutil.disk_usage(folder).free
    if free < needed * ROOM:
        raise RunError(
            f"step {step} was not saved in {folder}: it takes {needed / 2**20:.0f} MiB, "
            f"and {free / 2**20:.0f} MiB are free; nothing was begun; "
            f"saved before: {', '.join(map(str, saved)) or 'nothing'}",
            hint="free disk space and go on with --train.resume",
        )


def require_same_leaves(stored: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> None:
    """Compare names, shapes and dtypes before anything is read."""
    found = {name: (tuple(m.shape), str(jnp.dtype(m.dtype))) for name, m in stored.items()}
    problems = [f"missing: {name}" for name in wanted.keys() - found.keys()]
    problems += [f"unexpected: {name}" for name in found.keys() - wanted.keys()]
    for name in wanted.keys() & found.keys():
        expected = (tuple(wanted[name].shape), str(wanted[name].dtype))
        if found[name] != expected:
            problems.append(f"mis-shaped: {name} is {found[name]}, expected {expected}")
    if problems:
        raise RunError(
            f"{place} does not fit this run",
            problems=sorted(problems),
            hint="resume with the recipe that the run was started with",
        )


class _LastHealthy:
    """Keeps what a rollback would go back to, however many saves came after it."""

    def __init__(self, checkpoints: Checkpoints):
        self._checkpoints = checkpoints

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Tell of each step whether it must stay."""
        steps = {info.step for info in checkpoints}
        healthy = max(self._checkpoints._healthy & steps, default=None)
        return [info.step == healthy for info in checkpoints]


def refusal(error: OSError | ValueError | RunError) -> str | None:
    """Read the disk's reason out of what was raised, the array writer's errors too; else None."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, RunError):
        return error.message
    found = re.search(r"([^:]+) \[os_error_code='?\d+", str(error))
    return found[1].strip() if found else None


def discard_torn(folder: Path, manifests: Path) -> list[str]:
    """Remove step folders without a manifest that fits, and temporary folders; name them."""
    torn = []
    for path in sorted(folder.iterdir()):
        if path == manifests or not path.is_dir():
            continue
        if not (path.name.isdigit() and is_whole(path, manifests / f"{path.name}.json")):
            torn.append(path.name)
            shutil.rmtree(path)
    return torn


def torn_steps(folder: Path, manifests: Path) -> set[int]:
    """List the steps whose folders have no manifest that fits."""
    steps = [int(p.name) for p in folder.glob("[0-9]*") if p.name.isdigit()]
    return {s for s in steps if not is_whole(folder / str(s), manifests / f"{s}.json")}


def is_whole(folder: Path, manifest: Path) -> bool:
    """Tell whether a step folder is as its manifest says."""
    try:
        return read_json(manifest) == file_hashes(folder)
    except (OSError, RunError):
        return False


def file_hashes(folder: Path) -> dict[str, str]:
    """Hash every file below a folder."""
    hashes = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            hashes[path.relative_to(folder).as_posix()] = hashlib.file_digest(
                file, "sha256"
            ).hexdigest()
    return hashes
