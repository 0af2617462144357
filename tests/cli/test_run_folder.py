# SPDX-License-Identifier: Apache-2.0
"""A run folder is never written over, and is continued only by its own run."""

import pytest

from alignax.cli.run_folder import RunFolder, settings_that_matter
from alignax.errors import RunError
from alignax.recipe import load_recipe


def marks(**changes):
    base = {"base": "b1", "train_rows": "t1", "recipe": "r1", "settings": {"loss.beta": 0.1}}
    return {**base, **changes}


def test_free_folder_is_created_and_read_back(tmp_path):
    folder = RunFolder(tmp_path / "new" / "run")
    folder.require_free()
    recipe = load_recipe(None, {"model": "demo", "loss.beta": 0.2, "output": str(folder.path)})
    folder.create(recipe, marks(), {})
    assert folder.recipe() == recipe
    assert folder.fingerprints()["base"] == "b1"


def test_other_run_foreign_files_and_files_are_refused(tmp_path):
    folder = RunFolder(tmp_path)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="holds no run"):
        folder.require_free()
    (tmp_path / "recipe.yaml").write_text("")
    with pytest.raises(RunError, match="already holds a run"):
        folder.require_free()
    with pytest.raises(RunError, match="is a file"):
        RunFolder(tmp_path / "thesis.txt").require_free()
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_resume_with_other_data_or_recipe_shows_both(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(load_recipe(None, {}), marks(), {})
    folder.require_same(marks())
    with pytest.raises(RunError) as caught:
        folder.require_same(marks(train_rows="t2", recipe="r2", settings={"loss.beta": 0.5}))
    text = str(caught.value)
    for needle in ("t1", "t2", "r1", "r2", "loss.beta: the run has 0.1, now 0.5"):
        assert needle in text


def test_settings_that_may_change_on_resume():
    one = load_recipe(None, {"output": "a", "train.resume": False, "export.merged": True})
    two = load_recipe(None, {"output": "b", "train.resume": True, "export.merged": False})
    assert settings_that_matter(one) == settings_that_matter(two)
    moved = load_recipe(None, {"output": "a", "data": "elsewhere.jsonl", "model": "elsewhere"})
    assert settings_that_matter(one) == settings_that_matter(moved)
    three = load_recipe(None, {"optimizer.learning_rate": 1e-4})
    assert settings_that_matter(one) != settings_that_matter(three)


def test_a_continued_run_remembers_where_its_files_are_now(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.create(load_recipe(None, {"data": "old.jsonl", "output": "run"}), marks(), {})
    again = load_recipe(None, {"data": "new.jsonl", "output": "run", "train.resume": True})
    assert folder.rewrite_recipe(again) == ["data.path: 'old.jsonl' → 'new.jsonl'"]
    assert folder.recipe().data.path == "new.jsonl"
    assert not folder.recipe().train.resume
    assert folder.rewrite_recipe(again) == []


def test_missing_run(tmp_path):
    with pytest.raises(RunError, match="is missing"):
        RunFolder(tmp_path / "absent").require_run()
    with pytest.raises(RunError, match=r"no recipe\.yaml"):
        RunFolder(tmp_path).require_run()
