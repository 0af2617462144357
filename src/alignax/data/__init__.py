# SPDX-License-Identifier: Apache-2.0
"""Rows → examples → encoded examples → packed batches; no JAX in here."""
