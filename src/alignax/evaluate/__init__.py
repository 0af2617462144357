# SPDX-License-Identifier: Apache-2.0
"""Trained weights → scores with intervals."""
