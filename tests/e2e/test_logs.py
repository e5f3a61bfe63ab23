# SPDX-License-Identifier: Apache-2.0
"""What logs and messages never hold: secrets at any level, payloads at the default one. And that they do not flood."""
import json
import re

import pytest
from program import wait_for
from server import Server
from story import HANDLER, deliver, mend, prepare

SECRET = "geheim-4711"
STORES = (f"postgres://app:{SECRET}@127.0.0.1:1/shop", f"postgres://127.0.0.1:1/shop?user=app&password={SECRET}",
          f"postgres://app:{SECRET}@127.0.0.1:1/shop?no-such-thing=1", f"postgres://app:{SECRET}@[::1/shop",
          f"app:{SECRET}@db/shop", f"//app:{SECRET}@db/shop")
BROKERS = (f"amqp://app:{SECRET}@127.0.0.1:1/", f"amqps://app:{SECRET}@127.0.0.1:1/?cacert=/dev/null",
           f"amqp://app:{SECRET}@127.0.0.1:1/?no-such-thing=1", f"amqp://app:{SECRET}@[::1/", f"app:{SECRET}@mq/",
           f"kafka://127.0.0.1:1/?sasl.username=app&sasl.password={SECRET}&security.protocol=sasl_plaintext&sasl.mechanisms=PLAIN",
           f"kafka://app:{SECRET}@127.0.0.1:1/", f"rabbit://app:{SECRET}@mq/")
DEBUG = {"SEMEL_LOG_LEVEL": "debug", "SEMEL_LOG": "json"}
CONSUME = ("consume", "--scope", "billing", "--topic", "order.events", "--drain")
SHORT = ("--timeout", "1s")  # where a drain cannot end


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def check_no_secret(shop, *words, **env):
    done = shop.run(*words, env={**DEBUG, **env})
    assert done.returncode in (1, 64, 69, 75, 78), done.stderr
    assert SECRET not in done.stdout + done.stderr, words
    return done


@pytest.mark.parametrize("store", STORES)
def test_the_secret_of_a_store_is_never_shown(shop, store):
    for words in (("init",), ("relay", "--drain", *SHORT), ("doctor",), ("top",)):
        check_no_secret(shop, *words, SEMEL_STORE=store)
        check_no_secret(shop, "--store", store, *words)


@pytest.mark.parametrize("broker", BROKERS)
def test_the_secret_of_a_broker_is_never_shown(shop, broker):
    for words in (("doctor",), (*CONSUME, *SHORT, "--exec", "true"), ("topology", "check", "--scope", "x", "--topic", "y")):
        check_no_secret(shop, *words, SEMEL_BROKER=broker)


def test_the_secrets_of_handlers_collectors_and_config_files_are_never_shown(shop):
    deliver(shop, ("bad", "1"))
    shop.publish(aggregate="order:2")
    shop.ok("relay", "--drain")
    check_no_secret(shop, *CONSUME, *SHORT, "--http", f"http://app:{SECRET}@127.0.0.1:1/hook",
                OTEL_EXPORTER_OTLP_ENDPOINT=f"http://app:{SECRET}@127.0.0.1:1", OTEL_EXPORTER_OTLP_HEADERS=f"authorization={SECRET}")
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({"store": STORES[0], "broker": BROKERS[0], "relay": {}, "no-such-key": 1}))
    check_no_secret(shop, "run", SEMEL_CONFIG=str(config))
    server = Server(shop, env={**DEBUG, "SEMEL_STORE": STORES[0], "SEMEL_BROKER": BROKERS[0]})
    answers = [server.ask(path)[2] for path in ("/readyz", "/metrics", "/api/admin/outbox", "/api/admin/dlq")]
    shop.stop(server.child)
    assert SECRET not in "".join(answers) + server.child.stderr.read()
    assert "127.0.0.1" in answers[0]  # but the address is


def test_payloads_are_in_no_line_whatever_the_outcome_of_the_event(shop):
    lines = []
    for word in ("bad", "good", "good"):
        shop.publish("--payload", json.dumps({"word": word, "card": SECRET}), aggregate=f"order:{len(lines)}")
        lines.append(shop.run("relay", "--drain", check=True).stderr)
        lines.append(shop.run(*CONSUME, "--attempts", "2", "--sql", HANDLER.format(scope="billing"), check=True).stderr)
    mend(shop)
    lines.append(shop.run("dlq", "replay", "--all", check=True).stderr)
    assert '"ackDecision":"dead-letter"' in "".join(lines) and SECRET not in "".join(lines)


def test_a_consumer_that_always_fails_does_not_flood_its_log(shop):
    """Each decision has its line; any other line is logged three times at most."""
    shop.publish()
    with open(shop.folder / "log", "w") as log:
        child = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--exec", "exit 75", "--first-delay", "1ms",
                           "--delay-max", "1ms", "--attempts", "1000", "--metrics", "127.0.0.1:0", stderr=log)
    shop.ok("relay", "--drain")
    text = lambda: (shop.folder / "log").read_text()  # noqa: E731
    wait_for(lambda: text().count("messageId") > 5, 60, "decisions, each with its line")
    shop.stop(child)
    plain = [re.sub(r'"time":"[^"]*",', "", line) for line in text().splitlines() if "messageId" not in line]
    assert max(plain.count(line) for line in plain) <= 3


@pytest.mark.anywhere
@pytest.mark.only("rabbitmq")
@pytest.mark.unless("rabbitmq-stream", reason="a stream has offsets")
def test_on_rabbitmq_a_decision_names_exchange_and_delivery_tag(shop):
    event_id = shop.publish("--payload", '{"word": "good"}')
    shop.ok("relay", "--drain")
    done = shop.run(*CONSUME, "--sql", HANDLER.format(scope="billing"), check=True, env=DEBUG)
    (line,) = [json.loads(line) for line in done.stderr.splitlines() if '"ackDecision":"ack"' in line]
    assert (line["messageId"], line["exchange"], line["deliveryTag"]) == (event_id, "order.events", 1) and "offset" not in line
