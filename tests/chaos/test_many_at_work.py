# SPDX-License-Identifier: Apache-2.0
"""Many relays and consumers at once, killed and stopped at random; and fail-over of servers: a standby
that is promoted, a cluster whose leader is killed."""
import json
import random
import signal
import time

import mix
import pytest
from workload import LEASE, RETRIES, Producer, attached_to, workload, check_books, wait_for_effects, spawn_logged
from postgres_server import Postgres
from program import wait_for
from rabbitmq_server import Administrator, cluster
from servers import Servers
from shop import TOPIC, Shop

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]

QUEUE = f"billing.{TOPIC}"


@pytest.fixture
def shop(shop_on_own_servers):
    return shop_on_own_servers


# ---- many at work -------------------------------------------------------------------------------


def test_three_relays_and_four_consumers_are_killed_and_stopped_at_random(shop):
    chance = random.Random(3)
    words = [("relay", *LEASE, *RETRIES)] * 3 + [shop.subscriptions[0].words] * 4
    processes = [[line, spawn_logged(shop, *line)] for line in words]
    producer = Producer(shop.store)
    producer.start()
    until = time.monotonic() + 15
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.05, 0.3))
        member = chance.choice(processes)
        if chance.random() < 0.6:
            member[1].kill()
            member[1].wait()
            member[1] = spawn_logged(shop, *member[0])
        else:
            member[1].send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.6, 1.2))  # longer than the lease
            member[1].send_signal(signal.SIGCONT)
    wait_for_effects(shop, producer)
    producer.stop()
    for _, child in processes:
        assert shop.stop(child) in (0, -signal.SIGKILL)
    check_books(shop)


def test_a_relay_that_was_stopped_for_longer_than_its_lease_cannot_mark(shop):
    shop.load(aggregates=10, each=2)
    paused = shop.spawn("relay", *LEASE, env={"SEMEL_FAILPOINT": "relay.after-confirm:pause=5000@1"})
    wait_for(lambda: shop.backend.log(), 60, "something at the broker")
    shop.freeze(paused)
    shop.relay(*LEASE)
    times = "SELECT seq, published_at FROM semel_outbox ORDER BY seq"
    marked = shop.sql(times)
    assert all(moment for _, moment in marked)
    paused.send_signal(signal.SIGCONT)
    last = shop.order("o-0")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", last), 60, "it works again")
    assert shop.sql(times)[: len(marked)] == marked
    assert shop.stop(paused) == 0
    check_books(shop)


# ---- fail-over ----------------------------------------------------------------------------------


def test_a_promoted_standby_takes_over_and_nothing_committed_is_lost(tmp_path, sandbox, servers):
    primary = Postgres(sandbox, "primary").create()
    standby = primary.standby()
    endpoints = {**json.loads(servers.environment()[Servers.VARIABLE]),
                 "postgres": f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}",
                 "parameters": {"target_session_attrs": "read-write", "connect_timeout": "2"}}
    try:
        with attached_to(endpoints):
            shop = Shop(tmp_path)
            shop.by_sql("billing", *LEASE, *RETRIES)
            with workload(shop) as producer:
                primary.kill()
                standby.promote()
                wait_for_effects(shop, producer)
            check_books(shop)
            shop.close()
    finally:
        primary.close()
        standby.close()


def shop_of(kind, folder, monkeypatch):
    """With a subscription whose queue is of this kind, declared at the node that it is attached to, which leads it so."""
    monkeypatch.setattr(mix, "BROKER", kind)
    folder.mkdir()
    shop = Shop(folder)
    shop.by_sql("billing", *LEASE, *RETRIES)
    return shop


def url_at(node, shop):
    return node.url(shop.broker.name) + shop.broker.url.partition("?")[1] + shop.broker.url.partition("?")[2]


def test_the_leader_of_a_queue_and_of_a_stream_dies_under_load(tmp_path, sandbox, servers, monkeypatch):
    nodes = cluster(sandbox)
    endpoints = json.loads(servers.environment()[Servers.VARIABLE])
    try:
        with attached_to({**endpoints, "rabbitmq": nodes[1].endpoints()}) as second:
            queue, stream = (shop_of(kind, tmp_path / kind, monkeypatch) for kind in ("rabbitmq", "rabbitmq-stream"))
            administrator = Administrator(nodes[0].ask)

            def leader(shop):
                return administrator.leader_of(shop.broker.name, QUEUE)

            assert (leader(queue), leader(stream)) == (nodes[1].node, nodes[1].node)
            places = [{"SEMEL_BROKER": url_at(nodes[0], shop)} for shop in (queue, stream)]
            with workload(queue, relays=2, consumers=2, env=places[0]) as to_queue, \
                    workload(stream, consumers=2, env=places[1]) as to_stream:
                nodes[1].kill()
                wait_for(lambda: nodes[1].node not in (leader(queue), leader(stream)), 60, "new leaders")
                wait_for_effects(queue, to_queue)
                wait_for_effects(stream, to_stream)
                nodes[1].start()
                wait_for_effects(queue, to_queue)
                wait_for_effects(stream, to_stream)
            second.endpoints["rabbitmq"] = nodes[0].endpoints()
            for shop in (queue, stream):
                shop.broker.url = url_at(nodes[0], shop)
            stream.broker.plain_url = nodes[0].url(stream.broker.name)
            for shop in (queue, stream):
                check_books(shop)
                shop.close()
    finally:
        for node in nodes:
            node.close()
