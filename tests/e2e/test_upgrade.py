# SPDX-License-Identifier: Apache-2.0
"""`semel init` on tables of an earlier version, with rows in them: their contents stay valid."""
import sqlite3

import mix
import pytest
from program import TREE

pytestmark = pytest.mark.anywhere
BEFORE = {"sqlite": 2, "postgres": 5}  # the versions before the states of an event had a table
T = "2026-11-10T10:00:00.000Z"


def run_script(shop, script):
    if mix.STORE != "sqlite":
        shop.sql(script)
        return
    connection = sqlite3.connect(shop.store)
    connection.executescript(script)
    connection.close()


@pytest.fixture
def old(bare):
    """A database as an earlier version made it."""
    engine = mix.STORE
    files = sorted((TREE / "src" / "store" / engine / "schema").glob("0*.sql"))[: BEFORE[engine]]
    for version, file in enumerate(files, 1):
        run_script(bare, file.read_text())
        run_script(bare, f"INSERT INTO semel_schema (version, applied_at) VALUES ({version}, '{T}')")
    return bare


def upgrade(shop):
    children = [shop.spawn("init") for _ in range(2)]
    assert [child.wait(60) for child in children] == [0, 0]
    shop.ok("init")


def add_dead_letter(shop, entry, scope, status, moved):
    shop.sql(
        "INSERT INTO semel_dead_letter (entry_id, scope, event_id, failed_at, status, moved_at)"
        f" VALUES ('{entry}', '{scope}', '{entry}', '{T}', '{status}', {moved})"
    )


def test_a_replay_of_the_version_before_is_settled_where_it_is_known_to_be(old):
    moved = "'2026-11-11T10:00:00.000Z'"
    for entry in ("done", "lost", "failed"):
        add_dead_letter(old, entry, "billing", "REPLAYED", moved)
    add_dead_letter(old, "pending", "billing", "PENDING", "NULL")
    add_dead_letter(old, "discarded", "billing", "DISCARDED", moved)
    add_dead_letter(old, "free", "audit", "REPLAYED", moved)
    add_dead_letter(old, "out", "relay", "REPLAYED", moved)
    old.sql(
        "INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, topic) VALUES"
        f" ('billing', 'done', '2026-11-09', 'PROCESSED', '{T}', 't'),"
        f" ('billing', 'failed', '2026-11-09', 'FAILED', '{T}', 't')"
    )
    old.sql(
        "INSERT INTO semel_subscription (scope, topics, guarantee, since) VALUES"
        f" ('billing', '[]', 'effectively-once', '{T}'), ('audit', '[]', 'at-least-once', '{T}')"
    )
    upgrade(old)
    settled = old.sql("SELECT entry_id FROM semel_dead_letter WHERE settled_at IS NOT NULL ORDER BY entry_id")
    assert settled == [("done",), ("free",), ("out",)]
    assert old.sql("SELECT count(*) FROM semel_dead_letter WHERE settled_at = moved_at") == [(3,)]


def write(shop, name, created):
    shop.sql("INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, created_at)"
             f" VALUES ('{name}', 'order', '1', 'order.created.v1', '{{}}', '{created}')")


def last_number(shop):
    ((number,),) = shop.sql("SELECT max(seq) FROM semel_outbox")
    return number


def test_rows_of_the_version_before_count_as_committed_at_their_own_time(old):
    for name, created in (("old", "2020-01-01T00:00:00.000Z"), ("future", "2999-01-01T00:00:00.000Z"), ("gone", T)):
        write(old, name, created)
    numbers = old.sql("SELECT id, seq FROM semel_outbox WHERE id <> 'gone' ORDER BY seq")
    last = last_number(old)
    old.sql("UPDATE semel_outbox SET status = 'PUBLISHED'")
    old.sql("DELETE FROM semel_outbox WHERE id = 'gone'")
    upgrade(old)
    assert old.sql("SELECT id, seq FROM semel_outbox ORDER BY seq") == numbers
    assert old.json("prune", "--dry-run")["outbox"] == 1
    (fact,) = [fact for fact in old.json("trace", "old")["facts"] if fact["what"] == "committed"]
    assert fact["time"].startswith("2020-01-01")
    (fact,) = [fact for fact in old.json("trace", "future")["facts"] if fact["what"] == "committed"]
    assert fact["time"] < "2900"
    write(old, "next", "2020-01-01T00:00:00.000Z")
    assert last_number(old) > last  # a number is never used twice
    assert old.json("prune")["outbox"] == 1
    assert [row[0] for row in old.sql("SELECT id FROM semel_outbox ORDER BY seq")] == ["future", "next"]


@pytest.mark.only("sqlite")
def test_a_trigger_of_the_application_that_publishes_still_does_after_the_upgrade(old):
    old.sql("CREATE TABLE orders (id TEXT)")
    old.sql("CREATE TRIGGER publish_order AFTER INSERT ON orders BEGIN INSERT INTO semel_outbox (aggregate_type, aggregate_id,"
            " event_type, payload) VALUES ('order', NEW.id, 'order.created.v1', '{}'); END")
    upgrade(old)
    old.sql("INSERT INTO orders VALUES ('7')")
    assert old.sql("SELECT aggregate_id FROM semel_outbox") == [("7",)]
    with pytest.raises(sqlite3.DatabaseError):  # what was written does not change
        old.sql("UPDATE semel_outbox SET payload = '[]'")
