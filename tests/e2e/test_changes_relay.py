# SPDX-License-Identifier: Apache-2.0
"""Settings that differ between two relays at one store, or change between two starts. Nothing is lost, overtaken or left
unpublished; nothing is sent twice after an orderly stop."""
import json
import re
import time


import mix
import pytest
from program import wait_for
from proxy import Proxy
from stream import TIMEOUT_S, Outbox

pytestmark = [pytest.mark.anywhere]

LARGE = json.dumps("x" * 300)


# ---- side by side --------------------------------------------------------------------------------


def settings(slot):
    cdc = ("--source", "cdc", "--slot")
    return {
        "polling beside the change stream": (("--source", "poll", "--window", "5"), (*cdc, slot, "--window-bytes", "1000")),
        "transactions or none": ((*cdc, slot), (*cdc, slot, "--transactions")),
    }


@pytest.mark.only("postgres")
@pytest.mark.parametrize("pair", settings(""))
def test_relays_with_different_settings_take_over_from_each_other(semel, pair):
    if "transactions" in pair and mix.BROKER != "kafka":
        pytest.skip("only Kafka has transactions")
    stream = Outbox(semel)
    stream.init()
    one, two = (("relay", "--lease", "6s", *words) for words in settings(stream.slot)[pair])
    written = 0

    def write():
        nonlocal written
        for aggregate in "abc":
            stream.insert(60, aggregate, written + 1)
        written += 60

    with stream.ended():
        write()
        first = semel.spawn(*one)
        stream.wait_until_published()
        second = semel.spawn(*two)
        write()
        stream.wait_until_published()
        for leaving in (first, second):
            write()
            assert semel.stop(leaving) == 0
            if leaving is first:
                write()
                stream.wait_until_published()
                first = semel.spawn(*one)
        write()
        stream.wait_until_published()
        assert semel.stop(first) == 0
        assert stream.arrived() == {aggregate: list(range(1, written + 1)) for aggregate in "abc"}


# ---- between two starts --------------------------------------------------------------------------


def relay(semel, *words, limit="max-message=200"):
    return semel.run("--broker", f"local:semel-broker.db?{limit}", "relay", "--drain", "--timeout", "2s", *words)


def states(semel):
    return [state for (state,) in semel.sql("SELECT status FROM semel_outbox ORDER BY seq")]


@pytest.mark.only("local")
def test_another_poison_policy_changes_nothing_for_what_is_held_already(semel):
    refused = semel.publish("--payload", LARGE, aggregate="order:a")
    semel.publish(aggregate="order:a")
    relay(semel, "--poison", "park-key")
    semel.publish(aggregate="order:a")
    relay(semel, "--poison", "skip")
    assert states(semel) == ["FAILED", "NEW", "NEW"]
    semel.publish("--payload", LARGE, aggregate="order:b")
    semel.publish(aggregate="order:b")
    assert relay(semel, "--poison", "skip").returncode == 0
    assert relay(semel, "--poison", "block").returncode == 0
    assert states(semel) == ["FAILED", "NEW", "NEW", "FAILED", "PUBLISHED"]
    (letter,) = [one["dlqEntryId"] for one in semel.json("dlq", "list") if one["originalEventId"] == refused]
    semel.ok("dlq", "discard", letter, "--reason", "too large")
    assert relay(semel, "--poison", "skip").returncode == 0
    assert states(semel) == ["FAILED", "PUBLISHED", "PUBLISHED", "FAILED", "PUBLISHED"]


@pytest.mark.only("local")
def test_a_smaller_budget_of_attempts_counts_those_that_were_spent(semel):
    semel.publish(aggregate="order:a")
    semel.publish(aggregate="order:b")
    full = {"limit": "max-length=1"}
    spent = "SELECT max(attempts) FROM semel_outbox"
    wait_for(lambda: relay(semel, "--first-delay", "1ms", "--delay-max", "1ms", "--attempts", "1000", **full)
             and semel.sql(spent)[0][0] > 3, what="some attempts")
    relay(semel, "--attempts", "3", **full)
    assert sorted(states(semel)) == ["FAILED", "PUBLISHED"]


# ---- a refusal, and a broker that does not answer for the rest ----------------------------------------


@pytest.mark.only("rabbitmq")
def test_a_refusal_is_marked_and_the_lanes_are_kept_while_the_broker_does_not_answer_for_the_rest(semel):
    proxy = Proxy(("127.0.0.1", int(mix.servers().endpoints["rabbitmq"]["port"])))
    url = re.sub(r"@[^/]*", f"@127.0.0.1:{proxy.port}", semel.environment()["SEMEL_BROKER"])
    one = {"SEMEL_BROKER": f"{url}{'&' if '?' in url else '?'}max-message=200"}
    owners = "SELECT DISTINCT owner FROM semel_lease"
    try:
        semel.publish(aggregate="order:a")
        first = semel.spawn("relay", "--lease", "5s", "--grace", "11s", env=one)
        wait_for(lambda: states(semel) == ["PUBLISHED"], what="the first event")
        before = semel.sql(owners)
        proxy.dropping_answers = True
        lines = [json.dumps({"type": "t.v1", "aggregateType": "order", "aggregateId": aggregate, "payload": payload})
                 for aggregate, payload in (("b", 1), ("c", "x" * 300), ("d", 2))]
        semel.ok("publish", "--batch", input="\n".join(lines))
        wait_for(lambda: states(semel) == ["PUBLISHED", "NEW", "FAILED", "NEW"], TIMEOUT_S, "the refusal is marked")
        second = semel.spawn("relay", "--lease", "5s")  # it would take the lanes over if they were not renewed
        first.terminate()
        terminated = time.monotonic()
        wait_for(lambda: semel.sql(owners) != before, what="the end of the grace")
        assert time.monotonic() - terminated > 8, "later than leases that were not renewed, sooner than the grace"
        assert first.wait() == 75 and "grace" in first.stderr.read()
        wait_for(lambda: states(semel) == ["PUBLISHED", "PUBLISHED", "FAILED", "PUBLISHED"], TIMEOUT_S, "the other relay")
        assert semel.stop(second) == 0
    finally:
        proxy.close()
