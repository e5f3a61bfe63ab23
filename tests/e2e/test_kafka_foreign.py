# SPDX-License-Identifier: Apache-2.0
"""Foreign clients at Kafka: confluent-kafka and kcat write and read records. They use no library of ours, only the
documented contracts."""
import contextlib
import json
import re
import subprocess
import uuid
from datetime import datetime, timezone

import kafka_server
import mix
import pytest
from program import wait_for
from servers import Certificates

pytestmark = [pytest.mark.anywhere, pytest.mark.only("kafka")]

confluent_kafka = pytest.importorskip("confluent_kafka")

TOPIC, WRONG = "order.events", "another-secret"
TABLES = f"CREATE TABLE invoice (event_id text, aggregate text, payload text{mix.PLACE})"
INVOICE = "INSERT INTO invoice (event_id, aggregate, payload) VALUES (:id, :aggregate_id, :payload)"
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", INVOICE, "--drain", "--first-delay", "20ms")


@pytest.fixture
def shop(semel):
    with contextlib.closing(mix.connect(semel.store)) as connection:
        connection.script(TABLES)
    return semel


def invoices(shop):
    return shop.sql(f"SELECT event_id, aggregate, payload FROM invoice ORDER BY {mix.row_order(shop.store)}")


def record_headers(event_id=None, **more):
    """The headers of a foreign record."""
    headers = {"ce_type": "order.created.v1", "content-type": "application/json", **more}
    if event_id:
        headers["ce_id"] = event_id
    return [(name, value) for name, value in headers.items() if value is not None]


def send(shop, value=b'{"total": 5}', key="ord-1", event_id=None, topic=TOPIC, producer=None, **headers):
    event_id = event_id or str(uuid.uuid4())
    shop.broker.produce(topic, value, key, record_headers(event_id, **headers), producer)
    return event_id


@pytest.fixture
def topic(shop):
    shop.broker.create(TOPIC)
    return TOPIC


# ---- a foreign consumer -------------------------------------------------------------------------


def test_a_foreign_consumer_finds_key_value_and_headers(shop):
    headers = {"correlationId": "c-1", "producer": "shop", "tenantId": "t-1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    began = datetime.now(timezone.utc)
    words = [word for item in headers.items() for word in ("--header", "=".join(item))]
    words += ["--header", "content-type=text/html"]  # the name of a header that the driver itself sets
    event_id = shop.publish("--payload", '{"total": 5}', *words, aggregate="order:ord-1")
    shop.ok("relay", "--drain")
    (record,) = shop.broker.records(TOPIC)
    assert (record.key(), record.value()) == (b"ord-1", b'{"total": 5}')
    names = [name for name, _ in record.headers()]
    assert len(names) == len(set(names)), names
    seen = {name: value.decode() for name, value in record.headers()}
    moment = datetime.fromisoformat(seen.pop("ce_time").replace("Z", "+00:00"))
    assert abs((moment - began).total_seconds()) < 60
    assert seen.pop("ce_source") == "shop"
    expected = {"ce_id": event_id, "ce_type": "order.created.v1", "content-type": "application/json",
                "semel-aggregate-type": "order", "semel-aggregate-id": "ord-1", **headers}
    assert {name: seen.get(name) for name in expected} == expected
    kind, stamp = record.timestamp()
    assert kind == confluent_kafka.TIMESTAMP_CREATE_TIME and abs(stamp / 1000 - moment.timestamp()) < 60


def test_headers_are_each_events_own_although_they_are_reused(shop):
    """With a window of one, every event reuses the headers of the one before it."""
    kinds = ["order.created.v1", *["order.paid.v1"] * 4, "order.created.v1", *["order.paid.v1"] * 5]
    own = ["{}", "{}", "{}", '{"tenantId": "t-1"}', *["{}"] * 7]
    keys = [*["ord-1"] * 6, "ord-10", "ord-10", "ord-1", "ord-10", "ord-1"]
    ids = [str(uuid.uuid4()) for _ in kinds]
    for row in zip(ids, keys, kinds, own):
        shop.sql("INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, headers, payload)"
                 " VALUES (?, 'order', ?, ?, ?, '{}')", *row)
    shop.ok("relay", "--drain", "--window", "1")
    records = shop.broker.records(TOPIC)
    seen = {dict(record.headers())["ce_id"].decode(): record for record in records}
    assert sorted(seen) == sorted(ids) and len(records) == len(ids)
    found = [{name: value.decode() for name, value in seen[event_id].headers()} for event_id in ids]
    assert [headers["ce_type"] for headers in found] == kinds
    assert [headers["semel-aggregate-id"] for headers in found] == [seen[event_id].key().decode() for event_id in ids] == keys
    before = [None, *ids[:5], None, ids[6], ids[5], ids[7], ids[8]]
    assert [headers.get("semel-previous") for headers in found] == before
    assert [headers.get("tenantId") for headers in found] == [None, None, None, "t-1", *[None] * 7]
    assert all(len(seen[event_id].headers()) == len(headers) for event_id, headers in zip(ids, found))
    assert sorted(headers["ce_time"] for headers in found) == [headers["ce_time"] for headers in found]


def test_events_of_one_aggregate_are_in_one_partition_in_their_order(shop):
    for number in range(30):
        shop.publish("--payload", json.dumps({"number": number}), aggregate=f"order:ord-{number % 3}")
    shop.ok("relay", "--drain")
    records = shop.broker.records(TOPIC)
    assert len(records) == 30
    for aggregate in range(3):
        mine = [record for record in records if record.key() == f"ord-{aggregate}".encode()]
        assert len({record.partition() for record in mine}) == 1
        assert [json.loads(record.value())["number"] for record in mine] == list(range(aggregate, 30, 3))


def test_the_partition_of_a_key_is_the_one_that_kafkas_own_clients_choose(shop, topic):
    """So that our events and those of another producer meet in one partition. By murmur2, of four:"""
    theirs = {b"ord-3": 1, b"ord-6": 3, b"ord-10": 0, b"ord-17": 3, b"ord-19": 0}
    for key in theirs:
        shop.publish(aggregate=f"order:{key.decode()}")
    shop.ok("relay", "--drain")
    assert {record.key(): record.partition() for record in shop.broker.records(topic)} == theirs


# ---- a foreign producer -------------------------------------------------------------------------


def test_a_foreign_record_is_consumed_once_however_often_it_comes(shop, topic):
    event_id = send(shop)
    for _ in range(3):
        send(shop, event_id=event_id)
    shop.ok(*CONSUME)
    send(shop, event_id=event_id)
    shop.ok(*CONSUME)
    assert invoices(shop) == [(event_id, "ord-1", '{"total": 5}')]


def test_a_foreign_record_that_is_delivered_again_is_consumed_once(shop, topic):
    event_id = send(shop)
    done = shop.run(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-commit:kill"})
    assert done.returncode == -9
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [event_id]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_records_may_be_compressed(shop, topic, codec):
    ids = [send(shop, producer=shop.broker.producer(compression_type=codec)) for _ in range(3)]
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == ids


def test_the_aggregate_of_a_foreign_record_is_its_key_or_what_its_headers_say(shop, topic):
    send(shop, key="ord-7")
    send(shop, key="anything", **{"semel-aggregate-type": "order", "semel-aggregate-id": "ord-8"})
    shop.ok(*CONSUME)
    assert sorted(row[1] for row in invoices(shop)) == ["ord-7", "ord-8"]


@pytest.mark.parametrize("value, event_id, reason", [
    (b'{"total": 5}', False, "id"), (b'{"total": ', True, "application/json"), (b"\xff\x00\xfe", True, "application/json"),
    (None, False, "id")], ids=["no id", "broken JSON", "no UTF-8", "tombstone without an id"])
def test_a_foreign_record_that_breaks_the_contract_is_a_dead_letter(shop, topic, value, event_id, reason):
    headers = [("ce_id", str(uuid.uuid4()))] if event_id else []
    headers += [("ce_type", "order.created.v1"), ("content-type", "application/json")]
    shop.broker.produce(topic, value, "ord-1", headers)
    good = send(shop, key="other")
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [good]
    (letter,) = shop.json("dlq", "list")
    assert reason in letter["failureReason"] and letter["attempts"] == 0


LONG = "".join(str(uuid.uuid4()) for _ in range(200))[:6000]  # cannot be compressed
UNFIT = {
    "id not UTF-8": ({"event_id": b"a\xff\xfe"}, "id is not valid UTF-8"),
    "id with a NUL byte": ({"event_id": b"a\x00b"}, "id has a NUL byte"),
    "long id": ({"event_id": LONG}, "id is 6000 bytes long"),
    "type not UTF-8": ({"ce_type": b"\xff"}, "type is not valid UTF-8"),
    "aggregate not UTF-8": ({"semel-aggregate-id": b"\xff\xfe"}, "aggregate id is not valid UTF-8"),
    "aggregate with a NUL byte": ({"semel-aggregate-id": b"a\x00b"}, "aggregate id has a NUL byte"),
    "long key": ({"key": LONG}, "aggregate id is 6000 bytes long"),
    "long aggregate type": ({"semel-aggregate-type": LONG}, "aggregate type is 6000 bytes long"),
    "content type not UTF-8": ({"content-type": b"text/\xff"}, "content type is not valid UTF-8"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_foreign_record_with_a_name_that_no_store_can_keep_is_a_dead_letter(shop, topic, what):
    record, reason = UNFIT[what]
    send(shop, **record)
    good = send(shop, key="other")
    shop.ok(*CONSUME)
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [good]
    (letter,) = shop.json("dlq", "list")
    assert reason in letter["failureReason"] and letter["attempts"] == 0
    shop.ok("dlq", "show", letter["dlqEntryId"])
    shop.ok("dlq", "replay", letter["dlqEntryId"])  # under the name that it has in the list
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [good, letter["originalEventId"]]


def test_zero_bytes_in_a_payload_and_a_header_are_kept_in_a_dead_letter_and_replayed(shop, topic):
    """Also if the store keeps no NUL byte in a text, the dead letter has it unchanged."""
    event_id = send(shop, value=b'{"a": "\\u0000"}', x=b"a\x00b")
    refuse = ("consume", "--scope", "billing", "--topic", TOPIC, "--exec", "exit 1", "--attempts", "1", "--drain")
    shop.ok(*refuse)
    shop.ok(*refuse)
    (letter,) = shop.json("dlq", "list")
    assert letter["eventRecord"]["payload"] == {"a": "\x00"} and letter["eventRecord"]["headers"]["x"] == "a\x00b"
    shop.ok("dlq", "replay", letter["dlqEntryId"])
    shop.ok(*CONSUME)
    assert invoices(shop) == [(event_id, "ord-1", '{"a": "\\u0000"}')]


def test_a_tombstone_with_an_id_is_an_event_without_a_payload(shop, topic):
    event_id = send(shop, value=None)
    shop.ok(*CONSUME)
    assert [(row[0], row[2]) for row in invoices(shop)] == [(event_id, "")]
    assert shop.json("dlq", "list") == []


def test_a_record_without_a_key_and_one_with_an_empty_value_are_taken(shop, topic):
    ids = {send(shop, key=None), send(shop, key=b"", value=b"", **{"content-type": "text/plain"})}
    shop.ok(*CONSUME)
    assert {row[0] for row in invoices(shop)} == ids


def test_strange_headers_do_no_harm(shop, topic):
    event_id = str(uuid.uuid4())
    strange = [("ce_id", event_id), ("ce_type", "order.created.v1"), ("content-type", "text/plain"), ("twice", b"1"),
               ("twice", b"2"), ("empty", b""), ("none", None), ("bytes", b"\xff\xfe"), ("line", b"a\nb"),
               ("semel-attempt", b"x")]
    shop.broker.produce(topic, b"hello", "ord-1", strange)
    shop.ok(*CONSUME)
    shop.ok(*CONSUME)
    good = [row[0] for row in invoices(shop)]
    dead = [letter["originalEventId"] for letter in shop.json("dlq", "list")]
    assert good + dead == [event_id]


def test_a_record_without_a_time_has_that_of_kafka(shop, topic):
    """So it is in the same week however late it is consumed."""
    event_id = str(uuid.uuid4())
    moment = datetime(2020, 1, 8, 12, tzinfo=timezone.utc)
    shop.broker.produce(topic, b"{}", "ord-1", record_headers(event_id), timestamp=int(moment.timestamp() * 1000))
    shop.ok(*CONSUME)
    assert shop.sql("SELECT week_start FROM semel_inbox WHERE event_id = ?", event_id) == [("2020-01-06",)]


def test_records_of_kcat_are_consumed_with_and_without_a_key(shop, topic):
    ids = [str(uuid.uuid4()) for _ in range(2)]
    for event_id, key in zip(ids, (("-k", "ord-1"), ())):
        words = ["kcat", "-P", "-b", shop.broker.address, "-t", shop.broker.topic(topic), *key, "-H", f"ce_id={event_id}",
                 "-H", "ce_type=order.created.v1", "-H", "content-type=application/json"]
        subprocess.run(words, input=b'{"total": 5}', check=True, timeout=60)
    shop.ok(*CONSUME)
    assert sorted(row[0] for row in invoices(shop)) == sorted(ids)


# ---- transactions of others -----------------------------------------------------------------------


def test_records_of_an_aborted_foreign_transaction_are_never_consumed(shop, topic):
    """A drain ends although the last entry of the partition is no record but the control record of a transaction."""
    producer = shop.broker.producer(transactional_id=f"{shop.broker.prefix}theirs")
    producer.init_transactions(60)

    def write(end):
        producer.begin_transaction()
        event_id = str(uuid.uuid4())
        producer.produce(shop.broker.topic(topic), value=b"{}", key="ord-1", headers=record_headers(event_id))
        producer.flush(60)
        end(60)
        return event_id
    write(producer.abort_transaction)
    kept = write(producer.commit_transaction)
    write(producer.abort_transaction)
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [kept]


def test_a_transaction_that_is_still_open_is_waited_for(shop, topic):
    producer = shop.broker.producer(transactional_id=f"{shop.broker.prefix}theirs")
    producer.init_transactions(60)
    producer.begin_transaction()
    event_id = str(uuid.uuid4())
    producer.produce(shop.broker.topic(topic), value=b"{}", key="ord-1", headers=record_headers(event_id))
    producer.flush(60)
    child = shop.spawn(*(word for word in CONSUME if word != "--drain"))
    done = shop.run(*CONSUME, "--timeout", "2s")
    assert done.returncode in (0, 75), done.stderr
    assert invoices(shop) == []
    producer.commit_transaction(60)
    wait_for(lambda: invoices(shop), 60, "the event of the transaction")
    assert shop.stop(child) == 0
    assert [row[0] for row in invoices(shop)] == [event_id]


# ---- what a broker may answer ---------------------------------------------------------------------


def test_nothing_overtakes_an_event_that_is_too_large_for_its_topic_and_other_aggregates_go_on(shop):
    """Each event is a batch: librdkafka has the next one ready, and sends it also after the first was refused."""
    shop.broker.create(TOPIC, partitions=1, max_message_bytes=2000)
    made = [("ord-1", "x" * 5000)] + [("ord-1", ""), ("ord-2", "")] * 3
    lines = [json.dumps({"type": "order.created.v1", "aggregateType": "order", "aggregateId": aggregate,
                         "payload": {"text": text}}) for aggregate, text in made]
    large, *others = shop.ok("publish", "--batch", input="\n".join(lines) + "\n").split()
    alone = {"SEMEL_BROKER": shop.broker.url_with(batch_num_messages=1)}
    shop.ok("relay", "--drain", "--attempts", "2", "--first-delay", "20ms", env=alone)
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == large and letter["sourceService"] == "relay"
    assert re.search("large|size", letter["failureReason"]), letter
    assert [record[0] for record in shop.broker.log()] == others[1::2]
    assert shop.sql("SELECT id FROM semel_outbox WHERE status = 'NEW' ORDER BY seq") == [(waits,) for waits in others[::2]]


def test_with_the_limit_of_the_topic_in_the_url_nothing_overtakes_an_event_that_is_too_large(shop):
    """librdkafka refuses it itself then, before anything behind it is taken."""
    shop.broker.create(TOPIC, max_message_bytes=2000)
    large = shop.publish("--payload", json.dumps({"text": "x" * 5000}), aggregate="order:ord-1")
    behind = shop.publish("--payload", "{}", aggregate="order:ord-1")
    other = shop.publish("--payload", "{}", aggregate="order:ord-2")
    limited = {"SEMEL_BROKER": shop.broker.url_with(message_max_bytes=1900)}
    shop.run("relay", "--drain", "--attempts", "2", "--first-delay", "20ms", env=limited, check=True)
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == large
    assert [record[0] for record in shop.broker.log()] == [other]
    assert shop.sql("SELECT status FROM semel_outbox WHERE id = ?", behind) == [("NEW",)]


def test_a_topic_with_a_small_limit_takes_small_events_however_many_come(shop):
    """Kafka measures a batch: many small events may be too large together."""
    shop.broker.create(TOPIC, partitions=1, max_message_bytes=3000)
    lines = [json.dumps({"type": "order.created.v1", "aggregateType": "order", "aggregateId": f"ord-{number % 5}",
                         "payload": {"number": number, "text": "x" * 500}}) for number in range(100)]
    shop.ok("publish", "--batch", input="\n".join(lines) + "\n")
    shop.ok("relay", "--drain", "--attempts", "3", "--first-delay", "20ms")
    assert shop.json("dlq", "list") == []
    assert sorted(json.loads(payload)["number"] for _, _, payload in shop.broker.log()) == list(range(100))


def test_an_event_that_is_too_large_for_every_topic_is_a_dead_letter(shop):
    large = shop.publish("--payload", "@-", aggregate="order:ord-1", input=json.dumps({"text": "x" * 3_000_000}))
    other = shop.publish("--payload", "{}", aggregate="order:ord-2")
    shop.ok("relay", "--drain", "--attempts", "2", "--first-delay", "20ms")
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == large
    assert [record[0] for record in shop.broker.log()] == [other]


def test_a_missing_topic_is_created_unless_that_is_forbidden(shop):
    event_id = shop.publish("--topic", "new.events")
    kept = {"SEMEL_BROKER": shop.broker.url_with(**{"create-topics": "no"})}
    shop.ok("relay", "--drain", "--attempts", "2", "--first-delay", "20ms", env=kept)
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == event_id and "new.events" in letter["failureReason"]
    assert "new.events" not in shop.broker.topics()
    shop.ok("dlq", "replay", "--all")
    shop.ok("relay", "--drain")
    assert [record[0] for record in shop.broker.log()] == [event_id]


def secure(shop, user, password=kafka_server.PASSWORD):
    """Over the listener with certificates and passwords; the password is in a file."""
    secret, attached = shop.folder / "secret", mix.servers()
    secret.write_text(password + "\n")
    return {"SEMEL_BROKER": shop.broker.url_with(
        attached.kafka_secure_address(), security_protocol="sasl_ssl", sasl_mechanism="PLAIN", sasl_username=user,
        ssl_ca_location=attached.authority), "SEMEL_KAFKA_PASSWORD_FILE": str(secret)}


def test_a_missing_right_to_write_to_a_topic_is_a_dead_letter_with_that_reason(shop, topic):
    shop.broker.create("other.events")
    shop.broker.allow(kafka_server.WRITER, "other.events", mix.servers().endpoints["kafka"]["jars"])
    refused, taken = shop.publish(), shop.publish("--topic", "other.events", aggregate="order:2")
    shop.ok("relay", "--drain", "--attempts", "2", "--first-delay", "20ms", env=secure(shop, kafka_server.WRITER))
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == refused
    assert TOPIC in letter["failureReason"] and re.search("right|uthoriz", letter["failureReason"]), letter
    assert [record[0] for record in shop.broker.log()] == [taken]
    shop.ok("dlq", "replay", "--all")
    shop.ok("relay", "--drain")
    assert {record[0] for record in shop.broker.log()} == {refused, taken}


# ---- TLS and secrets ------------------------------------------------------------------------------


def test_delivery_over_verified_certificates_with_a_password_from_a_file(shop):
    env = {**secure(shop, kafka_server.ADMINISTRATOR), "SEMEL_LOG_LEVEL": "debug"}
    event_id = shop.publish()
    for words in (("relay", "--drain"), CONSUME):
        done = shop.run(*words, env=env)
        assert done.returncode == 0, done.stderr
        assert kafka_server.PASSWORD not in done.stdout + done.stderr
    assert [row[0] for row in invoices(shop)] == [event_id]


class Folder:
    """As much of a sandbox as certificates need."""

    def __init__(self, folder):
        self.folder = folder


@pytest.mark.parametrize("damage", ["wrong password", "no server", "foreign certificate"])
def test_a_broker_that_is_unreachable_or_denies_access_is_an_outage_and_the_password_is_not_shown(shop, topic, damage, tmp_path):
    env = secure(shop, kafka_server.ADMINISTRATOR, WRONG if damage == "wrong password" else kafka_server.PASSWORD)
    url = env["SEMEL_BROKER"]
    if damage == "no server":
        url = re.sub(r"localhost:\d+", "localhost:9", url)
    elif damage == "foreign certificate":
        url = url.replace(str(mix.servers().authority), str(Certificates(Folder(tmp_path), "foreign").authority))
    shop.publish()
    for words in (("relay", "--drain", "--timeout", "3s"), (*CONSUME, "--timeout", "3s")):
        done = shop.run(*words, env={**env, "SEMEL_BROKER": url, "SEMEL_LOG_LEVEL": "debug"})
        assert done.returncode in (69, 75, 78), (words, done.stderr)
        assert WRONG not in done.stdout + done.stderr and kafka_server.PASSWORD not in done.stdout + done.stderr
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 0") == [(0,)]


# ---- topics, declared and checked -----------------------------------------------------------------


@pytest.fixture
def declared(shop):
    """A config with one subscription."""
    config = shop.folder / "shop.yaml"
    config.write_text(json.dumps({"subscriptions": [{"scope": "billing", "topics": [TOPIC], "sql": [INVOICE]}]}))
    return ("--config", str(config), "topology")


def test_topics_are_declared_and_the_check_agrees(shop, declared):
    assert shop.run(*declared, "check").returncode == 1
    assert shop.broker.topics() == set()
    shop.ok(*declared, "apply")
    shop.ok(*declared, "apply")
    assert TOPIC in shop.broker.topics()
    assert any(name.startswith(f"{TOPIC}.billing.retry.") for name in shop.broker.topics())
    shop.ok(*declared, "check")


def test_a_topic_whose_limit_is_below_our_batches_is_reported_with_the_remedy(shop, declared):
    shop.broker.create(TOPIC, max_message_bytes=2000)
    shop.ok(*declared, "apply")
    done = shop.run(*declared, "check")
    assert done.returncode == 1 and "message.max.bytes=1900" in done.stdout + done.stderr
    shop.run(*declared, "check", env={"SEMEL_BROKER": shop.broker.url_with(message_max_bytes=1900)}, check=True)


# ---- retries and dead letters, as they are at the broker --------------------------------------------


def test_a_retry_is_in_the_retry_topic_with_the_same_id_and_its_attempt(shop, topic):
    event_id = send(shop)
    flaky = ("consume", "--scope", "billing", "--topic", TOPIC, "--exec", '[ "$SEMEL_ATTEMPT" -ge 3 ]', "--drain",
             "--immediate", "1", "--first-delay", "50ms")
    shop.ok(*flaky)
    tiers = [name for name in shop.broker.topics() if name.startswith(f"{TOPIC}.billing.retry.")]
    seen = [dict(record.headers()) for name in tiers for record in shop.broker.records(name)]
    assert seen and all(headers["ce_id"] == event_id.encode() for headers in seen)
    assert all(int(headers["semel-attempt"]) >= 1 for headers in seen)


def test_a_consumer_reads_partitions_that_are_added(shop, topic):
    from confluent_kafka.admin import NewPartitions

    soon = {"SEMEL_BROKER": shop.broker.url_with(topic_metadata_refresh_interval_ms=1000)}
    child = shop.spawn(*(word for word in CONSUME if word != "--drain"), env=soon)
    first = send(shop)
    wait_for(lambda: len(invoices(shop)) == 1, 60, "the first event")
    made = shop.broker.administrator.client.create_partitions([NewPartitions(shop.broker.topic(topic), 8)])
    for done in made.values():
        done.result(30)
    wait_for(lambda: shop.broker.administrator.has_leaders(shop.broker.topic(topic), 8), 30, "eight partitions")
    producer = shop.broker.producer()
    ids = {first}
    for partition in range(8):
        event_id = str(uuid.uuid4())
        shop.broker.produce(topic, b"{}", "ord-1", record_headers(event_id), producer, partition=partition)
        ids.add(event_id)
    wait_for(lambda: {row[0] for row in invoices(shop)} == ids, 60, "the events of the new partitions")
    assert shop.stop(child) == 0
