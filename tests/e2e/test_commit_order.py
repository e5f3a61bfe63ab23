# SPDX-License-Identifier: Apache-2.0
"""Transactions that commit in another order than they drew their numbers: what the change stream keeps, what polling keeps
with commit times (track_commit_timestamp), and without. An exception holds what was committed after it."""
import json

import mix
import pytest
from sandbox import Sandbox
from postgres_server import Postgres
from program import wait_for
from stream import TIMEOUT_S, Stream

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
ROWS = ("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
        " SELECT 'order', ?, 'order.changed.v1', n::text FROM generate_series(?, ?) AS n")
QUERY = "WITH s AS MATERIALIZED (SELECT o.seq, o.status"  # beyond a batch, as the server logs it
REFUSED_ONCE = {"SEMEL_FAILPOINT": "relay.before-publish:error@1"}


@pytest.fixture(scope="module")
def clock():
    """A server that keeps commit times."""
    with Sandbox() as sandbox:
        yield Postgres(sandbox, settings={"track_commit_timestamp": "on"}).create()


@pytest.fixture
def timed(bare, clock):
    name = f"t{len(clock.psql('SELECT datname FROM pg_database').split())}"
    clock.psql(f"CREATE DATABASE {name}")
    bare.backend.store = bare.store = mix.Database(clock.url(name))
    bare.ok("init")
    bare.subscribe("x")
    bare.backend.witness("order.events")
    return bare


@pytest.fixture
def plain(semel):
    semel.backend.witness("order.events")
    return semel


def insert(semel, first, last=None, aggregate="a", connection=None):
    """Draws numbers; without a connection it commits them, too."""
    mine = connection or mix.connect(semel.store)
    mine.execute(ROWS, (aggregate, first, last or first))
    if not connection:
        mine.commit()
        mine.close()
    return mine


def begin(semel, first, last=None, aggregate="a"):
    return insert(semel, first, last, aggregate, mix.connect(semel.store))


def end(connection):
    connection.commit()
    connection.close()


def arrived(semel, aggregate="a"):
    printed = semel.ok("consume", "--scope", "x", "--topic", "order.events", "--print", "--drain", "--timeout", f"{TIMEOUT_S}s",
                       "--guarantee", "at-least-once", timeout=120)
    events = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return [int(event["payload"]) for event in events if event["aggregateId"] == aggregate]


def wait_for_exceptions(semel, count):
    wait_for(lambda: semel.sql("SELECT count(*) FROM semel_outbox_exception")[0][0] == count, TIMEOUT_S, f"{count} exceptions")


def wait_until_published(semel):
    wait_for(lambda: semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'")[0][0] == 0, TIMEOUT_S, "all are published")


def order_of(semel):
    found = json.loads(semel.run("doctor", "--json").stdout)["findings"]
    return next(finding for finding in found if finding["check"] == "store-order")


# ---- commits ------------------------------------------------------------------------------------


def crossed(semel):
    """The first draws its number first, and commits last: it waits for the second one's lock."""
    first = begin(semel, 1)
    insert(semel, 2)
    end(first)
    insert(semel, 3)


def test_polling_keeps_the_order_of_commits_where_the_server_keeps_their_times(timed):
    crossed(timed)
    timed.ok("relay", "--drain")
    assert arrived(timed) == [2, 1, 3]
    assert "in commit order" in order_of(timed)["text"]


def test_polling_keeps_the_order_of_numbers_where_it_does_not(plain):
    crossed(plain)
    plain.ok("relay", "--drain", "--source", "poll")
    assert arrived(plain) == [1, 2, 3]
    assert "in sequence order" in order_of(plain)["text"]


def test_what_was_read_earlier_is_published_earlier_whatever_its_number(plain):
    relay = plain.spawn("relay", "--source", "poll")
    first = begin(plain, 1)
    insert(plain, 2)
    wait_for(lambda: plain.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(1,)], TIMEOUT_S)
    end(first)
    wait_until_published(plain)
    plain.stop(relay)
    assert arrived(plain) == [2, 1]
    plain.sql("UPDATE semel_outbox SET published_at = published_at + interval '1 s' WHERE payload = '1'")
    assert "lock the aggregate's row before you publish" in order_of(plain)["do"]


def test_an_earlier_commit_beyond_the_end_of_a_batch_goes_first(timed):
    """One that was open for long, with far more numbers behind it than a batch has, of its own aggregate and of another."""
    late = begin(timed, 1, 3)
    late_too = begin(timed, 1, 60, aggregate="b")
    for number in range(10, 210, 25):
        insert(timed, number, number + 24)
        insert(timed, number, number + 24, aggregate="b")
    end(late)
    end(late_too)
    insert(timed, 300)
    timed.ok("relay", "--drain", "--window", "32")
    assert arrived(timed) == [*range(10, 210), 1, 2, 3, 300]
    order = [int(payload) for _, aggregate, payload in timed.backend.log() if aggregate == "b"]
    assert order == [*range(10, 210), *range(1, 61)]


def test_rows_beyond_the_batches_of_one_large_transaction_are_not_queried_per_batch(timed, clock):
    """Its commit is later than all of its rows were written: without the commit bound, each batch would query all the rest."""
    clock.psql(f"ALTER DATABASE {timed.sql('SELECT current_database()')[0][0]} SET log_statement = 'all'")
    insert(timed, 1, 1000)
    timed.ok("relay", "--drain", "--window", "32")
    assert 0 < clock.log.read_text(errors="replace").count(QUERY) < 10
    assert arrived(timed) == [*range(1, 1001)]


def test_rows_of_savepoints_keep_the_order_of_commits(timed):
    first = begin(timed, 1)
    first.execute("SAVEPOINT s")
    insert(timed, 2, connection=first)
    first.execute("RELEASE SAVEPOINT s")
    insert(timed, 3)
    insert(timed, 4, connection=first)
    end(first)
    timed.ok("relay", "--drain")
    assert arrived(timed) == [3, 1, 2, 4]


# ---- exceptions ----------------------------------------------------------------------------------


def test_under_cdc_an_exception_holds_what_was_committed_after_it_whatever_its_number(plain):
    stream = Stream(plain)
    stream.init()
    with stream.ended():
        relay = stream.start("--first-delay", "3s", env=REFUSED_ONCE)
        stream.wait_until_read()
        first = begin(plain, 1)
        insert(plain, 2)
        wait_for_exceptions(plain, 1)
        end(first)
        wait_for_exceptions(plain, 2)
        insert(plain, 3)
        wait_until_published(plain)
        assert plain.stop(relay) == 0
    assert arrived(plain) == [2, 1, 3]
    assert plain.sql("SELECT count(*) FROM semel_outbox_exception") == [(0,)]


def test_under_polling_with_commit_times_an_exception_holds_what_was_committed_after_it(timed):
    relay = timed.spawn("relay", "--first-delay", "3s", "--lease", "20s", env=REFUSED_ONCE)
    first = begin(timed, 1)
    insert(timed, 2)
    wait_for_exceptions(timed, 1)
    end(first)
    wait_for_exceptions(timed, 2)
    insert(timed, 3)
    wait_until_published(timed)
    assert timed.stop(relay) == 0
    assert arrived(timed) == [2, 1, 3]


def test_dead_letters_keep_the_order_of_commits_when_they_are_replayed(plain):
    stream = Stream(plain)
    stream.init()
    with stream.ended():
        relay = stream.start("--attempts", "1", env=REFUSED_ONCE)
        stream.wait_until_read()
        first = begin(plain, 1)
        insert(plain, 2)
        wait_for_exceptions(plain, 1)
        end(first)
        insert(plain, 3)
        wait_for_exceptions(plain, 3)
        plain.ok("dlq", "replay", "--all")
        wait_until_published(plain)
        assert plain.stop(relay) == 0
    assert arrived(plain) == [2, 1, 3]
