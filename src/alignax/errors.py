# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can cause; each says cause, value received, place and way out.

AlignaxError
├── UsageError      a flag or recipe is wrong           (exit code 2)
├── DataError       rows or their files are unusable    (exit code 1)
├── ModelError      a model folder or file is unusable  (exit code 1)
├── RunError        a run folder, checkpoint or export  (exit code 1)
│   └── SelfTestFailed   step-0 or first-update check   (exit code 1)
├── JudgeError      a judge's endpoint refuses us       (exit code 1)
├── MissingExtra    an optional dependency is absent    (exit code 2)
└── StoppedByGuard  a guard ended the run               (exit code 3)
"""

from collections.abc import Sequence

SHOWN_PROBLEMS = 20
"""Of many problems, so many are printed; the rest is counted."""


class AlignaxError(Exception):
    """Base of all errors that alignax raises on purpose."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, problems: Sequence[str] = ()):
        """Store the parts.

        Args:
            message: Cause, value received and place, in one sentence.
            hint: The way out, shown on a line of its own.
            problems: All single problems, when several were collected.
        """
        self.message = message
        self.hint = hint
        self.problems = tuple(problems)
        super().__init__(message)

    def __str__(self) -> str:
        """Join message, problems and hint as they are shown in a terminal."""
        lines = [self.message, *(f"  - {problem}" for problem in self.problems[:SHOWN_PROBLEMS])]
        if len(self.problems) > SHOWN_PROBLEMS:
            lines.append(f"  … and {len(self.problems) - SHOWN_PROBLEMS} more")
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


class UsageError(AlignaxError):
    """A flag, a recipe key or a combination of them is wrong."""

    exit_code = 2


class DataError(AlignaxError):
    """Rows, or the files that hold them, cannot be used."""


class ModelError(AlignaxError):
    """A model folder, GGUF file, tokenizer or adapter cannot be used."""


class RunError(AlignaxError):
    """A run folder, checkpoint or export is in the way, damaged or of another run."""


class SelfTestFailed(RunError):
    """The step-0 or first-update self-test found policy and reference in disagreement."""


class JudgeError(AlignaxError):
    """A judge's endpoint cannot be used at all."""


class MissingExtra(AlignaxError):
    """A feature needs a package that is not installed."""

    exit_code = 2

    def __init__(self, package: str, *, extra: str):
        """Name the package and the extra that brings it."""
        super().__init__(
            f"this needs the package {package!r}, which is not installed",
            hint=f"pip install 'alignax[{extra}]'",
        )


class StoppedByGuard(AlignaxError):
    """A guard ended the run; the best healthy checkpoint is the result."""

    exit_code = 3
