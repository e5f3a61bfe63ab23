# SPDX-License-Identifier: Apache-2.0
"""A fresh shop for every chaos test. Those that kill servers have their own, one pair for a whole run."""
import pytest
from workload import at, shop_at
from sandbox import Sandbox
from servers import Servers
from shop import Shop


@pytest.fixture(scope="session")
def sandbox():
    with Sandbox() as fresh:
        yield fresh


@pytest.fixture(scope="session")
def servers(sandbox):
    return Servers(sandbox)


@pytest.fixture
def shop_on_own_servers(servers, tmp_path):
    """A shop at servers that may be killed, with one subscription."""
    with shop_at(at(servers), tmp_path) as fresh:
        yield fresh


@pytest.fixture
def shop(tmp_path):
    fresh = Shop(tmp_path)
    yield fresh
    fresh.close()
