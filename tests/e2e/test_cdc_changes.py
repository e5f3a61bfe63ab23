# SPDX-License-Identifier: Apache-2.0
"""Changes by operators to outbox, publication and slot while a relay reads the change stream, or between two relays."""
import json
import re
import signal

import mix
import pytest
from program import wait_for
from stream import TIMEOUT_S, Outbox

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]


@pytest.fixture
def stream(semel):
    stream = Outbox(semel)
    semel.backend.witness("order.events")
    stream.init()
    with stream.ended():
        yield stream


def log_end(stream):
    return stream.semel.sql("SELECT pg_current_wal_insert_lsn()::text")[0][0]


def is_confirmed(stream, position):
    """Whether the slot is confirmed up to the position."""
    return stream.semel.sql(f"SELECT confirmed_flush_lsn >= '{position}' FROM pg_replication_slots WHERE slot_name = ?",
                            stream.slot)[0][0]


# ---- deleted rows ----------------------------------------------------------------------------------------


def test_a_row_that_is_deleted_before_its_mark_blocks_nothing(stream):
    relay = stream.start()
    stream.wait_until_read()
    stream.semel.freeze(relay)
    stream.insert(1, "gone")
    stream.semel.sql("DELETE FROM semel_outbox")
    both = mix.connect(stream.semel.store)
    stream.insert(1, "brief", 1, both)
    both.execute("DELETE FROM semel_outbox")
    both.commit()
    both.close()
    stream.insert(3)
    end = log_end(stream)
    relay.send_signal(signal.SIGCONT)
    wait_for(lambda: stream.waiting() == 0, TIMEOUT_S / 2, "the marks")
    wait_for(lambda: is_confirmed(stream, end), TIMEOUT_S / 2, "the slot to advance")
    assert "were deleted from the outbox" in relay.log()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"gone": [1], "brief": [1], "a": [1, 2, 3]}


# ---- without marks -----------------------------------------------------------------------------------------


def test_without_marks_an_orderly_stop_leaves_nothing_to_be_repeated_by_polling(stream):
    """The low marks are behind by a second or two; what lies above them is marked when the stream ends."""
    relay = stream.start("--marks", "off")
    stream.wait_until_read()
    late = mix.connect(stream.semel.store)  # holds the low marks
    stream.insert(1, "late", 1, late)
    stream.insert(1000)
    wait_for(lambda: len(stream.semel.backend.log()) == 1000, TIMEOUT_S, "the events")
    assert stream.semel.stop(relay) == 0
    late.commit()
    late.close()
    assert "published 1 event" in stream.semel.ok("relay", "--source", "poll", "--drain")
    assert stream.arrived() == {"a": list(range(1, 1001)), "late": [1]}


def low_marks(stream):
    return stream.semel.sql("SELECT lane, low_seq FROM semel_lease ORDER BY lane")


def test_rows_that_a_killed_relay_left_without_marks_are_not_read_again_by_the_next_one(stream):
    relay = stream.start("--marks", "off", lease="2s")
    stream.wait_until_read()
    late = mix.connect(stream.semel.store)  # holds the low marks
    stream.insert(1, "late", 1, late)
    stream.insert(50)
    end = log_end(stream)
    wait_for(lambda: len(stream.semel.backend.log()) == 50, TIMEOUT_S, "the events")
    wait_for(lambda: is_confirmed(stream, end), TIMEOUT_S, "the slot to advance")
    relay.kill()
    relay.wait()
    late.commit()
    late.close()
    relay = stream.start(lease="2s")
    stream.insert(1, first=51)
    wait_for(lambda: max(low for _, low in low_marks(stream)) > 51, TIMEOUT_S, "the low mark to pass the rows")
    assert stream.semel.stop(relay) == 0
    assert stream.waiting() == 50, "below the low mark, sent, and not marked"
    before = low_marks(stream)
    relay = stream.start(lease="2s")
    stream.wait_until_read()
    assert all(now >= then for now, then in zip(low_marks(stream), before))
    stream.insert(3, first=52)
    wait_for(lambda: len(stream.semel.backend.log()) == 55, TIMEOUT_S, "later events")
    log = relay.log()
    assert stream.semel.stop(relay) == 0
    assert "below the low mark" not in log and log.count('"reading the change stream"') == 1
    assert stream.arrived() == {"a": list(range(1, 55)), "late": [1]}


def test_a_sequence_from_a_dump_repeats_nothing_that_was_published_without_marks(stream):
    """The sequence then has another file, and continues where it was."""
    relay = stream.start("--marks", "off")
    stream.wait_until_read()
    stream.insert(50)
    wait_for(lambda: max(low for _, low in low_marks(stream)) >= 50, TIMEOUT_S, "the low mark to pass the rows")
    assert stream.semel.stop(relay) == 0
    assert stream.waiting() == 50
    stream.semel.sql("ALTER SEQUENCE semel_outbox_seq RESTART WITH 51")
    stream.insert(1, first=51)
    assert "published 1 event" in stream.semel.ok("relay", "--source", "poll", "--drain")
    assert stream.arrived() == {"a": list(range(1, 52))}


# ---- problems of the publication -------------------------------------------------------------------------

# Name: statements that break and repair it. Rows that are inserted between the two are not in the stream.
PROBLEMS = {
    "table": ("ALTER PUBLICATION semel DROP TABLE semel_outbox", "ALTER PUBLICATION semel ADD TABLE semel_outbox"),
    "publish": ("ALTER PUBLICATION semel SET (publish = 'update')", "ALTER PUBLICATION semel SET (publish = 'insert')"),
    "filter": ("ALTER PUBLICATION semel SET TABLE semel_outbox WHERE (aggregate_id <> 'a')",
               "ALTER PUBLICATION semel SET TABLE semel_outbox"),
    "columns": ("ALTER PUBLICATION semel SET TABLE semel_outbox (lane, seq)", "ALTER PUBLICATION semel SET TABLE semel_outbox"),
    "recreated": ("DROP PUBLICATION semel", "CREATE PUBLICATION semel FOR ALL TABLES"),
    "name": ("ALTER PUBLICATION semel RENAME TO other", "ALTER PUBLICATION other RENAME TO semel"),
}


def doctor_report(stream):
    config = stream.semel.folder / "relay.yaml"
    config.write_text(json.dumps({"relay": {"source": "cdc", "slot": stream.slot}}))
    return stream.semel.run("--config", str(config), "doctor").stdout


def wait_until_stream_is_read_after(relay, text):
    wait_for(lambda: '"reading the change stream"' in relay.log().partition(text)[2], 2 * TIMEOUT_S, "reading the stream again")


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_publication_problem_that_was_repaired_between_two_checks_loses_nothing(stream, problem):
    breaking, repairing = PROBLEMS[problem]
    relay = stream.start()
    stream.wait_until_read()
    stream.insert(3)
    stream.wait_until_published()
    stream.semel.freeze(relay)
    stream.semel.sql(breaking)
    stream.insert(3, first=4)
    stream.semel.sql(repairing)
    stream.insert(3, first=7)
    relay.send_signal(signal.SIGCONT)
    stream.wait_until_published()
    wait_until_stream_is_read_after(relay, "the publication was changed")
    stream.insert(3, first=10)
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"a": list(range(1, 13))}


def test_a_publication_problem_between_two_relays_loses_nothing_also_without_marks(stream):
    stream.insert(3)
    stream.drain("--marks", "off")
    stream.semel.sql(PROBLEMS["table"][0])
    stream.insert(3, first=4)
    stream.semel.sql(PROBLEMS["table"][1])
    stream.insert(3, first=7)
    relay = stream.start("--marks", "off")
    wait_for(lambda: len(stream.semel.backend.log()) >= 9, TIMEOUT_S, "all events")
    assert stream.semel.stop(relay) == 0
    assert "the publication was changed" in relay.log()
    assert sorted(set(stream.arrived()["a"])) == list(range(1, 10))


def test_a_publication_that_leaves_out_events_is_reported_and_repaired_by_init_while_the_relay_polls(stream):
    relay = stream.start()
    stream.wait_until_read()
    stream.semel.sql("ALTER PUBLICATION semel SET TABLE semel_outbox WHERE (aggregate_id <> 'a')")
    stream.semel.sql("ALTER PUBLICATION semel SET (publish = 'truncate')")
    stream.insert(3)
    wait_for(lambda: "leaves out events" in relay.log(), TIMEOUT_S, "the log of the problem")
    stream.wait_until_published()
    wait_for(lambda: not stream.exists(), TIMEOUT_S, "the drop of the unusable slot")
    check = stream.semel.run("topology", "check", "--cdc", "--slot", stream.slot)
    assert "has a row filter" in check.stdout and "init --cdc" in check.stdout
    assert "has a row filter" in doctor_report(stream)
    stream.init()
    wait_until_stream_is_read_after(relay, "leaves out events")
    stream.insert(3, first=4)
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"a": list(range(1, 7))}


def test_a_publication_that_forbids_marks_ends_the_relay_with_the_remedy(stream):
    """The server refuses updates of a table whose publication has a filter that does not suit its key."""
    stream.semel.sql("ALTER PUBLICATION semel SET TABLE semel_outbox WHERE (aggregate_id <> 'a')")
    stream.semel.sql("ALTER PUBLICATION semel SET (publish = 'insert, update')")
    stream.insert(3)
    relay = stream.start()
    assert relay.wait(TIMEOUT_S) == 78 and "init --cdc" in relay.log().splitlines()[-1]
    stream.init()
    stream.drain()
    assert sorted(set(stream.arrived()["a"])) == [1, 2, 3]


def test_an_outbox_that_had_another_name_for_a_while_is_identified_by_its_oid(stream):
    relay = stream.start()
    stream.wait_until_read()
    stream.semel.freeze(relay)
    stream.semel.sql("CREATE SCHEMA other")
    for move in ("RENAME TO old", "SET SCHEMA other"):
        stream.semel.sql(f"ALTER TABLE semel_outbox {move}")
        name = "old" if "old" in move else "other.semel_outbox"
        stream.semel.sql(f"INSERT INTO {name} (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', ?, 'x.v1', '1')",
                         name[:3])
        stream.semel.sql(f"ALTER TABLE {name} {'RENAME TO semel_outbox' if name == 'old' else 'SET SCHEMA public'}")
    relay.send_signal(signal.SIGCONT)
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"old": [1], "oth": [1]}


# ---- the slot --------------------------------------------------------------------------------------------


def test_a_slot_that_another_program_advanced_skips_no_events(stream):
    stream.insert(3)
    stream.drain()
    stream.insert(3, first=4)
    wait_for(lambda: not stream.is_read(), TIMEOUT_S, "the slot to be free")
    stream.semel.sql("SELECT pg_replication_slot_advance(?, pg_current_wal_lsn())", stream.slot)
    assert "advanced by another program" in stream.drain().stderr
    assert stream.arrived() == {"a": list(range(1, 7))}


def test_a_slot_of_another_name_takes_over_and_the_old_one_is_reported(stream):
    """Without marks, the rows do not show that they were published: the store keeps the confirmed position of every slot."""
    old, second = stream.slot, Outbox(stream.semel)
    second.slot += "_b"
    stream.semel.ok("init", "--cdc", "--slot", second.slot)
    with second.ended():
        stream.drain("--marks", "off")
        second.drain("--marks", "off")
        stream.insert(50)
        assert "published 50 events" in stream.drain("--marks", "off").stdout
        stream.insert(1, first=51)
        relay = second.start("--marks", "off")
        wait_for(lambda: len(stream.semel.backend.log()) == 51, TIMEOUT_S, "the last event")
        assert stream.semel.stop(relay) == 0
        assert "polling instead" not in relay.log()
        report = doctor_report(second)
        assert f"the slot {old}, which the settings do not name" in report and f"pg_drop_replication_slot('{old}')" in report
        assert stream.arrived() == {"a": list(range(1, 52))}


def test_a_standby_relay_enforces_the_budget_of_its_own_slot(stream):
    second = Outbox(stream.semel)
    second.slot += "_b"
    stream.semel.ok("init", "--cdc", "--slot", second.slot)
    with second.ended():
        relay = stream.start()
        stream.wait_until_read()
        other = second.start("--slot-budget", "4000000")
        stream.semel.sql("CREATE TABLE other AS SELECT repeat('x', 1000) FROM generate_series(1, 8000)")
        wait_for(lambda: not second.exists(), TIMEOUT_S, "the drop of the slot without a reader")
        stream.insert(3)
        stream.wait_until_published()
        assert stream.semel.stop(other) == 0 and "more than its budget" in other.log()
        assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"a": [1, 2, 3]}


def test_a_role_that_may_no_longer_replicate_is_reported_and_the_relay_polls(stream):
    semel, role = stream.semel, f"r_{stream.slot}"
    semel.sql(f"CREATE ROLE {role} LOGIN REPLICATION")
    semel.sql(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
    url = re.sub(r"//[^@]*@", f"//{role}@", str(semel.store))
    relay = stream.start(env={"SEMEL_STORE": url})
    stream.wait_until_read()
    semel.sql(f"ALTER ROLE {role} NOREPLICATION")
    wait_for(lambda: f"ALTER ROLE {role} REPLICATION" in relay.log(), TIMEOUT_S, "the log of the problem")
    stream.insert(3)
    stream.wait_until_published()
    semel.sql(f"ALTER ROLE {role} REPLICATION")
    wait_until_stream_is_read_after(relay, "lacks the REPLICATION attribute")
    assert semel.stop(relay) == 0
    semel.sql(f"DROP OWNED BY {role}")
    semel.sql(f"DROP ROLE {role}")
    assert stream.arrived() == {"a": [1, 2, 3]}


# ---- the tables ------------------------------------------------------------------------------------------


def test_a_renamed_schema_ends_the_relay_and_the_next_one_continues(stream):
    semel = stream.semel
    relay = stream.start()
    stream.wait_until_read()
    stream.insert(3)
    stream.wait_until_published()
    semel.sql("ALTER SCHEMA public RENAME TO elsewhere")
    assert relay.wait(TIMEOUT_S) == 78 and "does not exist" in relay.log()
    semel.sql("INSERT INTO elsewhere.semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
              " VALUES ('order', 'a', 'order.changed.v1', '4')")
    semel.backend.store = f"{semel.store}{'&' if '?' in str(semel.store) else '?'}options=-csearch_path%3Delsewhere"
    semel.ok("init")
    assert "published 1 event" in stream.drain().stdout
    assert stream.arrived() == {"a": [1, 2, 3, 4]}


PARTITIONED = """ALTER TABLE semel_outbox RENAME TO old;
    ALTER TABLE old RENAME CONSTRAINT semel_outbox_pkey TO old_pkey;
    CREATE TABLE semel_outbox (LIKE old INCLUDING DEFAULTS INCLUDING STORAGE, CONSTRAINT semel_outbox_pkey PRIMARY KEY (lane, seq))
        PARTITION BY RANGE (seq);
    CREATE TABLE semel_outbox_1 PARTITION OF semel_outbox DEFAULT;
    ALTER SEQUENCE semel_outbox_seq OWNED BY semel_outbox.seq;
    CREATE TRIGGER semel_outbox_complete BEFORE INSERT ON semel_outbox FOR EACH ROW EXECUTE FUNCTION semel_outbox_complete();
    DROP TABLE old;
    ALTER PUBLICATION semel ADD TABLE semel_outbox"""


def test_an_outbox_that_was_partitioned_by_hand_is_polled_until_the_publication_is_repaired(stream):
    stream.insert(3)
    stream.drain()
    for statement in PARTITIONED.split(";"):
        stream.semel.sql(statement)
    relay = stream.start()
    wait_for(lambda: "publishes the partitions of the outbox" in relay.log(), TIMEOUT_S, "the log of the problem")
    stream.insert(3, first=4)
    stream.wait_until_published()
    stream.init()
    wait_until_stream_is_read_after(relay, "publishes the partitions")
    stream.insert(3, first=7)
    stream.wait_until_published()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"a": list(range(1, 10))}


def test_a_weekly_inbox_partition_that_was_dropped_by_hand_is_forgotten_and_the_consumer_continues(stream):
    def week():
        return stream.semel.sql("SELECT DISTINCT tableoid::regclass::text FROM semel_inbox")

    consume = ("consume", "--scope", "x", "--topic", "order.events", "--print", "--drain")
    stream.insert(3)
    stream.drain()
    stream.semel.ok(*consume)
    ((name,),) = week()
    stream.semel.sql(f"DROP TABLE {name}")
    stream.insert(3, first=4)
    stream.drain()
    assert stream.semel.ok(*consume).count('"aggregateId"') == 3
    assert len(week()) == 1
    assert "missing: scope x, 3 events: published" in stream.semel.run("verify").stdout
