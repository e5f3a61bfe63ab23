# SPDX-License-Identifier: Apache-2.0
"""Errors that Kafka rarely answers, from librdkafka's mock cluster."""
import json

import kafka_mock
import pytest
from program import wait_for

pytestmark = [pytest.mark.only("sqlite"), pytest.mark.only("local")]

TOPIC = "order.events"
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", "INSERT INTO effect VALUES (:id, :aggregate_id, :payload)",
           "--first-delay", "20ms")
RETRIES = ("--attempts", "1", "--first-delay", "20ms")


@pytest.fixture
def kafka():
    cluster = kafka_mock.MockKafka()
    cluster.create(TOPIC)
    yield cluster
    cluster.close()


@pytest.fixture
def shop(semel, kafka, monkeypatch):
    semel.sql("CREATE TABLE effect (id text, aggregate text, payload text)")
    monkeypatch.setattr(semel.backend, "environment", lambda: {"SEMEL_BROKER": f"kafka://{kafka.bootstrap()}"})
    return semel


def load(shop, count=60, aggregates=6):
    lines = [json.dumps({"type": "order.created.v1", "aggregateType": "order", "aggregateId": f"ord-{number % aggregates}",
                         "payload": {"number": number}}) for number in range(count)]
    shop.ok("publish", "--batch", input="\n".join(lines) + "\n")


def numbers(shop):
    """By aggregate, in the order in which they were processed."""
    found = {}
    for aggregate, payload in shop.sql("SELECT aggregate, payload FROM effect ORDER BY rowid"):
        found.setdefault(aggregate, []).append(json.loads(payload)["number"])
    return found


def check_books(shop, count=60, aggregates=6):
    shop.ok(*CONSUME, "--drain")
    assert numbers(shop) == {f"ord-{first}": list(range(first, count, aggregates)) for first in range(aggregates)}
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 0") == [(0,)]
    shop.ok("verify")


@pytest.mark.slow
@pytest.mark.parametrize("error", [kafka_mock.OUT_OF_ORDER, kafka_mock.UNKNOWN_PRODUCER],
                         ids=["out of order", "unknown producer"])
def test_a_broken_producer_is_replaced_and_nothing_is_lost_or_overtaken(shop, kafka, error):
    load(shop)
    kafka.push_errors(kafka_mock.PRODUCE, error)
    shop.ok("relay", "--drain", "--window", "10", *RETRIES)
    check_books(shop)


@pytest.mark.slow
@pytest.mark.parametrize("error", [kafka_mock.NOT_LEADER, kafka_mock.NOT_ENOUGH_REPLICAS], ids=["not leader", "few replicas"])
def test_a_transient_error_costs_no_attempt(shop, kafka, error):
    load(shop)
    kafka.push_errors(kafka_mock.PRODUCE, *[error] * 4)
    shop.ok("relay", "--drain", *RETRIES)
    check_books(shop)


@pytest.mark.slow
def test_a_batch_with_a_transient_error_is_not_taken_for_confirmed(shop, kafka):
    """If a later batch were in flight too, and accepted, librdkafka would report the first as confirmed as well."""
    load(shop)
    kafka.push_errors(kafka_mock.PRODUCE, *[kafka_mock.NOT_LEADER] * 3)
    small = {"SEMEL_BROKER": f"kafka://{kafka.bootstrap()}/?batch.num.messages=1"}
    shop.ok("relay", "--drain", *RETRIES, env=small)
    check_books(shop)


@pytest.mark.slow
def test_an_outage_of_the_broker_costs_no_attempt(shop, kafka):
    load(shop, 30)
    relay = shop.spawn("relay", *RETRIES)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(30,)], 60, "the first part")
    with kafka.down():
        load_more(shop)
        assert relay.poll() is None
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(60,)], 60, "the rest")
    assert shop.stop(relay) == 0
    check_books(shop)


def load_more(shop):
    for number in range(30, 60):
        shop.publish("--payload", json.dumps({"number": number}), aggregate=f"order:ord-{number % 6}")


@pytest.mark.slow
@pytest.mark.parametrize("error", [kafka_mock.TOPIC_UNAUTHORIZED, kafka_mock.TOO_LARGE], ids=["unauthorized", "too large"])
def test_an_answer_about_the_event_is_a_dead_letter(shop, kafka, error):
    shop.publish(aggregate="order:ord-1")
    kafka.push_errors(kafka_mock.PRODUCE, *[error] * 10)
    shop.ok("relay", "--drain", *RETRIES)
    kafka.clear_errors(kafka_mock.PRODUCE)
    (letter,) = shop.json("dlq", "list")
    assert letter["sourceService"] == "relay" and letter["failureReason"]
    shop.ok("dlq", "replay", "--all")
    shop.ok("relay", "--drain")
    shop.ok(*CONSUME, "--drain")
    assert len(shop.sql("SELECT id FROM effect")) == 1


@pytest.mark.slow
@pytest.mark.parametrize("request_kind, errors", [
    (kafka_mock.OFFSET_COMMIT, [kafka_mock.REBALANCING]), (kafka_mock.OFFSET_COMMIT, [kafka_mock.UNKNOWN_MEMBER]),
    (kafka_mock.OFFSET_COMMIT, [kafka_mock.NOT_COORDINATOR] * 2), (kafka_mock.HEARTBEAT, [kafka_mock.UNKNOWN_MEMBER]),
    (kafka_mock.JOIN, [kafka_mock.NOT_COORDINATOR] * 2), (kafka_mock.FETCH, [kafka_mock.NOT_LEADER] * 3)],
    ids=["commit: rebalance", "commit: unknown member", "commit: other coordinator", "heartbeat: unknown member",
         "join: other coordinator", "fetch: not leader"])
def test_errors_of_the_group_neither_lose_nor_duplicate_events(shop, kafka, request_kind, errors):
    load(shop)
    shop.ok("relay", "--drain")
    kafka.push_errors(request_kind, *errors)
    check_books(shop)
