# SPDX-License-Identifier: Apache-2.0
"""trace: the life of one event, in order."""
import pytest

from mix import url_of
from story import consume, deliver, mend, prepare, publish, relay

pytestmark = pytest.mark.anywhere

UNKNOWN = "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def life(semel, event_id, *more):
    story = semel.json("trace", event_id, *more)
    assert story["eventId"] == event_id
    times = [fact["time"] for fact in story["facts"]]
    assert times == sorted(times)
    return [(fact["what"], fact["scope"]) for fact in story["facts"]]


def test_a_delivered_event(shop):
    (event_id,) = deliver(shop, ("first", "1"))
    facts = life(shop, event_id)
    assert facts.index(("committed", None)) < facts.index(("published", None)) < facts.index(("processed", "billing"))
    told = shop.ok("trace", event_id)
    assert told.splitlines()[0].split()[2] == "committed"
    assert told.splitlines()[-1] == "billing: done"


def test_an_event_that_was_only_committed(shop):
    event_id = publish(shop, "first")
    assert life(shop, event_id) == [("committed", None)]


def test_an_event_on_its_way(shop):
    deliver(shop, ("first", "1"))
    event_id = publish(shop, "second")
    relay(shop)
    assert ("waiting", "billing") in life(shop, event_id)


@pytest.mark.core
def test_a_dead_letter_and_its_replay(shop):
    head, follower = deliver(shop, ("bad", "1"), ("second", "1"))
    assert ("dead-lettered", "billing") in life(shop, head)
    assert ("parked", "billing") in life(shop, follower)
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    consume(shop)
    facts = life(shop, head)
    assert facts.index(("dead-lettered", "billing")) < facts.index(("replayed", "billing"))
    assert ("processed", "billing") in facts
    assert ("processed", "billing") in life(shop, follower)


def test_another_database_tells_its_part(shop):
    other = shop.backend.database("audit")
    url = url_of(other)
    shop.ok("--store", url, "init")
    prepare(shop, database=other)
    event_id = publish(shop, "first")
    relay(shop)
    consume(shop, "audit", before=("--store", url))
    assert ("processed", "audit") not in life(shop, event_id)
    assert ("processed", "audit") in life(shop, event_id, "--consumer-store", url)


def test_an_event_that_nobody_knows(shop):
    assert UNKNOWN in shop.fails(65, "trace", UNKNOWN)
    shop.fails(64, "trace")
