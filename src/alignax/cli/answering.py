# SPDX-License-Identifier: Apache-2.0
"""Model settings → a sampler with its encoder; shared by ``generate`` and ``chat``."""

from alignax.cli import terminal
from alignax.cli.loading import build_encoder, load_policy, run_model
from alignax.data.encode import Encoder
from alignax.generate.sampler import Sampler
from alignax.recipe import Recipe


def open_sampler(recipe: Recipe, *, batch_size: int) -> tuple[Sampler, Encoder]:
    """Load the model (a folder, a GGUF file or a run) and make its sampler."""
    base, adapter = run_model(recipe.model.path)
    model = recipe.model.model_copy(
        update={"path": base, "adapter": recipe.model.adapter or adapter}
    )
    policy = load_policy(model, lora=None, mesh=recipe.mesh, seed=0)
    encoder = build_encoder(policy, recipe.data)
    what = f"{base} + adapter {model.adapter}" if model.adapter else base
    terminal.say(f"answering as {what}")
    sampler = Sampler(
        policy.model,
        stop_ids=encoder.stop_ids,
        decode=encoder.decode,
        batch_size=batch_size,
    )
    return sampler, encoder
