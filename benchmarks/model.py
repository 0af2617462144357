# SPDX-License-Identifier: Apache-2.0
"""The packaged model → a float32 Hugging Face folder that every side can load.

    .venv/bin/python -m benchmarks.model FOLDER [--layers N]

``--layers`` keeps only the first layers, for trying a benchmark out.
"""

import argparse
import dataclasses
from pathlib import Path

import jax
from flax import nnx

from alignax.export.card import RunFacts
from alignax.export.huggingface import write_merged
from alignax.models.decoder import Decoder
from alignax.models.tokenizer import load_tokenizer
from alignax.models.weights import LoadedModel, load_model, resolve_model


def cut(loaded: LoadedModel, layers: int) -> LoadedModel:
    """Keep the first layers."""
    config = loaded.config.with_layers(layers)
    state = nnx.state(loaded.model)
    kept = jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf[:layers] if path[0].key == "layers" else leaf, state
    )
    model = Decoder(config)
    nnx.update(model, kept)
    hf_config = loaded.hf_config | {"num_hidden_layers": layers}
    return dataclasses.replace(loaded, model=model, config=config, hf_config=hf_config)


def write(folder: Path, model: str = "demo", layers: int | None = None) -> None:
    """Write the folder."""
    path = resolve_model(model)
    loaded, tokenizer = load_model(path), load_tokenizer(path)
    if layers is not None:
        loaded = cut(loaded, layers)
    facts = RunFacts(model, loaded.weights_hash, "dpo", "none", {"layers": layers}, {})
    write_merged(
        folder, loaded.model, loaded, tokenizer, facts, stop_ids=loaded.stop_ids, dtype="float32"
    )


def main() -> None:
    """Read the command line and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--layers", type=int)
    options = parser.parse_args()
    write(options.folder, options.model, options.layers)


if __name__ == "__main__":
    main()
