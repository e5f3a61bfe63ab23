# SPDX-License-Identifier: Apache-2.0
"""A call that is never answered counts against the event while others are answered, and is an outage while none is. And
slow calls delay nothing but their own aggregates."""
import json
from collections import Counter

import pytest

from endpoint import Endpoint
from program import wait_for
from story import prepare, publish, relay

pytestmark = pytest.mark.anywhere

QUICK = ("--handler-timeout", "300ms", "--first-delay", "20ms", "--delay-max", "100ms")
ALL_LINES, NO_ANSWER = {"SEMEL_LOG": "json", "SEMEL_LOG_LEVEL": "debug"}, "no answer from"


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.subscribe("billing")
    return semel


def words_for(*more):
    return ("consume", "--scope", "billing", "--topic", "order.events", *QUICK, *more)


def processed(shop):
    return shop.sql("SELECT count(*) FROM semel_inbox WHERE scope = 'billing' AND status = 'PROCESSED'")[0][0]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("concurrency", ["1", "4"])
def test_an_event_whose_call_always_hangs_becomes_a_dead_letter_and_the_others_are_processed(shop, concurrency):
    bad = publish(shop, "hangs", "0")
    others = [publish(shop, f"fine {number}", str(number)) for number in range(1, 9)]
    relay(shop)
    with Endpoint(hangs=lambda body: b"hangs" in body) as endpoint:
        done = shop.run(*words_for("--http", endpoint.url, "--concurrency", concurrency, "--drain"), check=True, env=ALL_LINES)
        # On a machine that is busy for longer than the time-out, one of them is called again, too.
        timed_out = Counter(line.get("messageId") for line in map(json.loads, done.stderr.splitlines()) if NO_ANSWER in line.get("error", ""))
        calls = [endpoint.asked_for(f"fine {number}") for number in range(1, 9)]
        assert calls == [1 + timed_out[event] for event in others]
        assert sum(timed_out[event] for event in others) < len(others), "the others waited for the one that hangs"
        assert endpoint.asked_for("hangs") <= 6
    (letter,) = shop.json("dlq", "list")
    assert (letter["originalEventId"], letter["attempts"]) == (bad, 5)
    assert processed(shop) == len(others)


@pytest.mark.slow
@pytest.mark.core
def test_while_every_call_hangs_no_attempt_is_counted(shop):
    for number in range(3):
        publish(shop, f"word {number}", str(number))
    relay(shop)
    hanging = [True]
    with Endpoint(hangs=lambda body: hanging[0]) as endpoint:
        child = shop.spawn(*words_for("--http", endpoint.url, "--attempts", "1", "--drain"))
        wait_for(lambda: len(endpoint.requests) >= 5, what="more calls than events")
        assert all(endpoint.asked_for(f"word {number}") for number in range(3))
        hanging[0] = False
        assert child.wait(120) == 0
        attempts = {headers["semel-attempt"] for _, headers, _ in endpoint.requests}
    assert attempts == {"1"}
    assert shop.json("dlq", "list") == []
    assert processed(shop) == 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["--exec", "--pipe"])
def test_a_program_that_hangs_over_one_event_does_not_delay_the_others(shop, kind):
    program = {
        "--exec": 'case "$(cat)" in *hangs*) exec sleep 1000;; esac',
        "--pipe": "while read -r line; do case $line in *hangs*) sleep 1000;; esac; id=${line#*'\"id\":\"'};"
                  ' echo "{\\"id\\":\\"${id%%\'"\'*}\\",\\"verdict\\":\\"done\\"}"; done',
    }[kind]
    bad = publish(shop, "hangs", "0")
    for number in range(1, 6):
        publish(shop, "fine", str(number))
    relay(shop)
    shop.ok(*words_for(kind, program, "--drain"))
    (letter,) = shop.json("dlq", "list")
    assert (letter["originalEventId"], letter["attempts"]) == (bad, 5)
    assert processed(shop) == 5


@pytest.mark.slow
def test_while_every_program_hangs_nothing_becomes_a_dead_letter(shop):
    for number in range(6):
        publish(shop, f"word {number}", str(number))
    relay(shop)
    program = 'echo $SEMEL_EVENT_ID >> runs; while ! [ -e finish ]; do sleep 0.05; done'
    runs = shop.folder / "runs"
    child = shop.spawn(*words_for("--exec", program, "--attempts", "3", "--immediate", "1", "--drain"))
    wait_for(lambda: runs.exists() and max(Counter(runs.read_text().split()).values(), default=0) > 3, what="more runs than attempts")
    (shop.folder / "finish").touch()
    assert child.wait(120) == 0
    assert shop.json("dlq", "list") == []
    assert processed(shop) == 6


@pytest.mark.slow
@pytest.mark.core
def test_four_calls_that_hang_leave_the_other_workers_to_other_events(shop):
    line = '{"type": "order.created.v1", "aggregateType": "order", "aggregateId": "%s", "payload": {"word": "%s"}}\n'
    with Endpoint(hangs=lambda body: b"hangs" in body) as endpoint:
        child = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--http", endpoint.url, "--concurrency", "16",
                           "--handler-timeout", "1h")
        for slow in range(1, 5):
            lines = line % (f"slow {slow}", "hangs"), *(line % (f"{slow}-{number}", "fine") for number in range(80))
            shop.ok("publish", "--batch", input="".join(lines))
            relay(shop)
            wait_for(lambda slow=slow: processed(shop) == 80 * slow and endpoint.asked_for("hangs") == slow, what="the others, done")
        publish(shop, "fine", "last")
        relay(shop)
        wait_for(lambda: processed(shop) == 80 * 4 + 1, what="the last one, done")
        endpoint.hangs = lambda body: False
        wait_for(lambda: processed(shop) == 81 * 4 + 1, what="the slow ones, done")
        assert shop.stop(child) == 0
    assert shop.json("dlq", "list") == []
