# SPDX-License-Identifier: Apache-2.0
"""Modules, functions and classes stay small enough to be read in one go."""

import ast

from tests.test_layers import SOURCE

MODULE, FUNCTION, CLASS = 400, 60, 150
ATTICS = {"utils", "helpers", "common", "misc"}


def test_budgets():
    over = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        if len(text.splitlines()) > MODULE:
            over.append(f"{path.name}: {len(text.splitlines())} lines")
        if path.stem in ATTICS:
            over.append(f"{path.name}: no attics")
        for node in ast.walk(ast.parse(text)):
            limit = CLASS if isinstance(node, ast.ClassDef) else FUNCTION
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                size = (node.end_lineno or 0) - node.lineno + 1
                if size > limit:
                    over.append(f"{path.name}: {node.name} has {size} lines")
    assert not over
