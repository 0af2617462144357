# SPDX-License-Identifier: Apache-2.0
"""Log-probs and texts → measured values: pure, as sums with weights or scores with intervals."""
