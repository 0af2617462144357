# SPDX-License-Identifier: Apache-2.0
"""Imports go down only, and never sideways: data flows one way."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "alignax"

BASE = {"records", "errors", "shapes", "recipe", "sections", "files", "reasons", "__version__"}
MAY_IMPORT = {
    "records": set(), "errors": set(), "shapes": set(), "sections": set(), "reasons": set(),
    "recipe": {"errors", "sections", "reasons"}, "files": {"errors"},
    "data": BASE, "models": BASE, "losses": BASE, "metrics": BASE, "guards": BASE,
    "train": BASE | {"models", "losses", "metrics", "guards"},
    "generate": BASE | {"models"},
    "export": BASE | {"models"},
    "judge": BASE | {"models", "metrics"},
    "evaluate": BASE | {"generate", "judge", "train", "losses", "models", "metrics"},
    "report": BASE | {"metrics"},
    "serve": BASE | {"generate"},
    "cli": BASE | {
        "data", "models", "losses", "metrics", "guards", "train", "generate", "export", "judge",
        "evaluate", "report", "serve",
    },
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Every module name that a file imports, function bodies included."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            if node.module == "alignax":
                names |= {f"alignax.{alias.name}" for alias in node.names}
    return names


def test_imports_go_down_only():
    wrong, seen = [], 0
    for path in SOURCE.rglob("*.py"):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer == "__init__":
            continue
        seen += 1
        ours = {n.split(".")[1] for n in imported(path) if n.startswith("alignax.")}
        wrong += [f"{path.name}: {layer} → {t}" for t in ours - {layer} - MAY_IMPORT[layer]]
    assert not wrong
    assert seen > 60


def test_data_and_report_do_not_know_jax():
    for layer in ("data", "report"):
        for path in (SOURCE / layer).rglob("*.py"):
            assert not {n for n in imported(path) if n.split(".")[0] in ("jax", "flax")}, path
