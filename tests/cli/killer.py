# SPDX-License-Identifier: Apache-2.0
"""Run a command in a process that gets a real signal at a chosen moment.

python -m tests.cli.killer SIGTERM step:10 dpo --model …
python -m tests.cli.killer SIGKILL save:10 dpo --model …
python -m tests.cli.killer SIGKILL tokenise: dpo --model …    (or reference: or export:)
"""

import os
import signal
import sys

from alignax.cli.main import main
from alignax.data.table import TableWriter
from alignax.export import peft
from alignax.train import checkpoint
from alignax.train.hooks import JsonLines
from alignax.train.reference_cache import ReferenceCache

number = signal.Signals[sys.argv[1]]
moment, _, step = sys.argv[2].partition(":")
on_step, write_json = JsonLines.on_step, checkpoint.write_json


def kill_after_step(self, done, values):
    on_step(self, done, values)
    if moment == "step" and done == int(step):
        os.kill(os.getpid(), number)


def kill_in_save(path, content):
    if moment == "save" and path.name == f"{step}.json":
        os.kill(os.getpid(), number)
    write_json(path, content)


def killed_after(function, calls):
    """Do a thing so many times, then die in the middle of the work."""
    done = 0

    def calling(*arguments, **named):
        nonlocal done
        result = function(*arguments, **named)
        done += 1
        if done == calls:
            os.kill(os.getpid(), number)
        return result

    return calling


if __name__ == "__main__":
    if moment == "tokenise":
        TableWriter.add = killed_after(TableWriter.add, 20)
    if moment == "reference":
        ReferenceCache._read_or_set_aside = killed_after(ReferenceCache._read_or_set_aside, 1)
    if moment == "export":
        peft.save_file = killed_after(peft.save_file, 1)
    JsonLines.on_step = kill_after_step
    checkpoint.write_json = kill_in_save
    sys.argv = ["alignax", *sys.argv[3:]]
    main()
