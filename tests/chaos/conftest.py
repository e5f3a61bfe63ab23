# SPDX-License-Identifier: Apache-2.0
"""A fresh shop for every chaos test. Those that do harm to servers have their own, one pair for a whole run."""
import pytest
from company import at, shop_at
from nest import Nest
from servers import Servers
from shop import Shop


@pytest.fixture(scope="session")
def nest():
    with Nest() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def servers(nest):
    return Servers(nest)


@pytest.fixture
def besieged(servers, tmp_path):
    """A shop at servers that may be harmed, with one subscription."""
    with shop_at(at(servers), tmp_path) as fresh:
        yield fresh


@pytest.fixture
def shop(tmp_path):
    fresh = Shop(tmp_path)
    yield fresh
    fresh.close()
