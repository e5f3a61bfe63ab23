# SPDX-License-Identifier: Apache-2.0
"""Topics of Kafka are deleted, recreated, extended and reconfigured while a relay runs: what was committed arrives, each
aggregate in its order, and what Kafka refuses for now waits without using attempts."""
import json

import pytest
from kafka_space import headers_of  # skips the module without confluent_kafka
from confluent_kafka.admin import ConfigResource, NewPartitions
from program import wait_for

pytestmark = [pytest.mark.anywhere, pytest.mark.only("sqlite"), pytest.mark.only("kafka"),
              pytest.mark.unless("kafka-mock", reason="the mock cluster deletes no topics and has no settings of them")]
TIMEOUT_S, AGGREGATES = 60, 12


class Shop:
    def __init__(self, semel):
        self.semel, self.broker, self.round = semel, semel.broker, 0
        self.log = semel.folder / "relay.log"

    def start(self, *words):
        with open(self.log, "w") as stderr:
            self.relay = self.semel.spawn("relay", "--first-delay", "50ms", "--delay-max", "500ms", *words, stderr=stderr)

    def write(self, *topics, rounds=1, fill=0):
        """One event of every aggregate in each round."""
        lines = []
        for _ in range(rounds):
            self.round += 1
            lines += [json.dumps({"type": "t.v1", "aggregateType": "order", "aggregateId": f"{topic}-{number}", "topic": topic,
                                  "payload": {"n": self.round, "fill": "x" * fill}})
                      for topic in topics for number in range(AGGREGATES)]
        self.semel.ok("publish", "--batch", input="\n".join(lines) + "\n")

    def statuses(self):
        return dict(self.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY status"))

    def wait_for_statuses(self, **expected):
        wait_for(lambda: self.statuses() == expected, TIMEOUT_S, f"{expected}")

    def arrived(self, topic):
        """Of each aggregate the numbers of its rounds, each once, in the order of its partition."""
        found = {}
        for record in self.broker.records(topic):
            found.setdefault(headers_of(record)["semel-aggregate-id"], []).append(json.loads(record.value())["n"])
        return {name: list(dict.fromkeys(numbers)) for name, numbers in found.items()}

    def all_of(self, topic, first=1):
        return {f"{topic}-{number}": list(range(first, self.round + 1)) for number in range(AGGREGATES)}

    def add_partitions(self, topic, partitions):
        name = self.broker.topic(topic)
        self.broker.administrator.client.create_partitions([NewPartitions(name, partitions)])[name].result(60)
        wait_for(lambda: self.broker.administrator.has_leaders(name, partitions), TIMEOUT_S, "the new partitions have leaders")

    def set(self, topic, **settings):
        resource = ConfigResource(ConfigResource.Type.TOPIC, self.broker.topic(topic))
        for name, value in settings.items():
            resource.set_config(name.replace("_", "."), str(value))
        self.broker.administrator.client.alter_configs([resource])[resource].result(60)
        self.broker.administrator.await_node()


@pytest.fixture
def shop(semel):
    made = Shop(semel)
    yield made
    assert semel.stop(made.relay) == 0


def test_a_topic_that_is_deleted_or_recreated_with_fewer_or_more_partitions_gets_later_events(shop):
    shop.broker.create("orders", 4)
    shop.start()
    shop.write("orders")
    shop.wait_for_statuses(PUBLISHED=AGGREGATES)
    for number, partitions in enumerate((None, 2, 6), 1):  # None: the relay makes it
        shop.broker.administrator.delete(shop.broker.topic("orders"))
        wait_for(lambda: "orders" not in shop.broker.topics(), TIMEOUT_S, "it is deleted")
        if partitions:
            shop.broker.create("orders", partitions)
        first = shop.round + 1
        shop.write("orders", rounds=10)
        shop.wait_for_statuses(PUBLISHED=AGGREGATES * (1 + 10 * number))
        assert shop.arrived("orders") == shop.all_of("orders", first)
    assert shop.semel.sql("SELECT DISTINCT status FROM semel_outbox WHERE status <> 'PUBLISHED'") == []


def test_partitions_that_are_added_under_load_take_their_share_and_nothing_is_lost(shop):
    """An aggregate may move to another partition then; within each of them its order is kept."""
    shop.broker.create("orders", 2)
    shop.start()
    shop.write("orders", rounds=20)
    shop.add_partitions("orders", 6)
    shop.write("orders", rounds=200)
    shop.wait_for_statuses(PUBLISHED=AGGREGATES * 220)
    by_partition = {}
    for record in shop.broker.records("orders"):
        by_partition.setdefault((record.key(), record.partition()), []).append(json.loads(record.value())["n"])
    for numbers in by_partition.values():
        once = list(dict.fromkeys(numbers))
        assert once == sorted(once)
    assert {name: sorted(numbers) for name, numbers in shop.arrived("orders").items()} == shop.all_of("orders")


def test_a_limit_that_is_lowered_refuses_events_which_are_replayed_when_it_is_raised(shop):
    shop.broker.create("small", 1)
    shop.broker.create("fine", 1)
    shop.start("--attempts", "2")
    shop.write("small", "fine", fill=5000)
    shop.wait_for_statuses(PUBLISHED=AGGREGATES * 2)
    shop.set("small", max_message_bytes=2000)
    shop.write("small", "fine", fill=5000)
    shop.wait_for_statuses(FAILED=AGGREGATES, PUBLISHED=AGGREGATES * 3)
    shop.set("small", max_message_bytes=1000000)
    shop.semel.ok("dlq", "replay", "--all", "--scope", "relay")
    shop.wait_for_statuses(PUBLISHED=AGGREGATES * 4)
    assert shop.arrived("small") == shop.all_of("small") and shop.arrived("fine") == shop.all_of("fine")
    assert "relay disconnected from store and broker" not in shop.log.read_text()
