# SPDX-License-Identifier: Apache-2.0
"""Chaos at the servers: PostgreSQL and RabbitMQ are killed, restarted and cut off under load.

Relay and consumers are expected to survive it: they are still running afterwards, end well after
SIGTERM, and the checker finds nothing lost, nothing doubled, no ghosts, and the order kept."""
import contextlib
import random
import time

import mix
import pytest
from workload import (LEASE, RETRIES, TIMEOUT, workload, check_no_attempts, effects, wait_for_orders, check_books, wait_for_effects, read_log,
                     spawn_logged)
from program import wait_for
from proxy import Proxy

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]

CONFIRM = b"\x00\x3c\x00\x50"  # basic.ack, as the broker sends it
DELIVER = b"\x00\x3c\x00\x3c"


@pytest.fixture
def shop(shop_on_own_servers):
    return shop_on_own_servers


# ---- killed and restarted -----------------------------------------------------------------------


def test_the_broker_dies_and_comes_back(shop, servers):
    with workload(shop) as producer:
        # RabbitMQ persists a new quorum queue's location a moment after it was declared: one that is killed before
        # that comes back without a leader, for good. After a restart it is persisted.
        servers.rabbitmq.stop()
        servers.rabbitmq.start()
        wait_for_effects(shop, producer)
        for _ in range(2):
            servers.rabbitmq.kill()
            wait_for_orders(producer)
            servers.rabbitmq.start()
            wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_the_broker_is_restarted_cleanly(shop, servers):
    with workload(shop) as producer:
        servers.rabbitmq.stop()
        servers.rabbitmq.start()
        wait_for_effects(shop, producer)
    check_books(shop)


def test_the_database_dies_and_comes_back(shop, servers):
    with workload(shop) as producer:
        for _ in range(3):
            servers.postgres.kill()
            servers.postgres.start()
            wait_for_effects(shop, producer)
    check_books(shop)


def test_the_database_is_restarted_cleanly(shop, servers):
    with workload(shop) as producer:
        servers.postgres.stop()
        servers.postgres.start()
        wait_for_effects(shop, producer)
    check_books(shop)


def test_every_connection_to_the_database_is_terminated_again_and_again(shop, servers):
    with workload(shop, relays=2, consumers=2) as producer:
        for _ in range(5):
            servers.postgres.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                                  " AND backend_type = 'client backend'")
            wait_for_effects(shop, producer)
    check_books(shop)


def test_every_connection_to_the_broker_is_closed_by_its_administrator(shop):
    with workload(shop, consumers=2) as producer:
        for _ in range(3):
            mix.servers.attached.administrator.close_connections()
            wait_for_effects(shop, producer)
    check_books(shop)


# ---- cut off -----------------------------------------------------------------------------------


@pytest.fixture
def before_broker(shop, servers):
    proxy = Proxy(("127.0.0.1", servers.rabbitmq.port))
    proxy.env = {"SEMEL_BROKER": f"amqp://guest:guest@127.0.0.1:{proxy.port}/{shop.broker.name}"}
    yield proxy
    proxy.close()


@pytest.fixture
def before_database(shop, servers):
    proxy = Proxy(("127.0.0.1", servers.postgres.port))
    name = shop.store.rpartition("/")[2]
    proxy.env = {"SEMEL_STORE": mix.servers.attached.postgres_url(name, address=f"127.0.0.1:{proxy.port}", sslmode="disable")}
    yield proxy
    proxy.close()


@pytest.mark.parametrize("text, from_client", [(b"order.changed.v1", True), (CONFIRM, False), (DELIVER, False), (CONFIRM, True)],
                         ids=["publish", "confirm", "delivery", "ack"])
def test_the_connection_to_the_broker_is_cut_in_mid(shop, before_broker, text, from_client):
    with workload(shop, env=before_broker.env) as producer:
        for number in range(1, 6):
            before_broker.cut_at(text, from_client)
            wait_for(lambda number=number: before_broker.cuts >= number, 60, "a cut")
            wait_for_effects(shop, producer)
    check_books(shop)


@pytest.mark.parametrize("text, from_client", [(b"COMMIT", True), (b"COMMIT", False), (b"UPDATE semel_outbox", True)],
                         ids=["before-commit", "after-commit", "mark"])
def test_the_connection_to_the_database_is_cut_in_mid(shop, before_database, text, from_client):
    with workload(shop, env=before_database.env) as producer:
        for number in range(1, 6):
            before_database.cut_at(text, from_client)
            wait_for(lambda number=number: before_database.cuts >= number, 60, "a cut")
            wait_for_effects(shop, producer)
    check_books(shop)


def test_a_consumer_that_is_cut_off_while_it_subscribes_begins_all_the_same(shop, before_broker):
    """It was connected, so the URL is not wrong."""
    shop.load()
    shop.relay()
    before_broker.cut_at(b"x-queue-type", times=3)
    shop.consume(shop.subscriptions[0], *TIMEOUT, env=before_broker.env)
    assert before_broker.cuts == 3
    check_books(shop)


def test_everything_is_cut_at_random(shop, before_broker, before_database):
    chance = random.Random(7)
    with workload(shop, relays=2, consumers=2, env={**before_broker.env, **before_database.env}) as producer:
        for _ in range(12):
            time.sleep(chance.uniform(0.05, 0.5))  # not for a condition: the cuts shall come at any moment
            chance.choice((before_broker, before_database)).cut_all()
        wait_for_effects(shop, producer)
    check_books(shop)


def test_a_broker_that_stops_answering_is_detected_by_heartbeats_and_connected_again(shop, before_broker):
    """Nothing is in flight, so no confirm is missing: only the heartbeat detects it."""
    env = {"SEMEL_BROKER": before_broker.env["SEMEL_BROKER"] + "?heartbeat=2"}
    with workload(shop, env=env, load=False):
        shop.load()
        wait_for(lambda: effects(shop) == 40, 60, "relay and consumer at work")
        before_broker.dropping_answers = True
        wait_for(lambda: "relay disconnected" in read_log(shop) and "consuming failed, retrying" in read_log(shop), 60, "a disconnect")
        assert "heartbeat timeout" in read_log(shop)
        before_broker.dropping_answers = False
        shop.load()
        wait_for(lambda: effects(shop) == 80, 60, "everything")
    check_books(shop)


# ---- in the middle of a drain -------------------------------------------------------------------


WAIT_AT_THREE = "SELECT pg_advisory_xact_lock(7) WHERE json_extract(:payload, '$.number') = '3'"


@contextlib.contextmanager
def locked(shop, statement):
    """Sessions that need the same lock wait, until the server is killed. Yields a predicate: does one wait?"""
    connection = mix.connect(shop.store)
    connection.execute(statement)
    yield lambda: shop.sql("SELECT 1 FROM pg_locks WHERE NOT granted")
    with contextlib.suppress(Exception):
        connection.close()


def test_a_relay_that_drains_survives_a_restart_of_the_broker(shop, servers):
    administrator = mix.servers.attached.administrator
    shop.load()
    administrator.raise_memory_alarm()
    wait_for(lambda: "memory" in administrator.alarms(), 60, "the alarm")
    relay = spawn_logged(shop, "relay", "--drain", *TIMEOUT)
    wait_for(lambda: "blocked" in read_log(shop), 60, "an alarm")
    servers.rabbitmq.stop()
    servers.rabbitmq.start()
    assert relay.wait(150) == 0, read_log(shop)
    check_books(shop)


def test_a_relay_that_drains_survives_a_kill_of_the_database(shop, servers):
    shop.load()
    with locked(shop, "LOCK TABLE semel_outbox IN EXCLUSIVE MODE") as is_waiting:
        relay = spawn_logged(shop, "relay", "--drain", *TIMEOUT)
        wait_for(is_waiting, 60, "the relay about to mark")
        servers.postgres.kill()
        servers.postgres.start()
    assert relay.wait(150) == 0, read_log(shop)
    check_books(shop)


def test_a_batch_that_was_in_progress_when_the_database_was_killed_is_done_once(shop, servers):
    audit = shop.by_sql("audit", *LEASE, *RETRIES, before=(WAIT_AT_THREE,))
    shop.load()
    shop.relay()
    with locked(shop, "SELECT pg_advisory_lock(7)") as is_waiting:
        consumer = spawn_logged(shop, *audit.words, "--drain", *TIMEOUT)
        wait_for(is_waiting, 60, "the consumer in the middle of its batch")
        servers.postgres.kill()
        servers.postgres.start()
    assert consumer.wait(150) == 0, read_log(shop)
    assert effects(shop, "audit") == 40
    check_books(shop)
