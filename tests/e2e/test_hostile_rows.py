# SPDX-License-Identifier: Apache-2.0
"""Any application may write into the outbox, and no row stops the relay or a consumer."""
import json

import pytest

from mix import REFUSED
from story import consume, prepare, publish, relay, words


pytestmark = pytest.mark.anywhere


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def write(shop, number, **columns):
    row = {"id": f"id-{number}", "aggregate_type": "order", "aggregate_id": f"a{number}", "event_type": "order.created.v1",
           "payload": "{}", **columns}
    placeholders = ", ".join("?" * len(row))
    shop.sql(f"INSERT INTO semel_outbox ({', '.join(row)}) VALUES ({placeholders})", *row.values())


ODD = [
    {"payload": b""}, {"payload": ""}, {"payload": 5}, {"payload": 1.5}, {"payload": "{"}, {"payload": b"\xff"},
    {"payload": b"\x00\x01"}, {"topic": "\t"}, {"topic": "a\x00b"}, {"topic": "x" * 5000}, {"id": "\t\n"}, {"id": b"\xff\xfe"},
    {"headers": '{"a": 1, "b": {"c": 2}}'}, {"headers": '{"a\\u0000": "x"}'}, {"aggregate_id": b"\xff\x00"},
    {"aggregate_type": "\xa0"}, {"aggregate_id": "y" * 5000}, {"event_type": "\n"}, {"event_type": "z" * 5000},
    {"routing_key": ""}, {"content_type": ""}, {"content_type": "\n"}, {"created_at": "2026-01-01"},
    {"created_at": "2026-01-01 10:00"}, {"created_at": "9999-12-31T23:59:59Z"}, {"created_at": "0000-01-01"},
    {"created_at": "infinity"}, {"created_at": "20000-01-01"}, {"created_at": "0044-03-15 BC"},
]


@pytest.mark.parametrize("odd", ODD, ids=[f"{key}-{number}" for number, odd in enumerate(ODD) for key in odd])
def test_an_odd_row_does_not_stop_the_others(shop, odd):
    try:
        write(shop, 1, **odd)
    except REFUSED:
        return  # refused where it is written: better still
    publish(shop, "good", "2")
    relay(shop, "--attempts", "2", "--first-delay", "10ms")  # an odd topic may have no consumer
    consume(shop)
    assert "good" in words(shop)
    (waiting,) = shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'")[0]
    assert waiting == 0
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'FAILED'") == shop.sql(
        "SELECT count(*) FROM semel_dead_letter WHERE scope = 'relay' AND status = 'PENDING'")


EVIL = "'); DROP TABLE effect; --\"$(touch harm)`touch harm`;touch harm %s%n\\"


def test_the_texts_of_an_event_are_values_to_statements_programs_and_logs(shop):
    """Whatever they would mean to a database, a shell or a reader of logs."""
    shop.subscribe("billing", "files")
    event_id = shop.publish("--payload", json.dumps({"word": EVIL}), "--header", f"tenant={EVIL}", "--topic", "order.events",
                            type=f"order {EVIL}", aggregate=f"order:{EVIL}")
    relay(shop)
    consume(shop)
    assert words(shop) == [EVIL]
    done = shop.run("consume", "--scope", "files", "--topic", "order.events", "--drain", "--exec",
                    'printf "%s\\n" "$SEMEL_EVENT_TYPE" "$SEMEL_AGGREGATE_ID" >printed; echo "$SEMEL_AGGREGATE_ID" >&2; exit 65')
    assert (shop.folder / "printed").read_text() == f"order {EVIL}\n{EVIL}\n"
    assert not (shop.folder / "harm").exists()
    for line in done.stderr.splitlines():
        assert set(json.loads(line)) & {"time", "level", "msg"} == {"time", "level", "msg"}
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == event_id and EVIL in letter["failureReason"]


NAMES = {"id": "id-1\x00x", "aggregate_type": "order\x00x", "aggregate_id": "a2\x00x", "event_type": "order.created.v1\x00x",
         "topic": "order.events\x00x", "routing_key": "order.created.v1\x00x", "content_type": "application/json\x00x",
         "headers": '{"ce_id\\u0000x": "good", "cloudEvents_id\\u0000x": "good"}'}


def test_a_name_with_a_zero_byte_is_a_dead_letter_and_is_not_taken_for_another_name(shop):
    """As a C string it would end there: an event for order.events, with another id or type than its own."""
    written = 0
    for number, (column, value) in enumerate(NAMES.items(), start=1):
        try:
            write(shop, number, **{"payload": '{"word": "cut"}', column: value})
            written += 1
        except REFUSED:
            pass  # PostgreSQL keeps no such text, but for the headers
    assert written > 0
    publish(shop, "good", "2")
    relay(shop)
    consume(shop)
    assert words(shop) == ["good"]
    letters = shop.json("dlq", "list", "--scope", "relay")
    assert len(letters) == written
    assert all("NUL byte" in letter["failureReason"] for letter in letters), letters
    for letter in letters:
        shop.ok("dlq", "replay", letter["dlqEntryId"])
    relay(shop)
    again = shop.json("dlq", "list", "--scope", "relay", "--status", "pending")
    assert len(again) == written and all("NUL byte" in letter["failureReason"] for letter in again)
    for letter in again:
        shop.ok("dlq", "discard", letter["dlqEntryId"], "--reason", "written by mistake")
    assert shop.run("verify").returncode in (0, 1)
    publish(shop, "better", "2")
    relay(shop)
    consume(shop)
    assert words(shop) == ["good", "better"]


def test_names_longer_than_a_broker_accepts_do_not_stop_other_events(shop):
    """AMQP writes the length of a name into one byte; the rest would be decoded as something else."""
    odd = [{"headers": json.dumps({"k" * length: "v", "z": "y"})} for length in (255, 256, 300, 70000)]
    odd += [{column: "n" * length} for column in ("routing_key", "event_type") for length in (256, 300, 1000)]
    for number, columns in enumerate(odd, start=1):
        write(shop, number, **{"payload": '{"word": "long"}', **columns})
    publish(shop, "good", "2")
    relay(shop, "--attempts", "2", "--first-delay", "10ms")
    consume(shop)
    letters = shop.json("dlq", "list", "--scope", "relay")
    assert "good" in words(shop) and words(shop).count("long") + len(letters) == len(odd)
    assert all("bytes" in letter["failureReason"] for letter in letters), letters
