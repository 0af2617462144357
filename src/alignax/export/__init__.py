# SPDX-License-Identifier: Apache-2.0
"""A trained model → folders that other tools load, checked against the model itself."""
