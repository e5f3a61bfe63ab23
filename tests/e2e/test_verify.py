# SPDX-License-Identifier: Apache-2.0
"""verify: committed = published = processed or dead letter, per scope; and it finds what is not."""
import json
import uuid

import pytest

import mix
from mix import url_of
from program import wait_for
from story import consume, deliver, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

CLAIM = (
    "INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at, topic)"
    " VALUES (?, ?, ?, 'PROCESSED', '2026-11-15T12:00:00.000Z', '2026-11-15T12:00:00.000Z', ?)"
)


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def verify(semel, *more, code=0):
    done = semel.run("verify", "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def scope_of(report, name="billing"):
    (scope,) = [scope for scope in report["scopes"] if scope["scope"] == name]
    return scope


def test_a_fresh_store_is_accounted_for(shop):
    report = verify(shop)
    assert (report["committed"], report["scopes"], report["ok"]) == (0, [], True)
    assert shop.broker_is_untouched()


@pytest.mark.core
def test_everything_delivered_is_accounted_for(shop):
    deliver(shop, ("first", "1"), ("second", "2"))
    consume(shop, "audit")
    report = verify(shop)
    assert (report["committed"], report["published"], report["ok"]) == (2, 2, True)
    for name in ("billing", "audit"):
        assert (scope_of(report, name)["expected"], scope_of(report, name)["processed"]) == (2, 2)
    assert "every committed event is accounted for" in shop.ok("verify")


def test_unpublished_events_wait(shop):
    deliver(shop, ("first", "1"))
    publish(shop, "second")
    report = verify(shop, code=1)
    assert report["unpublished"] == 1
    assert (scope_of(report)["waiting"], scope_of(report)["missing"]) == (1, 0)


def test_events_at_the_broker_wait(shop):
    deliver(shop, ("first", "1"))
    publish(shop, "second")
    relay(shop)
    report = verify(shop, code=1)
    assert (scope_of(report)["waiting"], scope_of(report)["missing"]) == (1, 0)


def test_an_event_of_long_ago_is_expected_too(shop):
    deliver(shop, ("first", "1"))
    publish(shop, "second", "2", "--time", "1969-07-20T20:17:40Z")
    relay(shop)
    assert (scope_of(verify(shop, code=1))["expected"], scope_of(verify(shop, code=1))["waiting"]) == (2, 1)


@pytest.mark.core
def test_a_lost_event_is_named(shop):
    first, second = deliver(shop, ("first", "1"), ("second", "2"))
    shop.sql("DELETE FROM semel_inbox WHERE event_id = ?", second)
    report = verify(shop, code=1)
    assert (scope_of(report)["missing"], scope_of(report)["missingIds"]) == (1, [second])
    done = shop.run("verify")
    assert done.returncode == 1
    assert f"missing in billing:\n  {second}" in done.stdout
    assert first not in done.stdout
    assert done.stderr == ""


def test_an_orphaned_claim_is_named(shop):
    deliver(shop, ("first", "1"))
    orphan = str(uuid.uuid4())
    shop.sql(CLAIM, "billing", orphan, "2026-11-09", "order.events")
    report = verify(shop, code=1)
    assert (scope_of(report)["orphaned"], scope_of(report)["orphanedIds"]) == (1, [orphan])


def test_an_orphaned_claim_is_named_with_an_empty_outbox(shop):
    shop.sql(CLAIM, "billing", "orphan", "2026-11-09", "order.events")
    assert scope_of(verify(shop, "--scope", "billing", code=1))["orphaned"] == 1


def test_events_of_other_producers_are_foreign_and_not_orphaned(shop):
    deliver(shop, ("first", "1"))
    shop.sql(CLAIM, "billing", "theirs", "2026-11-09", "payment.events")
    assert scope_of(verify(shop))["foreign"] == 1


def test_a_doubled_claim_is_named(shop):
    (first,) = deliver(shop, ("first", "1"))
    shop.sql(CLAIM, "billing", first, "1999-01-04", "order.events")
    report = verify(shop, code=1)
    assert (scope_of(report)["doubled"], scope_of(report)["doubledIds"]) == (1, [first])


def test_dead_letters_and_parked_followers_are_accounted_for(shop):
    deliver(shop, ("bad", "1"), ("second", "1"), ("third", "2"))
    scope = scope_of(verify(shop))
    assert (scope["processed"], scope["pending"], scope["parked"]) == (1, 1, 1)
    (letter,) = shop.json("dlq", "list")
    shop.ok("dlq", "discard", letter["dlqEntryId"])
    consume(shop)
    scope = scope_of(verify(shop))
    assert (scope["processed"], scope["discarded"], scope["parked"]) == (2, 1, 0)


def test_a_replay_counts_when_it_has_arrived(shop):
    deliver(shop, ("bad", "1"))
    (letter,) = shop.json("dlq", "list")
    mend(shop)
    shop.ok("dlq", "replay", letter["dlqEntryId"])
    assert scope_of(verify(shop, code=1))["waiting"] == 1
    consume(shop)
    assert scope_of(verify(shop))["processed"] == 1


def test_at_least_once_is_not_tracked(shop):
    publish(shop, "first")
    relay(shop)
    consume(shop, "stock", "--guarantee", "at-least-once")
    assert scope_of(verify(shop), "stock")["tracked"] is False
    assert "not tracked" in shop.ok("verify")


def test_at_most_once_is_tracked(shop):
    publish(shop, "first")
    relay(shop)
    consume(shop, "stock", "--guarantee", "at-most-once")
    assert scope_of(verify(shop), "stock")["processed"] == 1


def test_duplicates_by_business_key_are_accounted_for(shop):
    for _ in range(2):
        publish(shop, "once", "1", "--header", "idempotencyKey=k-1")
    relay(shop)
    consume(shop, "billing", "--dedup-by", "header:idempotencyKey")
    assert words(shop) == ["once"]
    assert scope_of(verify(shop))["processed"] == 2


def test_one_scope_can_be_asked_for(shop):
    deliver(shop, ("first", "1"))
    consume(shop, "audit")
    shop.sql("DELETE FROM semel_inbox WHERE scope = 'audit'")
    assert [scope["scope"] for scope in verify(shop, "--scope", "billing")["scopes"]] == ["billing"]
    verify(shop, "--scope", "billing", "--scope", "audit", code=1)
    assert "biling" in shop.fails(65, "verify", "--scope", "biling")


def test_a_consumers_own_database_is_verified(shop):
    other = shop.backend.database("audit")
    url = url_of(other)
    shop.ok("--store", url, "init")
    prepare(shop, database=other)
    publish(shop, "first")
    relay(shop)
    consume(shop, "audit", before=("--store", url))
    assert verify(shop)["scopes"] == []
    assert scope_of(verify(shop, "--consumer-store", url), "audit")["processed"] == 1
    shop.sql("DELETE FROM semel_inbox", database=other)
    assert scope_of(verify(shop, "--consumer-store", url, code=1), "audit")["missing"] == 1


def test_a_missing_consumer_store_is_reported(shop):
    shop.fails(69, "verify", "--consumer-store", "sqlite:none/nothing.db")


WAIT_FOR_GO = "until [ -e go ]; do sleep 0.05; done"


def test_verify_waits_for_what_is_on_its_way(shop):
    shop.subscribe("billing")
    publish(shop, "first")
    relay(shop)
    consumer = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--exec", f"touch here; {WAIT_FOR_GO}")
    wait_for((shop.folder / "here").exists, what="the handler at work")
    publish(shop, "second")
    waiting = shop.spawn("verify", "--json", "--wait", "2m")
    relay(shop)
    (shop.folder / "go").touch()
    assert waiting.wait(150) == 0, waiting.stdout.read()
    assert scope_of(json.loads(waiting.stdout.read()))["processed"] in (1, 2)  # 1: it began before the second was published
    assert shop.stop(consumer) == 0
    assert scope_of(verify(shop, "--wait", "1m"))["processed"] == 2


@pytest.mark.only("rabbitmq")
def test_what_a_consumer_has_in_flight_is_waiting_and_not_missing(shop):
    """The broker does not report it; the consumer does, in the store."""
    deliver(shop, ("first", "1"))
    publish(shop, "second")
    publish(shop, "third")  # behind the second, and not claimed yet
    relay(shop)
    consumer = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--exec", f"touch here; {WAIT_FOR_GO}")
    wait_for((shop.folder / "here").exists, what="the handler at work")
    scope = scope_of(verify(shop, code=1))
    assert (scope["waiting"], scope["missing"], scope["inHand"]) == (2, 0, 2)
    (shop.folder / "go").touch()
    assert scope_of(verify(shop, "--wait", "2m"))["processed"] == 3
    assert shop.stop(consumer) == 0


@pytest.mark.core
def test_verifying_a_running_system_finds_no_orphans(shop):
    wait = ("--wait", "1m") if mix.BROKER == "rabbitmq" else ()  # what is in flight is not visible there
    deliver(shop, ("first", "1"))
    running = shop.spawn("relay"), shop.spawn(
        "consume", "--scope", "billing", "--topic", "order.events", "--sql",
        "INSERT INTO effect (scope, id, word) VALUES ('billing', :id, 'x')")
    for number in range(5):
        lines = "".join(json.dumps({"type": "t", "aggregateType": "order", "aggregateId": str(each), "payload": {}}) + "\n"
                        for each in range(200))
        shop.ok("publish", "--batch", input=lines)
        report = json.loads(shop.run("verify", "--json", *wait).stdout)
        scope = scope_of(report)
        assert (scope["missing"], scope["doubled"], scope["orphaned"]) == (0, 0, 0), scope
    for child in running:
        assert shop.stop(child) == 0
    relay(shop)
    consume(shop)
    assert scope_of(verify(shop))["processed"] == 1001
