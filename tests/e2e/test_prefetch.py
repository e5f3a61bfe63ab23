# SPDX-License-Identifier: Apache-2.0
"""The events that a consumer has fetched are bounded in bytes, with every broker."""
import json

import pytest
from mix import BROKER
from program import wait_for
from story import prepare, relay, words
from test_memory import MIB, peak_bytes

pytestmark = [pytest.mark.anywhere, pytest.mark.slow]

# A record of Kafka has a megabyte at most, unless the server says otherwise.
SIZE, COUNT = (900_000, 230) if "kafka" in BROKER else (5 * MIB, 40)
CONSUME = ("consume", "--scope", "billing", "--topic", "order.events")
SQL = ("--sql", "INSERT INTO effect (scope, id, word) VALUES ('billing', :id, 'done')")


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.backend.witness("order.events")
    semel.ok(*CONSUME, *SQL, "--drain")
    return semel


def published(shop, size, count):
    event = {"type": "order.created.v1", "aggregateType": "order", "topic": "order.events", "payload": {"fill": "x" * size}}
    for number in range(count):
        shop.ok("publish", "--batch", input=json.dumps({**event, "aggregateId": str(number)}) + "\n")
    relay(shop, "--timeout", "120s")


@pytest.mark.core
@pytest.mark.parametrize("handler", ["sql", "exec"])
def test_the_memory_of_large_events_is_bounded(shop, handler):
    published(shop, SIZE, COUNT)
    program = ("--exec", "cat >/dev/null; echo done >>ran", "--concurrency", "8")
    child = shop.spawn(*CONSUME, *(SQL if handler == "sql" else program))

    def done():
        ran = shop.folder / "ran"
        return len(words(shop)) if handler == "sql" else len(ran.read_text().split()) if ran.exists() else 0

    wait_for(lambda: done() == COUNT, timeout=120, what="all events done")
    peak = peak_bytes(child)
    assert shop.stop(child) == 0
    assert peak < 250 * MIB, f"{peak // MIB} MiB"


def test_an_event_that_is_larger_than_all_that_is_allowed_is_taken_alone(shop):
    published(shop, 100_000, 5)
    shop.ok(*CONSUME, *SQL, "--drain", "--prefetch-bytes", "1")
    assert words(shop) == ["done"] * 5
