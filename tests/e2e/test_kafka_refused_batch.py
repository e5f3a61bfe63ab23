# SPDX-License-Identifier: Apache-2.0
"""One event that Kafka refuses, among thousands, while a second relay stands by with a short lease: the relay
finds it without losing its lanes, so it is a dead letter once, and the others arrive once."""
from collections import Counter

import mix
import pytest
from kafka_space import headers_of
from program import wait_for
from stream import TIMEOUT_S, Stream

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"), pytest.mark.only("kafka"),
              pytest.mark.unless("kafka-mock", reason="the mock cluster takes events of any size")]
EVENTS, AT, TOGETHER = 4000, 1500, 20
INSERT = f"""INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload, content_type)
    SELECT 'order', 'a-' || n, 't.v1', 'orders', CASE WHEN n = {AT} THEN repeat('x', 1200000) ELSE n::text END, 'text/plain'
    FROM generate_series(?::int + 1, ?::int + {TOGETHER}) n"""


def commit(semel):
    connection = mix.connect(semel.store)
    for first in range(0, EVENTS, TOGETHER):
        connection.execute(INSERT, (first, first))
        connection.commit()
    connection.close()


def outbox(semel):
    return dict(semel.sql("SELECT status, count(*) FROM semel_outbox GROUP BY status"))


@pytest.mark.parametrize("options", [("--source", "poll"), ("--source", "cdc"), ("--source", "cdc", "--transactions")],
                         ids=["poll", "cdc", "transactions"])
def test_one_event_too_large_among_thousands_is_found_while_another_relay_stands_by(semel, options):
    stream = Stream(semel)
    semel.broker.create("orders", 4)
    if "cdc" in options:
        stream.init()
    commit(semel)
    refused = TOGETHER if "--transactions" in options else 1  # a transaction is shown as a whole or not at all
    words = ("relay", *options, "--lease", "1s", *(("--slot", stream.slot) if "cdc" in options else ("--window", "2400")))
    with stream.ended():
        env = {"SEMEL_BROKER": semel.broker.url_with(message_max_bytes=2000000)}
        relays = [semel.spawn(*words, env=env) for _ in range(2)]
        wait_for(lambda: outbox(semel) == {"FAILED": refused, "PUBLISHED": EVENTS - refused}, TIMEOUT_S, "everything is settled")
        for relay in relays:
            assert semel.stop(relay) == 0
    (reason,) = semel.sql("SELECT failure_reason FROM semel_dead_letter WHERE aggregate_id = ?", f"a-{AT}")[0]
    assert "too large" in reason.lower()
    arrived = Counter(headers_of(record)["ce_id"] for record in semel.broker.records("orders", "read_committed"))
    assert len(arrived) == EVENTS - refused
    assert arrived.total() < EVENTS * 1.1, f"{arrived.total()} records: few are sent twice"
