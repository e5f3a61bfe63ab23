# SPDX-License-Identifier: Apache-2.0
"""`semel init` on tables of an earlier version, with rows in them: what they say stays true."""
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
    """A database as the version before has made it."""
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


def bury(shop, entry, scope, status, moved):
    shop.sql(
        "INSERT INTO semel_dead_letter (entry_id, scope, event_id, failed_at, status, moved_at)"
        f" VALUES ('{entry}', '{scope}', '{entry}', '{T}', '{status}', {moved})"
    )


def test_a_replay_of_the_version_before_is_settled_where_it_is_known_to_be(old):
    moved = "'2026-11-11T10:00:00.000Z'"
    for entry in ("done", "lost", "failed"):
        bury(old, entry, "billing", "REPLAYED", moved)
    bury(old, "pending", "billing", "PENDING", "NULL")
    bury(old, "thrown", "billing", "DISCARDED", moved)
    bury(old, "free", "audit", "REPLAYED", moved)
    bury(old, "out", "relay", "REPLAYED", moved)
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
