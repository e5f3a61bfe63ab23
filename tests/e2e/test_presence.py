# SPDX-License-Identifier: Apache-2.0
"""A consumer records in the store what it has in hand and what it waits for."""
import signal

import pytest

from program import wait_for
from story import prepare, publish, relay

pytestmark = [pytest.mark.anywhere]

REFUSED = "http://127.0.0.1:9/"  # no process listens on the port of the discard service


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def rows(shop):
    return shop.sql("SELECT in_hand, breaker, reason, paused, waits_since IS NOT NULL FROM semel_consumer WHERE scope = 'billing'")


def spawn(shop, *handler):
    return shop.spawn("consume", "--scope", "billing", "--topic", "order.events", *handler)


@pytest.mark.core
def test_a_consumer_records_that_its_handler_is_down_and_deletes_its_row_at_the_end(shop):
    publish(shop, "first")
    relay(shop)
    consumer = spawn(shop, "--http", REFUSED)
    wait_for(lambda: any(row[1] == 2 and row[0] >= 1 for row in rows(shop)), what="the open breaker in the row")
    ((_, _, reason, paused, waits),) = rows(shop)
    assert REFUSED in reason and not paused and waits
    shop.stop(consumer)
    assert rows(shop) == []


def test_a_consumer_that_is_killed_leaves_its_row_for_the_lease(shop):
    consumer = spawn(shop, "--exec", "true")
    wait_for(lambda: len(rows(shop)) == 1, what="the row")
    shop.stop(consumer, signal.SIGKILL)
    assert len(rows(shop)) == 1


def test_a_consumer_that_is_idle_has_nothing_in_hand_and_waits_for_nothing(shop):
    consumer = spawn(shop, "--exec", "true")
    wait_for(lambda: len(rows(shop)) == 1, what="the row")
    ((in_hand, breaker, reason, paused, waits),) = rows(shop)
    assert (in_hand, breaker, reason, bool(paused), bool(waits)) == (0, 0, None, False, False)
    shop.stop(consumer)
