# SPDX-License-Identifier: Apache-2.0
"""Streams in a cluster of RabbitMQ whose nodes are killed one after the other, and whose replicas are removed. On request."""
import time

import pytest
from workload import LEASE, RETRIES, at, attached_to, workload, effects, check_books, wait_for_effects, read_log, spawn_logged
from program import wait_for
from rabbitmq_server import Administrator, cluster
from servers import Servers
from shop import TOPIC, Shop

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq-stream")]

QUEUE = f"billing.{TOPIC}"
PERSISTED_S = 10  # RabbitMQ 3.10 loses the coordinator's member of a node that is killed sooner after the first stream


@pytest.fixture(scope="module")
def nodes(sandbox):
    started = cluster(sandbox)
    yield started
    for node in started:
        node.close()


@pytest.fixture(scope="module")
def postgres(sandbox):
    return Servers(sandbox, ["postgres"])


@pytest.fixture
def shop(postgres, nodes, tmp_path):
    """Its stream is made at the first node, which leads it so."""
    with attached_to(at(postgres, rabbitmq=nodes[0].endpoints())):
        fresh = Shop(tmp_path)
        fresh.by_sql("billing", *LEASE, *RETRIES)
        yield fresh
        fresh.close()


def test_every_node_is_killed_in_its_turn_and_again(shop, nodes):
    with workload(shop, relays=2, consumers=2) as producer:
        time.sleep(PERSISTED_S)
        for number in (1, 0, 2, 1, 2, 0):
            nodes[number].kill()
            nodes[number].start()
            wait_for_effects(shop, producer)
    check_books(shop)


def test_a_consumer_continues_without_the_coordinator_of_streams(shop, nodes):
    with workload(shop) as producer:
        for node in nodes[1:]:
            node.ask("ra:stop_server(coordination, {rabbit_stream_coordinator, node()})")
        for _ in range(3):
            wait_for_effects(shop, producer)
        for node in nodes[1:]:
            node.ask("ra:restart_server(coordination, {rabbit_stream_coordinator, node()})")
        wait_for_effects(shop, producer)
    assert "consuming failed, retrying" not in read_log(shop)
    check_books(shop)


def test_a_consumer_whose_replica_is_removed_logs_it_and_continues_when_it_is_back(shop, nodes):
    administrator, follower = Administrator(nodes[0].ask), nodes[2]
    place = {"SEMEL_BROKER": f"{follower.url(shop.broker.name)}?queue-type=stream&heartbeat=2"}
    assert administrator.leader_of(shop.broker.name, QUEUE) == nodes[0].node
    consumer = spawn_logged(shop, *shop.subscriptions[0].words, env=place)
    shop.load()
    shop.relay()
    wait_for(lambda: effects(shop) == 40, 60, "a reader at work")
    administrator.remove_replica(shop.broker.name, QUEUE, follower.node)
    shop.load()
    shop.relay()
    wait_for(lambda: "replica on the local node" in read_log(shop), 60, "the refusal in the log")
    assert consumer.poll() is None and effects(shop) == 40
    administrator.add_replica(shop.broker.name, QUEUE, follower.node)
    wait_for(lambda: effects(shop) == 80, 60, "its work")
    assert shop.stop(consumer) == 0
    check_books(shop)
