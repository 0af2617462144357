# SPDX-License-Identifier: Apache-2.0
"""Models behind a network address."""
