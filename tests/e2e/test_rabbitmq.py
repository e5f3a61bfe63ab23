# SPDX-License-Identifier: Apache-2.0
"""Only with RabbitMQ: unusual messages of its clients, and subscriptions whose settings differ from what the broker
has."""
import contextlib
import json
from datetime import datetime, timezone

import guide
import mix
import pytest
from program import wait_for
from story import HANDLER, prepare, publish, words

pytestmark = [pytest.mark.anywhere, pytest.mark.only("rabbitmq")]

pika = pytest.importorskip("pika")

TOPIC = "order.events"
SEEN = "INSERT INTO seen (id, type, headers, payload, time) VALUES (:id, :type, :headers, :payload, :time)"
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC, "--first-delay", "20ms", "--drain")
FAIL_FIRST = "SELECT fail_when(:attempt = 1)" if mix.STORE == "postgres" else "SELECT json(iif(:attempt = 1, '{', '{}'))"
LARGE = 130_800  # bytes of a header; a frame has 131,072


@pytest.fixture
def shop(semel):
    with contextlib.closing(mix.connect(semel.store)) as connection:
        connection.script("CREATE TABLE seen (id text, type text, headers text, payload text, time text);"
                          " CREATE TABLE bad (word text NOT NULL)")
        connection.commit()
    return semel


@pytest.fixture
def send(shop):
    """Publishes one message as a foreign client."""
    channel = shop.broker.channel()
    channel.confirm_delivery()

    def basic_publish(body=b'{"total": 5}', routing_key="order.created.v1", **properties):
        channel.basic_publish(TOPIC, routing_key, body, pika.BasicProperties(**properties), mandatory=True)

    yield basic_publish
    shop.broker.connection.close()


def seen(shop, columns="id"):
    return shop.sql(f"SELECT {columns} FROM seen")


@pytest.mark.unless("rabbitmq-stream", reason="a stream keeps no nested values")
def test_headers_of_every_kind_become_texts(shop, send):
    send(message_id="m1", content_type="application/json", headers={
        "number": 5, "large": 2**40, "negative": -7, "yes": True, "no": False, "nothing": None, "bytes": b"plain",
        "when": datetime(2026, 1, 2, tzinfo=timezone.utc), "table": {"a": {"b": [1, "x", True]}}, "list": [1, 2], "text": "ä"})
    shop.ok(*CONSUME, "--sql", SEEN)
    headers = json.loads(seen(shop, "headers")[0][0])
    assert headers["number"] == "5" and headers["large"] == str(2**40) and headers["negative"] == "-7"
    assert headers["yes"] == "true" and headers["no"] == "false" and headers["text"] == "ä"
    assert headers["bytes"] == "plain" and headers["when"] == "1767312000"
    assert json.loads(headers["table"]) == {"a": {"b": [1, "x", True]}} and json.loads(headers["list"]) == [1, 2]


def test_a_message_with_an_id_and_nothing_else_is_an_event(shop, send):
    send(body=b"", message_id="m1")
    shop.ok(*CONSUME, "--sql", SEEN)
    assert seen(shop, "id, type, payload") == [("m1", "order.created.v1", "")]


@pytest.mark.parametrize("broken", [
    {"message_id": None}, {"message_id": "m1", "content_type": "application/json", "body": b"\xff\xfe"},
    {"message_id": "m1", "content_type": "application/json", "body": b"{"},
])
def test_a_broken_message_is_a_dead_letter_and_the_next_one_goes_on(shop, send, broken):
    send(**broken)
    send(message_id="m2", routing_key="other")
    shop.ok(*CONSUME, "--sql", SEEN)
    assert seen(shop) == [("m2",)]
    assert shop.ok("dlq", "count").strip() == "1"


def test_a_time_in_milliseconds_where_seconds_belong_stops_no_consumer(shop, send):
    send(message_id="m1", timestamp=1_767_312_000_000)
    send(message_id="m2", timestamp=2**63 - 1, routing_key="other")
    send(message_id="m3", timestamp=1_767_312_000, routing_key="third")
    shop.ok(*CONSUME, "--sql", SEEN)
    shop.ok(*CONSUME, "--sql", SEEN)
    settled = len(seen(shop)) + int(shop.ok("dlq", "count"))
    assert settled == 3 and ("m3",) in seen(shop)


def test_an_event_that_is_too_large_to_be_put_back_is_a_dead_letter(shop, send):
    send(message_id="m1", headers={"large": "x" * LARGE})
    send(message_id="m2", routing_key="other")
    shop.ok(*CONSUME, "--sql", FAIL_FIRST, "--sql", SEEN, "--immediate", "1", "--timeout", "30s")
    ((reason,),) = shop.sql("SELECT failure_reason FROM semel_dead_letter WHERE event_id = 'm1'")
    assert "cannot be requeued" in reason and "frame" in reason
    assert seen(shop) == [("m2",)]


def test_a_dead_letter_copy_is_in_the_parking_queue_with_its_reason(shop, send):
    send(message_id="m1", headers={"mine": "x"})
    send(body=b"{", content_type="application/json", routing_key="other")
    shop.ok(*CONSUME, "--sql", "INSERT INTO bad (word) VALUES (NULL)", "--sql", SEEN)
    assert shop.ok("dlq", "count").strip() == "2"
    channel = shop.broker.channel()
    copies = [channel.basic_get(f"billing.{TOPIC}.parked", auto_ack=True)[1:] for _ in range(2)]
    assert [properties.message_id for properties, _ in copies] == ["m1", None]
    assert copies[0][0].headers["mine"] == "x" and "bad" in copies[0][0].headers["semel-reason"]
    assert copies[1][1] == b"{" and "id" in copies[1][0].headers["semel-reason"]
    assert channel.basic_get(f"billing.{TOPIC}.parked", auto_ack=True)[0] is None


def test_another_number_of_partitions_is_refused_before_events_are_left_behind(shop, send):
    send(message_id="m1")
    complaint = shop.fails(78, *CONSUME, "--sql", SEEN, "--partitions", "4")
    assert "billing.order.events" in complaint and "partitions" in complaint
    shop.ok(*CONSUME, "--sql", SEEN)
    assert seen(shop) == [("m1",)]


def test_a_spread_subscription_is_not_read_as_a_single_queue(shop):
    shop.ok("consume", "--scope", "spread", "--topic", TOPIC, "--sql", SEEN, "--drain", "--partitions", "4")
    complaint = shop.fails(78, "consume", "--scope", "spread", "--topic", TOPIC, "--sql", SEEN, "--drain")
    assert "spread.order.events" in complaint and "partitions" in complaint
    done = shop.run("topology", "check", "--scope", "spread", "--topic", TOPIC)
    assert done.returncode == 1 and "partitions" in done.stdout


def snippet(word):
    """The Python of the page that has this word in it, as a function of the broker's URL."""
    (text,) = [block["text"] for block in guide.BLOCK.finditer(guide.page("docs/rabbitmq.md"))
               if block["kind"] == "python" and word in block["text"]]
    return lambda url: exec(text, {"url": url})  # pylint: disable=exec-used


def test_the_page_shows_a_producer_and_a_consumer_that_work(shop, capsys):
    shop.broker.channel()
    url = getattr(shop.broker, "plain_url", shop.broker.url)
    snippet('"reports"')(url)
    snippet("basic_publish")(url)
    shop.ok(*CONSUME, "--sql", SEEN)
    ((event_id, payload),) = seen(shop, "id, payload")
    assert json.loads(payload) == {"total": 5}
    event_of_ours = shop.publish()
    shop.ok("relay", "--drain")
    printed = []

    def read():
        snippet('"reports"')(url)
        printed.append(capsys.readouterr().out)
        return event_id in "".join(printed) and event_of_ours in "".join(printed)

    wait_for(read, what="both events at the foreign consumer")


@pytest.mark.only("rabbitmq-stream")
def test_the_page_shows_how_to_read_a_stream(shop, capsys):
    event_id = shop.publish()
    shop.ok("relay", "--drain")

    def read():
        snippet("x-stream-offset")(shop.broker.plain_url)
        return event_id in capsys.readouterr().out

    wait_for(read, what="the event in the stream")


def test_a_broker_that_does_not_answer_is_named_as_its_url_was_written(semel):
    for url in ("amqp://guest@[::1]:1/", "amqp://guest@127.0.0.1:1/"):
        assert f"cannot reach {url}" in semel.fails(69, "--broker", url, "relay", "--drain")


# ---- settings in the URL ----------------------------------------------------------------------------


@pytest.mark.unless("rabbitmq-stream", reason="the type of the queue is the mix's own there")
def test_classic_queues_keep_the_order_over_a_retry_and_are_not_taken_for_others(bare):
    classic = ("--broker", f"{bare.broker.url}?queue-type=classic")
    named = ("--scope", "billing", "--topic", TOPIC)
    bare.ok("init")
    prepare(bare)
    bare.ok(*classic, "topology", "apply", *named)
    for word, aggregate in (("flaky", "1"), ("second", "1"), ("other", "2"), ("third", "1")):
        publish(bare, word, aggregate)
    bare.ok(*classic, "relay", "--drain")
    flaky = mix.fail_when(":attempt = 1 AND json_extract(:payload, '$.word') = 'flaky'")
    done = bare.json(*classic, *CONSUME, "--immediate", "1", "--sql", flaky, "--sql", HANDLER.format(scope="billing"))
    assert done["done"] == 4 and done["retried"] > 0
    assert [word for word in words(bare) if word != "other"] == ["flaky", "second", "third"] and len(words(bare)) == 4
    bare.ok(*classic, "verify", "--scope", "billing")
    bare.ok(*classic, "topology", "check", *named)
    differs = bare.run("topology", "check", *named)
    assert differs.returncode == 1 and "the broker has 'classic', semel needs 'quorum'" in differs.stdout


@pytest.mark.unless("rabbitmq-stream", reason="it is about the topic, which is the same there")
def test_events_without_a_subscription_are_in_the_queue_of_the_alternate_exchange(bare):
    alternate = ("--broker", f"{bare.broker.url}?alternate-exchange=lost")
    named = ("--scope", "billing", "--topic", TOPIC)
    bare.ok("init")
    early = bare.publish()
    bare.ok(*alternate, "relay", "--drain")
    assert bare.sql("SELECT id, status FROM semel_outbox") == [(early, "PUBLISHED")]
    bare.ok(*alternate, "topology", "apply", *named)
    bare.ok(*alternate, "topology", "check", *named)
    bare.publish()
    bare.ok(*alternate, "relay", "--drain")
    assert bare.json(*alternate, *CONSUME, "--exec", "true")["done"] == 1
    channel = bare.broker.channel()
    assert channel.basic_get("lost", auto_ack=True)[1].message_id == early
    assert channel.basic_get("lost", auto_ack=True)[0] is None
    bare.broker.connection.close()
    assert bare.ok("dlq", "count").strip() == "0"
