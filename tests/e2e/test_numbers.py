# SPDX-License-Identifier: Apache-2.0
"""The outbox is emptied, its numbers restart, rows are inserted, changed or deleted by hand: no row that exists is skipped."""
import json

import mix
import pytest
from program import wait_for

pytestmark = [pytest.mark.anywhere]
TIMEOUT_S = 60
POSTGRES = pytest.mark.only("postgres")
COLUMNS = "aggregate_type, aggregate_id, event_type, payload"


def insert(semel, first, count, aggregates=8):
    rows = ", ".join(f"('order', 'a{n % aggregates}', 'order.changed.v1', '{n}')" for n in range(first, first + count))
    semel.sql(f"INSERT INTO semel_outbox ({COLUMNS}) VALUES {rows}")


def published(semel, count):
    wait_for(lambda: semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'")[0][0] == count, TIMEOUT_S,
             f"{count} events are published")


def arrived(semel, scope="x"):
    output = semel.ok("consume", "--scope", scope, "--topic", "order.events", "--print", "--drain", "--timeout", "60s",
                      "--guarantee", "at-least-once", timeout=120)
    return [int(json.loads(line)["payload"]) for line in output.splitlines() if line.startswith("{")]


def empty(semel):
    """As a user does who wants to start again."""
    if mix.STORE == "postgres":
        connection = mix.connect(semel.store)
        connection.execute("SET LOCAL semel.allow_truncate = 'on'")
        connection.execute("TRUNCATE semel_outbox RESTART IDENTITY")
        connection.commit()
        connection.close()
    else:
        semel.sql("DELETE FROM semel_outbox")
        semel.sql("DELETE FROM sqlite_sequence WHERE name = 'semel_outbox'")


@pytest.fixture
def shop(semel):
    semel.backend.witness("order.events")
    return semel


@POSTGRES
def test_tables_that_the_guarantees_depend_on_are_not_emptied_by_mistake(shop):
    insert(shop, 1, 3)
    for table in ("semel_outbox", "semel_inbox", "semel_position", "semel_lease", "semel_dead_letter", "semel_outbox_exception"):
        with pytest.raises(mix.REFUSED, match="must not be truncated") as refusal:
            shop.sql(f"TRUNCATE {table}")
        assert "semel prune" in str(refusal.value) and "semel.allow_truncate" in str(refusal.value)
    with pytest.raises(mix.REFUSED, match="records the version"):
        shop.sql("TRUNCATE semel_schema")
    shop.ok("relay", "--drain")
    assert sorted(arrived(shop)) == [1, 2, 3]


@POSTGRES
def test_all_tables_can_be_emptied_with_allow_truncate_and_everything_works_afterwards(shop):
    insert(shop, 1, 10)
    shop.ok("relay", "--drain")
    connection = mix.connect(shop.store)
    tables = connection.execute("SELECT string_agg(tablename, ', ') FROM pg_tables WHERE schemaname = current_schema()"
                                " AND tablename LIKE 'semel%' AND tablename <> 'semel_schema'").fetchone()[0]
    connection.execute("SET LOCAL semel.allow_truncate = 'on'")
    connection.execute(f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
    connection.commit()
    connection.close()
    insert(shop, 11, 10)
    assert "published 10 events" in shop.run("relay", "--drain", check=True).stdout


@pytest.mark.slow
def test_an_outbox_that_is_emptied_under_a_running_relay_is_read_from_the_first_number(shop):
    relay = shop.spawn("relay", "--lease", "2s")
    insert(shop, 1, 60)
    published(shop, 60)
    empty(shop)
    insert(shop, 101, 200)
    published(shop, 200)
    shop.stop(relay)
    assert set(arrived(shop)) == {*range(1, 61), *range(101, 301)}


@POSTGRES
def test_a_sequence_that_is_restarted_under_a_running_relay_is_detected_whatever_value_it_reaches(shop):
    relay = shop.spawn("relay", "--lease", "2s")
    insert(shop, 1, 60)
    published(shop, 60)
    connection = mix.connect(shop.store)
    connection.execute("DELETE FROM semel_outbox")
    connection.execute("ALTER SEQUENCE semel_outbox_seq RESTART")
    connection.execute(f"INSERT INTO semel_outbox ({COLUMNS}) SELECT 'order', 'a' || n % 8, 'order.changed.v1', n::text"
                       " FROM generate_series(101, 300) AS n")
    connection.commit()
    connection.close()
    published(shop, 200)
    shop.stop(relay)
    assert set(arrived(shop)) == {*range(1, 61), *range(101, 301)}


@pytest.mark.slow
def test_rows_that_are_written_with_numbers_below_the_low_mark_are_found(shop):
    insert(shop, 1, 40)
    shop.ok("relay", "--drain")
    shop.sql("DELETE FROM semel_outbox WHERE seq <= 20")
    for number in (5, 6, 7, 8):
        shop.sql(f"INSERT INTO semel_outbox (seq, {COLUMNS}) VALUES (?, 'order', ?, 'order.changed.v1', ?)",
                 number, f"a{number}", str(100 + number))
    assert "published 4 events" in shop.run("relay", "--drain", check=True).stdout
    relay = shop.spawn("relay", "--lease", "2s")
    insert(shop, 200, 1)
    published(shop, 25)
    shop.sql(f"INSERT INTO semel_outbox (seq, {COLUMNS}) VALUES (9, 'order', 'a9', 'order.changed.v1', '109')")
    published(shop, 26)
    shop.stop(relay)
    assert sorted(arrived(shop)) == [*range(1, 41), 105, 106, 107, 108, 109, 200]


@pytest.mark.parametrize("how", ["DELETE FROM semel_outbox WHERE payload = '1'",
                                 "UPDATE semel_outbox SET status = 'PUBLISHED' WHERE payload = '1'"], ids=["removed", "marked"])
def test_events_behind_one_that_was_settled_by_hand_are_published(shop, how):
    insert(shop, 1, 4, aggregates=1)
    relay = shop.spawn("relay", "--attempts", "1", env={"SEMEL_FAILPOINT": "relay.before-publish:error@1"})
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox_exception")[0][0] == 4, TIMEOUT_S, "one holds three others")
    shop.stop(relay)
    shop.sql(how)
    assert "published 3 events" in shop.run("relay", "--drain", check=True).stdout
    assert arrived(shop) == [2, 3, 4]
