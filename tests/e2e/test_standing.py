# SPDX-License-Identifier: Apache-2.0
"""The most frequent incidents: the handler is down, the subscription is paused, no consumer runs, a topic is mistyped. Every
command that shows the state reports them, and none raises a false alarm."""
import json

import pytest

from program import wait_for
from story import consume, deliver, mend, prepare, publish, relay

pytestmark = [pytest.mark.anywhere]

REFUSED = "http://127.0.0.1:9/"  # nothing listens on the port of the discard service


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def spawn(shop, *handler, scope="billing"):
    return shop.spawn("consume", "--scope", scope, "--topic", "order.events", *handler)


def row(shop):
    rows = shop.sql("SELECT breaker, in_hand, paused FROM semel_consumer WHERE scope = 'billing'")
    return rows[0] if rows else (0, 0, False)


def trace_state(shop, event_id, scope="billing"):
    (one,) = [one for one in shop.json("trace", event_id)["verdicts"] if one["scope"] == scope]
    return one


def findings(shop, check):
    done = shop.run("doctor", "--json")
    assert done.returncode in (0, 1), done.stderr
    return [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == check]


def scope_of(shop, *more):
    report = json.loads(shop.run("verify", "--json", *more).stdout)
    (scope,) = [scope for scope in report["scopes"] if scope["scope"] == "billing"]
    return scope


def while_open(shop, ask):
    """The answer while the breaker is open: during a probe it is half-open, and no consumer is stalled."""
    def once():
        before, answer, after = row(shop)[0], ask(), row(shop)[0]
        return (answer,) if before == after == 2 else None
    return wait_for(once, what="an answer while the breaker is open")[0]


@pytest.mark.core
def test_every_command_reports_that_the_handler_is_down(shop):
    event_id = publish(shop, "first")
    publish(shop, "second", "2")
    relay(shop)
    consumer = spawn(shop, "--http", REFUSED)
    wait_for(lambda: row(shop)[0] == 2 and row(shop)[1] >= 1, what="the open breaker in the store")

    scope = scope_of(shop)
    assert (scope["waiting"], scope["missing"], scope["stuck"]) == (2, 0, 0)
    state = while_open(shop, lambda: trace_state(shop, event_id))
    assert REFUSED in state["text"] and "since" in state["text"] and "next try in" in state["text"]
    assert f"billing: {state['text'].partition(' since')[0]}" in while_open(shop, lambda: shop.ok("trace", event_id))
    (finding,) = while_open(shop, lambda: findings(shop, "consumers"))
    assert finding["gravity"] == "problem" and REFUSED in finding["text"]
    top = while_open(shop, lambda: shop.ok("top"))
    assert f"not consuming: billing: no answer from {REFUSED}" in top and "\nready\n" not in top
    (subscription,) = shop.json("top")["subscriptions"]
    assert (subscription["lag"], subscription["consumers"]) == (2, 1)
    assert subscription["breaker"] in (1, 2), "open, or half-open during a probe"
    shop.stop(consumer)


@pytest.mark.slow
def test_every_command_reports_that_the_subscription_is_paused(shop):
    deliver(shop, ("first", "1"))
    shop.ok("subscriptions", "pause", "billing")
    consumer = spawn(shop, "--exec", "true")
    wait_for(lambda: row(shop)[2], what="the pause in the store")
    event_id = publish(shop, "second")
    relay(shop)
    scope = scope_of(shop, "--wait", "11s")
    assert (scope["waiting"], scope["missing"]) == (1, 0)
    state = trace_state(shop, event_id)
    assert "paused" in state["text"] and state["command"] == "semel subscriptions resume billing"
    (finding,) = findings(shop, "consumers")
    assert "paused" in finding["text"] and finding["do"] == "semel subscriptions resume billing"
    assert "paused" in shop.ok("top")
    (subscription,) = shop.json("subscriptions", "list")
    assert (subscription["paused"], subscription["consumers"]) == (True, 1)
    shop.ok("subscriptions", "resume", "billing")
    wait_for(lambda: trace_state(shop, event_id)["state"] == "done", what="the event")
    shop.stop(consumer)


def test_every_command_reports_that_no_consumer_runs(shop):
    deliver(shop, ("first", "1"))
    (finding,) = findings(shop, "consumers")
    assert finding["gravity"] == "advice" and "no consumer is running" in finding["text"]
    event_id = publish(shop, "second")
    assert shop.json("trace", event_id)["verdicts"][0]["state"] == "unpublished"
    relay(shop)
    assert trace_state(shop, event_id)["text"] == "waiting, no consumer is running"
    (finding,) = findings(shop, "consumers")
    assert finding["gravity"] == "problem"
    assert "no consumer" in shop.ok("top")


def test_trace_ends_with_the_state_of_the_event(shop):
    bad, second = deliver(shop, ("bad", "1"), ("second", "1"))
    (letter,) = shop.json("dlq", "list")
    state = trace_state(shop, bad)
    assert (state["state"], state["command"]) == ("dead", f"semel dlq show {letter['dlqEntryId']}")
    assert trace_state(shop, second)["text"].startswith(f"parked behind {bad}")
    shop.sql("DELETE FROM semel_hold")
    assert (trace_state(shop, second)["state"], trace_state(shop, second)["command"]) == ("stuck", "semel repair")
    (finding,) = findings(shop, "stuck")
    assert (finding["gravity"], finding["do"]) == ("problem", "semel repair")
    shop.ok("repair")
    assert findings(shop, "stuck") == []
    shop.ok("dlq", "discard", letter["dlqEntryId"])
    assert trace_state(shop, bad)["state"] == "discarded"
    mend(shop)
    consume(shop)
    assert trace_state(shop, second)["state"] == "done"


@pytest.mark.only("local")
def test_a_subscription_to_a_topic_without_events_gets_a_hint(shop):
    deliver(shop, ("first", "1"))
    done = shop.run("consume", "--scope", "audit", "--topic", "ordr.events", "--exec", "true", "--drain")
    assert done.returncode == 0 and "did you mean order.events?" in done.stderr
    (finding,) = findings(shop, "topics")
    assert finding["do"] == "did you mean --topic order.events?"


@pytest.mark.only("local")
def test_doctor_reports_events_of_an_unread_topic(shop):
    deliver(shop, ("first", "1"))
    assert findings(shop, "topics") == []
    publish(shop, "second", "2", "--topic", "ordr.events")
    relay(shop)
    (finding,) = findings(shop, "topics")
    assert finding["gravity"] == "problem" and "did the producer mean order.events?" in finding["do"]
