# SPDX-License-Identifier: Apache-2.0
"""What an administrator changes at Kafka while a subscription runs: topics that are deleted and recreated, partitions
that are added, groups that are deleted or reset, retry topics of other settings."""
import contextlib
import uuid

import kafka_space
import mix
import pytest
from program import wait_for

pytestmark = [pytest.mark.anywhere, pytest.mark.only("kafka"), pytest.mark.only("sqlite")]
confluent_kafka = pytest.importorskip("confluent_kafka")

TOPIC, SCOPE = "order.events", "billing"
EFFECT = "INSERT INTO effect (id) VALUES (:id)"


class Shop:
    """One subscription of one topic; everything that it has processed."""

    def __init__(self, semel):
        self.semel, self.kafka = semel, semel.broker
        self.producer = self.kafka.producer()
        self.client = self.kafka.administrator.client
        with contextlib.closing(mix.connect(semel.store)) as connection:
            connection.script("CREATE TABLE effect (id text)")

    def words(self, *more, topic=TOPIC, scope=SCOPE, handler=("--sql", EFFECT)):
        return ("consume", "--scope", scope, "--topic", topic, *handler, "--first-delay", "20ms", *more)

    def env(self, **parameters):
        return {"SEMEL_BROKER": self.kafka.url_with(**parameters)}

    def consume(self, *more, parameters=None, **options):
        return self.semel.run(*self.words("--drain", "--timeout", "60s", *more, **options),
                              env=self.env(**(parameters or {})), check=True).stderr

    def start(self, *more, parameters=None, **options):
        return self.semel.spawn(*self.words(*more, **options), env=self.env(**(parameters or {})))

    def write(self, count, partition=0, topic=TOPIC):
        """Writes so many records; returns their ids when Kafka has confirmed them."""
        ids, errors = [str(uuid.uuid4()) for _ in range(count)], []
        for name in ids:
            self.producer.produce(self.kafka.topic(topic), value=b"{}", key=name, partition=partition,
                                  headers=[("ce_id", name), ("ce_type", "order.created.v1"),
                                           ("content-type", "application/json")],
                                  on_delivery=lambda error, _: errors.append(error))
        assert self.producer.flush(60) == 0
        assert errors == [None] * count
        return ids

    def recreate(self, partitions=1, topic=TOPIC):
        self.kafka.administrator.delete(self.kafka.topic(topic))
        with contextlib.suppress(confluent_kafka.KafkaException):  # a consumer may have created it before
            self.kafka.create(topic, partitions)
        self.kafka.administrator.await_node()
        created = wait_for(lambda: self.kafka.administrator.metadata().topics.get(self.kafka.topic(topic)), what="the topic")
        assert len(created.partitions) >= partitions
        self.producer = self.kafka.producer()

    def effects(self):
        return [name for (name,) in self.semel.sql("SELECT id FROM effect")]

    def await_effects(self, *lists):
        expected = sorted(name for names in lists for name in names)
        wait_for(lambda: len(self.effects()) >= len(expected), 60, f"{len(expected)} effects")
        assert sorted(self.effects()) == expected

    def committed(self, partition=0, topic=TOPIC, scope=SCOPE):
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self.kafka.address, "group.id": self.kafka.prefix + scope})
        try:
            partition_of_topic = confluent_kafka.TopicPartition(self.kafka.topic(topic), partition)
            return consumer.committed([partition_of_topic], timeout=30)[0].offset
        finally:
            consumer.close()


@pytest.fixture
def shop(semel):
    return Shop(semel)


# ---- a topic that was deleted and recreated -------------------------------------------------------

MODES = [pytest.param({}, id="broker"), pytest.param({"offsets": "store"}, id="store")]
STATIC = pytest.param({"offsets": "store", "group_instance_id": "one"}, id="static")


@pytest.mark.parametrize("parameters", [MODES[0], STATIC])
def test_a_topic_that_was_recreated_while_no_consumer_ran_is_read_from_its_beginning(shop, parameters):
    shop.kafka.create(TOPIC, 1)
    written = [shop.write(30)]
    shop.consume(parameters=parameters)
    for count in (10, 50):
        shop.recreate()
        written.append(shop.write(count))
        shop.consume(parameters=parameters)
        shop.await_effects(*written)


@pytest.mark.parametrize("parameters", MODES)
def test_a_topic_that_is_recreated_while_consumers_run_is_read_from_its_beginning(shop, parameters):
    """With fewer records than before, and with more."""
    shop.kafka.create(TOPIC, 2)
    written = [shop.write(30, number) for number in range(2)]
    children = [shop.start(parameters=parameters) for _ in range(2)]
    shop.await_effects(*written)
    for count in (10, 50):
        shop.recreate(2)
        written += [shop.write(count, number) for number in range(2)]
        shop.await_effects(*written)
    assert [shop.semel.stop(child) for child in children] == [0, 0]
    shop.consume(parameters=parameters)
    shop.await_effects(*written)


# ---- partitions that are added ----------------------------------------------------------------------


def add_partitions(shop, count, topic=TOPIC):
    made = shop.client.create_partitions([confluent_kafka.admin.NewPartitions(shop.kafka.topic(topic), count)])
    made[shop.kafka.topic(topic)].result(60)
    wait_for(lambda: shop.kafka.administrator.has_leaders(shop.kafka.topic(topic), count), what="the partitions")
    shop.producer = shop.kafka.producer()
    shop.producer.list_topics(shop.kafka.topic(topic), timeout=60)


@pytest.mark.parametrize("parameters", MODES)
def test_an_added_partition_is_read_from_its_beginning_also_by_a_consumer_that_began_at_the_end(shop, parameters):
    shop.kafka.create(TOPIC, 1)
    old = shop.write(5)
    parameters = {**parameters, "topic_metadata_refresh_interval_ms": 500}
    shop.consume("--from", "latest", parameters=parameters)
    assert shop.effects() == []
    add_partitions(shop, 2)
    written = [shop.write(8, 1), shop.write(2)]
    child = shop.start("--from", "latest", parameters=parameters)
    shop.await_effects(*written)
    add_partitions(shop, 3)
    written.append(shop.write(8, 2))
    shop.await_effects(*written)
    assert shop.semel.stop(child) == 0
    assert not set(old) & set(shop.effects())


def test_an_aggregate_keeps_its_order_when_its_topic_grows_while_an_event_of_it_is_under_retry(shop):
    shop.kafka.create(TOPIC, 1)
    handler = ("--exec", 'test -e open && echo "$SEMEL_EVENT_ID" >> seen')
    first = [shop.semel.publish(aggregate=f"order:{number}") for number in range(6)]
    shop.semel.ok("relay", "--drain")
    child = shop.start("--attempts", "100", "--delay-max", "2s", handler=handler)
    wait_for(lambda: shop.semel.sql("SELECT count(*) FROM semel_hold") == [(6,)], what="all are under retry")
    add_partitions(shop, 4)
    second = [shop.semel.publish(aggregate=f"order:{number}") for number in range(6)]
    shop.semel.ok("relay", "--drain")
    (shop.semel.folder / "open").touch()
    assert shop.semel.stop(child) == 0
    shop.consume("--attempts", "100", "--delay-max", "2s", handler=handler)
    seen = (shop.semel.folder / "seen").read_text().split()
    assert sorted(seen) == sorted(first + second)
    assert all(seen.index(one) < seen.index(other) for one, other in zip(first, second))


def test_a_group_that_was_deleted_reads_from_the_beginning_what_its_scope_has_read_before(shop):
    shop.kafka.create(TOPIC, 1)
    old = shop.write(5)
    shop.consume("--from", "latest")
    written = shop.write(3)
    shop.consume("--from", "latest")
    assert sorted(shop.effects()) == sorted(written)
    late = shop.write(4)
    shop.kafka.delete_group(SCOPE)
    shop.consume("--from", "latest")
    shop.await_effects(old, written, late)  # nothing is done twice, and nothing of the gap is lost


# ---- offsets that an administrator sets ---------------------------------------------------------------


def set_offset(shop, offset, partition=0, topic=TOPIC):
    """As kafka-consumer-groups --reset-offsets does, which needs a group without members."""
    group = shop.kafka.prefix + SCOPE
    consumer = confluent_kafka.Consumer({"bootstrap.servers": shop.kafka.address, "group.id": group})
    try:
        position = confluent_kafka.TopicPartition(shop.kafka.topic(topic), partition, offset)
        consumer.commit(offsets=[position], asynchronous=False)
    finally:
        consumer.close()


def test_offsets_that_were_reset_are_obeyed_and_one_beyond_the_end_means_the_beginning(shop):
    shop.kafka.create(TOPIC, 1)
    written = shop.write(10)
    shop.consume("--guarantee", "at-least-once")
    set_offset(shop, 5)
    shop.consume("--guarantee", "at-least-once")
    assert sorted(shop.effects()) == sorted(written + written[5:])
    skipped = shop.write(3)
    set_offset(shop, 13)
    shop.consume("--guarantee", "at-least-once")
    assert not set(skipped) & set(shop.effects())
    set_offset(shop, 100)
    shop.consume("--guarantee", "at-least-once")
    assert set(shop.effects()) == set(written + skipped)


def test_offsets_move_from_the_broker_to_the_store_and_back_and_nothing_is_repeated(shop):
    shop.kafka.create(TOPIC, 1)
    written = []
    for parameters in ({"offsets": "store"}, {}, {"offsets": "store"}, {}):
        written.append(shop.write(5))
        shop.consume("--guarantee", "at-least-once", parameters=parameters)
        shop.await_effects(*written)


def test_another_prefix_or_cluster_is_read_from_its_beginning_whatever_offsets_the_store_has(shop):
    shop.kafka.create(TOPIC, 1)
    written = [shop.write(30)]
    shop.consume(parameters={"offsets": "store"})
    shop.kafka.prefix = f"other-{shop.kafka.prefix}"
    shop.kafka.create(TOPIC, 1)
    written.append(shop.write(50))
    shop.consume(parameters={"offsets": "store"})
    shop.await_effects(*written)


# ---- retry topics ----------------------------------------------------------------------------------


def retried(shop, tier, topic=TOPIC):
    return shop.kafka.topic(f"{topic}.{SCOPE}.retry.{tier}")


def put_back(shop, tier, count, due_ms=0, topic=TOPIC):
    """As another process with a longer --delay-max would have left them."""
    ids = [str(uuid.uuid4()) for _ in range(count)]
    for name in ids:
        shop.producer.produce(retried(shop, tier, topic), value=b"{}", key=name, partition=0, headers=[
            ("ce_id", name), ("ce_type", "order.created.v1"), ("content-type", "application/json"),
            ("semel-attempt", "1"), ("semel-due", str(due_ms)), ("semel-retry-scope", SCOPE)])
    assert shop.producer.flush(60) == 0
    return ids


def test_retries_of_longer_delays_are_read_whatever_the_longest_delay_of_this_process(shop):
    shop.kafka.create(TOPIC, 1)
    shop.consume("--delay-max", "1h")
    left = put_back(shop, 6, 3)
    shop.consume("--delay-max", "2s")  # a drain counts them, and reads them
    shop.await_effects(left)
    child = shop.start("--delay-max", "2s")
    more = shop.write(1)
    shop.await_effects(left, more)
    shop.kafka.create(f"{TOPIC}.{SCOPE}.retry.7", 1)  # another process has longer delays from now on
    late = put_back(shop, 7, 2)
    shop.await_effects(left, more, late)
    assert shop.semel.stop(child) == 0


def test_a_retry_topic_that_was_recreated_is_read_from_its_beginning(shop):
    shop.kafka.create(TOPIC, 1)
    shop.consume()
    left = put_back(shop, 2, 5)
    shop.consume()
    shop.kafka.administrator.delete(retried(shop, 2))
    wait_for(lambda: f"{TOPIC}.{SCOPE}.retry.2" not in shop.kafka.topics(), what="the topic is gone")
    shop.consume()
    shop.producer = shop.kafka.producer()
    more = put_back(shop, 2, 2)
    shop.consume()
    shop.await_effects(left, more)


def commits_of(shop, topic):
    """How often an offset of the topic was committed, by the records of __consumer_offsets."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": shop.kafka.address, "group.id": "observer",
                                         "enable.auto.commit": False, "enable.partition.eof": True})
    try:
        partitions = consumer.list_topics("__consumer_offsets", timeout=60).topics["__consumer_offsets"].partitions
        consumer.assign([confluent_kafka.TopicPartition("__consumer_offsets", number, 0) for number in partitions])
        return sum(topic.encode() in (record.key() or b"") for record in kafka_space.read_to_the_end(consumer, set(partitions)))
    finally:
        consumer.close()


def test_offsets_of_retry_topics_are_committed_again_after_a_rebalance(shop):
    """Kafka removes the offsets of topics that no member of the group is subscribed to (KIP-211)."""
    shop.kafka.create(TOPIC, 1)
    shop.consume()
    left = put_back(shop, 2, 3)
    shop.start()
    shop.await_effects(left)
    wait_for(lambda: shop.committed(topic=f"{TOPIC}.{SCOPE}.retry.2") == 3, what="the retries are committed")
    before = commits_of(shop, retried(shop, 2))
    shop.start()
    wait_for(lambda: commits_of(shop, retried(shop, 2)) > before, what="they are committed again")
