# SPDX-License-Identifier: Apache-2.0
"""publish: the business change and its event in one transaction, or neither."""
import json
import os
import uuid

import pytest
from mix import has_table
from program import PROGRAM

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

COLUMNS = "id, event_type, aggregate_type, aggregate_id, topic, routing_key, payload, content_type, headers, created_at"


def events(semel):
    rows = semel.sql(f"SELECT {COLUMNS} FROM semel_outbox ORDER BY seq")
    return [dict(zip(COLUMNS.split(", "), row)) for row in rows]


def batch(*lines):
    return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def line(number, **more):
    return {"type": "order.created.v1", "aggregateType": "order", "aggregateId": str(number), "payload": {"n": number}, **more}


def test_the_event_is_in_the_outbox_under_the_printed_id(semel):
    event_id = semel.publish("--payload", '{"total": 5}', aggregate="order:ord-1")
    assert uuid.UUID(event_id).version == 7
    (event,) = events(semel)
    assert event["id"] == event_id
    assert (event["event_type"], event["aggregate_type"], event["aggregate_id"]) == ("order.created.v1", "order", "ord-1")
    assert json.loads(event["payload"]) == {"total": 5}
    assert event["content_type"] == "application/json"


def test_everything_about_an_event_can_be_given(semel):
    given = str(uuid.uuid4())
    assert semel.publish(
        "--id", given, "--topic", "t", "--routing-key", "r", "--time", "2026-11-15T12:00:00+01:00",
        "--content-type", "text/plain", "--payload", "plain words", "--header", "tenantId=a=b", "--header", "x=1",
        "--header", "x=2", aggregate="order:with:colons",
    ) == given
    (event,) = events(semel)
    assert (event["id"], event["topic"], event["routing_key"]) == (given, "t", "r")
    assert event["aggregate_id"] == "with:colons"
    assert event["created_at"] == "2026-11-15T11:00:00.000Z"
    assert (event["content_type"], event["payload"]) == ("text/plain", "plain words")
    assert json.loads(event["headers"]) == {"tenantId": "a=b", "x": "2"}


def test_without_a_payload_it_is_an_empty_object(semel):
    semel.publish()
    assert json.loads(events(semel)[0]["payload"]) == {}


def test_the_payload_comes_from_a_file_or_standard_input(semel):
    (semel.folder / "p.json").write_text('{"from": "file"}')
    semel.publish("--payload", "@p.json")
    semel.publish("--payload", "-", input='{"from": "stdin"}')
    assert [json.loads(event["payload"])["from"] for event in events(semel)] == ["file", "stdin"]


@pytest.mark.core
def test_the_business_change_commits_with_the_event(semel):
    semel.publish("--sql", "CREATE TABLE orders (id TEXT PRIMARY KEY)", "--sql", "INSERT INTO orders VALUES ('a')")
    assert semel.sql("SELECT id FROM orders") == [("a",)]
    assert len(events(semel)) == 1


@pytest.mark.parametrize("statement", ["INSERT INTO orders VALUES ('a')", "INSERT INTO nothing VALUES (1)", "SELEC 1"])
def test_a_failed_business_change_leaves_no_event(semel, statement):
    semel.sql("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    semel.sql("INSERT INTO orders VALUES ('a')")
    complaint = semel.fails(
        65, "publish", "--type", "t", "--aggregate", "a:b", "--sql", "INSERT INTO orders VALUES ('b')", "--sql", statement
    )
    assert "--sql 2 of 2" in complaint
    assert semel.sql("SELECT id FROM orders") == [("a",)]
    assert events(semel) == []


def test_a_refused_event_leaves_no_business_change(semel):
    semel.sql("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    semel.fails(65, "publish", "--type", "t", "--aggregate", "a:b", "--payload", "{", "--sql", "INSERT INTO orders VALUES (1)")
    assert semel.sql("SELECT * FROM orders") == []


def test_an_id_is_published_once(semel):
    event_id = semel.publish()
    complaint = semel.fails(65, "publish", "--type", "t", "--aggregate", "a:b", "--id", event_id)
    assert event_id in complaint
    assert len(events(semel)) == 1


@pytest.mark.core
def test_a_crash_before_the_commit_leaves_nothing(semel):
    done = semel.run("publish", "--type", "t", "--aggregate", "a:b", "--sql", "CREATE TABLE orders (id TEXT)",
                     env={"SEMEL_FAILPOINT": "publish.before-commit:kill"})
    assert (done.returncode, done.stdout) == (-9, "")
    assert events(semel) == []
    assert not has_table(semel.store, "orders")


@pytest.mark.core
def test_a_crash_after_the_commit_leaves_both(semel):
    done = semel.run("publish", "--type", "t", "--aggregate", "a:b", "--sql", "CREATE TABLE orders (id TEXT)",
                     env={"SEMEL_FAILPOINT": "publish.after-commit:kill"})
    assert (done.returncode, done.stdout) == (-9, "")
    assert len(events(semel)) == 1
    assert semel.sql("SELECT * FROM orders") == []


def test_an_error_before_the_commit_is_reported_and_leaves_nothing(semel):
    semel.fails(69, "publish", "--type", "t", "--aggregate", "a:b", env={"SEMEL_FAILPOINT": "publish.before-commit:error"})
    assert events(semel) == []


def test_inside_a_handler_correlation_and_causation_are_propagated(semel):
    cause = str(uuid.uuid4())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    env = {"SEMEL_EVENT_ID": cause, "SEMEL_HEADERS": json.dumps({"correlationId": "c", "traceparent": trace, "mine": "x"})}
    semel.publish(env=env)
    semel.publish("--header", "correlationId=other", env=env)
    semel.publish(env={"SEMEL_EVENT_ID": cause, "SEMEL_HEADERS": "{}"})
    first, second, third = [json.loads(event["headers"]) for event in events(semel)]
    assert (first["correlationId"], first["causationId"], first["traceparent"]) == ("c", cause, trace)
    assert "mine" not in first
    assert (second["correlationId"], second["causationId"]) == ("other", cause)
    assert (third["correlationId"], third["causationId"]) == (cause, cause)


@pytest.mark.core
def test_an_event_published_by_a_handler_names_its_cause(semel):
    cause = semel.publish("--header", "correlationId=c")
    semel.ok("relay", "--drain")
    semel.ok("consume", "--scope", "x", "--topic", "order.events", "--drain", "--pass-env", "SEMEL_STORE",
             "--exec", f"'{PROGRAM}' publish --type order.billed.v1 --aggregate order:1")
    billed = events(semel)[1]
    assert billed["event_type"] == "order.billed.v1"
    headers = json.loads(billed["headers"])
    assert (headers["correlationId"], headers["causationId"]) == ("c", cause)


def test_progress_is_shown_on_a_terminal_only(semel):
    terminal, other_end = os.openpty()
    semel.ok("publish", "--batch", input=batch(line(1)), stderr=other_end)
    os.close(other_end)
    assert b"1 events written" in os.read(terminal, 1000)
    os.close(terminal)
    assert semel.run("publish", "--batch", input=batch(line(1)), check=True).stderr == ""


def test_headers_are_propagated_to_the_lines_of_a_batch(semel):
    cause = str(uuid.uuid4())
    semel.ok("publish", "--batch", input=batch(line(1), line(2, headers={"correlationId": "own"})),
             env={"SEMEL_EVENT_ID": cause, "SEMEL_HEADERS": '{"correlationId": "c"}'})
    headers = [json.loads(event["headers"]) for event in events(semel)]
    assert [each["correlationId"] for each in headers] == ["c", "own"]
    assert [each["causationId"] for each in headers] == [cause, cause]


def test_a_batch_prints_its_ids_in_order(semel):
    given = str(uuid.uuid4())
    printed = semel.ok("publish", "--batch", input=batch(line(1), line(2, id=given), "", line(3))).split()
    assert printed == [event["id"] for event in events(semel)]
    assert printed[1] == given
    assert [event["aggregate_id"] for event in events(semel)] == ["1", "2", "3"]


def test_a_batch_takes_every_member_of_a_line(semel):
    given = line(1, topic="t", routingKey="r", time="2026-11-15T12:00:00Z", headers={"a": "b"}, contentType="application/json")
    semel.ok("publish", "--batch", input=batch(given))
    (event,) = events(semel)
    assert (event["topic"], event["routing_key"], event["created_at"]) == ("t", "r", "2026-11-15T12:00:00.000Z")
    assert json.loads(event["headers"]) == {"a": "b"}


def test_a_batch_runs_the_business_change_once(semel):
    semel.ok("publish", "--batch", "--sql", "CREATE TABLE orders (id TEXT)", "--sql", "INSERT INTO orders VALUES (1)",
             input=batch(line(1), line(2)))
    assert semel.sql("SELECT count(*) FROM orders") == [(1,)]
    assert len(events(semel)) == 2


@pytest.mark.parametrize("size", [3, 1203])
@pytest.mark.parametrize("bad, words", [
    ("{", "JSON"),
    ('{"type": "t"}', "aggregate"),
    ('{"typ": "t"}', "type"),
    ("[]", "object"),
    ('{"type": "t", "aggregateType": "a", "aggregateId": "b", "payload": 1, "headers": {"x": "\\u0001"}}', "header"),
])
def test_one_bad_line_and_nothing_of_the_batch_is_written(semel, size, bad, words):
    lines = [line(number) for number in range(1, size + 1)]
    lines[size - 2] = bad
    complaint = semel.fails(65, "publish", "--batch", "--sql", "CREATE TABLE orders (id TEXT)", input=batch(*lines))
    assert f"line {size - 1}:" in complaint and words.lower() in complaint.lower()
    assert events(semel) == []
    assert not has_table(semel.store, "orders")


@pytest.mark.parametrize("size", [3, 1203])
def test_an_id_given_twice_in_a_batch_is_reported_with_its_second_line(semel, size):
    twice = str(uuid.uuid4())
    lines = [line(number) for number in range(1, size + 1)]
    lines[0]["id"] = lines[size - 1]["id"] = twice
    complaint = semel.fails(65, "publish", "--batch", input=batch(*lines))
    assert f"line {size}:" in complaint and twice in complaint
    assert events(semel) == []


def test_an_empty_batch_writes_nothing(semel):
    assert semel.ok("publish", "--batch", input="") == ""
    assert events(semel) == []


def test_a_last_line_without_an_end_counts(semel):
    assert len(semel.ok("publish", "--batch", input=batch(line(1)) + json.dumps(line(2))).split()) == 2


def test_options_of_one_event_are_refused_with_a_batch(semel):
    assert "--type" in semel.fails(64, "publish", "--batch", "--type", "t", input="")
