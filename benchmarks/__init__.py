# SPDX-License-Identifier: Apache-2.0
"""Measurements of alignax, alone and beside its peers; run from the repository's root."""
