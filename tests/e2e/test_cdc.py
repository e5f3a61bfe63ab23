# SPDX-License-Identifier: Apache-2.0
"""The change stream as the relay's source, on a real PostgreSQL: order, repeats, one reader, and the slot monitor."""
import json
import re
import signal
import threading

import mix
import pytest
from program import wait_for
from stream import TIMEOUT_S, Outbox

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]


@pytest.fixture
def stream(semel):
    stream = Outbox(semel)
    stream.init()
    with stream.ended():
        yield stream


def first_of_each(numbers):
    return list(dict.fromkeys(numbers))


def test_rows_come_through_the_stream_and_are_marked(stream):
    stream.insert(500)
    done = stream.drain()
    assert "reading the change stream" in done.stderr and "polling instead" not in done.stderr
    assert "published 500 events" in done.stdout
    assert stream.waiting() == 0
    assert stream.arrived() == {"a": list(range(1, 501))}
    wait_for(lambda: not stream.is_read(), TIMEOUT_S, "the server knows that its reader is gone")
    assert stream.exists()


def test_published_rows_are_confirmed_and_not_read_again(stream):
    stream.insert(200)
    stream.drain()
    assert "published 0 events" in stream.drain().stdout
    assert stream.arrived() == {"a": list(range(1, 201))}


def test_rows_older_than_the_slot_are_polled_first(semel):
    stream = Outbox(semel)
    stream.insert(100)
    stream.init()
    stream.insert(100, first=101)
    stream.drain()
    assert stream.arrived() == {"a": list(range(1, 201))}
    stream.drop()


def test_a_rolled_back_event_is_never_published_and_late_commits_are(stream):
    relay = stream.start()
    stream.wait_until_read()
    late, lost = mix.connect(stream.semel.store), mix.connect(stream.semel.store)
    stream.insert(1, "late", 1, late)
    stream.insert(1, "lost", 1, lost)
    stream.insert(3, "early", 1)
    wait_for(lambda: stream.semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'")[0][0] == 3, TIMEOUT_S)
    lost.rollback()
    late.commit()
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"early": [1, 2, 3], "late": [1]}


def test_each_aggregate_of_many_writers_keeps_its_order(stream):
    relay = stream.start()
    stream.wait_until_read()

    def write(name):
        connection = mix.connect(stream.semel.store)
        for number in range(1, 101):
            stream.insert(1, name, number, connection)
            connection.commit()
        connection.close()

    writers = [threading.Thread(target=write, args=(f"w{i}",)) for i in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {f"w{i}": list(range(1, 101)) for i in range(6)}


def peak_kb(child):
    with open(f"/proc/{child.pid}/status") as status:
        return int(re.search(r"VmHWM:\s+(\d+)", status.read()).group(1))


def test_a_large_transaction_is_never_held_in_memory(stream):
    """48 MB in one transaction, of which 2 MB may be in flight."""
    relay = stream.start("--window-bytes", "2000000")
    stream.wait_until_read()
    stream.insert(400, size=12000)
    stream.wait_until_published()
    before = peak_kb(relay)
    stream.insert(4000, first=401, size=12000)
    stream.wait_until_published()
    assert peak_kb(relay) - before < 16 * 1024 and peak_kb(relay) < 64 * 1024
    assert stream.semel.stop(relay) == 0


@pytest.mark.parametrize("point", ["relay.after-publish:kill@300", "relay.after-confirm:kill@300", "relay.after-mark:kill@1"])
def test_a_relay_that_dies_repeats_its_window_at_most(stream, point):
    stream.insert(2000)
    relay = stream.start("--window", "500", lease="1s", env={"SEMEL_FAILPOINT": point})
    assert relay.wait(TIMEOUT_S) == -signal.SIGKILL
    stream.drain("--window", "500")
    numbers = stream.arrived()["a"]
    assert sorted(set(numbers)) == list(range(1, 2001))
    assert len(numbers) - 2000 <= 500


def test_a_refused_event_is_overtaken_by_others_but_not_by_its_aggregate(stream):
    relay = stream.start("--first-delay", "300ms", env={"SEMEL_FAILPOINT": "relay.before-publish:error@1"})
    stream.wait_until_read()
    for number in range(1, 21):
        stream.insert(1, "a", number)
        stream.insert(1, "b", number)
    stream.insert(60, "a", 21)  # one by one, but not one per poll: that would take more than a minute
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert "broker refused event, retrying" in relay.log()
    assert stream.arrived() == {"a": list(range(1, 81)), "b": list(range(1, 21))}
    assert stream.semel.sql("SELECT count(*) FROM semel_outbox_exception") == [(0,)]


def test_a_replayed_dead_letter_is_published_before_the_events_behind_it(stream):
    relay = stream.start("--attempts", "1", env={"SEMEL_FAILPOINT": "relay.before-publish:error@1"})
    stream.wait_until_read()
    stream.insert(1)
    wait_for(lambda: stream.semel.sql("SELECT status FROM semel_outbox") == [("FAILED",)], TIMEOUT_S)
    stream.insert(5, first=2)
    stream.insert(5, "b")
    wait_for(lambda: stream.semel.sql("SELECT count(*) FROM semel_outbox_exception") == [(6,)], TIMEOUT_S)
    stream.semel.ok("dlq", "replay", "--all")
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"a": list(range(1, 7)), "b": list(range(1, 6))}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_second_relay_waits_and_takes_over(stream, number):
    first = stream.start(lease="1s")
    stream.wait_until_read()
    second = stream.start(lease="1s")
    stream.insert(100)
    stream.wait_until_published()
    if number == signal.SIGSTOP:
        stream.semel.freeze(first)
    else:
        first.send_signal(number)
    stream.insert(100, first=101)
    stream.wait_until_published()
    if number == signal.SIGSTOP:
        first.send_signal(signal.SIGCONT)
        stream.insert(100, first=201)
        stream.wait_until_published()
        assert stream.semel.stop(first) == 0
    assert stream.semel.stop(second) == 0
    assert "reading the change stream" in second.log()
    numbers = first_of_each(stream.arrived()["a"])
    assert numbers == sorted(numbers) and len(numbers) == (300 if number == signal.SIGSTOP else 200)


@pytest.mark.core
@pytest.mark.only("local")  # its log has the predecessors
def test_a_relay_that_takes_over_knows_the_predecessors(stream):
    for first, marks in ((1, "off"), (4, "lazy")):
        stream.insert(3, "a", first)
        stream.insert(3, "b", first)
        stream.drain("--marks", marks)
    relay = stream.start(lease="1s", env={"SEMEL_FAILPOINT": "relay.after-confirm:kill@2"})
    stream.insert(3, "a", 7)
    assert relay.wait(TIMEOUT_S) == -signal.SIGKILL
    stream.insert(3, "b", 7)
    stream.drain()
    rows = stream.semel.sql("SELECT aggregate_id, id, previous FROM semel_log ORDER BY position", database=stream.semel.broker)
    for aggregate in ("a", "b"):
        predecessors = {id: previous for name, id, previous in rows if name == aggregate}
        assert list(predecessors.values()) == [None, *predecessors][:9], aggregate


def test_a_slot_that_is_dropped_under_the_relay_is_created_again_while_it_polls(stream):
    relay = stream.start()
    stream.wait_until_read()
    stream.insert(100)
    stream.wait_until_published()
    stream.drop()
    stream.insert(100, first=101)
    stream.wait_until_published()
    # While it is created, a slot is as active as one that is read, until every earlier transaction has ended: only the log
    # distinguishes them.
    wait_for(lambda: '"reading the change stream"' in relay.log().partition("created the replication slot")[2], TIMEOUT_S, "the new slot is read")
    stream.insert(100, first=201)
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert "polling instead" in relay.log() and "created the replication slot" in relay.log()
    assert stream.arrived() == {"a": list(range(1, 301))}


def test_a_slot_that_another_program_created_meanwhile_skips_no_events(stream):
    stream.insert(50)
    stream.drop()
    stream.semel.sql("SELECT pg_create_logical_replication_slot(?, 'pgoutput')", stream.slot)
    stream.insert(50, first=51)
    done = stream.drain()
    assert "created or advanced by another program" in done.stderr
    assert stream.arrived() == {"a": list(range(1, 101))}


def test_a_slot_over_its_budget_is_dropped_and_created_again(stream):
    relay = stream.start("--slot-budget", "4000000", lease="1s", env={"SEMEL_FAILPOINT": "relay.before-publish:pause=5000@101"})
    stream.wait_until_read()
    stream.insert(100)
    stream.wait_until_published()
    writer = mix.connect(stream.semel.store)  # in one commit: the relay's pause may be over before the log has grown
    writer.execute("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 8000)")
    stream.insert(100, first=101, connection=writer)
    writer.commit()
    writer.close()
    stream.insert(800, first=201)
    wait_for(lambda: "dropped the replication slot" in relay.log(), TIMEOUT_S, "the slot is dropped")
    stream.wait_until_published()
    stream.wait_until_read()
    assert stream.semel.stop(relay) == 0
    assert "more than its budget" in relay.log()
    assert first_of_each(stream.arrived()["a"]) == list(range(1, 1001))


def test_without_marks_the_low_marks_move_and_polling_repeats_nothing(stream):
    stream.insert(100)
    assert "published 100 events" in stream.drain("--marks", "off").stdout
    assert stream.waiting() == 100
    assert "published 0 events" in stream.semel.ok("relay", "--source", "poll", "--drain")
    assert stream.arrived() == {"a": list(range(1, 101))}


def test_another_history_of_the_database_is_detected(stream):
    stream.insert(50)
    stream.drain()
    stream.semel.sql("UPDATE semel_slot SET identity = '1/00000001'")
    stream.insert(50, first=51)
    relay = stream.start()
    stream.wait_until_published()
    wait_for(lambda: "reading the change stream" in relay.log(), TIMEOUT_S)
    assert stream.semel.stop(relay) == 0
    assert "system identifier or timeline changed" in relay.log()
    assert stream.arrived() == {"a": list(range(1, 101))}


def test_without_a_publication_the_relay_logs_what_to_do_and_polls(semel):
    stream = Outbox(semel)
    stream.insert(10)
    done = stream.drain()
    assert "init --cdc" in done.stderr
    assert stream.arrived() == {"a": list(range(1, 11))}


def test_outboxes_of_two_schemas_share_the_publication_and_nothing_else(stream):
    """Their rows have the same numbers: those of one must never count as those of the other."""
    semel, second = stream.semel, Outbox(stream.semel)
    second.slot += "_other"
    semel.sql("CREATE SCHEMA other")
    other = ("--store", f"{semel.store}{'&' if '?' in str(semel.store) else '?'}options=-csearch_path%3Dother")
    with second.ended():
        semel.ok(*other, "init", "--cdc", "--slot", second.slot)
        stream.insert(3)
        for number in range(11, 16):
            semel.publish("--payload", str(number), *other, aggregate="order:a")
        done = stream.drain()
        assert "reading the change stream" in done.stderr and "published 3 events" in done.stdout
        assert semel.sql("SELECT status, count(*) FROM other.semel_outbox GROUP BY status") == [("NEW", 5)]
        assert "published 5 events" in second.drain(*other).stdout
        assert semel.sql("SELECT status, count(*) FROM other.semel_outbox GROUP BY status") == [("PUBLISHED", 5)]
        assert stream.arrived() == {"a": [1, 2, 3, *range(11, 16)]}


def test_a_role_that_may_not_replicate_is_reported_and_the_relay_polls(stream):
    stream.semel.sql("DO $$ BEGIN CREATE ROLE plain LOGIN; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
    stream.semel.sql("GRANT ALL ON ALL TABLES IN SCHEMA public TO plain; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO plain")
    stream.insert(10)
    url = re.sub(r"//[^@]*@", "//plain@", str(stream.semel.store))
    done = stream.drain(env={"SEMEL_STORE": url})
    assert "ALTER ROLE plain REPLICATION" in done.stderr
    assert stream.waiting() == 0


def test_topology_creates_what_the_stream_needs_and_reports_what_is_missing(semel):
    stream = Outbox(semel)
    check = ("topology", "check", "--cdc", "--slot", stream.slot)
    missing = semel.run(*check)
    assert missing.returncode == 1
    assert "no publication" in missing.stdout and f"replication slot {stream.slot} not found" in missing.stdout
    assert f"created the replication slot {stream.slot}" in semel.ok("topology", "apply", "--cdc", "--slot", stream.slot)
    assert "up to date" in semel.ok("topology", "apply", "--cdc", "--slot", stream.slot)
    assert semel.json(*check) == {"differences": []}
    stream.drop()
    config = semel.folder / "relay.yaml"
    config.write_text(json.dumps({"relay": {"source": "cdc", "slot": stream.slot}}))
    check = semel.run("--config", str(config), "topology", "check")
    assert check.returncode == 1 and check.stdout.splitlines() == [
        f"replication slot {stream.slot} not found (run: semel topology apply --cdc)"]
