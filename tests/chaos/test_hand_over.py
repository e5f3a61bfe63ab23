# SPDX-License-Identifier: Apache-2.0
"""Who was silent for longer than its lease is given up by the others, comes back, and must do no
harm: it sends or has in hand what somebody else has done meanwhile."""
import json
import signal
import time
from pathlib import Path

import pytest
from program import wait_for
from shop import TOPIC

pytestmark = [pytest.mark.anywhere, pytest.mark.core]

SILENCE_MS = 1500
LEASE = ("--lease", "200ms")


def silent(point):
    return {"SEMEL_FAILPOINT": f"{point}:pause={SILENCE_MS}@1"}


def turns(child):
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])


def stands_still(child):
    """Who is at work renews its lease meanwhile."""
    before = turns(child)
    time.sleep(0.3)
    return turns(child) == before


def lease(shop):
    return shop.sql("SELECT owner, epoch FROM semel_lease")[0]


@pytest.mark.parametrize("point", ["relay.after-claim", "relay.before-publish", "relay.after-publish", "relay.after-confirm"])
def test_a_relay_that_was_given_up_comes_back_to_marked_rows(shop, point):
    shop.by_sql("billing")
    shop.load()
    first = shop.spawn("relay", "--window", "5", *LEASE, env=silent(point))
    owner, epoch = wait_for(lambda: lease(shop)[0] and lease(shop), what="the first owner")
    wait_for(lambda: stands_still(first), what="its silence")
    first.send_signal(signal.SIGSTOP)  # and silent it is for as long as the others need
    shop.relay(*LEASE)
    shop.load()  # more, behind those that the first one has in hand
    shop.relay(*LEASE)
    assert lease(shop)[1] > epoch
    shop.consume(shop.subscriptions[0])
    first.send_signal(signal.SIGCONT)
    wait_for(lambda: lease(shop)[0] == owner, what="the first owner's return")
    shop.load(aggregates=3)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status <> 'PUBLISHED'") == [(0,)])
    assert shop.stop(first) == 0
    assert shop.sql("SELECT sum(attempts) FROM semel_outbox") == [(0,)]
    shop.recover()
    shop.is_right()


@pytest.mark.unless("kafka-mock", reason="the mock cluster does not tell who is in a group")
@pytest.mark.parametrize("point", ["consume.after-receive", "consume.after-commit", "consume.after-ack"])
@pytest.mark.parametrize("kind", ["sql", "exec"])
def test_a_consumer_that_was_given_up_comes_back_to_what_is_done(shop, point, kind):
    if kind == "sql":
        subscription = shop.by_sql("billing", *LEASE)
    else:
        subscription = shop.by_exec("mail", *LEASE, repeats=True)  # the call that was under way
    shop.load()
    shop.relay()
    first = shop.spawn(*subscription.words, "--batch", "4", "--json", env=silent(point))
    wait_for(lambda: shop.place.broker.consumers(subscription.scope, TOPIC), what="the first owner")
    shop.place.broker.give_up()
    shop.consume(subscription)
    shop.load(aggregates=3)
    shop.relay()
    shop.consume(subscription)
    assert shop.stop(first) == 0
    assert set(json.loads(first.stdout.read())) == {"done", "duplicate", "retried", "dead", "parked"}
    shop.recover()
    shop.is_right()
