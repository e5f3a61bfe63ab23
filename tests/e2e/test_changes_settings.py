# SPDX-License-Identifier: Apache-2.0
"""Settings of a subscription that change between two starts, with events in every state at that moment. Nothing is lost,
processed twice, left unread or overtaken, or the change is refused with what to do first; verify is correct meanwhile."""
import json
import os
import signal

import pytest
from mix import BROKER, fail_when
from program import wait_for
from story import HANDLER, mend, prepare, publish, words

pytestmark = [pytest.mark.anywhere]

ONE = ("--broker", "local:semel-broker.db?partitions=1") if BROKER == "local" else ()
QUICK = ("--immediate", "1", "--first-delay", "50ms", "--delay-max", "100ms")
SLOW = ("--immediate", "1", "--first-delay", "1s", "--delay-max", "1s", "--attempts", "9")
TOTAL = ("--order", "total", "--poison", "block")
FLAKY = fail_when("json_extract(:payload, '$.word') = 'flaky'")
ONE_PARTITION = pytest.mark.unless("kafka", reason="a new topic has several partitions there, and a total order needs one")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def consumer(*more):
    return (*ONE, "consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"), *more)


def drain(shop, *more):
    return shop.json(*consumer("--drain", *more))


def caller(script, *more):
    return (*ONE, "consume", "--scope", "billing", "--topic", "order.events", "--exec", script, *more)


def published(shop, *pairs, more=()):
    ids = [publish(shop, word, aggregate, *more) for word, aggregate in pairs]
    shop.ok(*ONE, "relay", "--drain")
    return ids


def verify(shop, code=0, *more):
    done = shop.run(*ONE, "verify", "--json", *more)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)["scopes"][0]


def fail_for_now(shop, *more):
    """The event "flaky" is under retry when this consumer has ended."""
    child = shop.spawn(*consumer(*SLOW, "--sql", FLAKY, *more))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_hold"), what="an event under retry")
    assert shop.stop(child) == 0


def killed_in_a_call(shop, *more):
    """Its claim stays, and it is unknown whether the call was made."""
    child = shop.spawn(*caller("cat > in-call; exec sleep 100", *more))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_inbox WHERE status = 'CLAIMED'"), what="a claim")
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def called(shop):
    path = shop.folder / "calls"
    return sorted(json.loads(line)["word"] for line in path.read_text().splitlines()) if path.exists() else []


CALL = "cat >> calls; echo >> calls"

# ---- order --------------------------------------------------------------------------------------


@ONE_PARTITION
@pytest.mark.core
@pytest.mark.parametrize("head", ["flaky", "bad"])
def test_an_order_that_no_longer_is_total_waits_for_what_the_topic_holds(shop, head):
    published(shop, (head, "a"))
    published(shop, ("b1", "b"), ("a2", "a"))
    fail_for_now(shop, *TOTAL)
    complaint = shop.fails(78, *consumer("--drain", *QUICK))
    assert "--order total" in complaint and "dlq list" in complaint
    assert words(shop) == []
    mend(shop)
    if head == "bad":
        shop.ok("dlq", "replay", "--all")
    drain(shop, *TOTAL, *QUICK)
    published(shop, ("b2", "b"))
    drain(shop)
    assert sorted(words(shop)) == sorted([head, "b1", "a2", "b2"]) and words(shop).index(head) < words(shop).index("a2")
    verify(shop)


@ONE_PARTITION
def test_a_total_order_waits_for_what_aggregates_hold(shop):
    published(shop, ("bad", "a"), ("a2", "a"), ("b1", "b"))
    drain(shop)
    published(shop, ("flaky", "c"), ("a3", "a"))
    complaint = shop.fails(78, *consumer("--drain", *TOTAL))
    assert "--order aggregate" in complaint and "dlq list" in complaint
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    drain(shop)
    drain(shop, *TOTAL)
    assert [word for word in words(shop) if word in ("bad", "a2", "a3")] == ["bad", "a2", "a3"]
    verify(shop)


@pytest.mark.slow
@ONE_PARTITION
def test_a_standby_consumer_of_another_order_does_not_overtake_held_events(shop):
    standby = shop.spawn(*consumer(*QUICK))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_consumer"), what="a consumer")
    shop.freeze(standby)
    shop.backend.broker.expire_consumers()
    published(shop, ("flaky", "a"), ("a2", "a"))
    fail_for_now(shop, *TOTAL, "--lease", "500ms")
    standby.send_signal(signal.SIGCONT)
    assert standby.wait(60) == 78, shop.outputs()
    assert words(shop) == []
    drain(shop, *TOTAL, *QUICK)
    assert words(shop) == ["flaky", "a2"]


def test_strict_and_aggregate_order_may_alternate(shop):
    published(shop, ("bad", "a"), ("a2", "a"), ("flaky", "b"), ("b2", "b"))
    fail_for_now(shop, "--order", "strict")
    published(shop, ("a3", "a"), ("b3", "b"))
    drain(shop, *QUICK)
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    drain(shop, *QUICK, "--order", "strict")
    assert [word for word in words(shop) if word[0] != "b" or word == "bad"] == ["flaky", "bad", "a2", "a3"]
    assert [word for word in words(shop) if word in ("flaky", "b2", "b3")] == ["flaky", "b2", "b3"]
    verify(shop)


# ---- guarantee, claims, kinds of handlers -------------------------------------------------------


@pytest.mark.parametrize("how, runs", [
    ("--guarantee at-most-once", False), ("--claim separate", False), ("--guarantee at-least-once", True), ("", True)])
def test_a_call_of_a_dead_consumer_is_repeated_only_where_the_new_guarantee_allows_it(shop, how, runs):
    published(shop, ("first", "a"), ("second", "a"))
    killed_in_a_call(shop)
    published(shop, ("third", "b"))
    shop.ok(*caller(CALL, "--drain", *how.split()))
    assert called(shop) == (["first", "second", "third"] if runs else ["third"])
    report = verify(shop)
    if not runs:
        assert (report["pending"], report["parked"]) == (1, 1)
        (letter,) = shop.json("dlq", "list")
        assert "in doubt" in letter["failureReason"]
        shop.ok("dlq", "replay", "--all")
        shop.ok(*caller(CALL, "--drain", *how.split()))
        assert called(shop) == ["first", "second", "third"]
        verify(shop)


@pytest.mark.parametrize("how, runs", [("", True), ("--claim separate", False)])
def test_statements_take_over_the_claims_that_a_program_has_left(shop, how, runs):
    published(shop, ("first", "a"))
    killed_in_a_call(shop)
    published(shop, ("second", "b"))
    drain(shop, *how.split())
    assert sorted(words(shop)) == (["first", "second"] if runs else ["second"])
    assert verify(shop)["pending"] == (0 if runs else 1)


@pytest.mark.core
def test_a_guarantee_that_keeps_no_claims_settles_what_others_hold(shop):
    published(shop, ("bad", "a"), ("a2", "a"), ("flaky", "b"), ("b2", "b"))
    fail_for_now(shop)
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    drain(shop, *QUICK, "--guarantee", "at-least-once")
    assert sorted(words(shop)) == ["a2", "b2", "bad", "flaky"]
    assert shop.sql("SELECT count(*) FROM semel_hold") == [(0,)]
    drain(shop)
    assert len(words(shop)) == 4
    verify(shop)


def test_an_event_that_was_known_by_its_id_is_known_by_its_business_key_too(shop):
    by_key = ("--dedup-by", "header:key")
    published(shop, ("first", "1"), more=("--header", "key=k1"))
    drain(shop)
    published(shop, ("second", "2"), more=("--header", "key=k2"))
    shop.ok(*ONE, "replay", "--scope", "billing")
    drain(shop, *by_key)
    assert words(shop) == ["first", "second"]
    shop.ok(*ONE, "replay", "--scope", "billing")
    drain(shop)
    assert words(shop) == ["first", "second"]
    verify(shop)


# ---- poison policy, attempts --------------------------------------------------------------------


@pytest.mark.parametrize("before, after", [("park-key", "skip"), ("park-key", "block"), ("block", "park-key"), ("skip", "park-key")])
def test_another_poison_policy_finds_what_the_last_one_has_left(shop, before, after):
    published(shop, ("bad", "a"), ("a2", "a"), ("flaky", "b"), ("b2", "b"))
    child = shop.spawn(*consumer(*SLOW, "--sql", FLAKY, "--poison", before))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_dead_letter WHERE parked_behind IS NULL"), what="a dead letter")
    assert shop.stop(child) == 0
    published(shop, ("a3", "a"), ("b3", "b"))
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    drain(shop, *QUICK, "--poison", after)
    order = [word for word in words(shop) if word in ("bad", "a2", "a3")]
    assert order == ["bad", "a2", "a3"] if before != "skip" else sorted(order) == ["a2", "a3", "bad"]
    assert sorted(words(shop)) == ["a2", "a3", "b2", "b3", "bad", "flaky"]
    verify(shop)


def test_fewer_attempts_than_an_event_has_had_give_it_up_at_its_next_failure(shop):
    published(shop, ("flaky", "a"), ("a2", "a"))
    child = shop.spawn(*consumer(*QUICK, "--attempts", "1000", "--sql", FLAKY))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_hold WHERE attempts > 3"), what="several runs")
    assert shop.stop(child) == 0
    assert drain(shop, *QUICK, "--attempts", "2", "--sql", FLAKY)["dead"] == 1
    report = verify(shop)
    assert (report["pending"], report["parked"]) == (1, 1)


@pytest.mark.slow
def test_consumers_of_other_settings_share_a_scope_and_every_effect_is_there_once(shop):
    """As in a rolling deployment: claims, holds and dead letters are in the store, and mean the same to both."""
    earlier = ("--poison", "skip", "--claim", "separate", "--attempts", "2", "--batch", "3")
    later = ("--order", "strict", "--delay-max", "100ms", "--first-delay", "50ms")
    children = [shop.spawn(*consumer(*more)[len(ONE):], "--lease", "500ms") for more in (earlier, later)]
    pairs = [("bad" if number % 10 == 3 else f"{number}", str(number % 8)) for number in range(40)]
    for word, aggregate in pairs:
        publish(shop, word, aggregate)
    shop.ok("relay", "--drain")
    wait_for(lambda: shop.sql("SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM semel_dead_letter)") == [(40,)],
             what="all that is not dead or parked")
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    wait_for(lambda: len(words(shop)) == 40, what="every effect")
    for child in children:
        assert shop.stop(child) == 0
    assert sorted(words(shop)) == sorted(word for word, _ in pairs)
    shop.ok("verify")


# ---- topics and scopes --------------------------------------------------------------------------


@pytest.mark.core
def test_an_event_under_retry_of_a_topic_that_is_no_longer_read_is_reported_and_read_again(shop):
    shop.subscribe("billing", topic="payment.events")
    both = ("--topic", "payment.events")
    drain(shop, *both)
    (head,) = published(shop, ("flaky", "a"), more=both)
    fail_for_now(shop, *both)
    published(shop, ("a2", "a"), ("b1", "b"))
    shop.drain_times_out(*consumer(), expected=["1 held behind a retry, a gap or earlier events"])
    assert words(shop) == ["b1"]
    report = verify(shop, 1)
    assert (report["unread"], report["unreadIds"]) == (1, [head])
    assert "--topic payment.events" in shop.run(*ONE, "verify").stdout
    drain(shop, *both, *QUICK)
    assert words(shop) == ["b1", "flaky", "a2"]
    verify(shop)


def test_a_renamed_scope_is_reported_as_one_without_a_consumer(shop):
    published(shop, ("first", "a"))
    drain(shop)
    published(shop, ("second", "a"))
    shop.ok(*ONE, "consume", "--scope", "audit", "--topic", "order.events", "--sql", HANDLER.format(scope="audit"), "--drain")
    assert "second" in words(shop, "audit")
    done = shop.run(*ONE, "doctor")
    assert "billing: no consumer is running; waiting: 1" in done.stdout, done.stdout
    drain(shop)
    assert words(shop) == ["first", "second"]


@pytest.mark.only("local")
def test_another_number_of_partitions_of_a_file_is_refused(shop):
    wide = ("--broker", "local:semel-broker.db?partitions=8")
    published(shop, ("a1", "a"), ("b1", "b"))
    drain(shop)
    publish(shop, "a2", "a")
    for command in (("relay", "--drain"), consumer("--drain")[len(ONE):]):
        assert "has 1 partitions" in shop.fails(78, *wide, *command)
    shop.ok("relay", "--drain")
    shop.ok(*consumer("--partitions", "8", "--drain")[len(ONE):])
    assert words(shop) == ["a1", "b1", "a2"]
    verify(shop)
