# SPDX-License-Identifier: Apache-2.0
"""Where order is easily lost: broken events behind a held one, followers with a key conflict, a topic that waits for a call."""
import pytest

from mix import BROKER
from story import consume, mend, prepare, publish, relay, words

pytestmark = pytest.mark.anywhere

ONE_PARTITION = ("--broker", "local:semel-broker.db?partitions=1") if BROKER == "local" else ()


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def pending(shop):
    return [entry["originalEventId"] for entry in shop.json("dlq", "list", "--status", "PENDING")]


def decide(shop, action, event_id):
    (entry,) = [each for each in shop.json("dlq", "list") if each["originalEventId"] == event_id]
    shop.ok("dlq", action, entry["dlqEntryId"])


@pytest.mark.only("local")
def test_a_broken_event_waits_behind_a_held_one_for_its_turn(shop):
    head, broken, last = (publish(shop, word) for word in ("bad", "broken", "last"))
    relay(shop)
    shop.sql("UPDATE semel_log SET payload = '{' WHERE id = ?", broken, database=shop.broker)
    consume(shop)
    assert pending(shop) == [head]
    mend(shop)
    decide(shop, "replay", head)
    consume(shop)
    assert words(shop) == ["bad"]
    assert pending(shop) == [broken]
    decide(shop, "discard", broken)
    consume(shop)
    assert words(shop) == ["bad", "last"]
    shop.ok("verify")


@pytest.mark.only("local")
def test_a_broken_event_in_the_middle_of_a_batch_holds_only_the_later_ones(shop):
    ids = [publish(shop, word) for word in ("first", "broken", "last")]
    publish(shop, "other", "2")
    relay(shop)
    shop.sql("UPDATE semel_log SET payload = '{' WHERE id = ?", ids[1], database=shop.broker)
    consume(shop)
    assert sorted(words(shop)) == ["first", "other"]
    assert pending(shop) == [ids[1]]


@pytest.mark.core
def test_a_follower_is_identified_by_its_business_key(shop):
    by_key = ("--dedup-by", "header:idempotencyKey")
    head = publish(shop, "bad", "1", "--header", "idempotencyKey=a")
    publish(shop, "follower", "1", "--header", "idempotencyKey=k")
    publish(shop, "same key", "2", "--header", "idempotencyKey=k")
    relay(shop)
    consume(shop, "billing", *by_key)
    assert words(shop) == ["same key"]
    mend(shop)
    decide(shop, "replay", head)
    consume(shop, "billing", *by_key)
    assert words(shop) == ["same key", "bad"]
    publish(shop, "third", "3", "--header", "idempotencyKey=a")
    relay(shop)
    consume(shop, "billing", *by_key)
    assert words(shop) == ["same key", "bad"]


@pytest.mark.unless("kafka", reason="a new topic has several partitions there, and a total order needs one")
@pytest.mark.core
@pytest.mark.parametrize("concurrency", ["1", "8"])
def test_a_topic_waits_for_the_retry_of_a_program(shop, concurrency):
    shop.backend.witness("order.events")
    ids = [publish(shop, "good", str(number)) for number in range(40)]
    relay(shop, *ONE_PARTITION)
    command = f"[ $SEMEL_EVENT_ID != {ids[2]} ] || [ $SEMEL_ATTEMPT -gt 2 ] || exit 75; echo $SEMEL_EVENT_ID >>ran"
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", *ONE_PARTITION, "--order", "total", "--poison",
            "block", "--exec", command, "--immediate", "1", "--first-delay", "100ms", "--concurrency", concurrency, "--drain")
    assert (shop.folder / "ran").read_text().split() == [id for id, _, _ in shop.backend.log()]


def test_an_event_waits_for_another_one_with_its_business_key_that_is_in_flight(shop):
    for aggregate in ("1", "2"):
        publish(shop, "good", aggregate, "--header", "idempotencyKey=k")
    relay(shop)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--dedup-by", "header:idempotencyKey", "--claim", "separate",
            "--exec", "echo $SEMEL_EVENT_ID >>ran; sleep 0.3", "--concurrency", "2", "--drain")
    assert shop.json("dlq", "list") == []
    assert len((shop.folder / "ran").read_text().split()) == 1


def released(shop, *followers):
    """Discards the head of an aggregate; returns the ids of its followers."""
    ids = [publish(shop, word) for word in ("bad", *followers)]
    relay(shop)
    consume(shop)
    decide(shop, "discard", ids[0])
    return ids[1:]


@pytest.mark.core
def test_followers_of_one_aggregate_share_a_commit(shop):
    followers = [f"follower-{number}" for number in range(30)]
    released(shop, *followers)
    consume(shop, env={"SEMEL_FAILPOINT": "consume.after-commit:kill@3"})
    assert words(shop) == followers


@pytest.mark.only("sqlite")
def test_a_follower_that_ends_the_transaction_is_the_only_one_that_fails(shop):
    shop.sql("CREATE TRIGGER fatal BEFORE INSERT ON effect WHEN NEW.word = 'fatal'"
             " BEGIN SELECT RAISE(ROLLBACK, 'no more of this'); END")
    ids = released(shop, "first", "second", "fatal", "last")
    consume(shop)
    assert words(shop) == ["first", "second"]
    assert pending(shop) == [ids[2]]
    decide(shop, "discard", ids[2])
    consume(shop)
    assert words(shop) == ["first", "second", "last"]
    shop.ok("verify")
