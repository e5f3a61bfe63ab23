# SPDX-License-Identifier: Apache-2.0
"""replay: retained events are published again with their ids, and no effect happens twice unless requested."""
import json
import time

import pytest

from mix import url_of
from program import wait_for
from story import consume, deliver, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

THREE = (("first", "1"), ("second", "2"), ("third", "1"))


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.backend.witness("order.events")
    return semel


def test_a_replay_is_skipped_by_scopes_that_have_the_events(shop):
    deliver(shop, *THREE)
    assert shop.ok("replay") == "replayed 3 events\n"
    consume(shop)
    assert sorted(words(shop)) == ["first", "second", "third"]
    shop.ok("verify")


@pytest.mark.core
def test_reprocessing_rebuilds_a_projection(shop):
    deliver(shop, *THREE)
    consume(shop, "audit")
    shop.sql("DELETE FROM effect WHERE scope = 'audit'")
    assert shop.ok("replay", "--scope", "audit", "--reprocess") == "replayed 3 events to audit\n"
    consume(shop, "audit")
    consume(shop)
    assert sorted(words(shop, "audit")) == ["first", "second", "third"]
    assert words(shop).count("first") == 1
    ordered = [word for word in words(shop, "audit") if word != "second"]
    assert ordered == ["first", "third"]
    shop.ok("verify")


def test_a_scope_skips_what_it_has_without_reprocess(shop):
    deliver(shop, *THREE)
    assert shop.ok("replay", "--scope", "billing") == "replayed 3 events to billing\n"
    consume(shop)
    assert len(words(shop)) == 3


def test_the_selection(shop):
    deliver(shop, *THREE)
    shop.publish(type="order.paid.v1", aggregate="order:1")
    relay(shop)
    chosen = lambda *more: shop.json("replay", "--dry-run", *more)["chosen"]
    assert chosen() == 4
    assert chosen("--type", "order.paid.v1") == 1
    assert chosen("--aggregate", "order:2") == 1
    assert chosen("--aggregate", "order:1", "--type", "order.created.v1") == 2
    assert chosen("--since", "2000-01-01") == 4
    assert chosen("--until", "2000-01-01T00:00:00Z") == 0
    assert chosen("--max", "3") == 3
    created = [row[0] for row in shop.sql("SELECT created_at FROM semel_outbox ORDER BY seq")]
    assert chosen("--since", created[-1]) >= 1
    assert chosen("--until", created[0]) == 0


def test_a_dry_run_only_counts(shop):
    deliver(shop, *THREE)
    assert shop.ok("replay", "--dry-run", "--max", "2") == "would replay 2 events, of 3 that match\n"
    assert shop.json("replay", "--dry-run")["replayed"] == 0
    assert len(shop.backend.log()) == 3


def test_ids_and_payloads_stay_the_same(shop):
    ids = deliver(shop, *THREE)
    shop.ok("replay")
    rows = shop.backend.log()
    assert len(rows) == 6 and len(set(rows)) == 3
    assert {row[0] for row in rows} == set(ids)


def test_events_whose_claims_may_have_been_pruned_are_refused(shop):
    publish(shop, "old", "1", "--time", "2020-01-01T00:00:00Z")
    deliver(shop, *THREE)
    complaint = shop.fails(65, "replay")
    assert "1 of 4" in complaint and "2020-01-01" in complaint and "--force" in complaint
    assert len(shop.backend.log()) == 4
    assert "refused unless --force is given" in shop.ok("replay", "--dry-run")
    assert shop.ok("replay", "--since", "2020-02-01") == "replayed 3 events\n"
    assert shop.ok("replay", "--force") == "replayed 4 events\n"
    consume(shop)
    assert len(words(shop)) == 4


def test_the_configured_window_counts(shop):
    deliver(shop, *THREE)
    (shop.folder / "semel.yaml").write_text("retention: { outbox: 1ms, inbox: 1ms }\n")
    shop.fails(65, "--config", "semel.yaml", "replay")


def test_reprocessing_needs_a_scope(shop):
    assert "--scope" in shop.fails(64, "replay", "--reprocess")


def test_an_unknown_scope_is_refused(shop):
    deliver(shop, *THREE)
    assert "biling" in shop.fails(65, "replay", "--scope", "biling")


def test_reprocessing_behind_a_dead_letter_is_refused(shop):
    deliver(shop, ("first", "1"), ("bad", "1"), ("other", "2"))
    complaint = shop.fails(65, "replay", "--scope", "billing", "--reprocess")
    assert "dlq" in complaint
    shop.ok("replay", "--scope", "billing", "--reprocess", "--aggregate", "order:2")
    consume(shop)
    assert sorted(words(shop)) == ["first", "other", "other"]


@pytest.mark.parametrize("option", [("--since", "yesterday"), ("--until", "2026-02-30"), ("--aggregate", "order"),
                                    ("--aggregate", ":1"), ("--max", "0"), ("--rate", "0"), ("--sinc", "2026-01-01")])
def test_wrong_options_are_usage_errors(shop, option):
    shop.fails(64, "replay", *option)


def test_a_rate_is_kept(shop):
    deliver(shop, *[(f"w{number}", str(number)) for number in range(6)])
    began = time.monotonic()
    assert shop.ok("replay", "--rate", "10") == "replayed 6 events\n"
    assert time.monotonic() - began >= 0.5


def test_a_stopped_replay_succeeds_and_prints_how_far_it_came(shop):
    lines = [{"type": "t.v1", "aggregateType": "order", "aggregateId": str(n), "payload": {"word": "x"}} for n in range(100)]
    shop.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    relay(shop)
    child = shop.spawn("replay", "--rate", "1")
    wait_for(lambda: len(shop.backend.log()) > len(lines))
    assert shop.stop(child) == 0
    out = child.stdout.read()
    assert "stopped" in out and out.startswith("replayed ")


@pytest.mark.core
def test_the_inbox_of_another_database_is_found(shop):
    other = shop.backend.database("audit")
    url = url_of(other)
    shop.ok("--store", url, "init")
    prepare(shop, database=other)
    deliver(shop, *THREE)
    consume(shop, "audit", before=("--store", url))
    shop.fails(65, "replay", "--scope", "audit", "--reprocess")
    shop.ok("replay", "--scope", "audit", "--reprocess", "--consumer-store", url)
    consume(shop, "audit", before=("--store", url))
    assert len(words(shop, "audit", database=other)) == 6
    shop.ok("verify", "--consumer-store", url)


def test_a_scope_is_sent_only_what_it_reads(shop):
    deliver(shop, *THREE)
    shop.subscribe("stock", topic="item.events")
    shop.publish(type="item.added.v1", aggregate="item:1")
    relay(shop)
    assert shop.ok("replay", "--scope", "billing") == "replayed 3 events to billing\n"


@pytest.mark.core
def test_a_replay_that_is_killed_is_run_again(shop):
    deliver(shop, *THREE)
    shop.sql("DELETE FROM effect")
    options = ("replay", "--scope", "billing", "--reprocess", "--rate", "10")
    assert shop.run(*options, env={"SEMEL_FAILPOINT": "replay.after-publish:kill@2"}).returncode == -9
    shop.ok(*options)
    consume(shop)
    assert sorted(words(shop)) == ["first", "second", "third"]
    shop.ok("verify")


def test_json_has_the_counts(shop):
    deliver(shop, *THREE)
    counts = json.loads(shop.ok("replay", "--json"))
    assert (counts["matching"], counts["chosen"], counts["replayed"], counts["tooOld"]) == (3, 3, 3, 0)
    assert counts["dryRun"] is False and counts["oldest"].endswith("Z")
