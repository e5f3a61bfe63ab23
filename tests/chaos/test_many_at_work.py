# SPDX-License-Identifier: Apache-2.0
"""Many relays and consumers at once, killed and stopped at random; and servers that have a second: a standby
that is promoted, a cluster whose leader dies."""
import json
import random
import signal
import time

import pytest
from company import LEASE, RETRIES, Producer, attached_to, company, is_right, moves, spawn_quietly
from postgres_server import Postgres
from program import wait_for
from rabbitmq_server import Administrator, cluster
from servers import Servers
from shop import TOPIC, Shop

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]


@pytest.fixture
def shop(besieged):
    return besieged


# ---- many at work -------------------------------------------------------------------------------


def test_three_relays_and_four_consumers_are_killed_and_stopped_at_random(shop):
    chance = random.Random(3)
    words = [("relay", *LEASE, *RETRIES)] * 3 + [shop.subscriptions[0].words] * 4
    team = [[line, spawn_quietly(shop, *line)] for line in words]
    producer = Producer(shop.store)
    producer.start()
    until = time.monotonic() + 15
    while time.monotonic() < until:
        time.sleep(chance.uniform(0.05, 0.3))
        member = chance.choice(team)
        if chance.random() < 0.6:
            member[1].kill()
            member[1].wait()
            member[1] = spawn_quietly(shop, *member[0])
        else:
            member[1].send_signal(signal.SIGSTOP)
            time.sleep(chance.uniform(0.6, 1.2))  # longer than the lease
            member[1].send_signal(signal.SIGCONT)
    moves(shop, producer)
    producer.stop()
    for _, child in team:
        assert shop.stop(child) in (0, -signal.SIGKILL)
    is_right(shop)


def test_a_relay_that_was_stopped_for_longer_than_its_lease_cannot_mark(shop):
    shop.load(aggregates=10, each=2)
    sleeper = shop.spawn("relay", *LEASE, env={"SEMEL_FAILPOINT": "relay.after-confirm:pause=5000@1"})
    wait_for(lambda: shop.place.log(), 60, "something at the broker")
    shop.freeze(sleeper)
    shop.relay(*LEASE)
    times = "SELECT seq, published_at FROM semel_outbox ORDER BY seq"
    marked = shop.sql(times)
    assert all(moment for _, moment in marked)
    sleeper.send_signal(signal.SIGCONT)
    last = shop.order("o-0")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", last), 60, "it works again")
    assert shop.sql(times)[: len(marked)] == marked
    assert shop.stop(sleeper) == 0
    is_right(shop)


# ---- fail-over ----------------------------------------------------------------------------------


def test_a_promoted_standby_takes_over_and_nothing_committed_is_lost(tmp_path, nest, servers):
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
