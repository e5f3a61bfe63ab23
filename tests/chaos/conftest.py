# SPDX-License-Identifier: Apache-2.0
"""A fresh shop for every chaos test."""
import pytest
from shop import Shop


@pytest.fixture
def shop(tmp_path):
    fresh = Shop(tmp_path)
    yield fresh
    fresh.close()
