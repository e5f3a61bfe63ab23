# SPDX-License-Identifier: Apache-2.0
"""Whoever has nothing to do sleeps: no relay and no consumer turns in circles while it waits."""
import time
from pathlib import Path

import pytest

from program import wait_for
from story import HANDLER, consume, deliver, prepare, publish, relay, words

pytestmark = pytest.mark.slow

LOOK_S = 1.5
TURNS_PER_S = 40
TICKS_PER_S = 10


def naps(child):
    """How often the process went to sleep so far."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def ticks(child):
    """Processor time, in hundredths of a second."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def is_calm(child):
    began, before, used = time.monotonic(), naps(child), ticks(child)
    time.sleep(LOOK_S)  # a rate needs a stretch of time
    assert child.poll() is None, child.stderr.read()
    turns, worked = naps(child) - before, ticks(child) - used
    took = time.monotonic() - began
    return turns < TURNS_PER_S * took and worked < TICKS_PER_S * took


def rests(child):
    """It may have had to begin with something, on a machine that is slow; who turns in circles never is calm."""
    wait_for(lambda: is_calm(child), 30, "a rest")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def test_a_relay_without_events_rests(shop):
    publish(shop, "good")
    child = shop.spawn("relay")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE status = 'PUBLISHED'"))
    rests(child)


def test_a_relay_that_stands_by_rests(shop):
    first = shop.spawn("relay")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_lease WHERE owner <> ''"))
    second = shop.spawn("relay")
    rests(second)
    rests(first)


def consumer(shop, *more):
    return shop.spawn("consume", "--scope", "billing", "--topic", "order.events", *more)


def insert_word(shop):
    return consumer(shop, "--sql", HANDLER.format(scope="billing"))


def test_a_consumer_without_events_rests(shop):
    deliver(shop, ("good", "1"))
    rests(insert_word(shop))


def test_a_consumer_with_a_held_aggregate_rests(shop):
    deliver(shop, ("bad", "1"), ("second", "1"))
    rests(insert_word(shop))


def test_a_consumer_rests_while_its_handler_is_at_work_on_a_retry(shop):
    publish(shop, "good")
    relay(shop)
    child = consumer(shop, "--exec", "echo >>started; [ $SEMEL_ATTEMPT -ge 3 ] && exec sleep 60; exit 75")
    started = shop.folder / "started"
    wait_for(lambda: started.exists() and len(started.read_text()) == 3, what="the delayed retry")
    rests(child)


def test_a_consumer_rests_while_a_retry_is_due_at_another_one(shop):
    deliver(shop, ("good", "1"))
    pair = [consumer(shop, "--exec", "echo $PPID >owner; exit 75") for _ in range(2)]
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_share GROUP BY subscription HAVING count(DISTINCT owner) = 2", database=shop.broker))
    publish(shop, "late")
    relay(shop)
    due = "SELECT 1 FROM semel_delayed"
    wait_for(lambda: shop.sql(due, database=shop.broker), what="a delayed retry")
    stopped, other = sorted(pair, key=lambda child: str(child.pid) != (shop.folder / "owner").read_text().strip())
    shop.freeze(stopped)
    wait_for(lambda: shop.sql(f"{due} WHERE due_at < unixepoch() * 1000", database=shop.broker), what="its moment")
    rests(other)


def test_a_consumer_rests_while_its_breaker_is_open(shop):
    publish(shop, "good")
    relay(shop)
    child = consumer(shop, "--http", "http://127.0.0.1:1/")
    wait_for(lambda: naps(child) > 20)
    rests(child)


@pytest.mark.parametrize("handler", [("--exec", "true"), ("--sql", "SELECT 1")])
def test_a_consumer_rests_while_another_one_has_the_claim(shop, handler):
    event_id = publish(shop, "good")
    relay(shop)
    shop.sql(
        "INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, topic, owner, lease_until)"
        " SELECT 'billing', id, date(created_at, 'weekday 0', '-6 days'), 'CLAIMED', created_at, 'order.events',"
        " 'elsewhere:1:1:0', '2999-01-01T00:00:00.000Z' FROM semel_outbox WHERE id = ?", event_id)
    child = consumer(shop, *handler)
    rests(child)
    assert words(shop) == []
