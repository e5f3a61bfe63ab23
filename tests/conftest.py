# SPDX-License-Identifier: Apache-2.0
"""Selects the tests for the mix of this run. `only("local")`, `only("postgres")`, … name the stores or brokers
that a test is about: on others it is deselected. `unless("rabbitmq", reason="…")` names one where the test has
no meaning, and why: there it is reported as skipped."""
import resource

import mix
import program
import pytest


def pytest_configure(config):
    config.addinivalue_line("markers", "only(name…): is about these stores or brokers, and not run on others")
    config.addinivalue_line("markers", "unless(name…, reason): has no meaning on these, and is skipped there")


def engines():
    return {mix.STORE, mix.SOURCE, mix.BROKER, mix.BROKER.partition("-")[0]}


def fits(item):
    """For every mark: one of its names is in the mix."""
    return all(engines() & set(mark.args) for mark in item.iter_markers("only"))


def pytest_collection_modifyitems(config, items):
    out = [item for item in items if not fits(item)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if fits(item)]
    for item in items:
        for mark in item.iter_markers("unless"):
            if engines() & set(mark.args):
                item.add_marker(pytest.mark.skip(reason=mark.kwargs["reason"]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """The report of a failure, which may not come again, has the output of the programs."""
    report = (yield).get_result()
    if report.when == "call" and report.failed:
        shops = [value for value in item.funcargs.values() if isinstance(value, program.Semel)]
        for shop in {id(shop): shop for shop in shops}.values():
            report.sections.append(("output of its processes", shop.outputs()))


def used_s():
    """Processor time in seconds of this process and its ended children."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    item.used_before_s = used_s()
    yield


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown(item):
    """The processor time of a test, besides its duration: `scripts/test --slowest` prints both."""
    yield
    item.user_properties.append(("processor_s", f"{used_s() - item.used_before_s:.2f}"))


@pytest.fixture(scope="session", autouse=True)
def attached():
    """Disconnects from the servers of the parent run at the end; they go on running."""
    yield
    if hasattr(mix.servers, "attached"):
        mix.servers.attached.close()
