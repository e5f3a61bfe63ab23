# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL database that is restored, renamed or loses a schema or a partition under running relays and consumers."""
import json
import shlex
import signal

import mix
import pytest
from program import wait_for
from story import HANDLER, prepare, publish, words

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"),
              pytest.mark.unless("cdc", reason="the change stream has tests of its own")]


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def consumer(*more):
    return ("consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"),
            "--lease", "500ms", *more)


def start_both(shop):
    relay = shop.spawn("relay", "--lease", "500ms", env={"SEMEL_LOG_LEVEL": "warn"})
    billing = shop.spawn(*consumer(), env={"SEMEL_LOG_LEVEL": "warn"})
    publish(shop, "hello", "0")
    wait_for(lambda: "hello" in words(shop), what="the first effect")
    return relay, billing


def verify(shop, code=0):
    done = shop.run("verify", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def apply_remedy(shop):
    """Runs the command that verify prints for missing events."""
    (command,) = [each["command"] for each in verify(shop, 1)["advice"] if each["problem"] == "missing"]
    return shop.ok(*shlex.split(command)[1:])


def name_of(shop):
    return shop.store.rpartition("/")[2].partition("?")[0]


class NoConnections:
    """Closes the connections of the database, and refuses new ones meanwhile."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        mix.run_autocommit(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS false")
        mix.run_autocommit(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{self.name}'")
        wait_for(self.is_unused, what="a database without connections")

    def is_unused(self):
        import psycopg2

        try:
            mix.run_autocommit(f"ALTER DATABASE {self.name} RENAME TO {self.name}_unused")
            mix.run_autocommit(f"ALTER DATABASE {self.name}_unused RENAME TO {self.name}")
            return True
        except psycopg2.errors.ObjectInUse:
            return False

    def __exit__(self, *_):
        mix.run_autocommit(f"ALTER DATABASE {self.name} ALLOW_CONNECTIONS true")


def is_published(shop, event):
    return shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", event)


def stop(shop, *children):
    for child in children:
        assert shop.stop(child) == 0, shop.outputs()


def test_a_database_that_is_restored_to_an_earlier_time_has_every_effect_once(shop):
    name = name_of(shop)
    relay, billing = start_both(shop)
    shop.freeze(billing)
    undone = publish(shop, "undone", "1")
    wait_for(lambda: is_published(shop, undone), what="its mark")
    with NoConnections(name):
        mix.run_autocommit(f"CREATE DATABASE {name}_backup TEMPLATE {name}")
    billing.send_signal(signal.SIGCONT)
    wait_for(lambda: "undone" in words(shop), what="an effect")
    publish(shop, "gone", "1")  # with its business change, and its number
    wait_for(lambda: "gone" in words(shop), what="an effect")
    with NoConnections(name):
        mix.run_autocommit(f"ALTER DATABASE {name} RENAME TO {name}_old")
        mix.run_autocommit(f"ALTER DATABASE {name}_backup RENAME TO {name}")
    mix.run_autocommit(f"DROP DATABASE {name}_old")
    assert words(shop) == ["hello"]
    publish(shop, "second", "2")
    publish(shop, "third", "1")
    wait_for(lambda: {"second", "third"} <= set(words(shop)), what="events whose numbers were used before")
    stop(shop, relay, billing)
    (scope,) = verify(shop, 1)["scopes"]
    assert scope["missingIds"] == [undone]
    apply_remedy(shop)
    shop.ok(*consumer("--drain"))
    assert sorted(words(shop)) == ["hello", "second", "third", "undone"]
    verify(shop)


def test_a_database_that_is_renamed_is_waited_for(shop):
    name = name_of(shop)
    relay, billing = start_both(shop)
    with NoConnections(name):
        mix.run_autocommit(f"ALTER DATABASE {name} RENAME TO {name}_old")
        done = shop.run("doctor")
        mix.run_autocommit(f"ALTER DATABASE {name}_old RENAME TO {name}")
    assert done.returncode == 1 and "does not exist" in done.stdout
    publish(shop, "second", "0")
    wait_for(lambda: "second" in words(shop), what="an event")
    stop(shop, relay, billing)
    verify(shop)


def test_a_renamed_schema_ends_relay_and_consumer_with_the_remedy(shop):
    relay, billing = start_both(shop)
    shop.sql("ALTER SCHEMA public RENAME TO elsewhere")
    for child in (relay, billing):
        assert child.wait(60) == 78
        assert "semel --store URL init" in child.stderr.read()
    assert shop.run("doctor").returncode == 1
    shop.sql("ALTER SCHEMA elsewhere RENAME TO public")
    publish(shop, "second", "0")
    shop.ok("relay", "--drain")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["hello", "second"]
    verify(shop)


def test_a_dropped_weekly_inbox_partition_stops_no_consumer_and_a_dropped_default_partition_is_reported(shop):
    relay, billing = start_both(shop)
    tables = [name for (name,) in shop.sql("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'semel_inbox'::regclass")]
    for name in tables:
        if name != "semel_inbox_other":
            shop.sql(f"DROP TABLE {name}")
    publish(shop, "second", "1")
    wait_for(lambda: "second" in words(shop), what="an event whose week has no partition")
    shop.sql("DROP TABLE semel_inbox_other")
    publish(shop, "third", "1")
    assert billing.wait(60) == 78
    assert "PARTITION OF semel_inbox DEFAULT" in billing.stderr.read()
    shop.sql("CREATE TABLE semel_inbox_other PARTITION OF semel_inbox DEFAULT")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["hello", "second", "third"]
    assert shop.json("dlq", "list") == []
    stop(shop, relay)


@pytest.mark.parametrize("micros", [0, 500, 600])
def test_an_event_is_recovered_whatever_the_microseconds_of_its_time(shop, micros):
    """Its time is printed in whole milliseconds, and the command that verify prints starts there."""
    shop.ok(*consumer("--drain"))
    shop.sql("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload, created_at) VALUES"
             " ('order', '1', 'order.created.v1', '{\"word\": \"lost\"}', date_trunc('seconds', now()) - interval '1 hour'"
             " + ? * interval '1 microsecond')", 5000 + micros)
    ((lost,),) = shop.sql("UPDATE semel_outbox SET status = 'PUBLISHED' RETURNING id")  # but it was never published
    (scope,) = verify(shop, 1)["scopes"]
    assert scope["missingIds"] == [lost]
    apply_remedy(shop)
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["lost"]
    verify(shop)
