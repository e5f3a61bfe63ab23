# SPDX-License-Identifier: Apache-2.0
"""Transactions of the database as transactions of Kafka's: a read_committed consumer sees all of one or nothing."""
import json
from collections import Counter

import pytest
from program import wait_for
from stream import TIMEOUT_S, Stream

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"), pytest.mark.only("kafka")]
TOPICS = ("orders", "stock", "ledger")


class Shop(Stream):
    """An outbox whose transactions spread over three topics, and readers of them."""

    options = ("--transactions",)

    def __init__(self, semel, **stock):
        """stock: settings of one of the topics, from its creation on, because a node applies later changes with a delay."""
        super().__init__(semel)
        semel.ok("topology", "apply", "--cdc", "--slot", self.slot)
        for topic in TOPICS:
            semel.broker.create(topic, 3, **(stock if topic == "stock" else {}))

    def commit(self, count, name="t", payload="''"):
        """One transaction with so many events, over the topics in turn."""
        self.semel.sql(
            "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload, content_type)"
            f" SELECT 'order', '{name}-' || n % 10, 't.v1', (ARRAY['orders', 'stock', 'ledger'])[n % 3 + 1],"
            f" '{name}' || {payload}, 'text/plain' FROM generate_series(1, {count}) n")

    def read(self, committed=True):
        """How often each id can be read now."""
        from kafka_space import headers_of

        level = "read_committed" if committed else "read_uncommitted"
        records = [record for topic in TOPICS for record in self.semel.broker.records(topic, level)]
        return Counter(headers_of(record)["ce_id"] for record in records)

    def wait_until_readable(self, ids):
        """These and no others, each once. Kafka writes the markers into the partitions a moment after it confirmed the commit."""
        wait_for(lambda: self.read() == ids, TIMEOUT_S, "what was committed, and nothing else, can be read")

    def ids(self, like="%"):
        return {row[0]: 1 for row in self.semel.sql("SELECT id FROM semel_outbox WHERE aggregate_id LIKE ?", like)}


@pytest.fixture
def shop(semel, request):
    shop = Shop(semel, **getattr(request, "param", {}))
    with shop.ended():
        yield shop


def test_a_relay_that_dies_in_the_middle_of_a_transaction_has_shown_nothing_of_it(shop):
    first = shop.start(lease="1s", env={"SEMEL_FAILPOINT": "relay.after-publish:pause=600000@300"})
    shop.commit(100, "before")
    shop.wait_until_published()
    shop.commit(600, "after")
    wait_for(lambda: len(shop.read(committed=False)) > 100, TIMEOUT_S, "some of it is at Kafka")
    shop.wait_until_readable(shop.ids("before%"))
    first.kill()
    second = shop.start(lease="1s")
    shop.wait_until_published()
    assert shop.semel.stop(second) == 0
    shop.wait_until_readable(shop.ids())
    words = [word for topic in TOPICS for word in ("--topic", topic)]
    printed = shop.semel.ok("consume", "--scope", "x", *words, "--print", "--drain", "--timeout", f"{TIMEOUT_S}s", timeout=120)
    seen = [json.loads(line)["id"] for line in printed.splitlines() if line.startswith("{")]
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
    shop.wait_until_readable(shop.ids("good%"))
    assert shop.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY 1 ORDER BY 1") == [("FAILED", 60), ("PUBLISHED", 90)]
    reasons = [row[0] for row in shop.semel.sql("SELECT failure_reason FROM semel_dead_letter")]
    assert len(reasons) == 60 and sum("of its transaction" in reason for reason in reasons) == 58


@pytest.mark.parametrize("shop", [{"max_message_bytes": 3000}], indirect=True, ids=["3000 bytes"])
def test_a_transaction_of_small_events_is_shown_though_a_batch_of_them_is_too_large_for_the_topic(shop):
    """Kafka measures batches; so what was refused is sent again event by event."""
    shop.commit(90, "one", "repeat('x', 500)")
    shop.commit(90, "two", "repeat('x', 500)")
    shop.commit(30, "bad", "CASE WHEN n % 3 = 1 THEN repeat('x', 5000) ELSE '' END")
    shop.commit(30, "three")
    shop.drain()
    assert shop.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY 1 ORDER BY 1") == [("FAILED", 30), ("PUBLISHED", 210)]
    shop.wait_until_readable({**shop.ids("one%"), **shop.ids("two%"), **shop.ids("three%")})


def test_a_transaction_that_fills_the_window_is_shown_in_parts_with_a_warning(shop):
    shop.commit(100)
    assert "in parts" not in shop.drain("--window", "200").stderr
    shop.commit(1000, "large")
    assert "in parts" in shop.drain("--window", "200").stderr
    shop.wait_until_readable(shop.ids())


def test_small_transactions_stay_whole_while_others_are_sent_again_and_the_window_is_full(shop):
    for number in range(60):
        large = "repeat('x', 1200000)" if number == 20 else "''"
        shop.commit(1 if number == 20 else 15, f"t{number}", large)
    done = shop.drain("--window", "64", env={"SEMEL_BROKER": shop.semel.broker.url_with(message_max_bytes=1500000)})
    assert "in parts" not in done.stderr
    assert shop.semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY 1 ORDER BY 1") == [("FAILED", 1), ("PUBLISHED", 885)]


def test_transactions_need_the_change_stream_and_kafka_which_is_checked_before_anything_is_opened(semel):
    unreachable = {"SEMEL_STORE": "postgres://app@127.0.0.1:1/none"}
    assert "--source cdc" in semel.fails(64, "relay", "--transactions", "--source", "poll", "--drain", env=unreachable)
    local = {**unreachable, "SEMEL_BROKER": "local:semel-broker.db"}
    assert "kafka://" in semel.fails(78, "relay", "--transactions", "--source", "cdc", "--drain", env=local)
    assert not (semel.folder / "semel-broker.db").exists()
