# SPDX-License-Identifier: Apache-2.0
"""An adopted outbox in the format of Debezium: its rows reach Kafka as the outbox event router would send them."""
import json
import os
import uuid

import mix
import pytest

SERVER = os.environ.get("SEMEL_TEST_KAFKA")
pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
on_kafka = pytest.mark.only("kafka")

TABLE = """CREATE TABLE outbox (id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, payload jsonb)"""


class Shop:
    """An application that fills its outbox, and empties it in the same transaction."""

    def __init__(self, semel):
        self.semel, self.suffix = semel, uuid.uuid4().hex[:8]
        self.slot = str(semel.store).rsplit("/", 1)[1].split("?")[0]
        self.file = semel.folder / "adopt.yaml"

    def configure(self, **keys):
        self.file.write_text(json.dumps({"relay": {}, "adopt": keys}))

    def run(self, *words):
        return self.semel.run("--config", str(self.file), *words, timeout=120)

    def ok(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def order(self, number, payload, table="outbox", keep=False):
        event_id = str(uuid.uuid4())
        connection = mix.connect(self.semel.store)
        connection.execute(f"INSERT INTO {table} VALUES (?, ?, ?, 'OrderCreated', ?)",
                           (event_id, f"order-{self.suffix}", str(number), payload))
        if not keep:
            connection.execute(f"DELETE FROM {table} WHERE id = ?", (event_id,))
        connection.commit()
        connection.close()
        return event_id

    def records(self, topic, count):
        kafka = pytest.importorskip("confluent_kafka")
        reader = kafka.Consumer({"bootstrap.servers": SERVER, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"})
        reader.subscribe([self.semel.broker.prefix + topic])
        found = []
        while len(found) < count:
            record = reader.poll(60)
            assert record is not None, f"{len(found)} of {count} records came"
            if not record.error():
                found.append(record)
        reader.close()
        return found


@pytest.fixture
def shop(semel):
    semel.sql(TABLE)
    return Shop(semel)


@on_kafka
@pytest.mark.parametrize("source", ["poll", "cdc"])
def test_rows_reach_kafka_as_the_outbox_event_router_sends_them(shop, source):
    shop.configure()
    slot_options = ("--cdc", "--slot", shop.slot) if source == "cdc" else ()
    assert "adopted the outbox outbox" in shop.ok("init", *slot_options)
    ids = [shop.order(1, '{"id": 1, "items": ["a"]}'), shop.order(2, None), shop.order(1, '{"id": 1}')]
    drained = shop.ok("relay", "--drain", "--timeout", "60s", "--source", source, *slot_options[1:])
    assert "published 3 events" in drained
    found = shop.records(f"outbox.event.order-{shop.suffix}", 3)
    seen = {dict(record.headers())["id"].decode(): record for record in found}
    first = seen[ids[0]]
    assert first.key() == b"1" and first.value() == b'{"id": 1, "items": ["a"]}'
    assert first.headers() == [("id", ids[0].encode())]
    assert seen[ids[1]].key() == b"2" and seen[ids[1]].value() is None
    assert [i for i in seen if seen[i].key() == b"1"] == [ids[0], ids[2]]
    shop.semel.sql("CREATE TABLE effect (id text, aggregate text)")
    shop.ok("consume", "--scope", "x", "--topic", f"outbox.event.order-{shop.suffix}", "--id-header", "id", "--drain",
            "--timeout", "60s", "--sql", "INSERT INTO effect VALUES (:id, :aggregate_id)")
    assert sorted(shop.semel.sql("SELECT * FROM effect")) == sorted(zip(ids, "121"))


@on_kafka
def test_columns_topic_headers_and_time_are_mapped(shop):
    shop.semel.sql("CREATE TABLE \"Out Box\" (eid text, kind text, owner bigint, what text, body bytea, at bigint)")
    shop.configure(table='"Out Box"', id="eid", key="owner", type="what", payload="body", time="at",
                   topic=f"{shop.suffix}.${{routedByValue}}.events", header=["what:eventType", "kind"], **{"route-by": "kind"})
    shop.ok("init")
    shop.semel.sql("INSERT INTO \"Out Box\" VALUES ('e-1', 'order', 7, 'paid.v1', '\\x00ff', 1700000000123)")
    shop.ok("relay", "--drain")
    record = shop.records(f"{shop.suffix}.order.events", 1)[0]
    assert record.key() == b"7" and record.value() == b"\x00\xff"
    assert dict(record.headers()) == {"id": b"e-1", "eventType": b"paid.v1", "kind": b"order"}
    assert record.timestamp()[1] == 1700000000123


def test_a_row_that_is_rolled_back_never_becomes_an_event(shop):
    shop.configure()
    shop.ok("init")
    connection = mix.connect(shop.semel.store)
    connection.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 't', '{}')")
    connection.rollback()
    connection.close()
    assert shop.semel.sql("SELECT count(*) FROM semel_outbox") == [(0,)]


def test_existing_rows_are_sent_if_requested_and_only_once(shop):
    old = shop.order(1, "{}", keep=True)
    shop.configure(existing="send")
    assert "adopted" in shop.ok("init") and "already adopted: the outbox" in shop.ok("init")
    assert shop.semel.sql("SELECT id FROM semel_outbox") == [(old,)]
    shop.semel.sql("DELETE FROM semel_outbox")
    shop.ok("init")
    assert shop.semel.sql("SELECT id FROM semel_outbox") == []


def test_a_relay_says_what_to_do_when_the_table_is_not_adopted_or_with_other_settings(shop):
    shop.configure()
    refused = shop.run("relay", "--drain")
    assert refused.returncode == 78 and "is not adopted: its rows" in refused.stderr and "init" in refused.stderr
    shop.ok("init")
    shop.ok("relay", "--drain")
    shop.configure(headers="all")
    refused = shop.run("relay", "--drain")
    assert refused.returncode == 78 and "other settings" in refused.stderr
    shop.ok("init")
    shop.ok("relay", "--drain")


@pytest.mark.parametrize("keys, complaint", [({"table": "nowhere"}, "table nowhere not found"), ({"key": "nokey"}, "no column nokey"),
                                             ({"header": ["x:y"]}, "no column x")])
def test_a_mapping_that_does_not_fit_names_what_is_missing(shop, keys, complaint):
    shop.configure(**keys)
    refused = shop.run("init")
    assert refused.returncode == 78 and complaint in refused.stderr


def test_the_application_needs_no_privileges_on_our_tables(shop):
    shop.configure()
    shop.ok("init")
    shop.semel.sql("DO $$ BEGIN CREATE ROLE shopkeeper; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$")
    shop.semel.sql("GRANT INSERT ON outbox TO shopkeeper")
    connection = mix.connect(shop.semel.store)
    connection.execute("SET ROLE shopkeeper")
    connection.execute("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 't', '{}')")
    connection.commit()
    connection.close()
    assert shop.semel.sql("SELECT event_type, topic, status FROM semel_outbox") == [("t", "outbox.event.order", "NEW")]
