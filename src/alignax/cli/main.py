# SPDX-License-Identifier: Apache-2.0
"""``alignax VERB``: find the verb's module, run it, turn errors into exit codes."""

import difflib
import errno
import importlib
import os
import sys
import time
from collections.abc import Sequence

from alignax import __version__
from alignax.cli.options import Parser, reject_unknown
from alignax.errors import AlignaxError, UsageError

STARTED = time.monotonic()
"""When the command began; all that takes time is imported later."""

VERBS = {
    "quickstart": "align a small real model on the packaged pairs and write a report",
    "sft": "imitate the answers of a data set (supervised fine-tuning)",
    "dpo": "learn from preference pairs (direct preference optimisation)",
    "sweep": "train many variants of a preference run at once, and find the right one",
    "reward": "train a reward model, which judges answers",
    "plan": "estimate memory and time of a run before it starts",
    "score": "write log-probs of given answers",
    "data": "audit, show, filter, split and convert rows",
    "generate": "answer prompts from a file or from flags",
    "chat": "talk to a model in the terminal",
    "serve": "answer over HTTP as OpenAI's endpoints do",
    "evaluate": "measure a model on held-out rows",
    "gate": "compare a run with its start, goal by goal",
    "export": "write a run's adapter and merged model, and check them",
    "report": "write a run's report anew",
    "env": "print versions and devices, for bug reports",
}

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""What a disk that is full or closed to us answers, wherever it was written to."""

USAGE = """usage: alignax VERB [options]

Align open-weight language models with human preferences.

verbs:
{verbs}

`alignax VERB --help` explains a verb and lists its settings. Start with `alignax quickstart`,
then `alignax dpo --model FOLDER --data ROWS.jsonl --output runs/first`.

exit codes: 0 done, 1 failure, 2 usage or recipe, 3 stopped by a guard, 4 goal not reached,
128 + n ended by signal n after a save
"""


def usage() -> str:
    """List the verbs."""
    width = max(map(len, VERBS))
    return USAGE.format(verbs="\n".join(f"  {v:<{width}}  {about}" for v, about in VERBS.items()))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; errors propagate."""
    if not words or words[0] in ("-h", "--help", "help"):
        sys.stdout.write(usage())
        return 0
    verb, *rest = words
    if verb in ("--version", "-V"):
        sys.stdout.write(f"alignax {__version__}\n")
        return 0
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"verbs: {', '.join(VERBS)}"
        raise UsageError(f"unknown verb {verb!r}", hint=hint)
    module = importlib.import_module(f"alignax.cli.{verb}")
    parser = Parser(prog=f"alignax {verb}", description=module.__doc__)
    module.add_arguments(parser)
    arguments, unknown = parser.parse_known_args(rest)
    reject_unknown(arguments.parser if "parser" in arguments else parser, unknown)
    return module.main(arguments)


def start() -> None:
    """Entry point of the ``alignax`` command: ``main`` in a process that uses large pages.

    A step allocates gigabytes and gives them back. In pages of 4 KiB, faults and translation misses
    cost about a tenth of its time; glibc asks for pages of 2 MiB only if told so before it starts.
    """
    if sys.platform == "linux" and "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    main()


def main() -> None:
    """Run the command line of this process."""
    # Libraries below us greet on stderr; a user's terminal is for what we say.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    try:
        code = run(sys.argv[1:])
        sys.stdout.flush()
    except AlignaxError as error:
        sys.stderr.write(f"alignax: error: {error}\n")
        code = error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        sys.stderr.write(f"alignax: error: {error.strerror}: {error.filename or 'a file'}\n")
        sys.stderr.write("hint: free disk space or choose another folder, then repeat\n")
        code = 1
    except KeyboardInterrupt:
        sys.stderr.write("alignax: interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    start()
