# SPDX-License-Identifier: Apache-2.0
"""trace: the history of one event, in order."""
import pytest

from mix import url_of
from story import consume, deliver, mend, prepare, publish, relay

pytestmark = pytest.mark.anywhere

UNKNOWN = "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def history(semel, event_id, *more):
    trace = semel.json("trace", event_id, *more)
    assert trace["eventId"] == event_id
    times = [fact["time"] for fact in trace["facts"]]
    assert times == sorted(times)
    return [(fact["what"], fact["scope"]) for fact in trace["facts"]]


def test_a_delivered_event(shop):
    (event_id,) = deliver(shop, ("first", "1"))
    facts = history(shop, event_id)
    assert facts.index(("committed", None)) < facts.index(("published", None)) < facts.index(("processed", "billing"))
    printed = shop.ok("trace", event_id)
    assert printed.splitlines()[0].split()[2] == "committed"
    assert printed.splitlines()[-1] == "billing: done"


def test_an_event_that_was_only_committed(shop):
    event_id = publish(shop, "first")
    assert history(shop, event_id) == [("committed", None)]


def test_an_event_on_its_way(shop):
    deliver(shop, ("first", "1"))
    event_id = publish(shop, "second")
    relay(shop)
    assert ("waiting", "billing") in history(shop, event_id)


@pytest.mark.core
def test_a_dead_letter_and_its_replay(shop):
    head, follower = deliver(shop, ("bad", "1"), ("second", "1"))
    assert ("dead-lettered", "billing") in history(shop, head)
    assert ("parked", "billing") in history(shop, follower)
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    consume(shop)
    facts = history(shop, head)
    assert facts.index(("dead-lettered", "billing")) < facts.index(("replayed", "billing"))
    assert ("processed", "billing") in facts
    assert ("processed", "billing") in history(shop, follower)


def test_another_database_contributes_its_facts(shop):
    other = shop.backend.database("audit")
    url = url_of(other)
    shop.ok("--store", url, "init")
    prepare(shop, database=other)
    event_id = publish(shop, "first")
    relay(shop)
    consume(shop, "audit", before=("--store", url))
    assert ("processed", "audit") not in history(shop, event_id)
    assert ("processed", "audit") in history(shop, event_id, "--consumer-store", url)


def test_an_unknown_event(shop):
    assert UNKNOWN in shop.fails(65, "trace", UNKNOWN)
    shop.fails(64, "trace")
