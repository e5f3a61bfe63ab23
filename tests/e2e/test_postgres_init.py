# SPDX-License-Identifier: Apache-2.0
"""`semel init` on PostgreSQL: many at once, under load, with a table in the way, and from every released version."""
import re
import subprocess
import threading
from datetime import datetime, timezone
from pathlib import Path

import mix
import postgres_server
import pytest
from program import TREE, wait_for

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
# A release leaves the tables that it made here, with some rows in them: pg_dump --schema=public.
RELEASED = TREE / "tests" / "schemas" / "postgres"


def released():
    """The versions that the changelog names, but for the one that is not out yet."""
    headings = re.findall(r"^## (\d+\.\d+\.\d+)(.*)$", Path(TREE, "CHANGELOG.md").read_text(), re.M)
    return [version for version, rest in headings if "unreleased" not in rest]


def test_every_release_has_left_its_tables():
    assert [version for version in released() if not (RELEASED / f"{version}.sql").exists()] == []


def test_the_tables_of_every_release_are_brought_up_to_date(bare):
    for version in released():
        bare.sql("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        bare.sql((RELEASED / f"{version}.sql").read_text())
        bare.ok("init")
        bare.ok("relay", "--drain")
        bare.ok("verify")


def this_week():
    """By its Monday, 00:00 UTC."""
    return datetime.now(timezone.utc).isocalendar()[:2]


def test_many_at_once_make_the_tables_once(bare):
    begun = this_week()
    children = [bare.spawn("init") for _ in range(4)]
    assert [child.wait(60) for child in children] == [0, 0, 0, 0]
    assert bare.sql("SELECT count(*) FROM semel_schema") == bare.sql("SELECT max(version) FROM semel_schema")
    assert bare.sql("SELECT count(*) FROM semel_lease") == [(16,)]
    ((weeks,),) = bare.sql("SELECT count(*) FROM pg_inherits WHERE inhparent = 'semel_inbox'::regclass")
    assert weeks == 8 or (weeks == 9 and this_week() != begun)  # seven, and the one for all others


class Writer(threading.Thread):
    """An application that publishes, one commit after the other, until it is stopped."""

    def __init__(self, database, name):
        super().__init__(daemon=True)
        self.database, self.aggregate = database, name
        self.stopped, self.ids, self.error = threading.Event(), [], None

    def run(self):
        connection = mix.connect(self.database)
        try:
            while not self.stopped.is_set():
                row = connection.execute("SELECT semel_publish('order.created.v1', 'order', ?, '{}')",
                                         (self.aggregate,)).fetchone()
                connection.commit()
                self.ids.append(row[0])
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
        finally:
            connection.close()


def test_under_load_no_process_fails_and_nothing_is_lost(semel):
    semel.sql("CREATE TABLE invoice (id text)")
    relay = semel.spawn("relay")
    consumer = semel.spawn("consume", "--scope", "billing", "--topic", "order.events", "--sql", "INSERT INTO invoice VALUES (:id)")
    writers = [Writer(semel.store, f"o{number}") for number in range(3)]
    for writer in writers:
        writer.start()
    wait_for(lambda: all(writer.ids for writer in writers), 60)
    for _ in range(3):
        children = [semel.spawn("init") for _ in range(2)]
        assert [child.wait(60) for child in children] == [0, 0]
    for writer in writers:
        writer.stopped.set()
        writer.join(60)
    assert [writer.error for writer in writers] == [None] * 3
    ids = sorted(event_id for writer in writers for event_id in writer.ids)
    wait_for(lambda: semel.sql("SELECT count(*) FROM invoice") == [(len(ids),)], 60)
    assert sorted(row[0] for row in semel.sql("SELECT id FROM invoice")) == ids
    assert relay.poll() is None and consumer.poll() is None


def test_a_table_in_the_way_is_named_and_nothing_is_left_half_done(bare):
    bare.sql("CREATE TABLE semel_hold (mine int)")
    done = bare.run("init")
    assert done.returncode != 0 and "semel_hold" in done.stderr
    assert bare.sql("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'semel%'") == [(1,)]
    bare.sql("DROP TABLE semel_hold")
    bare.ok("init")


def test_a_search_path_without_a_schema_is_reported_as_such(bare):
    path = f"{bare.store}{'&' if '?' in bare.store else '?'}options=-csearch_path%3Dnot_there"
    assert "CREATE SCHEMA" in bare.fails(78, "--store", path, "init")


def test_tables_of_a_newer_program_are_left_alone(semel):
    semel.sql("INSERT INTO semel_schema SELECT max(version) + 1, now() FROM semel_schema")
    for words in (("init",), ("relay", "--drain"), ("verify",)):
        assert "upgrade" in semel.fails(78, *words)


def test_a_sequence_that_stayed_behind_its_rows_is_brought_up_and_the_events_flow(semel):
    """As on a copy by logical replication, which has the rows and not the numbers."""
    for number in range(5):
        semel.publish(aggregate=f"order:{number}")
    semel.ok("relay", "--drain")
    semel.sql("SELECT setval('semel_outbox_seq', 1, false)")
    semel.ok("init")
    semel.publish(aggregate="order:6")
    semel.ok("relay", "--drain")
    assert semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(6,)]


def test_a_dump_that_is_restored_elsewhere_goes_on_where_it_was(semel):
    first, second = semel.publish(), semel.publish()
    semel.ok("relay", "--drain")
    waiting = semel.publish()
    copy = semel.backend.database("copy")
    tools, plain = postgres_server.binaries(), {"check": True, "capture_output": True}
    dump = subprocess.run([tools / "pg_dump", "--clean", "--if-exists", str(semel.store)], **plain)
    subprocess.run([tools / "psql", "-q", "-v", "ON_ERROR_STOP=1", str(copy)], input=dump.stdout, **plain)
    assert "published 1 event" in semel.ok("relay", "--drain", env={"SEMEL_STORE": str(copy)})
    assert sorted(mix.ask(copy, "SELECT id FROM semel_outbox WHERE status = 'PUBLISHED'")) == sorted(
        (event_id,) for event_id in (first, second, waiting))
