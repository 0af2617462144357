# SPDX-License-Identifier: Apache-2.0
"""Encoded batches → updates: the one trainer, whose method is an argument."""
