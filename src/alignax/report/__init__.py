# SPDX-License-Identifier: Apache-2.0
"""Run folder → what happened, in words, numbers and curves, on one page that opens offline."""
