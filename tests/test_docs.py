# SPDX-License-Identifier: Apache-2.0
"""The documentation names what there is, and its examples are read as it says."""

import json
import re

import pytest
import yaml

from alignax.cli.main import VERBS
from alignax.data.formats import FORMATS, detect, parse_row
from alignax.data.formats.ranked import pairs
from alignax.losses import LOSSES, build_loss
from alignax.losses.knobs import RATIO, TERMS
from alignax.recipe import ALIASES, flatten, known_keys
from alignax.records import Dropped
from tests.test_layers import SOURCE

ROOT = SOURCE.parents[1]
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def examples():
    """(name, row) for every example row in docs/data.md."""
    found = []
    names: list[str] = []
    for line in DATA.partition("## Text and turns")[0].splitlines():
        if line.startswith("**`"):
            names = re.findall(r"\*\*`([a-z-]+)`\*\*", line)
        elif line.startswith("{"):
            found.append((names[0], json.loads(line)))
            names = names[1:] or names
    return found


def test_every_format_has_an_example():
    assert {name for name, _ in examples()} == set(FORMATS)


@pytest.mark.parametrize(("name", "row"), examples())
def test_examples_are_read_as_the_format_they_stand_under(name, row):
    kind = FORMATS[name].kind
    (row,) = pairs(row, "best-worst")
    assert detect("auto", [row], kind=kind, source="docs") == name
    example = parse_row(name, row, kind=kind, row_id="0", place="docs")
    assert not isinstance(example, Dropped), example


def test_every_reason_is_explained():
    sources = "".join(path.read_text() for path in (SOURCE / "data").rglob("*.py"))
    raised = set(re.findall(r'(?:RowProblem|Dropped)\((?:row_id, )?\s*"([a-z_]+)"', sources))
    fatal = {"tools_in_text", "tools_lost"}
    renamed = {"empty_answer"}  # said of an answer before it is known which
    assert len(raised) > 20
    assert not {reason for reason in raised - fatal - renamed if f"`{reason}`" not in DATA}


def settings_in(text):
    """Dotted words in code that look like settings."""
    sections = {key.partition(".")[0] for key in known_keys() if "." in key}
    words = re.findall(r"`(?:--)?([a-z]+(?:\.[a-z_0-9]+)+)\b[^`/]*`", text)
    words += re.findall(r"--([a-z]+(?:\.[a-z_0-9]+)+)", text)
    return {word for word in words if word.partition(".")[0] in sections}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_verbs_exist(page):
    text = page.read_text(encoding="utf-8")
    files = {word for word in settings_in(text) if word.endswith(".py")}
    assert not settings_in(text) - files - set(known_keys())
    assert set(re.findall(r"`?alignax ([a-z]+) (?:--|check|show|heldout)", text)) <= set(VERBS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_recipe_example_has_known_keys():
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert blocks
    for block in blocks:
        assert set(flatten(yaml.safe_load(block))) <= set(known_keys()) | set(ALIASES)


def test_every_loss_has_a_row_with_its_settings():
    text = (ROOT / "docs" / "losses.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([a-z0-9_]+)` \| (.*)$", text, re.MULTILINE))
    pairs = {name: spec for name, spec in LOSSES.items() if spec.kind == "pair"}
    assert set(rows) == set(pairs)
    shared = {*TERMS, *RATIO, "desirable_weight", "undesirable_weight"}
    for name, spec in pairs.items():
        beta, cost, settings, _ = (cell.strip() for cell in rows[name].split("|")[:4])
        assert beta == ("" if spec.default_beta is None else f"{spec.default_beta:g}"), name
        live = build_loss(name, kind="pair").needs_live_reference
        kind = "live" if live else "cache" if spec.needs_reference else "none"
        assert cost == kind + (", batch" if spec.batch_level else ""), name
        for knob in set(spec.knobs) - shared:
            assert f"`{knob}`" in settings, f"{name}: {knob}"
