# SPDX-License-Identifier: Apache-2.0
"""Order: within an aggregate always; with --order strict also if the broker delivers out of order;
with --order total over the whole topic."""
import itertools
import json

import pytest

from mix import BROKER, STORE, fail_when
from program import wait_for
from story import HANDLER, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

# On a server a topic has one queue or partition unless more are wanted.
ONE = ("--broker", "local:semel-broker.db?partitions=1") if BROKER == "local" else ()
QUICK = ("--immediate", "1", "--first-delay", "50ms", "--delay-max", "100ms")
FLAKY = fail_when(":attempt < 4 AND json_extract(:payload, '$.word') = 'flaky'")


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.backend.witness("order.events")
    return semel


def run_words(*more):
    return (*ONE, "consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"), *more)


def consume(semel, *more):
    return semel.json(*run_words("--drain", *more))


def published(semel, *pairs):
    for word, aggregate in pairs:
        publish(semel, word, aggregate)
    semel.ok(*ONE, "relay", "--drain")


def swap(semel, first, second):
    """Exchanges the positions of two events in the broker's log."""
    place = dict(semel.sql("SELECT json_extract(payload, '$.word'), position FROM semel_log", database=semel.broker))
    for word, position in ((first, -1), (second, place[first]), (first, place[second])):
        semel.sql("UPDATE semel_log SET position = ? WHERE json_extract(payload, '$.word') = ?", position, word,
                  database=semel.broker)


# ---- the relay adds its predecessor to each event -----------------------------------------------


def previous(semel):
    rows = semel.sql("SELECT id, aggregate_id, previous FROM semel_log ORDER BY position", database=semel.broker)
    return {aggregate: [(id, before) for id, other, before in rows if other == aggregate] for _, aggregate, _ in rows}


@pytest.mark.only("local")
@pytest.mark.parametrize("window", ["1", "1000"])
def test_every_event_names_the_one_before_it_in_its_aggregate(shop, window):
    for number in range(3):
        for aggregate in ("a", "b"):
            publish(shop, f"{aggregate}{number}", aggregate)
        relay(shop, "--window", window)  # each is a new relay, and knows it too
    for events in previous(shop).values():
        assert [before for _, before in events] == [None, *(id for id, _ in events[:-1])]


# ---- strict -------------------------------------------------------------------------------------


@pytest.mark.only("local")
def test_without_strict_the_order_of_the_broker_is_kept(shop):
    published(shop, ("a1", "a"), ("a2", "a"))
    swap(shop, "a1", "a2")
    consume(shop)
    assert words(shop) == ["a2", "a1"]


@pytest.mark.only("local")
def test_with_strict_an_event_waits_for_its_predecessor(shop):
    published(shop, ("a1", "a"), ("b1", "b"), ("a2", "a"), ("a3", "a"), ("b2", "b"))
    swap(shop, "a1", "a3")
    counts = consume(shop, "--order", "strict")
    seen = words(shop)
    assert [word for word in seen if word[0] == "a"] == ["a1", "a2", "a3"]
    assert [word for word in seen if word[0] == "b"] == ["b1", "b2"]
    assert (counts["done"], counts["parked"]) == (5, 2)


@pytest.mark.only("local")
def test_with_strict_in_small_batches_it_is_the_same(shop):
    published(shop, ("a1", "a"), ("a2", "a"), ("a3", "a"), ("a4", "a"))
    swap(shop, "a1", "a4")
    consume(shop, "--order", "strict", "--batch", "1")
    assert words(shop) == ["a1", "a2", "a3", "a4"]


@pytest.mark.only("local")
@pytest.mark.slow
@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[1:], ids=lambda order: "".join(map(str, order)))
def test_with_strict_every_permutation_is_put_in_order(shop, order):
    published(shop, *((f"a{number}", "a") for number in range(4)))
    places = shop.sql("SELECT position FROM semel_log ORDER BY position", database=shop.broker)
    for number in range(4):
        shop.sql("UPDATE semel_log SET position = -1 - position WHERE position = ?", *places[number], database=shop.broker)
    for number, (place,) in zip(order, places):
        shop.sql("UPDATE semel_log SET position = ? WHERE json_extract(payload, '$.word') = ?", place, f"a{number}",
                 database=shop.broker)
    consume(shop, "--order", "strict", "--batch", str(1 + order[0] % 3))
    assert words(shop) == ["a0", "a1", "a2", "a3"]


@pytest.mark.only("local")
def test_strict_waits_also_while_the_predecessor_has_not_arrived(shop):
    """As with two relays that publish independently: the second event is in the log, the first is not."""
    published(shop, ("a1", "a"), ("a2", "a"))
    held = shop.sql("SELECT * FROM semel_log WHERE json_extract(payload, '$.word') = 'a1'", database=shop.broker)[0]
    shop.sql("DELETE FROM semel_log WHERE position = ?", held[0], database=shop.broker)
    child = shop.spawn(*run_words("--order", "strict"))
    wait_for(lambda: shop.sql("SELECT state FROM semel_hold") == [("gap",)], what="the wait for the predecessor")
    assert words(shop) == []
    (next_offset,) = shop.sql("SELECT next FROM semel_offset", database=shop.broker)[0]
    position = held[0] >> 44 << 44 | next_offset
    shop.sql("UPDATE semel_offset SET next = next + 1", database=shop.broker)
    shop.sql(f"INSERT INTO semel_log VALUES ({', '.join('?' * len(held))})", position, *held[1:], database=shop.broker)
    wait_for(lambda: words(shop) == ["a1", "a2"], what="both in order")
    assert shop.stop(child) == 0


@pytest.mark.only("local")
def test_strict_waits_only_within_its_bound(shop):
    published(shop, ("a1", "a"), ("a2", "a"), ("a3", "a"))
    swap(shop, "a2", "a3")
    shop.sql("UPDATE semel_log SET previous = 'unknown' WHERE previous IS NULL", database=shop.broker)
    consume(shop, "--order", "strict", "--strict-wait", "300ms")
    assert words(shop) == ["a1", "a2", "a3"]


@pytest.mark.core
def test_strict_treats_a_dead_letter_as_settled_and_parks_behind_it(shop):
    published(shop, ("bad", "a"), ("a2", "a"))
    consume(shop, "--order", "strict")
    assert words(shop) == []
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    consume(shop, "--order", "strict")
    assert words(shop) == ["bad", "a2"]


def test_a_scope_that_starts_late_does_not_wait_for_events_that_it_never_gets(shop):
    late = ("consume", "--scope", "late", "--topic", "order.events", "--sql", HANDLER.format(scope="late"), "--drain",
            "--order", "strict", "--from", "latest", "--strict-wait", "200ms")
    published(shop, ("a1", "a"))
    assert shop.json(*ONE, *late)["done"] == 0
    published(shop, ("a2", "a"), ("a3", "a"))
    shop.ok(*ONE, *late)
    assert words(shop, "late") == ["a2", "a3"]


def test_strict_needs_a_record_of_what_was_processed(shop):
    assert "at-least-once" in shop.fails(78, *run_words("--drain", "--order", "strict", "--guarantee", "at-least-once"))


# ---- total --------------------------------------------------------------------------------------

MIXED = (("a1", "a"), ("b1", "b"), ("flaky", "c"), ("a2", "a"), ("b2", "b"))


def arrived(semel):
    """The words in the broker's order, which is that of the commits where the outbox has one lane."""
    return [json.loads(payload)["word"] for _, _, payload in semel.backend.log()]


@pytest.mark.unless("kafka", reason="a new topic has several partitions there, and a total order needs one")
@pytest.mark.core
@pytest.mark.parametrize("batch", ["1", "100"])
def test_total_order_keeps_the_whole_topic_behind_an_event_under_retry(shop, batch):
    published(shop, *MIXED)
    consume(shop, "--order", "total", "--poison", "block", *QUICK, "--sql", FLAKY, "--batch", batch)
    assert words(shop) == arrived(shop)
    assert STORE != "sqlite" or words(shop) == [word for word, _ in MIXED]


@pytest.mark.unless("kafka", reason="a new topic has several partitions there, and a total order needs one")
@pytest.mark.core
def test_total_order_stops_at_a_dead_letter_and_goes_on_after_its_replay(shop):
    published(shop, ("a1", "a"), ("bad", "b"), ("a2", "a"), ("c1", "c"))
    shop.drain_times_out(*run_words("--order", "total", "--poison", "block"), expected=["dlq list"])
    before = arrived(shop)
    assert words(shop) == before[: before.index("bad")]
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    consume(shop, "--order", "total", "--poison", "block")
    assert words(shop) == before


@pytest.mark.only("local")
@pytest.mark.parametrize("how", [("--batch", "1"), ("--claim", "separate")], ids=" ".join)
def test_the_event_that_a_topic_waits_for_is_found_behind_copies_of_others(shop, how):
    """The copies of `replay` come first, and wait themselves as long as the topic does."""
    published(shop, ("a1", "a"), ("bad", "b"), ("a2", "a"))
    total = ("--order", "total", "--poison", "block", *how)
    shop.drain_times_out(*run_words(*total), expected=["dlq list"])
    shop.ok(*ONE, "replay", "--scope", "billing", "--aggregate", "order:a")
    mend(shop)
    shop.ok("dlq", "replay", "--all")
    consume(shop, *total, "--timeout", "30s")
    assert words(shop) == ["a1", "bad", "a2"]


def test_total_order_goes_on_when_the_head_is_discarded(shop):
    published(shop, ("bad", "b"), ("a1", "a"))
    shop.drain_times_out(*run_words("--order", "total", "--poison", "block"), expected=["dlq list"])
    shop.ok("dlq", "discard", shop.json("dlq", "list")[0]["dlqEntryId"])
    consume(shop, "--order", "total", "--poison", "block")
    assert words(shop) == ["a1"]


def test_total_order_may_skip_what_is_given_up(shop):
    published(shop, ("a1", "a"), ("bad", "b"), ("a2", "a"))
    consume(shop, "--order", "total", "--poison", "skip")
    assert words(shop) == ["a1", "a2"]  # of one aggregate


@pytest.mark.only("local")
def test_total_order_needs_one_partition(shop):
    publish(shop, "a1", "a")
    relay(shop)
    complaint = shop.fails(78, "consume", "--scope", "s", "--topic", "order.events", "--print", "--drain", "--order", "total",
                           "--poison", "block")
    assert "partition" in complaint


def test_total_order_cannot_park_a_key(shop):
    complaint = shop.fails(78, *run_words("--drain", "--order", "total"))
    assert "block" in complaint and "skip" in complaint


def test_total_order_with_a_program_is_one_call_after_the_other(shop):
    published(shop, *MIXED)
    shop.ok(*ONE, "consume", "--scope", "x", "--topic", "order.events", "--drain", "--order", "total", "--poison", "block",
            "--concurrency", "4", "--exec", "cat >> calls; echo >> calls")
    calls = [json.loads(line)["word"] for line in (shop.folder / "calls").read_text().split("\n") if line]
    assert calls == arrived(shop)


# ---- several processes --------------------------------------------------------------------------


@pytest.mark.core
def test_two_relays_and_two_consumers_keep_the_order_of_every_aggregate(shop):
    children = [shop.spawn("relay", "--lease", "500ms") for _ in range(2)]
    consumer = ("consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"))
    children += [shop.spawn(*consumer, "--lease", "500ms") for _ in range(2)]
    names = [f"a{number}" for number in range(8)]
    for number in range(10):
        lines = [{"type": "t.v1", "aggregateType": "order", "aggregateId": name, "payload": {"word": f"{name}-{number}"}}
                 for name in names]
        shop.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    wait_for(lambda: len(words(shop)) >= 80, what="all effects")
    for child in children:
        assert shop.stop(child) == 0
    seen = words(shop)
    assert len(seen) == 80
    for name in names:
        assert [word for word in seen if word.startswith(f"{name}-")] == [f"{name}-{number}" for number in range(10)]
    shop.ok("verify")
