# SPDX-License-Identifier: Apache-2.0
"""The command line: one file a verb; the only place where the parts are wired together."""
