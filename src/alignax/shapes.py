# SPDX-License-Identifier: Apache-2.0
"""The legend of shape letters that annotations and array names share.

| letter | axis                                   | letter | axis                    |
|--------|----------------------------------------|--------|-------------------------|
| b      | packed rows                            | v      | vocabulary              |
| t      | tokens of a row                        | n      | query heads             |
| a      | answer slots of a row                  | k      | key/value heads         |
| p      | example (pair) slots of a row          | h      | width of a head         |
| s      | answers of one example (2 for a pair)  | f      | width of the MLP        |
| m      | attention tiles of a row               | l      | layers                  |
| c      | tokens of a cache                      | d      | width of the model      |
| r      | LoRA rank                              | g      | micro-batches of a step |

Arrays of rank two or more carry the letters as a suffix: ``logits_btv``, ``token_logp_ba``.
"""

TILE = 128
"""Tokens in one attention tile."""

ROW_UNIT = 64
"""Packed rows are multiples of it: finer than a tile, which is much padding in a short row."""
