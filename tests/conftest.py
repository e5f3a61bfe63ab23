# SPDX-License-Identifier: Apache-2.0
"""Leaves out what cannot be said on the mix of this run: `only("sqlite")`, `only("local")`, … name the
stores or brokers that a test is about."""
import mix
import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "only(name…): is about these stores or brokers, and not run on others")


def fits(item):
    """For every mark: one of its names is in the mix."""
    return all({mix.STORE, mix.BROKER} & set(mark.args) for mark in item.iter_markers("only"))


def pytest_collection_modifyitems(config, items):
    out = [item for item in items if not fits(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if fits(item)]


@pytest.fixture(scope="session", autouse=True)
def attached():
    """The servers of the run above us are left in peace at the end."""
    yield
    if hasattr(mix.servers, "attached"):
        mix.servers.attached.close()
