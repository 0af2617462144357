# SPDX-License-Identifier: Apache-2.0
"""Model settings → a sampler with its encoder; shared by ``generate`` and ``chat``."""

from alignax.cli import terminal
from alignax.cli.loading import build_encoder, load_policy
from alignax.data.encode import Encoder
from alignax.generate.sampler import Sampler
from alignax.recipe import Recipe


def open_sampler(recipe: Recipe, *, batch_size: int) -> tuple[Sampler, Encoder]:
    """Load the model (a folder or a GGUF file; a run was resolved before) and make its sampler."""
    model = recipe.model
    policy = load_policy(model, lora=None, mesh=recipe.mesh, seed=0)
    encoder = build_encoder(policy, recipe.data)
    what = f"{model.path} + adapter {model.adapter}" if model.adapter else model.path
    terminal.say(f"answering as {what}")
    sampler = Sampler(
        policy.model,
        stop_ids=encoder.stop_ids,
        decode=encoder.decode,
        batch_size=batch_size,
    )
    return sampler, encoder
