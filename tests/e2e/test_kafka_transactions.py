# SPDX-License-Identifier: Apache-2.0
"""Transactions of the database as transactions of Kafka's: whoever reads committed records sees all of one or nothing."""
import json
import uuid

import pytest
from program import wait_for
from stream import PATIENCE, Stream

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"), pytest.mark.only("kafka")]
TOPICS = ("orders", "stock", "ledger")


class Shop(Stream):
    """An outbox whose transactions spread over three topics, and readers of them."""

    options = ("--transactions",)

    def __init__(self, semel):
        super().__init__(semel)
        semel.ok("topology", "apply", "--cdc", "--slot", self.slot)
        for topic in TOPICS:
            semel.broker.create(topic, 3)

    def commit(self, count, name="t", payload="''"):
        """One transaction: so many events, each topic in its turn."""
        self.semel.sql(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload, content_type)"
            f" SELECT 'order', '{name}-' || n % 10, 't.v1', (ARRAY['orders', 'stock', 'ledger'])[n % 3 + 1], '{name}' || {payload},"
            f" 'text/plain' FROM generate_series(1, {count}) n")

    def read(self, committed=True):
        """How often each id can be read now."""
        kafka = pytest.importorskip("confluent_kafka")
        level = "read_committed" if committed else "read_uncommitted"
        reader = kafka.Consumer({
            "bootstrap.servers": self.semel.broker.place, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest",
            "enable.partition.eof": True, "isolation.level": level})
        parts = []
        for topic in TOPICS:
            name = self.semel.broker.prefix + topic
            known = reader.list_topics(name, timeout=PATIENCE).topics[name].partitions
            parts += [kafka.TopicPartition(name, number, kafka.OFFSET_BEGINNING) for number in known]
        reader.assign(parts)
        found, ended = {}, set()
        while len(ended) < len(parts):
            record = reader.poll(PATIENCE)
            assert record is not None, "a partition has no end"
            if record.error():
                assert record.error().code() == kafka.KafkaError._PARTITION_EOF, record.error()
                ended.add((record.topic(), record.partition()))
            else:
                made = dict(record.headers())["ce_id"].decode()
                found[made] = found.get(made, 0) + 1
        reader.close()
        return found

    def ids(self, like="%"):
        return {row[0]: 1 for row in self.semel.sql("SELECT id FROM semel_outbox WHERE aggregate_id LIKE ?", like)}


@pytest.fixture
def shop(semel):
    shop = Shop(semel)
    with shop.ended():
        yield shop


def test_a_relay_that_dies_in_the_middle_of_a_transaction_has_shown_nothing_of_it(shop):
    first = shop.start(lease="1s", env={"SEMEL_FAILPOINT": "relay.after-publish:pause=600000@300"})
    shop.commit(100, "before")
    shop.wait_until_published()
    shop.commit(600, "after")
    wait_for(lambda: len(shop.read(committed=False)) > 100, PATIENCE, "some of it is at Kafka")
    assert shop.read() == shop.ids("before%")
    first.kill()
    second = shop.start(lease="1s")
    shop.wait_until_published()
    assert shop.semel.stop(second) == 0
    assert shop.read() == shop.ids()
    words = [word for topic in TOPICS for word in ("--topic", topic)]
    said = shop.semel.ok("consume", "--scope", "x", *words, "--print", "--drain", "--timeout", f"{PATIENCE}s", timeout=120)
    seen = [json.loads(line)["id"] for line in said.splitlines() if line.startswith("{")]
    assert sorted(seen) == sorted(shop.ids())


def test_a_transaction_with_an_event_that_kafka_refuses_is_not_shown_at_all(shop):
    large = "CASE WHEN n = 17 THEN repeat('x', {}) ELSE '' END"
    shop.commit(30, "good1")
    shop.commit(30, "bad1", large.format(2000000))  # more than the client may send
    shop.commit(30, "good2")
    shop.commit(30, "bad2", large.format(1200000))  # more than the broker takes
    shop.commit(30, "good3")
    url = shop.semel.broker.url_with(message_max_bytes=1500000)
    shop.drain(env={"SEMEL_BROKER": url})
    assert shop.read() == shop.ids("good%")
    assert shop.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY 1 ORDER BY 1") == [("FAILED", 60), ("PUBLISHED", 90)]
    reasons = [row[0] for row in shop.semel.sql("SELECT failure_reason FROM semel_dead_letter")]
    assert len(reasons) == 60 and sum("of its transaction" in reason for reason in reasons) == 58


def test_a_transaction_of_small_events_is_shown_though_a_batch_of_them_is_too_large_for_the_topic(shop):
    """Kafka measures batches; so what was refused is sent again event by event."""
    admin = pytest.importorskip("confluent_kafka.admin")
    stock = admin.ConfigResource("topic", shop.semel.broker.topic("stock"), set_config={"max.message.bytes": "3000"})
    for done in shop.semel.broker.administrator.client.alter_configs([stock]).values():
        done.result(PATIENCE)
    shop.commit(90, "one", "repeat('x', 500)")
    shop.commit(90, "two", "repeat('x', 500)")
    shop.commit(30, "bad", "CASE WHEN n % 3 = 1 THEN repeat('x', 5000) ELSE '' END")
    shop.commit(30, "three")
    shop.drain()
    assert shop.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY 1 ORDER BY 1") == [("FAILED", 30), ("PUBLISHED", 210)]
    assert shop.read() == {**shop.ids("one%"), **shop.ids("two%"), **shop.ids("three%")}


def test_a_transaction_that_fills_the_window_is_shown_in_parts_and_said_so(shop):
    shop.commit(100)
    assert "in parts" not in shop.drain("--window", "200").stderr
    shop.commit(1000, "large")
    assert "is shown in parts" in shop.drain("--window", "200").stderr
    assert shop.read() == shop.ids()


def test_transactions_need_the_change_stream_and_kafka_which_is_said_before_anything_is_opened(semel):
    nowhere = {"SEMEL_STORE": "postgres://nobody@127.0.0.1:1/none"}
    assert "--source cdc" in semel.fails(64, "relay", "--transactions", "--source", "poll", "--drain", env=nowhere)
    local = {**nowhere, "SEMEL_BROKER": "local:semel-broker.db"}
    assert "kafka://" in semel.fails(78, "relay", "--transactions", "--source", "cdc", "--drain", env=local)
    assert not (semel.folder / "semel-broker.db").exists()
