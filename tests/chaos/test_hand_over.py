# SPDX-License-Identifier: Apache-2.0
"""A process that was stopped for longer than its lease loses it to another one, resumes, and must do no
harm: it sends or processes what the other one has done meanwhile."""
import json
import signal
import time
from pathlib import Path

import pytest
from program import wait_for
from shop import TOPIC

pytestmark = [pytest.mark.anywhere, pytest.mark.core]

LEASE = ("--lease", "200ms")


def pause_at(point, milliseconds=1500):
    return {"SEMEL_FAILPOINT": f"{point}:pause={milliseconds}@1"}


def voluntary_switches(child):
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def is_paused(child):
    """A running relay renews its lease meanwhile."""
    before = voluntary_switches(child)
    time.sleep(0.3)
    return voluntary_switches(child) == before


def lease(shop):
    return shop.sql("SELECT owner, epoch FROM semel_lease")[0]


def all_is_published(shop):
    return shop.sql("SELECT count(*) FROM semel_outbox WHERE status <> 'PUBLISHED'") == [(0,)]


def paused_relay(shop, point):
    """A relay that is stopped at the point: (it, its name, the epoch of its lease). On a slow machine its pause may be
    over before it is checked; then it is longer the next time."""
    for milliseconds in (1500, 6000, 24000):
        shop.load()
        child = shop.spawn("relay", "--window", "5", *LEASE, env=pause_at(point, milliseconds))
        owner, epoch = wait_for(lambda: lease(shop)[0] and lease(shop), what="the first owner")
        found = wait_for(lambda: (is_paused(child) and "paused") or (all_is_published(shop) and "missed"), what="its pause")
        if found == "paused":
            shop.freeze(child)  # for as long as the others need
            return child, owner, epoch
        assert shop.stop(child) == 0
    raise AssertionError("it was never found paused")


@pytest.mark.parametrize("point", ["relay.after-claim", "relay.before-publish", "relay.after-publish", "relay.after-confirm"])
def test_a_relay_that_was_given_up_comes_back_to_marked_rows(shop, point):
    shop.by_sql("billing")
    first, owner, epoch = paused_relay(shop, point)
    shop.relay(*LEASE)
    shop.load()  # more, behind those that the first one has in flight
    shop.relay(*LEASE)
    assert lease(shop)[1] > epoch
    shop.consume(shop.subscriptions[0])
    first.send_signal(signal.SIGCONT)
    wait_for(lambda: lease(shop)[0] == owner, what="the first owner's return")
    shop.load(aggregates=3)
    wait_for(lambda: all_is_published(shop), what="everything published")
    assert shop.stop(first) == 0
    assert shop.sql("SELECT sum(attempts) FROM semel_outbox") == [(0,)]
    shop.recover()
    shop.check_books()


@pytest.mark.unless("kafka-mock", reason="the mock cluster does not list the members of a group")
@pytest.mark.parametrize("point", ["consume.after-receive", "consume.after-commit", "consume.after-ack"])
@pytest.mark.parametrize("kind", ["sql", "exec"])
def test_a_consumer_that_was_given_up_comes_back_to_what_is_done(shop, point, kind):
    if kind == "sql":
        subscription = shop.by_sql("billing", *LEASE)
    else:
        subscription = shop.by_exec("mail", *LEASE, repeats=True)  # the call that was in progress
    shop.load()
    shop.relay()
    first = shop.spawn(*subscription.words, "--batch", "4", "--json", env=pause_at(point))
    wait_for(lambda: shop.backend.broker.consumers(subscription.scope, TOPIC), what="the first owner")
    shop.backend.broker.expire_consumers()
    shop.consume(subscription)
    shop.load(aggregates=3)
    shop.relay()
    shop.consume(subscription)
    assert shop.stop(first) == 0
    assert set(json.loads(first.stdout.read())) == {"done", "duplicate", "retried", "dead", "parked"}
    shop.recover()
    shop.check_books()
