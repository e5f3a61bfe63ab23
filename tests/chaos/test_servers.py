# SPDX-License-Identifier: Apache-2.0
"""Chaos at the servers: PostgreSQL and RabbitMQ are killed, cut off, filled up and emptied under load.

Relay and consumers are expected to live through it: they are still running afterwards, end well when
asked, and the checker finds nothing lost, nothing doubled, no ghosts, and the order kept."""
import json
import random
import signal
import subprocess
import time

import mix
import pytest
from company import LEASE, PATIENCE, RETRIES, Producer, attached_to, company, effects, is_right, moves, waiting
from nest import Nest
from program import wait_for
from proxy import Proxy
from rabbitmq_server import Administrator, cluster
from servers import Servers
from shop import TOPIC, Shop

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]

CONFIRM = b"\x00\x3c\x00\x50"  # basic.ack, as the broker says it
DELIVER = b"\x00\x3c\x00\x3c"


# ---- the world ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nest():
    with Nest() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def servers(nest):
    return Servers(nest)


@pytest.fixture
def shop(servers, tmp_path):
    with attached_to(json.loads(servers.environment()[Servers.VARIABLE])):
        fresh = Shop(tmp_path)
        fresh.by_sql("billing", *LEASE, *RETRIES)
        yield fresh
        fresh.close()


# ---- killed and restarted -----------------------------------------------------------------------


def test_the_broker_dies_and_comes_back(shop, servers):
    with company(shop) as producer:
        for _ in range(2):
            servers.rabbitmq.kill()
            written = producer.written
            wait_for(lambda: producer.written > written + 20, 30, "orders while the broker is away")
            servers.rabbitmq.start()
            moves(shop, producer)
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 0") == [(0,)]
    is_right(shop)


def test_the_broker_is_restarted_politely(shop, servers):
    with company(shop) as producer:
        servers.rabbitmq.stop()
        servers.rabbitmq.start()
        moves(shop, producer)
    is_right(shop)


def test_the_database_dies_and_comes_back(shop, servers):
    with company(shop) as producer:
        for _ in range(3):
            servers.postgres.kill()
            servers.postgres.start()
            moves(shop, producer)
    is_right(shop)


def test_the_database_is_restarted_politely(shop, servers):
    with company(shop) as producer:
        servers.postgres.stop()
        servers.postgres.start()
        moves(shop, producer)
    is_right(shop)


def test_every_connection_to_the_database_is_terminated_again_and_again(shop, servers):
    with company(shop, relays=2, consumers=2) as producer:
        for _ in range(5):
            servers.postgres.psql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
                                  " AND backend_type = 'client backend'")
            moves(shop, producer)
    is_right(shop)


def test_every_connection_to_the_broker_is_closed_by_its_administrator(shop):
    with company(shop, consumers=2) as producer:
        for _ in range(3):
            mix.servers.attached.administrator.close_connections()
            moves(shop, producer)
    is_right(shop)


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
    proxy.env = {"SEMEL_STORE": mix.servers.attached.postgres_url(name, place=f"127.0.0.1:{proxy.port}", sslmode="disable")}
    yield proxy
    proxy.close()


@pytest.mark.parametrize("text, from_client", [(b"order.changed.v1", True), (CONFIRM, False), (DELIVER, False), (CONFIRM, True)],
                         ids=["publish", "confirm", "delivery", "ack"])
def test_the_connection_to_the_broker_is_cut_in_mid(shop, before_broker, text, from_client):
    with company(shop, env=before_broker.env) as producer:
        for number in range(1, 6):
            before_broker.cut_at(text, from_client)
            wait_for(lambda number=number: before_broker.cuts >= number, 60, "a cut")
            moves(shop, producer)
    is_right(shop)


@pytest.mark.parametrize("text, from_client", [(b"COMMIT", True), (b"COMMIT", False), (b"UPDATE semel_outbox", True)],
                         ids=["before-commit", "after-commit", "mark"])
def test_the_connection_to_the_database_is_cut_in_mid(shop, before_database, text, from_client):
    with company(shop, env=before_database.env) as producer:
        for number in range(1, 6):
            before_database.cut_at(text, from_client)
            wait_for(lambda number=number: before_database.cuts >= number, 60, "a cut")
            moves(shop, producer)
    is_right(shop)


def test_everything_is_cut_at_random(shop, before_broker, before_database):
    chance = random.Random(7)
    with company(shop, relays=2, consumers=2, env={**before_broker.env, **before_database.env}) as producer:
        for _ in range(12):
            time.sleep(chance.uniform(0.05, 0.5))  # not for a condition: the cuts shall come at any moment
            chance.choice((before_broker, before_database)).cut_all()
        moves(shop, producer)
    is_right(shop)


def test_a_broker_that_hears_and_does_not_answer_is_given_up_and_found_again(shop, before_broker):
    with company(shop, env=before_broker.env, words=("--confirm-timeout", "2s")) as producer:
        before_broker.swallowing = True
        written = producer.written
        wait_for(lambda: producer.written > written + 100, 30, "orders in the silence")
        before_broker.half_close()
        before_broker.swallowing = False
        before_broker.cut_all()
        moves(shop, producer)
    is_right(shop)


# ---- full, blocked, emptied ---------------------------------------------------------------------


def test_an_alarm_pauses_the_relay_and_costs_no_attempts(shop):
    administrator = mix.servers.attached.administrator
    with company(shop) as producer:
        administrator.raise_memory_alarm()
        try:
            wait_for(lambda: "memory" in administrator.alarms(), 30, "the alarm")
            wait_for(lambda: waiting(shop) > 300, 60, "events that wait")
            wait_for(lambda: "blocked" in (shop.folder / "log").read_text().lower(), 30, "a word of it in the log")
        finally:
            administrator.clear_memory_alarm()
        moves(shop, producer)
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 0") == [(0,)]
    is_right(shop)


def test_a_full_queue_refuses_and_what_it_refused_comes_when_it_is_empty(shop):
    administrator, vhost = mix.servers.attached.administrator, shop.broker.name
    administrator.limit_queues(vhost, "^billing", 5)
    shop.load(aggregates=10, each=5)
    relay = shop.spawn("relay", *LEASE, *RETRIES, "--attempts", "1000", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 1")[0][0] > 0, 60, "refusals")
    assert 0 < waiting(shop) < 50
    consumer = shop.spawn(*shop.subscriptions[0].words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: effects(shop) == 50, 60, "everything")
    assert shop.stop(relay) == 0 and shop.stop(consumer) == 0
    administrator.lift_limits(vhost)
    is_right(shop)


def test_what_a_full_queue_refuses_for_too_long_is_a_dead_letter_and_can_be_replayed(shop):
    administrator, vhost = mix.servers.attached.administrator, shop.broker.name
    administrator.limit_queues(vhost, "^billing", 5)
    shop.load(aggregates=10, each=3)
    shop.relay("--attempts", "2", *RETRIES)
    letters = shop.json("dlq", "list", "--limit", "1000")
    assert letters and all(letter["sourceService"] == "relay" for letter in letters)
    administrator.lift_limits(vhost)
    for _ in range(5):
        shop.ok("dlq", "replay", "--all")
        shop.relay(*RETRIES)
        if shop.dead_letters() == 0:
            break
    is_right(shop)


def test_deleted_queues_make_events_unroutable_and_nothing_is_lost(shop):
    administrator, vhost = mix.servers.attached.administrator, shop.broker.name
    shop.load(aggregates=5, each=2)
    shop.recover()
    shop.place.log()  # what the witness has seen until now
    relay = shop.spawn("relay", *LEASE, *RETRIES, "--attempts", "2", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    administrator.delete_queues(vhost)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: shop.dead_letters() == 5, 60, "dead letters")
    for letter in shop.json("dlq", "list"):
        assert TOPIC in letter["failureReason"] and "order.changed.v1" in letter["failureReason"], letter
    shop.broker.witnessed.clear()
    shop.place.witness(TOPIC)
    shop.subscribe("billing")
    shop.ok("dlq", "replay", "--all")
    wait_for(lambda: waiting(shop) == 0, 60, "everything published")
    assert shop.stop(relay) == 0
    is_right(shop)


def test_a_queue_that_vanishes_under_its_consumer_is_made_again(shop):
    administrator, vhost = mix.servers.attached.administrator, shop.broker.name
    shop.load(aggregates=5, each=2)
    shop.recover()
    consumer = shop.spawn(*shop.subscriptions[0].words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shop.load(aggregates=5, each=1)
    shop.relay()
    wait_for(lambda: effects(shop) == 15, 60, "its work")
    shop.place.log()
    administrator.delete_queues(vhost)
    shop.broker.witnessed.clear()
    shop.place.witness(TOPIC)
    channel = shop.broker.channel()

    def is_there():
        nonlocal channel
        try:
            channel.queue_declare(f"billing.{TOPIC}", passive=True)
            return True
        except Exception:  # noqa: BLE001: pika closes the channel
            channel = shop.broker.connection.channel()
            return False
    wait_for(is_there, 30, "the queue")
    shop.load(aggregates=5, each=1)
    shop.relay(*PATIENCE)
    wait_for(lambda: effects(shop) == 20, 60, "its work")
    assert shop.stop(consumer) == 0
    is_right(shop)


# ---- many at work -------------------------------------------------------------------------------


def test_three_relays_and_four_consumers_are_killed_and_stopped_at_random(shop):
    chance, log = random.Random(3), open(shop.folder / "log", "ab")  # noqa: SIM115
    quiet = {"SEMEL_LOG_LEVEL": "error"}
    words = [("relay", *LEASE, *RETRIES)] * 3 + [shop.subscriptions[0].words] * 4
    start = lambda line: shop.spawn(*line, env=quiet, stdout=log, stderr=log)  # noqa: E731
    team = [[line, start(line)] for line in words]
    producer = Producer(shop.store)
    producer.start()
    until = time.monotonic() + 15
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.05, 0.3))
        member = chance.choice(team)
        if chance.random() < 0.6:
            member[1].kill()
            member[1].wait()
            member[1] = start(member[0])
        else:
            member[1].send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.6, 1.2))  # longer than the lease
            member[1].send_signal(signal.SIGCONT)
    moves(shop, producer)
    producer.stop()
    for _, child in team:
        assert shop.stop(child) in (0, -signal.SIGKILL)
    log.close()
    is_right(shop)


def test_a_relay_that_was_stopped_for_longer_than_its_lease_cannot_mark(shop):
    shop.load(aggregates=10, each=2)
    sleeper = shop.spawn("relay", *LEASE, env={"SEMEL_FAILPOINT": "relay.after-confirm:pause=300@1"})
    wait_for(lambda: shop.place.log(), 30, "something at the broker")
    sleeper.send_signal(signal.SIGSTOP)
    shop.relay(*LEASE)
    times = "SELECT seq, published_at FROM semel_outbox ORDER BY seq"
    marked = shop.sql(times)
    assert all(moment for _, moment in marked)
    sleeper.send_signal(signal.SIGCONT)
    last = shop.order("o-0")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", last), 30, "it works again")
    assert shop.sql(times)[: len(marked)] == marked
    assert shop.stop(sleeper) == 0
    is_right(shop)


# ---- fail-over ----------------------------------------------------------------------------------


def test_a_promoted_standby_takes_over_and_nothing_committed_is_lost(tmp_path, nest, servers):
    from postgres_server import Postgres

    primary = Postgres(nest, "primary").create()
    standby = primary.standby()
    told = {**json.loads(servers.environment()[Servers.VARIABLE]),
            "postgres": f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}",
            "parameters": {"target_session_attrs": "read-write", "connect_timeout": "2"}}
    try:
        with attached_to(told):
            shop = Shop(tmp_path)
            shop.by_sql("billing", *LEASE, *RETRIES)
            with company(shop) as producer:
                primary.kill()
                standby.promote()
                moves(shop, producer)
            is_right(shop)
            shop.close()
    finally:
        primary.close()
        standby.close()


def test_the_leader_of_a_quorum_queue_dies_under_load(tmp_path, nest, servers):
    nodes = cluster(nest)
    told = json.loads(servers.environment()[Servers.VARIABLE])
    try:
        with attached_to({**told, "rabbitmq": nodes[1].told()}) as second:
            shop = Shop(tmp_path)
            shop.by_sql("billing", *LEASE, *RETRIES)  # declared at the second node, which leads it so
            administrator = Administrator(nodes[0].ask)
            queue = f"billing.{TOPIC}"
            assert administrator.leader_of(shop.broker.name, queue) == nodes[1].node
            first = {"SEMEL_BROKER": nodes[0].url(shop.broker.name)}
            with company(shop, relays=2, consumers=2, env=first) as producer:
                nodes[1].kill()
                wait_for(lambda: administrator.leader_of(shop.broker.name, queue) != nodes[1].node, 60, "a new leader")
                moves(shop, producer)
                nodes[1].start()
                moves(shop, producer)
            second.told["rabbitmq"] = nodes[0].told()
            shop.broker.url = second.rabbitmq_url(shop.broker.name)
            is_right(shop)
            shop.close()
    finally:
        for node in nodes:
            node.close()
