# SPDX-License-Identifier: Apache-2.0
"""Actions of an operator on events in every state: the store decides what may run, whichever copy arrives."""
import sqlite3

import pytest
from story import consume, deliver, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def letters(shop, *more):
    return shop.json("dlq", "list", *more)


def letter_of(shop, event_id):
    (found,) = [letter for letter in letters(shop, "--limit", "100") if letter["originalEventId"] == event_id]
    return found


@pytest.mark.core
def test_a_discarded_event_that_is_replayed_behind_a_dead_one_does_not_block_its_aggregate(shop):
    first = deliver(shop, ("bad", "1"))[0]
    shop.ok("dlq", "discard", letter_of(shop, first)["dlqEntryId"])
    second = deliver(shop, ("bad", "1"))[0]
    shop.ok("replay", "--aggregate", "order:1", "--max", "1")
    consume(shop)
    shop.ok("dlq", "discard", letter_of(shop, second)["dlqEntryId"])
    deliver(shop, ("third", "1"))
    assert words(shop) == ["third"]
    assert shop.sql("SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NOT NULL") == [(0,)]
    shop.ok("verify")


@pytest.mark.core
@pytest.mark.parametrize("options", [(), ("--type", "order.created.v1"), ("--scope", "billing")])
def test_a_plain_replay_does_not_run_an_event_in_doubt(shop, options):
    """A payment whose consumer died after its effect: it may have been made."""
    publish(shop, "pay")
    relay(shop)
    payments = shop.folder / "payments"
    pay = ("consume", "--scope", "billing", "--topic", "order.events", "--claim", "separate",
           "--exec", f"echo paid >> {payments}", "--drain")
    shop.run(*pay, env={"SEMEL_FAILPOINT": "consume.after-effect:kill@1"})
    shop.ok(*pay)
    assert "in doubt" in letters(shop)[0]["failureReason"]
    shop.ok("replay", *options)
    shop.ok(*pay)
    assert payments.read_text().splitlines() == ["paid"]
    assert letters(shop)[0]["status"] == "PENDING"
    shop.ok("dlq", "replay", letters(shop)[0]["dlqEntryId"])
    shop.ok(*pay)
    assert payments.read_text().splitlines() == ["paid", "paid"]  # the operator replayed it
    shop.ok("verify")


@pytest.mark.parametrize("poison", ["park-key", "skip", "block"])
def test_a_plain_replay_leaves_what_is_dead_or_discarded(shop, poison):
    policy = ("--poison", poison)
    dead = deliver(shop, ("bad", "1"), more=policy)[0]
    discarded = deliver(shop, ("bad", "2"), more=policy)[0]
    shop.ok("dlq", "discard", letter_of(shop, discarded)["dlqEntryId"])
    mend(shop)
    shop.ok("replay")
    consume(shop, "billing", *policy)
    assert words(shop) == []
    assert letter_of(shop, dead)["status"] == "PENDING"
    assert letter_of(shop, discarded)["status"] == "DISCARDED"


def test_reprocess_runs_again_what_is_dead_and_what_was_discarded(shop):
    deliver(shop, ("bad", "1"), more=("--poison", "skip"))
    discarded = deliver(shop, ("bad", "2"), more=("--poison", "skip"))[0]
    shop.ok("dlq", "discard", letter_of(shop, discarded)["dlqEntryId"])
    mend(shop)
    shop.ok("replay", "--scope", "billing", "--reprocess")
    consume(shop, "billing", "--poison", "skip")
    assert words(shop) == ["bad", "bad"]
    assert {letter["status"] for letter in letters(shop)} == {"REPLAYED"}
    shop.ok("verify")


@pytest.mark.core
def test_of_eight_concurrent_replays_one_succeeds(shop):
    deliver(shop, ("bad", "1"))
    mend(shop)
    entry_id = letters(shop)[0]["dlqEntryId"]
    children = [shop.spawn("dlq", "replay", entry_id, env={"SEMEL_FAILPOINT": "dlq.after-publish:pause=200"})
                for _ in range(8)]
    assert sorted(child.wait(60) for child in children) == [0] + [65] * 7
    consume(shop)
    assert words(shop) == ["bad"]
    assert (letters(shop)[0]["status"], letters(shop)[0]["replayCount"]) == ("REPLAYED", 1)


def test_a_replay_for_a_held_aggregate_is_parked_and_not_stuck(shop):
    first = deliver(shop, ("bad", "1"), more=("--poison", "skip"))[0]
    second = deliver(shop, ("bad", "1"))[0]
    mend(shop)
    shop.ok("dlq", "replay", letter_of(shop, first)["dlqEntryId"])
    consume(shop)
    assert words(shop) == []
    (state,) = [one for one in shop.json("trace", first)["verdicts"] if one["scope"] == "billing"]
    assert state["state"] == "parked" and second in state["text"]
    shop.ok("verify")
    shop.ok("dlq", "discard", letter_of(shop, second)["dlqEntryId"])
    consume(shop)
    assert words(shop) == ["bad"]
    assert letter_of(shop, first)["status"] == "REPLAYED"
    shop.ok("verify")


@pytest.mark.only("local")
def test_any_copy_of_an_event_completes_a_replay_whose_own_copy_is_lost(shop):
    deliver(shop, ("bad", "1"), ("second", "1"))
    mend(shop)
    shop.ok("dlq", "replay", letters(shop)[0]["dlqEntryId"])
    broker = sqlite3.connect(shop.broker, timeout=30)
    assert broker.execute("DELETE FROM semel_delayed").rowcount == 1
    broker.commit()
    broker.close()
    shop.ok("replay", "--aggregate", "order:1", "--max", "1", "--scope", "billing")
    consume(shop)
    assert words(shop) == ["bad", "second"]
    shop.ok("verify")
