# SPDX-License-Identifier: Apache-2.0
"""Run a command in a process that gets a real signal at a chosen moment.

python -m tests.cli.killer SIGTERM step:10 dpo --model …
python -m tests.cli.killer SIGKILL save:10 dpo --model …
"""

import os
import signal
import sys

from alignax.cli.main import main
from alignax.train import checkpoint
from alignax.train.hooks import JsonLines

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


if __name__ == "__main__":
    JsonLines.on_step = kill_after_step
    checkpoint.write_json = kill_in_save
    sys.argv = ["alignax", *sys.argv[3:]]
    main()
