# SPDX-License-Identifier: Apache-2.0
"""A process without work sleeps: no relay and no consumer spins while it waits."""
import time
from pathlib import Path

import pytest

from program import wait_for
from story import HANDLER, consume, deliver, prepare, publish, relay, words

pytestmark = pytest.mark.slow

SAMPLE_S = 1.5
SWITCHES_PER_S = 40
TICKS_PER_S = 10


def switches(child):
    """Voluntary context switches: how often the process went to sleep so far."""
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def ticks(child):
    """Processor time, in hundredths of a second."""
    fields = Path(f"/proc/{child.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def is_idle(child):
    began, before, used = time.monotonic(), switches(child), ticks(child)
    time.sleep(SAMPLE_S)  # a rate is measured over an interval
    assert child.poll() is None, child.stderr.read()
    switched, worked = switches(child) - before, ticks(child) - used
    took = time.monotonic() - began
    return switched < SWITCHES_PER_S * took and worked < TICKS_PER_S * took


def wait_until_idle(child):
    """On a slow machine a process may still be starting; one that spins is never idle."""
    wait_for(lambda: is_idle(child), 30, "an idle process")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def test_a_relay_without_events_is_idle(shop):
    publish(shop, "good")
    child = shop.spawn("relay")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE status = 'PUBLISHED'"))
    wait_until_idle(child)


def test_a_relay_that_stands_by_is_idle(shop):
    first = shop.spawn("relay")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_lease WHERE owner <> ''"))
    second = shop.spawn("relay")
    wait_until_idle(second)
    wait_until_idle(first)


def consumer(shop, *more):
    return shop.spawn("consume", "--scope", "billing", "--topic", "order.events", *more)


def insert_word(shop):
    return consumer(shop, "--sql", HANDLER.format(scope="billing"))


def test_a_consumer_without_events_is_idle(shop):
    deliver(shop, ("good", "1"))
    wait_until_idle(insert_word(shop))


def test_a_consumer_with_a_held_aggregate_is_idle(shop):
    deliver(shop, ("bad", "1"), ("second", "1"))
    wait_until_idle(insert_word(shop))


def test_a_consumer_is_idle_while_its_handler_runs_a_retry(shop):
    publish(shop, "good")
    relay(shop)
    child = consumer(shop, "--exec", "echo >>started; [ $SEMEL_ATTEMPT -ge 3 ] && exec sleep 60; exit 75")
    started = shop.folder / "started"
    wait_for(lambda: started.exists() and len(started.read_text()) == 3, what="the delayed retry")
    wait_until_idle(child)


def test_a_consumer_is_idle_while_a_retry_is_due_at_another_one(shop):
    deliver(shop, ("good", "1"))
    pair = [consumer(shop, "--exec", "echo $PPID >owner; exit 75") for _ in range(2)]
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_share GROUP BY subscription HAVING count(DISTINCT owner) = 2", database=shop.broker))
    publish(shop, "late")
    relay(shop)
    due = "SELECT 1 FROM semel_delayed"
    wait_for(lambda: shop.sql(due, database=shop.broker), what="a delayed retry")
    stopped, other = sorted(pair, key=lambda child: str(child.pid) != (shop.folder / "owner").read_text().strip())
    shop.freeze(stopped)
    wait_for(lambda: shop.sql(f"{due} WHERE due_at < unixepoch() * 1000", database=shop.broker), what="the time of the retry")
    wait_until_idle(other)


def test_a_consumer_is_idle_while_its_breaker_is_open(shop):
    publish(shop, "good")
    relay(shop)
    child = consumer(shop, "--http", "http://127.0.0.1:1/")
    wait_for(lambda: switches(child) > 20)
    wait_until_idle(child)


@pytest.mark.parametrize("handler", [("--exec", "true"), ("--sql", "SELECT 1")])
def test_a_consumer_is_idle_while_another_one_has_the_claim(shop, handler):
    event_id = publish(shop, "good")
    relay(shop)
    shop.sql(
        "INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, topic, owner, lease_until)"
        " SELECT 'billing', id, date(created_at, 'weekday 0', '-6 days'), 'CLAIMED', created_at, 'order.events',"
        " 'elsewhere:1:1:0', '2999-01-01T00:00:00.000Z' FROM semel_outbox WHERE id = ?", event_id)
    child = consumer(shop, *handler)
    wait_until_idle(child)
    assert words(shop) == []
