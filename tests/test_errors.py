# SPDX-License-Identifier: Apache-2.0
"""An error prints the first of many problems and counts the others."""

from alignax.errors import SHOWN_PROBLEMS, DataError


def test_many_problems_are_counted_in_the_text_and_kept_whole():
    problems = [f"line {n}: broken" for n in range(SHOWN_PROBLEMS + 3)]
    error = DataError("rows are broken", problems=problems, hint="mend them")
    lines = str(error).splitlines()
    assert len(lines) == 1 + SHOWN_PROBLEMS + 1 + 1
    assert lines[-2:] == ["  … and 3 more", "hint: mend them"]
    assert list(error.problems) == problems


def test_few_problems_are_all_printed():
    problems = [f"line {n}: broken" for n in range(SHOWN_PROBLEMS)]
    assert str(DataError("rows", problems=problems)).count("broken") == SHOWN_PROBLEMS
