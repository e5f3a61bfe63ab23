# SPDX-License-Identifier: Apache-2.0
"""An event that cannot be processed or published holds back its own aggregate only, is kept, and is replayed in
order. (What an operator does with dead letters is in test_dlq.py.)"""
import pytest

from mix import FAILURE, fail_when, refuse_when
from story import HANDLER, consume, deliver, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

QUICK = ("--immediate", "1", "--first-delay", "50ms", "--delay-max", "100ms")


def flaky(good, until=None):
    """Fails before that attempt; until: also before that other word is done."""
    early = f":attempt < {good}"
    if until:
        early = f"({early} OR NOT EXISTS (SELECT 1 FROM effect WHERE word = '{until}'))"
    return fail_when(f"{early} AND json_extract(:payload, '$.word') = 'flaky'")



@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def consume_words(*more):
    return ("consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"), *more)


def letters(semel, *more):
    return semel.json("dlq", "list", *more)


def replay_all(semel):
    mend(semel)
    semel.ok("dlq", "replay", "--all")


# ---- park-key -----------------------------------------------------------------------------------


@pytest.mark.core
def test_by_default_followers_wait_and_others_do_not(shop):
    deliver(shop, ("a1", "a"), ("bad", "a"), ("a3", "a"), ("b1", "b"), ("a4", "a"), ("b2", "b"))
    assert sorted(words(shop)) == ["a1", "b1", "b2"]
    (letter,) = letters(shop)
    assert (letter["parked"], letter["status"]) == (2, "PENDING")
    replay_all(shop)
    consume(shop)
    assert words(shop)[-3:] == ["bad", "a3", "a4"]


def test_followers_that_come_later_are_parked_behind_the_others(shop):
    deliver(shop, ("bad", "a"), ("a2", "a"))
    deliver(shop, ("a3", "a"), ("b1", "b"))
    assert words(shop) == ["b1"]
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    deliver(shop, ("a4", "a"))
    assert words(shop) == ["b1", "bad", "a2", "a3", "a4"]


def test_a_drain_does_not_wait_for_parked_followers_and_the_count_leaves_them_out(shop):
    deliver(shop, ("bad", "a"), ("a2", "a"), ("a3", "a"))
    consume(shop)
    assert shop.ok("dlq", "count") == "1\n"


def test_a_follower_that_is_poison_itself_holds_back_the_rest(shop):
    deliver(shop, ("bad", "a"), ("bad", "a"), ("a3", "a"))
    (first,) = letters(shop)
    shop.ok("dlq", "discard", first["dlqEntryId"])
    consume(shop)
    assert words(shop) == []
    (second,) = letters(shop, "--status", "PENDING")
    assert second["originalEventId"] != first["originalEventId"]
    assert second["parked"] == 1
    replay_all(shop)
    consume(shop)
    assert words(shop) == ["bad", "a3"]


@pytest.mark.core
def test_each_scope_has_an_outcome_of_its_own(shop):
    mend(shop)
    shop.sql(refuse_when("NEW.word = 'bad' AND NEW.scope = 'billing'", "the word is bad"))
    deliver(shop, ("bad", "a"), ("a2", "a"))
    consume(shop, "audit")
    assert words(shop) == []
    assert words(shop, "audit") == ["bad", "a2"]
    replay_all(shop)
    consume(shop)
    consume(shop, "audit")
    assert words(shop) == words(shop, "audit") == ["bad", "a2"]


# ---- block and skip -----------------------------------------------------------------------------


def test_a_drain_does_not_end_before_the_head_of_a_blocked_aggregate_is_discarded(shop):
    for word, aggregate in (("bad", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        publish(shop, word, aggregate)
    relay(shop)
    shop.drain_times_out(*consume_words("--poison", "block"), expected=["2 blocked", "semel dlq list"])
    assert words(shop) == ["b1"]
    shop.ok("dlq", "discard", letters(shop)[0]["dlqEntryId"])
    consume(shop, "billing", "--poison", "block")
    assert words(shop) == ["b1", "a2", "a3"]


@pytest.mark.core
def test_a_blocked_aggregate_goes_on_after_the_replay(shop):
    for word in ("bad", "a2"):
        publish(shop, word, "a")
    relay(shop)
    shop.drain_times_out(*consume_words("--poison", "block"), expected=["1 blocked"])
    replay_all(shop)
    consume(shop, "billing", "--poison", "block")
    assert words(shop) == ["bad", "a2"]


def test_with_skip_the_followers_go_on_and_the_replay_comes_after_them(shop):
    for word, aggregate in (("a1", "a"), ("bad", "a"), ("a3", "a")):
        publish(shop, word, aggregate)
    relay(shop)
    consume(shop, "billing", "--poison", "skip")
    assert words(shop) == ["a1", "a3"]
    replay_all(shop)
    consume(shop, "billing", "--poison", "skip")
    assert words(shop) == ["a1", "a3", "bad"]


# ---- retries ------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("settings", [(), ("--poison", "block"), ("--batch", "1")])
def test_an_event_under_retry_holds_back_its_own_aggregate_only(shop, settings):
    for word, aggregate in (("flaky", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        publish(shop, word, aggregate)
    relay(shop)
    counts = shop.json(*consume_words(*QUICK, *settings, "--attempts", "1000", "--sql", flaky(4, until="b1"), "--drain"))
    assert words(shop) == ["b1", "flaky", "a2", "a3"]
    assert (counts["done"], counts["dead"]) == (4, 0) and counts["retried"] >= 3


def test_without_order_the_rest_of_the_aggregate_does_not_wait(shop):
    for word in ("flaky", "a2"):
        publish(shop, word, "a")
    relay(shop)
    consume(shop, "billing", *QUICK, "--poison", "skip", "--sql", flaky(3))
    assert words(shop) == ["a2", "flaky"]


def test_the_limit_counts_runs_and_the_last_error_is_reported(shop):
    publish(shop, "flaky", "a")
    publish(shop, "a2", "a")
    relay(shop)
    consume(shop, "billing", *QUICK, "--attempts", "3", "--sql", flaky(100))
    (letter,) = letters(shop)
    assert (letter["attempts"], letter["parked"]) == (3, 1)
    assert FAILURE in letter["failureReason"]


def test_a_follower_may_fail_for_a_while_too(shop):
    deliver(shop, ("bad", "a"), ("flaky", "a"), ("a3", "a"))
    replay_all(shop)
    consume(shop, "billing", *QUICK, "--sql", flaky(4))
    assert words(shop) == ["bad", "flaky", "a3"]
    assert shop.ok("dlq", "count") == "0\n"


def test_a_follower_that_is_given_up_is_a_dead_letter(shop):
    deliver(shop, ("bad", "a"), ("flaky", "a"), ("a3", "a"))
    replay_all(shop)
    consume(shop, "billing", *QUICK, "--attempts", "2", "--sql", flaky(100))
    assert words(shop) == ["bad"]
    (letter,) = letters(shop, "--status", "PENDING")
    assert (letter["attempts"], letter["parked"]) == (2, 1)


EACH = """
import json, os, sys
word = json.load(sys.stdin)["word"]
if word == "flaky" and "b1" not in open("seen").read():
    sys.exit(75)
open("seen", "a").write(word + "\\n")
"""
ALL = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    word = event["payload"]["word"]
    again = word == "flaky" and "b1" not in open("seen").read()
    if not again:
        open("seen", "a").write(word + "\\n")
    print(json.dumps({"id": event["id"], "verdict": "retry" if again else "done"}), flush=True)
"""


@pytest.mark.core
@pytest.mark.parametrize("handler, program", [("--exec", EACH), ("--pipe", ALL)], ids=["exec", "pipe"])
def test_programs_under_retry_hold_back_their_own_aggregate_only(shop, handler, program):
    """The first event of a fails until the other aggregate is done, so that one must not wait."""
    for word, aggregate in (("flaky", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")):
        publish(shop, word, aggregate)
    relay(shop)
    (shop.folder / "seen").touch()
    (shop.folder / "program.py").write_text(program)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", handler, "/usr/bin/python3 -B program.py", "--drain",
            "--attempts", "1000", *QUICK)
    assert (shop.folder / "seen").read_text().split() == ["b1", "flaky", "a2", "a3"]


# ---- at the relay -------------------------------------------------------------------------------


def status_of(semel):
    return dict(semel.sql("SELECT json_extract(payload, '$.word'), status FROM semel_outbox"))


@pytest.mark.only("local")
def test_an_event_that_is_too_large_is_given_up_at_once_and_holds_back_only_its_aggregate(shop):
    small = ("--broker", "local:semel-broker.db?max-message=100")
    publish(shop, "x" * 200, "a")
    publish(shop, "a2", "a")
    publish(shop, "b1", "b")
    assert shop.json(*small, "relay", "--drain") == {"published": 1}
    consume(shop)
    assert words(shop) == ["b1"]
    (letter,) = letters(shop)
    assert (letter["sourceService"], letter["attempts"]) == ("relay", 1)
    assert "max-message=100" in letter["failureReason"]
    assert status_of(shop) == {"x" * 200: "FAILED", "a2": "NEW", "b1": "PUBLISHED"}
    shop.ok("verify")

    publish(shop, "a3", "a")
    relay(shop)  # the broker takes larger ones now, but no operator has decided
    assert status_of(shop)["a3"] == "NEW"
    shop.ok("dlq", "replay", "--all")
    relay(shop)
    consume(shop)
    assert words(shop) == ["b1", "x" * 200, "a2", "a3"]
    assert letters(shop)[0]["status"] == "REPLAYED"
    shop.ok("verify")


@pytest.mark.only("local")
def test_a_discarded_event_of_the_relay_releases_the_others(shop):
    publish(shop, "x" * 200, "a")
    publish(shop, "a2", "a")
    shop.ok("--broker", "local:semel-broker.db?max-message=100", "relay", "--drain")
    shop.ok("dlq", "discard", letters(shop)[0]["dlqEntryId"])
    relay(shop)
    consume(shop)
    assert words(shop) == ["a2"]
    shop.ok("verify")


FULL = ("--broker", "local:semel-broker.db?max-length=2")
SHORT = ("--first-delay", "20ms", "--delay-max", "50ms")


@pytest.mark.only("local")
def test_a_full_topic_costs_attempts_until_the_limit_is_reached(shop):
    for word in ("a1", "a2", "a3", "a4"):
        publish(shop, word, "a")
    assert shop.json(*FULL, "relay", "--drain", "--attempts", "3", *SHORT) == {"published": 2}
    (letter,) = letters(shop)
    assert (letter["sourceService"], letter["attempts"], letter["eventRecord"]["payload"]) == ("relay", 3, {"word": "a3"})
    assert "full" in letter["failureReason"]
    assert shop.sql("SELECT attempts, last_error IS NOT NULL FROM semel_outbox WHERE status = 'FAILED'") == [(3, 1)]
    shop.ok("verify")
    consume(shop)
    shop.ok("dlq", "replay", "--all")
    relay(shop)
    consume(shop)
    assert words(shop) == ["a1", "a2", "a3", "a4"]


@pytest.mark.only("local")
def test_a_refused_event_comes_again_when_there_is_room_and_nothing_overtakes_it(shop):
    for number in (1, 2, 3):
        for aggregate in "abc":
            publish(shop, f"{aggregate}{number}", aggregate)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--sql", "SELECT 1", "--drain")
    with open(shop.folder / "relay.log", "w", encoding="utf-8") as log:  # a line for each refusal, more than a pipe holds
        child = shop.spawn(*FULL, "relay", "--drain", *SHORT, "--attempts", "1000", stderr=log)
    while child.poll() is None:
        consume(shop)
    consume(shop)
    assert child.returncode == 0
    seen = words(shop)
    assert len(seen) == 9
    for aggregate in "abc":
        assert [word for word in seen if word[0] == aggregate] == [f"{aggregate}{n}" for n in (1, 2, 3)]


@pytest.mark.only("local")
def test_a_drain_does_not_end_while_an_event_is_refused(shop):
    for word in ("a1", "a2", "a3"):
        publish(shop, word, "a")
    shop.drain_times_out(*FULL, "relay", "--first-delay", "1h", "--delay-max", "1h", expected=["1 retrying", "full"])


@pytest.mark.only("local")
def test_a_relay_that_blocks_reports_why_it_is_not_drained(shop):
    publish(shop, "x" * 200, "a")
    publish(shop, "a2", "a")
    small = ("--broker", "local:semel-broker.db?max-message=100")
    shop.drain_times_out(*small, "relay", "--poison", "block", expected=["1 blocked behind a dead letter"])
    shop.ok("dlq", "discard", letters(shop)[0]["dlqEntryId"])
    relay(shop, "--poison", "block")
    assert status_of(shop)["a2"] == "PUBLISHED"


@pytest.mark.only("local")
def test_a_relay_that_skips_publishes_the_others(shop):
    publish(shop, "x" * 200, "a")
    publish(shop, "a2", "a")
    shop.ok("--broker", "local:semel-broker.db?max-message=100", "relay", "--drain", "--poison", "skip")
    consume(shop)
    assert words(shop) == ["a2"]
    assert letters(shop)[0]["status"] == "PENDING"


@pytest.mark.only("local")
def test_the_replay_limit_holds_at_the_relay_too(shop):
    publish(shop, "x" * 200, "a")
    small = ("--broker", "local:semel-broker.db?max-message=100")
    shop.ok(*small, "relay", "--drain")
    entry_id = letters(shop)[0]["dlqEntryId"]
    for number in (1, 2, 3):
        shop.ok("dlq", "replay", entry_id)
        shop.ok(*small, "relay", "--drain")
        (letter,) = letters(shop)
        assert (letter["dlqEntryId"], letter["status"], letter["replayCount"]) == (entry_id, "PENDING", number)
    assert "limit" in shop.fails(65, "dlq", "replay", entry_id)
    shop.ok("dlq", "discard", entry_id)
