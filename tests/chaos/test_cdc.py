# SPDX-License-Identifier: Apache-2.0
"""Chaos at the replication slot: dropped, lost, set back, grown past its budget, lost with its
machine. The relay logs it, continues by polling, and creates a slot again; nothing is lost or done twice."""
import contextlib
import json
import os
import signal
import subprocess
import threading

import mix
import pytest
from workload import (LEASE, RETRIES, at, workload, check_no_attempts, effects, wait_for_orders, check_books, killed, wait_for_effects, read_log,
                     shop_at, spawn_logged, waiting)
from postgres_server import Postgres
from program import wait_for
from servers import Servers
from shop import TOPIC, write_order

pytestmark = [pytest.mark.only("cdc"), pytest.mark.only("kafka"),
              pytest.mark.unless("kafka-mock", reason="a mock cluster cannot be killed and come back")]

# The walsender's time-out without feedback: so feedback is needed, also while Kafka is down.
SETTINGS = {"wal_sender_timeout": "3s", "max_wal_size": "64MB", "min_wal_size": "32MB"}
BUDGET = ("--slot-budget", str(16 * 1024 * 1024))
SLOT = """SELECT slot_name, active_pid, confirmed_flush_lsn, wal_status, pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)
    FROM pg_replication_slots WHERE database = current_database() AND slot_type = 'logical'"""
# A process that is still creating the slot does not read it.
READER = f"SELECT active_pid FROM ({SLOT}) AS slot JOIN pg_stat_activity ON pid = active_pid AND backend_type = 'walsender'"


@pytest.fixture(scope="module")
def servers(sandbox):
    made = Servers(sandbox, ("kafka",))
    made.postgres = Postgres(sandbox, settings=SETTINGS).create()
    return made


@pytest.fixture
def shop(shop_on_own_servers):
    return shop_on_own_servers


# ---- queries ------------------------------------------------------------------------------------------


def slot(shop):
    """(name, pid of its reader, confirmed, state, bytes kept back), or None"""
    rows = shop.sql(SLOT)
    return rows[0] if rows else None


def kept_back(shop):
    found = slot(shop)
    return found[4] if found else 0


def reader(shop):
    found = shop.sql(READER)
    return found[0][0] if found else None


def streams(shop, timeout=60):
    """Until the slot has a reader; its pid."""
    return wait_for(lambda: reader(shop), timeout, "a reader of the slot")


def drop(shop):
    """As an operator who needs the disk space: disconnects the reader and drops the slot."""
    def is_dropped():
        import psycopg2

        found = slot(shop)
        if not found:
            return True
        name, pid, *_ = found
        try:
            shop.sql("SELECT pg_terminate_backend(?)", pid)
            shop.sql("SELECT pg_drop_replication_slot(?)", name)
            return True
        except psycopg2.Error:
            return False  # it was taken up again in between
    wait_for(is_dropped, 60, "the slot to be dropped")


def write_log(shop, megabytes):
    """Changes to another table, so that the log grows."""
    shop.sql("CREATE TABLE IF NOT EXISTS other (text text)")
    for _ in range(megabytes):
        shop.sql("INSERT INTO other SELECT repeat(md5(random()::text || n), 32) FROM generate_series(1, 1000) AS n")


def relay(shop, *words, **env):
    return spawn_logged(shop, "relay", *LEASE, *RETRIES, *words, env={"SEMEL_LOG_LEVEL": "info", **env})


def published(shop):
    ((count,),) = shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'")
    return count


# ---- marks that fail ---------------------------------------------------------------------------------------

# Marking an event waits as long as another session has the lock.
SLOW_MARKS = """CREATE FUNCTION wait_here() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN new; END $$;
    CREATE TRIGGER slow BEFORE UPDATE ON semel_outbox FOR EACH ROW EXECUTE FUNCTION wait_here()"""
MARKING = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.mark.core
def test_marks_that_fail_are_written_before_those_behind_them(shop):
    """A statement that marks fails, while others wait for it."""
    relaying = spawn_logged(shop, "relay", *RETRIES)
    streams(shop)
    shop.script(SLOW_MARKS)
    with contextlib.closing(mix.connect(shop.store)) as connection:
        connection.execute("SELECT pg_advisory_lock(42)")
        connection.commit()
        for number in range(2):
            write_order(connection, f"o-{number}")
            connection.commit()
            wait_for(lambda: shop.sql(MARKING), 60, "marks that wait")
        wait_for(lambda: "cannot mark events as published" in read_log(shop), 60, "marks that fail")
    wait_for(lambda: published(shop) == 2, 60, "both marks")
    assert shop.stop(relaying) == 0
    check_books(shop)


# ---- servers die -----------------------------------------------------------------------------------------


@pytest.mark.core
def test_the_database_dies_and_comes_back(shop, servers):
    with workload(shop) as producer:
        for _ in range(3):
            streams(shop)
            with killed(servers.postgres):
                pass
            wait_for_effects(shop, producer)
    check_books(shop)


def test_kafka_dies_and_comes_back(shop, servers):
    with workload(shop) as producer:
        for _ in range(2):
            streams(shop)
            with killed(servers.kafka):
                wait_for_orders(producer, 50)
            wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_the_walsender_gets_feedback_while_kafka_does_not_answer(shop, servers):
    with workload(shop) as producer:
        pid = streams(shop)
        servers.kafka.pause()
        try:
            begun = shop.sql("SELECT clock_timestamp()")[0][0]
            wait_for_orders(producer, 50)
            wait_for(lambda: shop.sql("SELECT clock_timestamp() > ?::timestamptz + interval '7 s'", begun)[0][0], 60, "7 s")
            assert reader(shop) == pid
        finally:
            servers.kafka.resume()
        wait_for_effects(shop, producer)
        assert reader(shop) == pid
    check_books(shop)


# ---- transactions ----------------------------------------------------------------------------------------

ORDERS = 5


def torn(shop):
    """Transactions of which a reader of committed records sees something, but not everything."""
    seen = {}
    for record in shop.broker.records(TOPIC, "read_committed"):
        seen.setdefault(json.loads(record.value())["bundle"], set()).add(record.key())
    return [number for number, keys in seen.items() if len(keys) < ORDERS]


def wait_until_whole(shop):
    """Without a relay Kafka completes the transactions, partition by partition; then none is incomplete."""
    wait_for(lambda: not torn(shop), 60, "whole transactions")


@pytest.mark.core
def test_kafka_and_the_relay_are_killed_under_transactions_and_each_is_seen_as_a_whole(shop, servers):
    relaying = relay(shop, "--transactions")
    with workload(shop, relays=0, orders=ORDERS) as producer:
        for also_meanwhile in (False, True):
            streams(shop)
            with killed(servers.kafka):
                wait_for_orders(producer)
                if also_meanwhile:
                    relaying.kill()
            if not also_meanwhile:
                wait_for_effects(shop, producer)
                relaying.kill()
            relaying.wait()
            wait_until_whole(shop)
            relaying = relay(shop, "--transactions")
            wait_for_effects(shop, producer)
    assert shop.stop(relaying) == 0, read_log(shop)
    check_no_attempts(shop)
    check_books(shop)
    assert not torn(shop)


# ---- feedback --------------------------------------------------------------------------------------------


def test_an_idle_slot_moves_on_and_one_with_something_pending_does_not(shop, servers):
    relaying = relay(shop)
    streams(shop)
    shop.load(aggregates=3, each=1)
    wait_for(lambda: published(shop) == 3, 60, "the first events")
    write_log(shop, 2)
    ((end,),) = shop.sql("SELECT pg_current_wal_lsn()::text")
    wait_for(lambda: shop.sql(f"SELECT confirmed_flush_lsn >= '{end}' FROM ({SLOT}) AS slot")[0][0], 60, "the slot to move on")
    with killed(servers.kafka):
        ((end,),) = shop.sql("SELECT pg_current_wal_lsn()::text")
        shop.load(aggregates=1, each=1)
        ((committed,),) = shop.sql("SELECT pg_current_wal_lsn()::text")
        write_log(shop, 2)
        begun = shop.sql("SELECT clock_timestamp()")[0][0]
        wait_for(lambda: shop.sql("SELECT clock_timestamp() > ?::timestamptz + interval '5 s'", begun)[0][0], 60, "5 s of keepalives")
        ((behind,),) = shop.sql(f"SELECT confirmed_flush_lsn < '{committed}' FROM ({SLOT}) AS slot")
        assert behind, "the slot has passed an event that was not published"
        relaying.kill()
    shop.relay()
    assert published(shop) == 4
    check_books(shop)


@pytest.mark.core
def test_a_slot_that_was_set_back_repeats_no_more_than_was_in_flight(shop):
    shop.relay()
    name = slot(shop)[0]
    shop.sql("SELECT pg_copy_logical_replication_slot(?, 'back')", name)
    shop.load(aggregates=20, each=10)
    shop.relay()
    wait_for(lambda: not reader(shop), 60, "the slot to be free")
    shop.sql("SELECT pg_drop_replication_slot(?)", name)
    shop.sql("SELECT pg_copy_logical_replication_slot('back', ?)", name)
    shop.sql("SELECT pg_drop_replication_slot('back')")
    shop.load(aggregates=5, each=1)
    shop.relay()
    assert published(shop) == 205
    assert shop.repeats_at_the_broker() == 0
    check_books(shop)


def test_after_a_kill_repeats_are_no_more_than_the_window(shop):
    shop.load(aggregates=20, each=50)
    done = shop.run("relay", "--drain", "--window", "50", *LEASE, env={"SEMEL_FAILPOINT": "relay.after-confirm:kill@3"})
    assert done.returncode == -signal.SIGKILL, done.stderr
    shop.relay()
    assert shop.repeats_at_the_broker() <= 100
    check_books(shop)


# ---- the slot guard ---------------------------------------------------------------------------------------


@pytest.mark.core
def test_the_slot_is_dropped_under_the_relay(shop):
    with workload(shop) as producer:
        for _ in range(2):
            streams(shop)
            drop(shop)
            wait_for_effects(shop, producer)
        streams(shop)
        wait_for_effects(shop, producer)
    assert "slot" in read_log(shop)
    check_books(shop)


@pytest.mark.core
def test_the_budget_is_kept_while_an_open_transaction_holds_up_the_making_of_the_slot(shop):
    relaying = relay(shop, *BUDGET)
    streams(shop)
    other = mix.connect(shop.store)
    other.execute("SELECT pg_current_xact_id()")
    drop(shop)
    wait_for(lambda: slot(shop), 60, "the making of a new slot")
    write_log(shop, 24)
    wait_for(lambda: "cancelled the creation of the replication slot" in read_log(shop), 60, "the slot to release the log")
    other.rollback()
    streams(shop)
    shop.load(aggregates=3, each=2)
    wait_for(lambda: published(shop) == 6, 60, "the events")
    assert shop.stop(relaying) == 0, read_log(shop)
    other.close()


@pytest.mark.core
def test_the_budget_is_kept_in_a_long_outage_of_kafka_and_everything_is_published_afterwards(shop, servers):
    with workload(shop, words=BUDGET) as producer:
        streams(shop)
        with killed(servers.kafka):
            for _ in range(6):
                write_log(shop, 8)
            wait_for(lambda: kept_back(shop) < 16 * 1024 * 1024, 60, "the slot to release the log")
            wait_for(lambda: "budget" in read_log(shop), 60, "a log line about it")
        wait_for_effects(shop, producer)
        streams(shop)
        wait_for_effects(shop, producer)
    check_no_attempts(shop)
    check_books(shop)


def test_a_slot_that_the_server_has_invalidated_is_created_again(sandbox, servers, tmp_path):
    strict = Postgres(sandbox, "strict", settings={**SETTINGS, "max_slot_wal_keep_size": "16MB"}).create()
    try:
        with shop_at(at(servers, postgres=f"127.0.0.1:{strict.port}"), tmp_path) as shop:
            shop.load(aggregates=5, each=2)
            shop.relay()
            shop.load(aggregates=5, each=2)
            for _ in range(8):
                write_log(shop, 8)
                shop.sql("SELECT pg_switch_wal()")
                strict.psql("CHECKPOINT")
                if slot(shop)[3] == "lost":
                    break
            assert slot(shop)[3] == "lost"
            with workload(shop) as producer:
                streams(shop)
                wait_for_effects(shop, producer)
            assert "slot" in read_log(shop)
            check_books(shop)
    finally:
        strict.close()


def test_without_logical_decoding_the_relay_logs_what_to_set_and_polls(sandbox, servers, tmp_path):
    """A server does not start with this setting while a slot needs it: whoever lowers it has dropped the slot."""
    plain = Postgres(sandbox, "plain").create()
    try:
        with shop_at(at(servers, postgres=f"127.0.0.1:{plain.port}"), tmp_path) as shop:
            shop.sql("SELECT pg_drop_replication_slot(?)", slot(shop)[0])
            plain.stop()
            plain.settings["wal_level"] = "replica"
            plain.start()
            with workload(shop) as producer:
                wait_for_effects(shop, producer)
            assert "wal_level" in read_log(shop)
            check_books(shop)
    finally:
        plain.close()


def test_a_standby_is_promoted_that_never_had_the_slot(sandbox, servers, tmp_path):
    primary = Postgres(sandbox, "primary", settings=SETTINGS).create()
    standby = primary.standby()
    endpoints = at(servers, postgres=f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}",
                   parameters={"target_session_attrs": "read-write", "connect_timeout": "2"})
    try:
        with shop_at(endpoints, tmp_path) as shop:
            with workload(shop) as producer:
                streams(shop)
                primary.kill()
                standby.promote()
                wait_for_effects(shop, producer)
                streams(shop)
                wait_for_effects(shop, producer)
            check_books(shop)
    finally:
        primary.close()
        standby.close()


@pytest.mark.core
def test_a_database_that_was_restored_elsewhere_is_noticed_and_nothing_is_skipped(sandbox, servers, tmp_path):
    """What was waiting in the copy is published from there; its slot is a new one."""
    other = Postgres(sandbox, "restored", settings=SETTINGS).create()
    try:
        with shop_at(at(servers), tmp_path) as shop:
            shop.load(aggregates=5, each=2)
            shop.relay()
            shop.load(aggregates=5, each=2)
            name = shop.store.rpartition("/")[2]
            copy = subprocess.run([other.bin / "pg_dump", "-C", str(shop.store)], capture_output=True, check=True, timeout=60)
            subprocess.run([other.bin / "psql", "-q", "-v", "ON_ERROR_STOP=1", other.url("postgres")], input=copy.stdout,
                           capture_output=True, check=True, timeout=60)
            moved = {"SEMEL_STORE": other.url(name)}
            shop.ok("relay", "--drain", env=moved)
            shop.ok(*shop.subscriptions[0].words, "--drain", env=moved)
            assert other.psql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'", name) == "20"
            assert other.psql("SELECT count(DISTINCT event_id), count(*) FROM effect_billing", name) == "20|20"
    finally:
        other.close()


# ---- one reader --------------------------------------------------------------------------------------------


@pytest.mark.core
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_second_relay_takes_over(shop, number):
    """On a quiet machine within ten seconds."""
    first = relay(shop)
    pid = streams(shop)
    second = relay(shop)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: published(shop) == 10, 60, "the work of the first")
    first.send_signal(number)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: published(shop) == 20, 60, "the work of the second")
    wait_for(lambda: reader(shop) not in (None, pid), 60, "a new reader")
    if number == signal.SIGSTOP:
        first.send_signal(signal.SIGCONT)
        shop.load(aggregates=5, each=2)
        wait_for(lambda: published(shop) == 30, 60, "the work of one of them")
        assert shop.stop(first) == 0, read_log(shop)
    assert shop.stop(second) == 0, read_log(shop)
    check_books(shop)


# ---- large transactions --------------------------------------------------------------------------------------

MANY = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
    SELECT 'order', 'o-' || n % 100, 'order.changed.v1', json_build_object('number', n / 100 + 1) FROM generate_series(0, ?) AS n"""


def many_in_one_transaction(shop, count):
    relaying = relay(shop)
    streams(shop)
    shop.sql(MANY, count - 1)
    shop.sql("INSERT INTO orders SELECT id, aggregate_id, (payload::json ->> 'number')::int FROM semel_outbox")
    wait_for(lambda: published(shop) == count, 600, "all of it")
    with open(f"/proc/{relaying.pid}/status", encoding="ascii") as status:
        (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert shop.stop(relaying) == 0, read_log(shop)
    assert peak < 64 * 1024, f"{peak} kB for {count} events"


def test_a_transaction_of_a_hundred_thousand_events_needs_no_memory_for_all_of_them(shop):
    many_in_one_transaction(shop, 100_000)
    assert len(shop.broker.records(TOPIC)) == 100_000


@pytest.mark.slow
@pytest.mark.skipif("SEMEL_TEST_MILLION" not in os.environ, reason="some minutes: SEMEL_TEST_MILLION=1 asks for it")
def test_a_transaction_of_a_million_events_needs_no_memory_for_all_of_them(shop):
    many_in_one_transaction(shop, 1_000_000)


# ---- the same meaning as under polling -------------------------------------------------------------------------


@pytest.mark.core
def test_a_refused_event_is_retried_given_up_and_replayed_as_under_polling(shop):
    shop.broker.create(TOPIC, max_message_bytes=3000)
    bad = shop.order("o-1", text="x" * 9000)
    behind, other = shop.order("o-1"), shop.order("o-2")
    shop.relay("--attempts", "2", "--first-delay", "50ms")
    assert shop.sql("SELECT id, status FROM semel_outbox ORDER BY seq") == [
        (bad, "FAILED"), (behind, "NEW"), (other, "PUBLISHED")]
    (letter,) = shop.json("dlq", "list")
    assert (letter["originalEventId"], letter["sourceService"]) == (bad, "relay")
    trace = shop.ok("trace", bad)
    assert "committed" in trace and "dead" in trace
    allow_large(shop)
    relaying = relay(shop)
    streams(shop)
    shop.ok("dlq", "replay", "--all")
    wait_for(lambda: published(shop) == 3, 60, "the replayed one and the one behind it")
    assert shop.stop(relaying) == 0
    check_books(shop)


HELD = "waits for a synchronous standby"


@contextlib.contextmanager
def slow_commit(shop, servers, **more):
    """As with a synchronous standby that is slow: the stream has an order, and its writer waits for the commit. No
    other session does, if it connects meanwhile."""
    shop.sql(f"ALTER DATABASE {shop.store.rpartition('/')[2]} SET synchronous_commit = local")
    writer = threading.Thread(target=write_synchronously, args=(shop,), kwargs=more)
    try:
        servers.postgres.set("synchronous_standby_names", "absent")
        yield writer
        assert shop.sql("SELECT count(*) FROM semel_outbox") == [(0,)]
    finally:
        servers.postgres.set("synchronous_standby_names", None)
    writer.join(60)


def write_synchronously(shop, **more):
    connection = mix.connect(shop.store)
    connection.execute("SET synchronous_commit = on")
    write_order(connection, "o-1", **more)
    connection.commit()
    connection.close()


@pytest.mark.core
def test_the_stream_may_be_quicker_than_its_commit(shop, servers):
    """A commit that waits for a standby is in the log, and not visible yet: its event waits, too."""
    with slow_commit(shop, servers) as writer:
        relaying = spawn_logged(shop, "relay", *RETRIES)  # with a lease that it does not lose, and so repeats nothing
        streams(shop)
        writer.start()
        wait_for(lambda: HELD in read_log(shop), 60, "a commit that waits")
        assert shop.backend.log() == []
    wait_for(lambda: published(shop) == 1, 60, "the event and its mark")
    assert shop.stop(relaying) == 0, read_log(shop)
    assert shop.repeats_at_the_broker() == 0
    check_books(shop)


def test_an_event_that_has_waited_for_a_standby_and_is_refused_keeps_its_count(shop, servers):
    shop.broker.create(TOPIC, max_message_bytes=3000)
    with slow_commit(shop, servers, text="x" * 9000) as writer:
        relaying = relay(shop, "--attempts", "1")
        streams(shop)
        writer.start()
        wait_for(lambda: HELD in read_log(shop), 60, "a commit that waits")
    wait_for(lambda: shop.dead_letters() == 1, 60, "a dead letter")
    assert shop.sql("SELECT status, attempts FROM semel_outbox") == [("FAILED", 1)]
    assert shop.stop(relaying) == 0


def allow_large(shop):
    from confluent_kafka.admin import ConfigResource

    topic = ConfigResource("topic", shop.broker.topic(TOPIC), set_config={"max.message.bytes": "1000000"})
    for done in shop.broker.administrator.client.alter_configs([topic]).values():
        done.result(30)
    shop.broker.administrator.await_node()


@pytest.mark.core
def test_a_replay_reaches_the_pipeline(shop):
    relaying = relay(shop)
    streams(shop)
    shop.load(aggregates=4, each=2)
    wait_for(lambda: published(shop) == 8, 60, "the first time")
    shop.ok("replay", "--aggregate", "order:o-1")
    wait_for(lambda: shop.repeats_at_the_broker() == 2, 60, "the second time")
    assert shop.stop(relaying) == 0
    shop.consume(shop.subscriptions[0])
    assert effects(shop) == 8
    check_books(shop)


@pytest.mark.core
def test_events_from_before_the_slot_are_not_forgotten(shop):
    """Some wait when cdc is used for the first time, and others are written while it begins."""
    shop.load(aggregates=10, each=5)
    with workload(shop) as producer:
        wait_for_effects(shop, producer)
    check_books(shop)
    assert waiting(shop) == 0


@pytest.mark.core
def test_polling_and_cdc_may_take_turns(shop):
    shop.load(aggregates=10, each=2)
    shop.relay()
    shop.load(aggregates=10, each=2)
    shop.ok("relay", "--drain", "--source", "poll")
    shop.load(aggregates=10, each=2)
    shop.relay()
    assert shop.repeats_at_the_broker() == 0
    check_books(shop)
