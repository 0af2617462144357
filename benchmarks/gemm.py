# SPDX-License-Identifier: Apache-2.0
"""Rate of a 2048 × 2048 × 2048 float32 matrix product with what this environment has, in GFLOP/s.

    python benchmarks/gemm.py torch|jax

The best of several: what the machine can do just now. No alignax here, so that the peers'
environments can run it too.
"""

import json
import math
import sys
import time

SIZE, REPEATS = 2048, 7


def products(library: str):
    """Return a function that computes one product and waits for it."""
    if library == "torch":
        import torch

        square = torch.ones(SIZE, SIZE)
        return lambda: torch.mm(square, square)
    import jax

    square = jax.numpy.ones((SIZE, SIZE), jax.numpy.float32)
    multiply = jax.jit(lambda x: x @ x)
    return lambda: multiply(square).block_until_ready()


def main() -> None:
    """Measure and print JSON."""
    product = products(sys.argv[1])
    product()
    best = math.inf
    for _ in range(REPEATS):
        started = time.perf_counter()
        product()
        best = min(best, time.perf_counter() - started)
    print(json.dumps({"gemm_gflops": 2 * SIZE**3 / best / 1e9}))


if __name__ == "__main__":
    main()
