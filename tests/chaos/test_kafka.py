# SPDX-License-Identifier: Apache-2.0
"""Chaos at Kafka: it is killed, stopped, loses brokers and leaders under load, and groups that are
always rebalancing. Nothing is lost, nothing is done twice, and the order of an aggregate is kept."""
import random
import subprocess
import time
import uuid

import pytest
from workload import (LEASE, RETRIES, Producer, at, workload, check_no_attempts, effects, wait_for_orders, check_books, killed, wait_for_effects,
                     read_log, shop_at, spawn_logged)
from kafka_server import cluster
from program import wait_for
from servers import Servers
from shop import TOPIC

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("kafka"),
              pytest.mark.unless("kafka-mock", reason="a mock cluster cannot be killed and come back")]


@pytest.fixture(scope="module")
def servers(sandbox):
    return Servers(sandbox, ("postgres", "kafka"))


@pytest.fixture
def shop(shop_on_own_servers):
    return shop_on_own_servers


# ---- killed, stopped, restarted -------------------------------------------------------------------


def test_kafka_dies_and_comes_back(shop, servers):
    with workload(shop) as producer:
        for _ in range(2):
            with killed(servers.kafka):
                wait_for_orders(producer)
            wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


@pytest.mark.core
def test_kafka_is_restarted_cleanly(shop, servers):
    with workload(shop, consumers=2) as producer:
        servers.kafka.stop()
        servers.kafka.start()
        wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_kafka_accepts_requests_and_does_not_answer_for_a_while(shop, servers):
    with workload(shop) as producer:
        servers.kafka.pause()
        wait_for_orders(producer, 300)
        servers.kafka.resume()
        wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_the_database_dies_and_comes_back(shop, servers):
    with workload(shop, consumers=2) as producer:
        for _ in range(2):
            with killed(servers.postgres):
                pass
            wait_for_effects(shop, producer)
    check_books(shop)


def test_a_program_that_starts_while_kafka_is_down_reports_it_and_ends(shop, servers):
    """As on every broker: a wrong URL must not end in endless retries."""
    with killed(servers.kafka):
        for words in (("relay", *LEASE), shop.subscriptions[0].words):
            assert "Kafka" in shop.fails(69, *words)


# ---- groups that rebalance ------------------------------------------------------------------


@pytest.mark.core
def test_consumers_come_and_go_every_second(shop):
    """Half of them are killed, so the group must detect that by itself; half leave it."""
    chance, words = random.Random(5), shop.subscriptions[0].words
    relay, producer = spawn_logged(shop, "relay", *LEASE, *RETRIES), Producer(shop.store)
    producer.start()
    processes = [spawn_logged(shop, *words) for _ in range(3)]
    for number in range(10):
        time.sleep(chance.uniform(0.5, 1.5))  # not for a condition: this is how often they come and go
        child = processes.pop(0)
        if number % 2:
            child.kill()
            child.wait()
        else:
            assert shop.stop(child) == 0, read_log(shop)
        processes.append(spawn_logged(shop, *words))
    wait_for_effects(shop, producer)
    producer.stop()
    for child in (relay, *processes):
        assert shop.stop(child) == 0, read_log(shop)
    check_books(shop)


@pytest.mark.core
def test_the_share_of_a_consumer_that_was_killed_is_taken_over(shop):
    shop.load(aggregates=20, each=1)
    shop.relay()
    paused = shop.spawn(*shop.subscriptions[0].words, env={"SEMEL_FAILPOINT": "consume.after-claim:pause=60000@1"},
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    other = shop.spawn(*shop.subscriptions[0].words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    paused.kill()
    paused.wait()
    wait_for(lambda: effects(shop) == 20, 60, "everything, by the other")
    assert shop.stop(other) == 0
    check_books(shop)


# ---- three nodes ------------------------------------------------------------------------------------


@pytest.fixture
def nodes(sandbox):
    started = cluster(sandbox)
    yield started
    for node in started:
        node.close()


@pytest.fixture
def spread(nodes, servers, tmp_path):
    """A shop at a Kafka of three nodes, of which one may be lost."""
    place = ",".join(node.bootstrap() for node in nodes)
    with shop_at(at(servers, kafka=nodes[0].endpoints()), tmp_path, place) as fresh:
        yield fresh


def leader(nodes, shop, partition):
    """By a node that runs."""
    running = next(node for node in nodes if node.child.poll() is None)
    number = running.administrator().leader_of(shop.broker.topic(TOPIC), partition)
    return next((node for node in nodes if node.number == number), None)


RISKS = (  # settings of a topic, what `topology check` reports of it
    ({"copies": 1}, "has a replication factor of 1: below 3"),
    ({"copies": 3, "min_insync_replicas": 1}, "has min.insync.replicas=1: an event may be confirmed while it is on one broker only"),
    ({"copies": 3, "min_insync_replicas": 3}, "has min.insync.replicas=3 of 3: it accepts nothing while one broker is down"),
)


def check_topics_at_risk(shop):
    """Checked until it is reported: any of the nodes may answer, and learns of a new topic a little later."""
    for number, (settings, problem) in enumerate(RISKS):
        topic = f"risk-{number}"
        shop.broker.create(topic, partitions=1, **settings)
        check = ("topology", "check", "--scope", "risk", "--topic", topic)
        wait_for(lambda topic=topic, problem=problem, check=check: f"topic {topic} {problem}" in shop.run(*check).stdout, 60, problem)


def test_leaders_change_and_brokers_are_lost_under_load(spread, nodes):
    shop = spread
    check_topics_at_risk(shop)
    with workload(shop, relays=2, consumers=2) as producer:
        for partition in range(2):
            lost = leader(nodes, shop, partition)
            lost.kill()
            wait_for(lambda lost=lost, partition=partition: leader(nodes, shop, partition) not in (None, lost), 60, "a new leader")
            wait_for_effects(shop, producer)
            lost.start()
            wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_with_too_few_brokers_nothing_is_confirmed_and_nothing_lost(spread, nodes):
    """min.insync.replicas is two: with one of three left the relay waits, and that costs no attempts."""
    shop = spread
    with workload(shop) as producer:
        for node in nodes[1:]:
            node.kill()
        wait_for_orders(producer, 200)
        for node in nodes[1:]:
            node.start(wait=False)
        for node in nodes[1:]:
            node.wait()
        wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def write_records(shop, topic, count):
    """Ids of so many records, which a leader has confirmed."""
    producer, ids = shop.broker.producer(), [str(uuid.uuid4()) for _ in range(count)]
    for name in ids:
        producer.produce(shop.broker.topic(topic), value=b"{}", key=name, partition=0, headers=[
            ("ce_id", name), ("ce_type", "order.created.v1"), ("content-type", "application/json")])
    assert producer.flush(120) == 0
    return ids


def test_a_log_that_has_lost_its_end_is_read_from_its_beginning(spread, nodes):
    """By an unclean election: what the replica does not have is lost, and other records get its offsets."""
    from confluent_kafka.admin import NewTopic

    shop, topic = spread, "careless"
    full, administrator = shop.broker.topic(topic), nodes[2].administrator()
    made = administrator.client.create_topics([NewTopic(full, 1, replica_assignment=[[1, 2]], config={
        "unclean.leader.election.enable": "true", "min.insync.replicas": "1"})])
    made[full].result(60)
    shop.script("CREATE TABLE seen (id text)")
    spawn_logged(shop, "consume", "--scope", "careless", "--topic", topic, "--sql", "INSERT INTO seen VALUES (:id)")

    def arrives(ids):
        wait_for(lambda: set(ids) <= {name for (name,) in shop.sql("SELECT id FROM seen")}, 120, "all of them are seen")

    def state():
        return administrator.metadata(full).topics[full].partitions[0]
    kept = write_records(shop, topic, 20)
    arrives(kept)
    nodes[1].kill()
    wait_for(lambda: state().isrs == [1], 60, "the replica is out of sync")
    lost = write_records(shop, topic, 20)
    arrives(lost)
    nodes[0].kill()
    nodes[1].start()
    wait_for(lambda: state().leader == 2, 60, "the replica leads")
    new = write_records(shop, topic, 30)
    arrives(new)
    seen = sorted(name for (name,) in shop.sql("SELECT id FROM seen"))
    assert seen == sorted(kept + lost + new)
    nodes[0].start()
