# SPDX-License-Identifier: Apache-2.0
"""Relays and consumers at work under load while their servers fail: what the chaos tests
share. They are expected to survive it, and the checker finds nothing lost, nothing doubled, no ghosts,
and the order kept."""
import contextlib
import json
import os
import random
import socket
import threading

import mix
from program import wait_for
from servers import Attached, Servers
from shop import Shop, write_order

LEASE = ("--lease", "500ms")
RETRIES = ("--first-delay", "50ms", "--delay-max", "500ms")
TIMEOUT = ("--timeout", "120s")
LOG_LEVEL = os.environ.get("SEMEL_TEST_LOG_LEVEL", "warn")


@contextlib.contextmanager
def attached_to(endpoints):
    """Shops are made at these servers, not at those of the run."""
    before, mix.servers.attached = getattr(mix.servers, "attached", None), Attached(json.dumps(endpoints))
    try:
        yield mix.servers.attached
    finally:
        mix.servers.attached.close()
        del mix.servers.attached
        if before:
            mix.servers.attached = before


def at(servers, **other):
    """The endpoints of servers that are the test's own."""
    return {**json.loads(servers.environment()[Servers.VARIABLE]), **other}


@contextlib.contextmanager
def shop_at(endpoints, folder, place=None):
    """A shop at these servers, with one subscription. place: of its broker, where it has several addresses."""
    with attached_to(endpoints):
        fresh = Shop(folder)
        if place:
            fresh.broker.address = place
        fresh.by_sql("billing", *LEASE, *RETRIES)
        yield fresh
        fresh.close()


@contextlib.contextmanager
def killed(server):
    """With -9; it comes back, whatever happens meanwhile: others need it too."""
    server.kill()
    try:
        yield
    finally:
        server.start()


class Producer(threading.Thread):
    """An application that goes on: it connects again, and does not repeat what it could not commit. Each of its
    transactions writes so many orders."""

    def __init__(self, store, pace_s=0.005, aggregates=20, orders=1):
        super().__init__(daemon=True)
        self.store, self.pace_s, self.aggregates, self.orders = store, pace_s, aggregates, orders
        self.ending, self.written = threading.Event(), 0

    def run(self):
        import psycopg2

        chance, connection = random.Random(1), None
        while not self.ending.wait(self.pace_s):
            try:
                connection = connection or mix.connect(self.store)
                for number in chance.sample(range(self.aggregates), self.orders):
                    write_order(connection, f"o-{number}", bundle=self.written)
                connection.commit()
                self.written += 1
            except psycopg2.Error:
                with contextlib.suppress(Exception):
                    connection.close()
                connection = None

    def stop(self):
        self.ending.set()
        self.join(60)


def read_log(shop):
    """What the processes in the background have logged so far."""
    return (shop.folder / "log").read_text()


def spawn_logged(shop, *words, env=None):
    """In the background, with its log in the folder."""
    with open(shop.folder / "log", "ab") as log:
        return shop.spawn(*words, env={"SEMEL_LOG_LEVEL": LOG_LEVEL, **(env or {})}, stdout=log, stderr=log)


@contextlib.contextmanager
def until_ready(count):
    """Yields environment variables for children; at the end it waits until so many of them have started, which they report
    as to systemd. A program that cannot reach a server at its start ends, as it should."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")  # a name of the kernel's choice, outside the file system
        listener.settimeout(60)
        yield {"NOTIFY_SOCKET": "@" + listener.getsockname()[1:].decode()}
        for _ in range(count):
            assert listener.recv(1000).startswith(b"READY=1")


@contextlib.contextmanager
def workload(shop, relays=1, consumers=1, env=None, words=(), load=True, orders=1):
    """Relays and consumers at work under load; all of them must be there at the end, and end well."""
    with until_ready(relays + consumers) as variables:
        env = {**variables, **(env or {})}
        processes = [spawn_logged(shop, "relay", *LEASE, *RETRIES, *words, env=env) for _ in range(relays)]
        processes += [spawn_logged(shop, *shop.subscriptions[0].words, env=env) for _ in range(consumers)]
    producer = Producer(shop.store, orders=orders)
    try:
        if load:
            producer.start()
            wait_for_effects(shop, producer)
        yield producer
    finally:
        if load:
            producer.stop()
    logged = read_log(shop)[-4000:]
    for child in processes:
        assert child.poll() is None, f"{child.args[1:4]} ended with {child.returncode} by itself\n{logged}"
        assert shop.stop(child) == 0, logged


def effects(shop, scope="billing"):
    ((count,),) = shop.sql(f"SELECT count(*) FROM effect_{scope}")
    return count


def wait_for_orders(producer, count=20):
    """Orders are written while a server is down."""
    written = producer.written
    wait_for(lambda: producer.written > written + count, 60, "orders in the meantime")


def check_no_attempts(shop):
    """An outage costs the events no attempts."""
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 0") == [(0,)]


def wait_for_effects(shop, producer, timeout=180):
    """What is written from now on comes through. At Kafka it may take a while: a coordinator that is chosen in the middle
    of it may leave a consumer's request to join without an answer; librdkafka asks again after the group's
    longest time-out, 63 seconds."""
    wait_for_orders(producer)
    seen = effects(shop)
    wait_for(lambda: effects(shop) > seen + 20, timeout, "new effects")


def check_books(shop):
    shop.relay(*TIMEOUT, timeout=150)
    for subscription in shop.subscriptions:
        shop.consume(subscription, *TIMEOUT, timeout=150)
    assert shop.dead_letters() == 0
    shop.check_books()


def waiting(shop):
    ((count,),) = shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'")
    return count
