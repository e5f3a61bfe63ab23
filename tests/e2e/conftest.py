# SPDX-License-Identifier: Apache-2.0
"""The program in a fresh folder, for every end-to-end test."""
import pytest
from program import Semel


@pytest.fixture
def bare(tmp_path):
    """A folder without tables."""
    semel = Semel(tmp_path)
    yield semel
    semel.close()


@pytest.fixture
def semel(bare):
    """A folder with tables, as `semel init` makes them."""
    bare.ok("init")
    bare.subscribe("billing", "audit", "stock", "x")
    return bare
