# SPDX-License-Identifier: Apache-2.0
"""A quorum queue drops an event that was requeued more often than its delivery-limit. A consumer requeues no event
that waits, for whatever reason; and an event that was requeued because its consumers died is not lost either."""
import json

import pytest
from brokers import servers
from endpoint import Endpoint
from mix import fail_when
from program import wait_for
from story import HANDLER, prepare, publish, relay, words

pytestmark = [pytest.mark.anywhere, pytest.mark.only("rabbitmq"),
              pytest.mark.unless("rabbitmq-stream", reason="a stream requeues nothing")]

TOPIC = "order.events"
QUEUE = f"billing.{TOPIC}"
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC)
SQL = ("--sql", HANDLER.format(scope="billing"))
FLAKY = ("--sql", fail_when(":attempt < 5 AND json_extract(:payload, '$.word') = 'flaky'"))
QUICK = ("--immediate", "1", "--first-delay", "1s", "--delay-max", "1s", "--attempts", "9")


@pytest.fixture
def shop(semel):
    prepare(semel)
    semel.ok("topology", "apply", "--scope", "billing", "--topic", TOPIC)
    servers().administrator.limit_deliveries(semel.backend.broker.name, f"^{QUEUE}$", 2)
    return semel


def published(shop, *pairs):
    for word, aggregate in pairs:
        publish(shop, word, aggregate)
    relay(shop)


@pytest.mark.core
def test_a_topic_behind_an_event_under_retry_loses_nothing(shop):
    others = [f"w{number}" for number in range(30)]
    published(shop, ("flaky", "1"), *((word, "1") for word in others))
    shop.ok(*CONSUME, *FLAKY, *SQL, "--order", "total", "--poison", "block", *QUICK, "--drain", "--timeout", "60s")
    assert words(shop) == ["flaky", *others]


def test_a_topic_behind_a_program_under_retry_loses_nothing(shop):
    others = [f"w{number}" for number in range(10)]
    published(shop, ("flaky", "1"), *((word, "1") for word in others))
    program = "read -r line; echo $line >>ran; case $line in *flaky*) [ $SEMEL_ATTEMPT -ge 4 ];; esac"
    shop.ok(*CONSUME, "--exec", program, "--order", "total", "--poison", "block", *QUICK, "--drain", "--timeout", "60s")
    ran = [json.loads(line)["word"] for line in (shop.folder / "ran").read_text().splitlines()]
    assert ran == ["flaky"] * 4 + others


def test_a_handler_that_is_unreachable_for_a_while_loses_nothing(shop):
    published(shop, *((f"w{number}", f"{number}") for number in range(20)))
    with Endpoint() as endpoint:
        port, url = endpoint.server.server_port, endpoint.url
    log = shop.folder / "log"
    with log.open("w") as stderr:
        child = shop.spawn(*CONSUME, "--http", url, "--drain", "--timeout", "60s", "--concurrency", "4", stderr=stderr)
    wait_for(lambda: log.read_text().count("half-open") > 2, what="three failed attempts")
    with Endpoint(port=port) as endpoint:
        assert child.wait(60) == 0
        ids = {headers["Idempotency-Key"] for _, headers, _ in endpoint.requests}
    assert len(ids) == 20


def test_an_event_whose_consumer_dies_too_often_is_in_the_parking_queue(shop):
    published(shop, ("good", "1"))
    for _ in range(4):
        shop.run(*CONSUME, *SQL, "--drain", "--timeout", "5s", env={"SEMEL_FAILPOINT": "consume.after-receive:kill"})
    channel = shop.broker.channel()

    def parked():
        return channel.basic_get(f"{QUEUE}.parked", auto_ack=True)

    (method, properties, _) = wait_for(lambda: (lambda got: got[0] and got)(parked()), what="the event in the parking queue")
    assert method and properties.headers["x-death"][0]["reason"] == "delivery_limit"
    assert shop.run("verify").returncode == 1
    shop.ok("replay", "--scope", "billing", "--type", "order.created.v1")
    shop.ok(*CONSUME, *SQL, "--drain")
    assert words(shop) == ["good"]
