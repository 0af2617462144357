# SPDX-License-Identifier: Apache-2.0
"""Weights and token ids → hidden states: one decoder, configured by family."""
