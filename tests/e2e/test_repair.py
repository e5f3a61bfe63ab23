# SPDX-License-Identifier: Apache-2.0
"""verify reports as stuck what waits and nothing will ever move, with the command that repairs it; and that command
does. The states are written into the tables by hand: the program does not leave them behind."""
import json
import shlex

import pytest

from story import consume, deliver, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.anywhere]

PAST = "2000-01-01T00:00:00.000Z"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def verify(shop, code=0, *more):
    done = shop.run("verify", "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def scope_of(report, name="billing"):
    (scope,) = [scope for scope in report["scopes"] if scope["scope"] == name]
    return scope


def stuck(shop):
    scope = scope_of(verify(shop, 1))
    assert scope["missing"] == 0
    return sorted(scope["stuckIds"])


def run_remedy(shop, problem="stuck"):
    """Runs the command that verify prints."""
    (advice,) = [advice for advice in verify(shop, 1)["advice"] if advice["problem"] == problem]
    program, *rest = shlex.split(advice["command"])
    assert program == "semel"
    assert advice["command"] in shop.run("verify").stdout
    return shop.ok(*rest)


def steps(shop, *more):
    return [(step["step"], step["result"]) for step in shop.json("repair", *more)["steps"]]


def entry_of(shop):
    (letter,) = shop.json("dlq", "list", "--status", "PENDING")
    return letter["dlqEntryId"]


@pytest.mark.core
def test_nothing_is_repaired_where_nothing_is_stuck(shop):
    deliver(shop, ("bad", "1"), ("second", "1"), ("third", "2"))
    assert steps(shop) == []
    assert "no event is stuck" in shop.ok("repair")


def test_parked_events_without_a_hold_are_stuck_and_released(shop):
    _, second = deliver(shop, ("bad", "1"), ("second", "1"))
    shop.sql("UPDATE semel_dead_letter SET status = 'DISCARDED' WHERE parked_behind IS NULL")
    shop.sql("DELETE FROM semel_hold")
    assert stuck(shop) == [second]
    assert steps(shop, "--dry-run") == [("release", "planned")]
    assert stuck(shop) == [second]
    run_remedy(shop)
    consume(shop)
    assert words(shop) == ["second"]
    verify(shop)


def test_parked_events_of_a_pending_letter_get_their_hold_back(shop):
    _, second = deliver(shop, ("bad", "1"), ("second", "1"))
    shop.sql("DELETE FROM semel_hold")
    assert stuck(shop) == [second]
    run_remedy(shop)
    consume(shop)
    assert words(shop) == []
    assert scope_of(verify(shop))["parked"] == 1
    mend(shop)
    shop.ok("dlq", "replay", entry_of(shop))
    consume(shop)
    assert words(shop) == ["bad", "second"]
    verify(shop)


def test_a_hold_whose_head_was_discarded_is_released(shop):
    _, second = deliver(shop, ("bad", "1"), ("second", "1"))
    shop.sql("UPDATE semel_dead_letter SET status = 'DISCARDED' WHERE parked_behind IS NULL")
    assert second in stuck(shop)
    run_remedy(shop)
    consume(shop)
    assert words(shop) == ["second"]
    verify(shop)


@pytest.mark.core
def test_a_replay_whose_copy_is_gone_is_sent_again(shop):
    first, second = deliver(shop, ("bad", "1"), ("second", "1"))
    mend(shop)
    shop.sql("UPDATE semel_dead_letter SET status = 'REPLAYED', replay_count = 1 WHERE parked_behind IS NULL")
    assert stuck(shop) == sorted([first, second])
    run_remedy(shop)
    assert scope_of(verify(shop, 1))["stuck"] == 0
    assert steps(shop) == []
    consume(shop)
    assert words(shop) == ["bad", "second"]
    verify(shop)


def test_a_replay_of_a_separate_claim_is_stuck_and_not_discarded(shop):
    publish(shop, "bad")
    relay(shop)
    consume(shop, "billing", "--claim", "separate")
    mend(shop)
    shop.sql("UPDATE semel_dead_letter SET status = 'REPLAYED', replay_count = 1")
    assert scope_of(verify(shop, 1))["discarded"] == 0
    assert len(stuck(shop)) == 1
    run_remedy(shop)
    consume(shop, "billing", "--claim", "separate")
    assert words(shop) == ["bad"]
    verify(shop)


def test_a_retry_whose_copy_is_gone_is_sent_again(shop):
    first, second = deliver(shop, ("first", "1"), ("second", "2"))
    shop.sql("DELETE FROM semel_inbox WHERE event_id = ?", first)
    shop.sql("DELETE FROM effect WHERE id = ?", first)
    shop.sql(
        "INSERT INTO semel_hold (scope, aggregate_type, aggregate_id, state, head_id, attempts, due_at)"
        " VALUES ('billing', 'order', '1', 'retry', ?, 1, ?)", first, PAST,
    )
    assert stuck(shop) == [first]
    run_remedy(shop)
    consume(shop)
    assert words(shop) == ["second", "first"]
    verify(shop)


def test_a_claim_of_a_dead_consumer_whose_copy_is_gone_is_stuck(shop):
    (first,) = deliver(shop, ("first", "1"))
    shop.sql("DELETE FROM effect")
    shop.sql("UPDATE semel_inbox SET status = 'CLAIMED', owner = 'gone', lease_until = ?", PAST)
    assert stuck(shop) == [first]
    run_remedy(shop)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--exec", "true", "--drain")
    verify(shop)


def test_what_the_outbox_does_not_retain_is_reported_as_impossible(shop):
    deliver(shop, ("first", "1"))
    shop.sql(
        "INSERT INTO semel_hold (scope, aggregate_type, aggregate_id, state, head_id, attempts, due_at)"
        " VALUES ('billing', 'order', '9', 'retry', 'foreign', 1, ?)", PAST,
    )
    done = shop.run("repair", "--json")
    assert done.returncode == 1
    assert [(step["target"], step["result"]) for step in json.loads(done.stdout)["steps"]] == [("foreign", "impossible")]


def test_a_step_is_audited(shop):
    deliver(shop, ("bad", "1"), ("second", "1"))
    shop.sql("DELETE FROM semel_hold")
    shop.ok("repair")
    ((who, what, target, detail),) = shop.sql("SELECT who, what, target, detail FROM semel_audit")
    assert who.startswith("cli:") and (what, target) == ("repair", "order:1")
    assert "billing" in detail


def test_a_lost_event_is_sent_again_by_the_command_that_verify_prints(shop):
    _, second = deliver(shop, ("first", "1"), ("second", "2"))
    shop.sql("DELETE FROM semel_inbox WHERE event_id = ?", second)
    shop.sql("DELETE FROM effect WHERE id = ?", second)
    run_remedy(shop, "missing")
    consume(shop)
    assert words(shop) == ["first", "second"]
    verify(shop)


def test_a_lost_event_that_was_backdated_is_sent_again_by_the_command_that_verify_prints(shop):
    """By its own time it is older than the inbox retains, so a plain replay would refuse it."""
    deliver(shop, ("first", "1"))
    old = publish(shop, "old", "2", "--time", "2020-01-01T00:00:00Z")
    relay(shop)
    consume(shop)
    shop.sql("DELETE FROM semel_inbox WHERE event_id = ?", old)
    shop.sql("DELETE FROM effect WHERE id = ?", old)
    run_remedy(shop, "missing")
    consume(shop)
    assert words(shop) == ["first", "old"]
    verify(shop)


def test_an_unknown_scope_is_an_error(shop):
    deliver(shop, ("first", "1"))
    assert "subscriptions list" in shop.fails(65, "repair", "--scope", "unknown")


def test_a_paused_subscription_is_resumed_by_the_command_that_verify_prints(shop):
    deliver(shop, ("first", "1"))
    publish(shop, "second")
    relay(shop)
    shop.ok("subscriptions", "pause", "billing")
    run_remedy(shop, "waiting")
    consume(shop)
    verify(shop)


# ---- topics -------------------------------------------------------------------------------------


@pytest.mark.only("local")
def test_a_mistyped_topic_is_reported_with_the_nearest(shop):
    deliver(shop, ("first", "1"))
    publish(shop, "second", "2", "--topic", "ordr.events")
    relay(shop)
    report = verify(shop, 1)
    assert report["unread"] == 1
    assert report["unreadTopics"] == [{"topic": "ordr.events", "events": 1, "nearest": "order.events"}]
    assert "did the producer mean order.events?" in shop.run("verify").stdout
    assert verify(shop, 0, "--read-elsewhere", "ordr.events")["unread"] == 0
    consume(shop, "billing", "--topic", "ordr.events")
    assert words(shop) == ["first", "second"]
    verify(shop)


def test_a_topic_that_is_read_no_more_leaves_what_was_not_read(shop):
    deliver(shop, ("first", "1"))
    shop.subscribe("billing", topic="payment.events")
    consume(shop, "billing", "--topic", "payment.events")
    second = publish(shop, "second", "2", "--topic", "payment.events")
    relay(shop)
    consume(shop)
    scope = scope_of(verify(shop, 1))
    assert (scope["unread"], scope["unreadIds"]) == (1, [second])
    assert "--topic payment.events" in shop.run("verify").stdout
    publish(shop, "third", "3", "--topic", "payment.events")  # after the scope stopped reading it: not expected
    assert scope_of(verify(shop, 1))["unread"] == 1
    relay(shop)
    consume(shop, "billing", "--topic", "payment.events")
    assert words(shop) == ["first", "second", "third"]
    verify(shop)


@pytest.mark.only("rabbitmq")
def test_what_a_binding_leaves_out_is_not_expected(shop):
    shop.ok("topology", "apply", "--scope", "europe", "--topic", "order.events", "--bind", "*.eu")
    publish(shop, "first", "1", "--routing-key", "order.eu")
    publish(shop, "second", "2", "--routing-key", "order.us")
    relay(shop)
    consume(shop)
    consume(shop, "europe", "--bind", "*.eu")
    report = verify(shop)
    assert (scope_of(report, "europe")["expected"], scope_of(report)["expected"]) == (1, 2)
