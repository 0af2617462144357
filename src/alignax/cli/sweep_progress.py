# SPDX-License-Identifier: Apache-2.0
"""What a person sees of a sweep while it runs."""

from collections.abc import Mapping, Sequence

from alignax.cli import terminal
from alignax.cli.grid import Variant
from alignax.train.variants_watch import values_of


class SweepProgress:
    """About forty lines a sweep, and a table at each evaluation; a training hook."""

    def __init__(self, total: int, done: int, variants: Sequence[Variant]):
        """Tell of ``done`` of ``total`` steps."""
        self._total = total
        self._done = done
        self._variants = variants

    def on_step(self, step: int, values: Mapping[str, float]) -> None:
        """Say how far the sweep is."""
        if step % max(self._total // 40, 1) and step not in (self._done + 1, self._total):
            return
        own = {v.name: values_of(v.name, values) for v in self._variants}
        losses = {name: one["loss"] for name, one in own.items() if one}
        if not losses:
            terminal.say(f"step {step}/{self._total}  every variant is frozen")
            return
        low, high = (choose(losses, key=losses.__getitem__) for choose in (min, max))
        rate = values["pairs_per_s"] * len(losses)
        terminal.say(
            f"step {step}/{self._total}  loss {losses[low]:.4f} ({low}) to {losses[high]:.4f} "
            f"({high})  {len(losses)} of {len(own)} variants  {rate:.2f} pairs · variants/s"
        )

    def on_eval(self, step: int, values: Mapping[str, float]) -> None:
        """Print the held-out figures of every variant that runs."""
        if step == 0:
            return
        for variant in self._variants:
            own = values_of(variant.name, values)
            if own:
                parts = [f"{n} {terminal.with_interval(own, n)}" for n in ("accuracy", "loss")]
                parts.append(f"kl/token {own['kl/token']:.4f}")
                terminal.say(
                    f"held-out, step {step}, {variant.name} ({variant.label}):  {'  '.join(parts)}"
                )

    def on_event(self, step: int, kind: str, message: str) -> None:
        """Print the event."""
        terminal.say(f"{kind}, step {step}: {message}")

    def close(self) -> None:
        """There is nothing to end."""
