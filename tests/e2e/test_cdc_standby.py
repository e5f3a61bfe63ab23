# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL with a synchronous standby, both servers of the tests: the standby can be disconnected and promoted. Oids are
above 2^31, as in an old database."""
import contextlib
import threading

import mix
import pytest
from sandbox import Sandbox
from postgres_server import Postgres
from program import Semel, wait_for
from stream import TIMEOUT_S, Outbox

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]

HIGH_OIDS = "3000000000"
TOPIC = "order.events"


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox() as fresh:
        yield fresh


@pytest.fixture(scope="module")
def primary(sandbox):
    server = Postgres(sandbox, "primary").create()
    server.stop()
    sandbox.run([server.bin / "pg_resetwal", "-o", HIGH_OIDS, server.data], "postgres")
    return server.start()


def outbox_at(folder, address, name, **parameters):
    """A new outbox in an existing database of a server of the tests."""
    semel = Semel(folder)
    more = "".join(f"{'&' if number else '?'}{key}={value}" for number, (key, value) in enumerate(parameters.items()))
    semel.store = semel.backend.store = mix.Database(f"postgres://semel@{address}/{name}{more}")
    semel.ok("init")
    semel.subscribe("x")
    semel.backend.witness(TOPIC)
    outbox = Outbox(semel)
    outbox.slot = name
    outbox.init()
    return outbox


def at_broker(stream):
    return sorted(aggregate for _, aggregate, _ in stream.semel.backend.log())


# ---- one server ------------------------------------------------------------------------------------------


@pytest.fixture
def stream(primary, tmp_path):
    primary.psql("CREATE DATABASE alone")
    stream = outbox_at(tmp_path, f"127.0.0.1:{primary.port}", "alone")
    with stream.ended():
        yield stream
    stream.semel.close()
    primary.psql("DROP DATABASE alone WITH (FORCE)")


def test_a_commit_wakes_the_relay_also_where_oids_are_high(stream):
    assert stream.semel.sql("SELECT 'semel_outbox'::regclass::oid > 2147483648")[0][0]
    with open(stream.semel.folder / "log", "w") as log:
        relay = stream.semel.spawn("relay", "--source", "poll", "--poll", "10m", "--lease", "10m", stderr=log)
    armed = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 1936026988 AND granted"
    wait_for(lambda: stream.semel.sql(armed), TIMEOUT_S, "the armed wakeup")
    stream.insert(1)
    wait_for(lambda: at_broker(stream), TIMEOUT_S, "the event")
    assert stream.semel.stop(relay) == 0
    assert "cannot set up the wakeup" not in (stream.semel.folder / "log").read_text()


def test_without_marks_a_crash_of_the_server_repeats_no_more_than_the_window(stream, primary):
    """A crash resets the slot to what the server last wrote of it; the position that is stored with the low marks is durable."""
    relay = stream.start("--marks", "off", "--window", "500")
    stream.wait_until_read()
    stream.insert(1500)
    wait_for(lambda: len(stream.semel.backend.log()) == 1500, TIMEOUT_S, "the events")
    ((end,),) = stream.semel.sql("SELECT pg_current_wal_insert_lsn()::text")
    wait_for(lambda: stream.semel.sql(f"SELECT position >= '{end}' FROM semel_slot")[0][0], TIMEOUT_S, "all of it is settled")
    primary.kill()
    primary.start()
    stream.insert(1, first=1501)
    wait_for(lambda: stream.semel.backend.log()[-1][2] in ("1501", b"1501"), TIMEOUT_S, "one more")
    assert stream.semel.stop(relay) == 0
    assert len(stream.semel.backend.log()) <= 1501 + 500


# ---- two servers -----------------------------------------------------------------------------------------


class Pair:
    """A primary, and its standby, which commits wait for."""

    def __init__(self, primary):
        self.primary, self.standby = primary, primary.standby()
        self.address = f"127.0.0.1:{primary.port},127.0.0.1:{self.standby.port}"

    def disconnect(self):
        """Stops the replication to the standby."""
        self.conninfo = self.standby.psql("SHOW primary_conninfo")
        self.standby.set("primary_conninfo", None)
        self.standby.psql("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.psql("SELECT pg_reload_conf()")
        wait_for(lambda: self.primary.psql("SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby'") == "0",
                 TIMEOUT_S, "the end of the replication")

    def reconnect(self):
        quoted = self.conninfo.replace("'", "''")
        self.standby.psql(f"ALTER SYSTEM SET primary_conninfo = '{quoted}'")
        self.standby.psql("SELECT pg_reload_conf()")


@pytest.fixture
def pair(primary, tmp_path):
    primary.psql("CREATE DATABASE pair")
    pair = Pair(primary)
    stream = outbox_at(tmp_path, pair.address, "pair", target_session_attrs="read-write", connect_timeout=2)
    pair.stream = stream
    yield pair
    for child in stream.semel.children:
        if child.poll() is None:
            child.kill()
            child.wait()
    stream.semel.close()


class Writer(threading.Thread):
    """Its commit may take long, or never return."""

    def __init__(self, stream, aggregate):
        super().__init__(daemon=True)
        self.stream, self.aggregate, self.committed = stream, aggregate, False

    def run(self):
        connection = mix.connect(self.stream.semel.store)
        with contextlib.suppress(Exception):
            self.stream.insert(1, self.aggregate, 1, connection)
            connection.commit()
            self.committed = True


def wait_until_logged(relay, times):
    """Until the relay has logged this many times that a commit waits."""
    wait_for(lambda: relay.log().count("waits for a synchronous standby") == times, TIMEOUT_S, "the log of a commit that waits")


def write_locally(stream, aggregate):
    """A commit that waits for no standby."""
    connection = mix.connect(stream.semel.store)
    connection.execute("SET synchronous_commit = local")
    stream.insert(1, aggregate, 1, connection)
    connection.commit()
    connection.close()


def test_an_event_is_published_when_its_commit_is_safe_and_never_when_it_is_lost(pair):
    """An event that the standby has not confirmed is not published: once the standby is promoted, it may not exist."""
    stream = pair.stream
    relay = stream.start()
    stream.wait_until_read()
    stream.insert(1, "first")
    wait_for(lambda: at_broker(stream) == ["first"], TIMEOUT_S, "the first event")
    pair.disconnect()
    late = Writer(stream, "late")
    late.start()
    wait_until_logged(relay, 1)
    write_locally(stream, "later")
    assert at_broker(stream) == ["first"] and not late.committed
    wait_for(lambda: "commits wait for a synchronous standby" in stream.semel.run("doctor").stdout, TIMEOUT_S, "the report of doctor")
    pair.reconnect()
    wait_for(lambda: at_broker(stream) == ["first", "late", "later"], TIMEOUT_S, "the events that have waited")
    late.join(TIMEOUT_S)
    assert late.committed
    stream.wait_until_published()
    pair.disconnect()
    ghost = Writer(stream, "ghost")
    ghost.start()
    wait_until_logged(relay, 2)
    assert at_broker(stream) == ["first", "late", "later"]
    pair.primary.kill()
    pair.standby.promote()
    ghost.join(TIMEOUT_S)
    stream.insert(1, "after")
    wait_for(lambda: "after" in at_broker(stream), TIMEOUT_S, "an event of the new primary")
    stream.wait_until_published()
    assert not ghost.committed
    assert stream.semel.sql("SELECT aggregate_id FROM semel_outbox ORDER BY seq") == [("first",), ("late",), ("later",), ("after",)]
    assert set(at_broker(stream)) == {"first", "late", "later", "after"}
    assert stream.semel.stop(relay) == 0
