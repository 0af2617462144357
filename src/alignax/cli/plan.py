# SPDX-License-Identifier: Apache-2.0
"""Estimate the memory and the time of a run before it is started; no weights are read.

  alignax plan --model FOLDER                                     this machine
  alignax plan --model llama-3.1-8b --device h100 --devices 8     any listed device
  alignax plan --recipe recipe.yaml --device v5e-8 --json

Settings are those of `alignax dpo` (and of `sft`, with --method sft). --model takes a folder (its
config.json), a GGUF file (its header), 'demo', or the name of a shape. Rows are not read: say with
--example-tokens how long they are. Exit code 1 says that the run does not fit, and what would.
"""

import argparse
from typing import Any

from alignax.cli.options import Parser, add_settings, require, settings_of

SECTIONS = (
    "output", "model.", "data.", "lora.", "loss.", "reference.", "optimizer.", "train.", "mesh.",
    "sample.", "export.",
)  # fmt: skip

EFFICIENCY = 0.4
"""Share of the matrix-multiply rate that a step is assumed to reach."""


def add_arguments(parser: Parser) -> None:
    """Add the flags of this verb."""
    parser.add_argument("--recipe", metavar="FILE", help="YAML file with settings")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--method", choices=("dpo", "sft"), default="dpo", help="verb to plan for")
    parser.add_argument(
        "--device", metavar="NAME", help="listed GPU or TPU slice; default: this machine"
    )
    parser.add_argument("--devices", type=int, metavar="N", help="devices (a slice names its own)")
    parser.add_argument(
        "--example-tokens", type=int, metavar="N",
        help="mean tokens of an example (prompt and answers); default: half of data.max_length",
    )  # fmt: skip
    parser.add_argument(
        "--efficiency", type=float, default=EFFICIENCY, metavar="X",
        help=f"share of the matrix-multiply rate that is reached (default: {EFFICIENCY})",
    )  # fmt: skip
    add_settings(parser, *SECTIONS)


def main(arguments: argparse.Namespace) -> int:
    """Print the plan; 1 if the run does not fit."""
    recipe = settings_of(arguments, method=arguments.method)
    require(recipe, "model.path")
    # Imported late: `--help` and usage errors should not wait for JAX.
    from alignax.cli import planning, terminal

    device, count = planning.pick_device(arguments.device, arguments.devices)
    tokens = arguments.example_tokens or recipe.data.max_length // 2
    assumed = planning.Assumed(tokens, arguments.efficiency)
    plan = planning.make_plan(recipe, device, count, assumed)
    if arguments.json:
        terminal.write_result(plan)
    else:
        show(plan)
    return 0 if plan["fits"] else 1


def show(plan: dict[str, Any]) -> None:
    """Print a plan for a person."""
    from alignax.cli import terminal

    model, device, step, time = (plan[name] for name in ("model", "device", "step", "time"))
    mesh = " × ".join(f"{axis} {size}" for axis, size in step["mesh"].items())
    facts = [
        ("model", f"{model['name']}: {model['parameters']:,} weights, "
                  f"{model['trainable']:,} trained"),
        ("device", f"{device['count']} × {device['name']}, {device['memory_gib']:.1f} GiB each"),
        ("may use", f"{device['limit_gib']:.2f} GiB a device"),
        ("mesh", mesh),
        ("step", f"{step['batch_size']} examples of {step['example_tokens']} tokens (assumed) in "
                 f"{step['microbatches']} micro-batches of {step['row_tokens']} tokens a device"),
        ("logits", f"{step['head_chunk']} answer places at a time"),
        ("time", f"{time['seconds_a_step']:.3g} s a step, {time['tokens_per_s']:,.0f} tokens/s "
                 f"at {time['efficiency']:.0%} of {time['tflops_a_device']:.3g} TFLOP/s a device"),
        ("run", f"{time['steps']} steps, {time['hours']:.2g} hours without evaluations"
                if time["steps"] else "epochs of rows that are not read"),
    ]  # fmt: skip
    terminal.show_table("plan", ("", ""), facts)
    parts = [(name, f"{size:.2f}") for name, size in plan["memory_gib"].items()]
    terminal.show_table(f"memory of a device, train.remat {plan['remat']}", ("", "GiB"), parts)
    terminal.show_table(
        "train.remat", ("", "activations", "peak", "fits"),
        [
            (p["remat"], f"{p['activations_gib']:.2f}", f"{p['peak_gib']:.2f}", yes(p["fits"]))
            for p in plan["policies"]
        ],
    )  # fmt: skip
    if len(plan["meshes"]) > 1:
        terminal.show_table(
            "meshes", ("data × fsdp × tensor", "tokens a micro-batch", "remat", "peak", "fits"),
            [
                (f"{m['data']} × {m['fsdp']} × {m['tensor']}", str(m["row_tokens"]), m["remat"],
                 f"{m['peak_gib']:.2f}", yes(m["fits"]))
                for m in plan["meshes"]
            ],
        )  # fmt: skip
    terminal.say(plan["reason"])
    if not plan["fits"]:
        terminal.warn(
            "this run does not fit" + "".join(f"\n  would fit: {w}" for w in plan["would_fit"])
        )


def yes(value: bool) -> str:
    """Write a truth value."""
    return "yes" if value else "no"
