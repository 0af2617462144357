# SPDX-License-Identifier: Apache-2.0
"""Two answers to a prompt → a verdict, whoever the judge is."""
