# SPDX-License-Identifier: Apache-2.0
"""Foreign clients at Kafka: confluent-kafka reads what the relay sends, and a consumer reads what it writes, also
unusual records. SEMEL_TEST_KAFKA is host:port of a Kafka on which tests may create topics."""
import json
import os
import uuid
from datetime import datetime, timedelta

import pytest
from kafka_server import ADMINISTRATOR, PASSWORD, USER, Administrator

SERVER = os.environ.get("SEMEL_TEST_KAFKA")
pytestmark = [pytest.mark.anywhere, pytest.mark.only("sqlite"), pytest.mark.only("kafka")]
kafka = pytest.importorskip("confluent_kafka")

TEST_SERVERS = json.loads(os.environ.get("SEMEL_TEST_SERVERS", "{}"))
secured = pytest.mark.skipif(not TEST_SERVERS.get("kafka"), reason="the server of SEMEL_TEST_KAFKA is not one of servers.py")
EFFECT = "INSERT INTO effect VALUES (:id, :aggregate_type, :aggregate_id, :payload, :time)"


class Shop:
    """SQLite and a topic of the test's own."""

    def __init__(self, semel):
        self.semel, self.topic = semel, f"orders-{uuid.uuid4()}"
        self.env = {"SEMEL_BROKER": f"kafka://{SERVER}/"}
        semel.sql("CREATE TABLE effect (id, type, aggregate, payload, time)")
        self.producer = kafka.Producer({"bootstrap.servers": SERVER})

    def ok(self, *words):
        return self.semel.ok(*words, env=self.env)

    def publish(self, *words, aggregate="order:1", payload="{}"):
        return self.ok("publish", "--type", "order.created.v1", "--aggregate", aggregate, "--topic", self.topic,
                       "--payload", payload, *words).strip()

    def consume(self, *words, scope="billing"):
        return self.ok("consume", "--scope", scope, "--topic", self.topic, "--sql", EFFECT, "--first-delay", "20ms",
                       "--drain", *words)

    def write(self, key=None, value=b"{}", headers=None):
        self.producer.produce(self.topic, value=value, key=key, headers=headers)
        assert self.producer.flush(60) == 0

    def read(self, count, topic=None):
        """Whatever is in the topic, by a consumer of a new group."""
        reader = kafka.Consumer({"bootstrap.servers": SERVER, "group.id": str(uuid.uuid4()),
                                 "auto.offset.reset": "earliest"})
        reader.subscribe([topic or self.topic])
        records = []
        while len(records) < count:
            record = reader.poll(60)
            assert record is not None, f"{len(records)} of {count} records came"
            if not record.error():
                records.append(record)
        reader.close()
        return records

    def read_at(self, partition, offset):
        reader = kafka.Consumer({"bootstrap.servers": SERVER, "group.id": str(uuid.uuid4())})
        reader.assign([kafka.TopicPartition(self.topic, partition, offset)])
        record = reader.poll(60)
        reader.close()
        assert record is not None and not record.error() and record.offset() == offset
        return record

    def effects(self):
        return self.semel.sql("SELECT id, type, aggregate, payload, time FROM effect ORDER BY rowid")

    def dead(self):
        return self.semel.sql("SELECT event_id, failure_reason FROM semel_dead_letter WHERE status = 'PENDING'")


@pytest.fixture
def shop(semel):
    made = Shop(semel)
    made.ok("topology", "apply", "--scope", "billing", "--topic", made.topic)
    return made


def test_a_foreign_consumer_finds_the_event_as_the_contract_says(shop):
    made = shop.publish("--header", "correlationId=c-1", "--routing-key", "orders.eu", aggregate="order:o-7",
                        payload='{"total": 5}')
    shop.ok("relay", "--drain")
    record = shop.read(1)[0]
    headers = {name: value.decode() for name, value in record.headers()}
    assert record.key() == b"o-7" and json.loads(record.value()) == {"total": 5}
    assert headers["ce_id"] == made and headers["ce_type"] == "order.created.v1"
    assert headers["ce_specversion"] == "1.0" and headers["ce_source"] == "/semel" and "ce_time" in headers
    assert headers["content-type"] == "application/json" and headers["correlationId"] == "c-1"
    assert headers["semel-aggregate-type"] == "order" and headers["semel-aggregate-id"] == "o-7"
    assert headers["semel-routing-key"] == "orders.eu" and "semel-lane" not in headers


def test_a_foreign_record_is_an_event_and_its_repeat_a_duplicate(shop):
    headers = {"ce_id": "f-1", "ce_type": "order.paid.v1", "ce_time": "2026-01-02T03:04:05Z",
               "content-type": "application/json"}
    shop.write("o-1", b'{"n": 1}', headers)
    shop.write("o-1", b'{"n": 1}', headers)
    shop.consume()
    assert shop.effects() == [("f-1", shop.topic, "o-1", '{"n": 1}', "2026-01-02T03:04:05.000Z")]


def test_a_tombstone_with_an_id_is_an_event_without_payload_and_one_without_is_kept(shop):
    shop.write("o-1", None, {"ce_id": "t-1", "ce_type": "order.deleted.v1"})
    shop.write("o-2", None)
    shop.consume()
    assert [(row[0], row[3]) for row in shop.effects()] == [("t-1", "")]
    assert len(shop.dead()) == 1 and "id" in shop.dead()[0][1]


def test_null_keys_strange_keys_and_empty_headers_do_no_harm(shop):
    shop.write(None, b"{}", {"ce_id": "n-1"})
    shop.write(None, b"{}", {"ce_id": "n-2"})
    shop.write(b"\x00\xff\x01", b"{}", {"ce_id": "b-1"})
    shop.write(b"", b"{}", [("ce_id", b"e-1"), ("empty", None), ("twice", b"1"), ("twice", b"2")])
    shop.write(b"k", b"\xff\xfe", {"ce_id": "x-1", "content-type": "application/octet-stream"})
    shop.consume()
    seen = {row[0]: row[2] for row in shop.effects()}
    assert seen["n-1"] == "n-1" and seen["n-2"] == "n-2" and seen["b-1"] == "AP8B" and seen["x-1"] == "k"
    assert set(seen) | {row[0] for row in shop.dead()} >= {"n-1", "n-2", "b-1", "x-1", "e-1"}


def test_a_failing_event_goes_through_the_retry_topics_and_is_a_dead_letter_in_the_end(shop):
    shop.semel.sql("CREATE TABLE tried (attempt)")
    shop.publish(aggregate="order:bad")
    shop.publish(aggregate="order:good")
    shop.ok("relay", "--drain")
    shop.ok("consume", "--scope", "billing", "--topic", shop.topic, "--first-delay", "20ms", "--attempts", "3",
            "--drain", "--exec", 'test "$SEMEL_AGGREGATE_ID" != bad')
    assert len(shop.dead()) == 1
    entry = shop.semel.json("dlq", "list", env=shop.env)[0]
    assert entry["attempts"] == 3 and entry["eventRecord"]["aggregateId"] == "bad"
    copy = shop.read(1, f"{shop.topic}.billing.dlt")[0]
    headers = {name: value.decode() for name, value in copy.headers()}
    assert headers["ce_id"] == entry["originalEventId"] and headers["semel-dead-attempts"] == "3"
    assert headers["semel-dead-reason"] == entry["failureReason"] and headers["semel-dead-scope"] == "billing"
    assert headers["semel-dead-topic"] == shop.topic
    dead_lettered, failed = (datetime.fromisoformat(text) for text in (headers["semel-dead-time"], entry["failureTimestamp"]))
    assert abs(dead_lettered - failed) < timedelta(hours=1)
    origin = shop.read_at(int(headers["semel-dead-partition"]), int(headers["semel-dead-offset"]))
    assert dict(origin.headers())["ce_id"].decode() == headers["ce_id"]
    shop.ok("dlq", "replay", entry["dlqEntryId"])
    shop.ok("consume", "--scope", "billing", "--topic", shop.topic, "--drain", "--exec", "true")
    assert shop.dead() == []
    assert "every committed event is accounted for" in shop.ok("verify", "--scope", "billing")


def test_a_missing_topic_that_may_not_be_created_is_reported_with_its_event(semel):
    env = {"SEMEL_BROKER": f"kafka://{SERVER}/?create-topics=no"}
    topic = f"missing-{uuid.uuid4()}"
    semel.publish("--topic", topic)
    semel.drain_times_out("relay", expected=[topic, "create it"], env=env)


def test_offsets_that_are_kept_in_the_store_win(shop):
    shop.env["SEMEL_BROKER"] += "?offsets=store"
    for number in range(10):
        shop.publish(aggregate=f"order:{number}")
    shop.ok("relay", "--drain")
    shop.consume("--guarantee", "at-least-once")
    assert len(shop.effects()) == 10
    shop.semel.sql("UPDATE semel_position SET next_offset = 0 WHERE next_offset > 0")
    shop.consume("--guarantee", "at-least-once")
    assert len(shop.effects()) == 20


def test_a_topic_that_may_lose_confirmed_events_or_refuse_whole_batches_is_reported(shop):
    topic = f"careless-{uuid.uuid4()}"
    Administrator(SERVER).create(topic, partitions=1, unclean_leader_election_enable="true", max_message_bytes=2000)
    done = shop.semel.run("topology", "check", "--scope", "billing", "--topic", topic, env=shop.env)
    assert done.returncode == 1, done.stderr
    assert f"topic {topic} has unclean.leader.election.enable=true: confirmed events can be lost" in done.stdout
    assert f"topic {topic} has max.message.bytes=2000" in done.stdout and "message.max.bytes=1900" in done.stdout
    other = shop.semel.run("topology", "check", "--scope", "billing", "--topic", shop.topic, env=shop.env).stdout
    assert "unclean" not in other and "max.message.bytes" not in other and "replica" not in other, other


# ---- answers of the server -------------------------------------------------------------------------


def test_an_event_too_large_for_its_topic_is_a_dead_letter_and_the_others_go_on(semel):
    env, topic = {"SEMEL_BROKER": f"kafka://{SERVER}/"}, f"small-{uuid.uuid4()}"
    Administrator(SERVER).create(topic, partitions=1, max_message_bytes=2000)
    for number in range(20):
        large = number == 7
        semel.ok("publish", "--type", "t.v1", "--aggregate", f"order:{'large' if large else number % 5}", "--topic", topic,
                 "--payload", json.dumps({"n": number, "fill": "x" * (5000 if large else 10)}))
    semel.ok("relay", "--drain", env=env)
    assert semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY status ORDER BY status") == [
        ("FAILED", 1), ("PUBLISHED", 19)]
    reason = semel.sql("SELECT failure_reason FROM semel_dead_letter")[0][0]
    assert "too large" in reason.lower() or "larger" in reason.lower()


def url_with(folder, user, password, authority=True):
    secret = folder / "secret"
    secret.write_text(password + "\n")
    url = f"kafka://localhost:{TEST_SERVERS['kafka']['secure_port']}/?security.protocol=sasl_ssl&sasl.mechanisms=PLAIN"
    credentials = f"&sasl.username={user}&sasl.password-file={secret}"
    return {"SEMEL_BROKER": url + credentials + (f"&ssl.ca.location={TEST_SERVERS['authority']}" if authority else "")}


@secured
def test_tls_and_a_password_from_a_file_give_access(semel, tmp_path):
    env, topic = url_with(tmp_path, ADMINISTRATOR, PASSWORD), f"secure-{uuid.uuid4()}"
    semel.publish("--topic", topic)
    semel.ok("relay", "--drain", env=env)
    printed = semel.ok("consume", "--scope", "billing", "--topic", topic, "--print", "--drain", env=env)
    assert json.loads(printed)["topic"] == topic


@secured
@pytest.mark.parametrize("password, authority", [("not the word", True), (PASSWORD, False)])
def test_a_wrong_password_and_an_unknown_authority_are_reported_and_end_the_relay(semel, tmp_path, password, authority):
    error = semel.fails(78, "relay", "--drain", env=url_with(tmp_path, ADMINISTRATOR, password, authority))
    assert "denies access" in error and password not in error


@secured
def test_a_user_without_the_right_to_write_is_reported(semel, tmp_path):
    topic = f"closed-{uuid.uuid4()}"
    Administrator(SERVER).create(topic)
    semel.publish("--topic", topic)
    error = semel.fails(78, "relay", "--drain", env=url_with(tmp_path, USER, PASSWORD))
    assert "the user's rights" in error and "authorization failed" in error
    # The cluster refuses the producer and the topic the event, whichever is asked first: the latter is an attempt.
    assert semel.sql("SELECT status FROM semel_outbox WHERE attempts <= 1") == [("NEW",)]
