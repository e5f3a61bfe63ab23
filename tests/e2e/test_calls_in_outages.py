# SPDX-License-Identifier: Apache-2.0
"""Calls continue while the store or the broker is locked or unreachable: each is made once, and is settled when they are
back. Only a call in doubt becomes a dead letter."""
import contextlib
import re
import sqlite3
from collections import Counter

import mix
import pytest

from program import wait_for
from proxy import Proxy
from story import prepare, publish, relay

pytestmark = pytest.mark.anywhere

GUARANTEES = {
    "same-tx": ("--claim", "same-tx"),
    "separate": ("--claim", "separate"),
    "at-most-once": ("--guarantee", "at-most-once"),
}
CALLS = 4
PROGRAM = "echo $SEMEL_EVENT_ID >> begun; while ! [ -e go ]; do sleep 0.05; done; echo $SEMEL_EVENT_ID >> ended"


class Lock:
    """Another process holds the write lock of a SQLite file for long."""

    def __init__(self, shop, name):
        self.path = {"store": shop.store, "broker": shop.broker}[name]
        scheme = {"store": "sqlite", "broker": "local"}[name]
        self.env = {f"SEMEL_{name.upper()}": f"{scheme}:{self.path}?busy-timeout=100"}

    def begin(self):
        self.connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        self.connection.execute("BEGIN IMMEDIATE")

    def end(self):
        self.connection.close()

    close = end


class Cut:
    """Every connection to a server is closed, and new ones are refused."""

    def __init__(self, shop, name):
        endpoints = mix.servers().endpoints
        port = endpoints["postgres"].rpartition(":")[2] if name == "store" else endpoints["rabbitmq"]["port"]
        self.proxy = Proxy(("127.0.0.1", int(port)))
        address = f"127.0.0.1:{self.proxy.port}"
        if name == "store":
            self.env = {"SEMEL_STORE": mix.servers().postgres_url(shop.store.rpartition("/")[2], address=address, sslmode="disable")}
        else:
            url = shop.environment()["SEMEL_BROKER"]
            self.env = {"SEMEL_BROKER": re.sub(r"@[^/]*", f"@{address}", url)}

    def begin(self):
        self.proxy.refusing = True
        wait_for(self.proxy.cut_all, what="a connection to cut")

    def end(self):
        self.proxy.refusing = False

    def close(self):
        self.proxy.close()


@contextlib.contextmanager
def outage_of(shop, name):
    kind = mix.STORE if name == "store" else mix.BROKER
    if kind not in ("sqlite", "local", "postgres", "rabbitmq"):
        pytest.skip("no outage of this server can be simulated")
    outage = (Lock if kind in ("sqlite", "local") else Cut)(shop, name)
    try:
        yield outage
    finally:
        outage.close()


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.subscribe("billing")
    for number in range(CALLS):
        publish(semel, f"word {number}", str(number))
    relay(semel)
    return semel


class Consumer:
    def __init__(self, shop, guarantee, env, *more):
        self.shop, self.log = shop, shop.folder / "consumer.log"
        with open(self.log, "w") as log:
            self.child = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--exec", PROGRAM, "--concurrency",
                                    str(CALLS), "--handler-timeout", "1h", *GUARANTEES[guarantee], "--drain", *more, env=env, stderr=log)
        self.wait_for("begun")

    def lines(self, name):
        path = self.shop.folder / name
        return path.read_text().split() if path.exists() else []

    def wait_for(self, name):
        wait_for(lambda: len(self.lines(name)) == CALLS, what=f"all calls, {name}")

    def wait_for_retries(self, more):
        before = self.retries()
        wait_for(lambda: self.retries() >= before + more, what="another retry")

    def retries(self):
        return self.log.read_text().count("consuming failed, retrying")

    def let_calls_end(self):
        (self.shop.folder / "go").touch()

    def check_all_are_settled(self):
        assert self.child.wait(120) == 0, self.log.read_text()
        assert self.shop.json("dlq", "list") == []
        assert set(Counter(self.lines("begun")).values()) == {1}, "each call once"
        assert len(self.lines("ended")) == CALLS
        rows = self.shop.sql("SELECT status, count(*) FROM semel_inbox WHERE scope = 'billing' GROUP BY status")
        assert rows == [("PROCESSED", CALLS)]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("name", ["store", "broker"])
def test_calls_that_end_during_an_outage_are_settled_after_it(shop, name, guarantee):
    with outage_of(shop, name) as outage:
        consumer = Consumer(shop, guarantee, outage.env)
        outage.begin()
        if name == "store":
            consumer.wait_for_retries(1)
        consumer.let_calls_end()
        consumer.wait_for("ended")
        consumer.wait_for_retries(2)
        outage.end()
        consumer.check_all_are_settled()


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("name", ["store", "broker"])
def test_calls_that_outlive_an_outage_are_settled_when_they_end(shop, name, guarantee):
    with outage_of(shop, name) as outage:
        consumer = Consumer(shop, guarantee, outage.env)
        outage.begin()
        if name == "store" or mix.BROKER != "local":
            consumer.wait_for_retries(2)
        outage.end()
        consumer.let_calls_end()
        consumer.check_all_are_settled()


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_a_call_that_is_interrupted_by_a_stop_is_repeated_or_in_doubt(shop, guarantee):
    consumer = Consumer(shop, guarantee, {}, "--grace", "1s")
    assert shop.stop(consumer.child) == 75
    letters = shop.json("dlq", "list")
    if guarantee == "same-tx":
        assert letters == []
        consumer.let_calls_end()
        shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--exec", PROGRAM, *GUARANTEES[guarantee], "--drain")
        assert len(consumer.lines("ended")) == CALLS
    else:
        assert len(letters) == CALLS and all(letter["failureReason"].startswith("in doubt") for letter in letters)
