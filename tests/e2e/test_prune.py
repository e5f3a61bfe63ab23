# SPDX-License-Identifier: Apache-2.0
"""prune: deletes what is older than its retention, never in an order that could cause an effect twice."""
import json

import pytest

from mix import BROKER, shifted, stop_refusing
from story import consume, deliver, mend, prepare, publish, words

pytestmark = pytest.mark.anywhere

KEPT = 3 if BROKER == "local" else 0  # of three events, at the broker; a server has a retention of its own
OLD = ("--time", "2020-01-01T00:00:00Z")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def config(semel, retention):
    (semel.folder / "semel.yaml").write_text(f"retention: {retention}\n")
    return ("--config", "semel.yaml")


def age(semel, days=40):
    """Makes all rows so many days older."""
    semel.sql(stop_refusing("semel_outbox_immutable", "semel_outbox"))
    shift = f"-{days} days"
    semel.sql(f"UPDATE semel_outbox SET created_at = {shifted('created_at')}, committed_at = {shifted('committed_at')}",
              shift, shift)
    semel.sql(f"UPDATE semel_inbox SET week_start = {shifted('week_start', 'day')}, first_seen_at = {shifted('first_seen_at')},"
              f" processed_at = {shifted('processed_at')}", shift, shift, shift)
    semel.sql(f"UPDATE semel_dead_letter SET failed_at = {shifted('failed_at')},"
              f" event_time = {shifted('event_time')}", shift, shift)
    if BROKER == "local":
        semel.sql("UPDATE semel_log SET appended_at = appended_at - ? * 86400000", days, database=semel.broker)


def test_what_is_young_stays(shop):
    deliver(shop, ("first", "1"))
    counts = shop.json("prune")
    assert {name: counts[name] for name in ("outbox", "inbox", "deadLetters", "broker")} == {
        "outbox": 0, "inbox": 0, "deadLetters": 0, "broker": 0}
    assert len(shop.sql("SELECT * FROM semel_outbox")) == 1


@pytest.mark.core
def test_what_is_old_goes_from_every_table(shop):
    deliver(shop, ("first", "1"), ("second", "2"), ("bad", "3"))
    age(shop)
    dry = shop.json("prune", "--dry-run")
    assert (dry["outbox"], dry["inbox"], dry["deadLetters"], dry["broker"], dry["dryRun"]) == (3, 2, 1, KEPT, True)
    assert shop.ok("prune", "--dry-run").startswith("would prune 3 events")
    assert len(shop.sql("SELECT * FROM semel_outbox")) == 3
    counts = shop.json("prune")
    assert (counts["outbox"], counts["inbox"], counts["deadLetters"], counts["broker"]) == (3, 2, 1, KEPT)
    for table in ("semel_outbox", "semel_dead_letter"):
        assert shop.sql(f"SELECT count(*) FROM {table}") == [(0,)]
    assert shop.sql("SELECT status, error_code FROM semel_inbox") == [("FAILED", "dead-letter-pruned")]
    assert shop.json("prune")["inbox"] == 1
    assert BROKER != "local" or shop.backend.log() == []


def test_verify_accepts_what_was_pruned(shop):
    deliver(shop, ("first", "1"), ("second", "2"))
    age(shop, days=20)
    assert shop.json("prune")["outbox"] == 2
    deliver(shop, ("third", "1"))
    report = shop.json("verify")
    assert report["prunedUntil"] is not None
    assert (report["committed"], report["scopes"][0]["orphaned"]) == (1, 0)


def test_verify_and_trace_know_of_a_dead_letter_that_was_pruned(shop):
    first, _ = deliver(shop, ("bad", "1"), ("second", "2"))
    age(shop, days=8)
    assert shop.json("prune")["deadLetters"] == 1
    assert (shop.json("verify")["scopes"][0]["discarded"], shop.json("verify")["ok"]) == (1, True)
    assert "dead-letter-pruned" in shop.ok("trace", first)


def test_an_event_whose_dead_letter_was_pruned_can_be_brought_back(shop):
    deliver(shop, ("bad", "1"))
    age(shop, days=8)
    assert shop.json("prune")["deadLetters"] == 1
    mend(shop)
    shop.ok("replay", "--scope", "billing")
    consume(shop)
    assert words(shop) == []  # a plain replay never runs again what was given up
    shop.ok("replay", "--scope", "billing", "--reprocess")
    consume(shop)
    consume(shop)
    assert words(shop) == ["bad"]
    assert shop.json("verify")["scopes"][0]["processed"] == 1


def test_an_event_that_was_not_published_stays(shop):
    publish(shop, "waits", "1", *OLD)
    shop.ok("prune")
    assert len(shop.sql("SELECT * FROM semel_outbox")) == 1


def test_an_event_of_long_ago_that_was_committed_just_now_stays(shop):
    event_id = publish(shop, "late", "1", *OLD)
    shop.ok("relay", "--drain")
    consume(shop)
    assert shop.json("prune", "--dry-run")["outbox"] == 0
    assert shop.json("prune")["outbox"] == 0
    ((committed,),) = shop.sql(f"SELECT committed_at FROM semel_outbox WHERE id = '{event_id}'")
    assert str(committed) > "2026"
    (fact,) = [fact for fact in shop.json("trace", event_id)["facts"] if fact["what"] == "committed"]
    assert fact["time"] > "2026"
    age(shop, days=20)  # since it was committed
    assert shop.json("prune")["outbox"] == 1
    shop.ok("verify")


def test_a_retention_of_the_inbox_below_that_of_the_outbox_is_refused(shop):
    deliver(shop, ("first", "1"))
    complaint = shop.fails(78, *config(shop, "{ outbox: 14d, inbox: 7d }"), "prune")
    assert "7d" in complaint and "14d" in complaint and "retention.inbox" in complaint
    assert "14d" in shop.fails(78, *config(shop, "{ inbox: 2d }"), "prune", "--dry-run")


def test_the_config_file_sets_the_retention(shop):
    deliver(shop, ("first", "1"))
    age(shop, days=3)
    assert shop.json(*config(shop, "{ outbox: 5d }"), "prune")["outbox"] == 0
    assert shop.json(*config(shop, "{ outbox: 2d }"), "prune")["outbox"] == 1


def test_what_was_pruned_is_not_replayed(shop):
    """Their claims are gone, and the events with them."""
    deliver(shop, ("first", "1"))
    age(shop)
    shop.ok(*config(shop, "{ outbox: 1d, inbox: 1d }"), "prune")
    assert shop.sql("SELECT count(*) FROM semel_outbox") == [(0,)]
    assert shop.ok("replay") == "replayed 0 events\n"


def test_many_rows_are_deleted_in_steps(shop):
    lines = "".join(json.dumps({"type": "t", "aggregateType": "order", "aggregateId": str(each), "payload": {"word": "x"}})
                    + "\n" for each in range(3000))
    shop.ok("publish", "--batch", input=lines)
    shop.ok("relay", "--drain")
    consume(shop)
    age(shop)
    counts = shop.json("prune")
    assert (counts["outbox"], counts["inbox"]) == (3000, 3000)
    assert len(words(shop)) == 3000


@pytest.mark.only("sqlite")
def test_claims_with_zero_bytes_in_their_ids_do_not_make_prune_loop(shop):
    """Other programs write claims too. There are more than one step deletes, and as C strings all are equal."""
    shop.sql("WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)"
             " INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, topic)"
             " SELECT 'billing', 'a' || char(0) || i, '2026-11-09', 'PROCESSED', '2026-11-09T00:00:00.000Z', 'order.events' FROM n")
    assert shop.json("prune", timeout=20)["inbox"] == 0
    assert shop.sql("SELECT count(*) FROM semel_inbox") == [(6000,)]
