# SPDX-License-Identifier: Apache-2.0
"""Where the queue of a subscription is a stream, the store retains how far it was read: with the effect."""
import contextlib
import uuid

import mix
import pytest
from program import wait_for

pytestmark = [pytest.mark.anywhere, pytest.mark.core, pytest.mark.only("rabbitmq-stream")]

pika = pytest.importorskip("pika")

TOPIC = "order.events"
QUEUE = f"billing.{TOPIC}"
INVOICE = "INSERT INTO invoice (event_id) VALUES (:id)"
FAIL_FIRST = "SELECT fail_when(:attempt = 1)" if mix.STORE == "postgres" else "SELECT json(iif(:attempt = 1, '{', '{}'))"
# No claim is kept: an event that comes twice is booked twice.
LEAST = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", INVOICE, "--guarantee", "at-least-once", "--drain")


@pytest.fixture
def shop(semel):
    with contextlib.closing(mix.connect(semel.store)) as connection:
        connection.script(f"CREATE TABLE invoice (event_id text{mix.PLACE})")
        connection.commit()
    return semel


def publish(shop, count):
    ids = [shop.publish() for _ in range(count)]
    shop.ok("relay", "--drain")
    return ids


def invoices(shop):
    return [event_id for (event_id,) in shop.sql(f"SELECT event_id FROM invoice ORDER BY {mix.row_order(shop.store)}")]


def test_a_restart_goes_on_behind_the_last_effect(shop):
    ids = publish(shop, 7)
    shop.ok(*LEAST, "--max", "3")
    assert invoices(shop) == ids[:3]
    shop.ok(*LEAST)
    shop.ok(*LEAST)
    assert invoices(shop) == ids


def test_a_kill_behind_the_commit_doubles_nothing_although_no_claim_is_kept(shop):
    ids = publish(shop, 5)
    done = shop.run(*LEAST, env={"SEMEL_FAILPOINT": "consume.after-commit:kill@1"})
    assert done.returncode == -9
    shop.ok(*LEAST)
    assert invoices(shop) == ids


def test_a_kill_before_the_commit_loses_nothing(shop):
    ids = publish(shop, 5)
    done = shop.run(*LEAST, env={"SEMEL_FAILPOINT": "consume.after-effect:kill@2"})
    assert done.returncode == -9
    shop.ok(*LEAST)
    assert invoices(shop) == ids


def test_a_reader_that_was_replaced_while_it_was_paused_commits_nothing(shop):
    ids = publish(shop, 1)
    slow = shop.spawn(*LEAST, env={"SEMEL_FAILPOINT": "consume.after-effect:pause=20000"})
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_position WHERE owner <> ''"), what="a reader")
    shop.sql("UPDATE semel_position SET expires_at = '2020-01-01T00:00:00Z'")
    shop.ok(*LEAST, "--timeout", "50")
    slow.wait(60)
    assert invoices(shop) == ids


@pytest.mark.parametrize("count, told", [(2, "ends before this scope's position"), (9, "has another event")], ids=["shorter", "longer"])
def test_a_stream_that_was_made_anew_is_read_from_its_beginning(shop, count, told):
    first = publish(shop, 6)
    shop.ok(*LEAST)
    channel = shop.broker.channel()
    channel.queue_delete(QUEUE)
    shop.broker.connection.close()
    shop.subscribe("billing")
    later = publish(shop, count)
    done = shop.run(*LEAST, check=True)
    assert told in done.stderr and "declared again" in done.stderr
    assert invoices(shop) == first + later
    shop.ok("verify", "--scope", "billing")
    assert "declared again" not in shop.run(*LEAST, check=True).stderr  # its position is in the new one now


def test_an_offset_that_a_message_claims_is_not_believed(shop):
    """It comes in a header, which the broker writes over that of whoever has sent the message."""
    ids = publish(shop, 2)
    shop.ok(*LEAST)
    channel = shop.broker.channel()
    for headers in ({"x-stream-offset": 2**40}, None, {"x-stream-offset": -1}, None):
        ids.append(str(uuid.uuid4()))
        properties = pika.BasicProperties(message_id=ids[-1], type="order.created.v1", headers=headers, delivery_mode=2)
        channel.basic_publish(TOPIC, "order.created.v1", b"{}", properties)
        shop.ok(*LEAST)
    shop.broker.connection.close()
    assert invoices(shop) == ids


def test_trace_and_verify_look_into_the_stream(shop):
    done, waiting = publish(shop, 2)
    shop.ok(*LEAST[:-1], "--max", "1")
    assert "at the broker" not in "\n".join(line for line in shop.ok("trace", done).splitlines() if "billing" in line)
    assert any("billing" in line and "waiting" in line for line in shop.ok("trace", waiting).splitlines())


def test_a_stranger_may_read_it_all_once_more(shop):
    ids = publish(shop, 4)
    shop.ok(*LEAST)
    channel = shop.broker.channel()
    channel.basic_qos(prefetch_count=10)
    seen, patience = [], 60
    for method, properties, _ in channel.consume(QUEUE, arguments={"x-stream-offset": "first"}, inactivity_timeout=1):
        if method is None and len(seen) >= len(ids):
            break
        patience -= method is None
        assert patience, f"{len(seen)} came"
        if method:  # a mark may be the last one; what is not acked pika rejects at the end, which streams do not know
            channel.basic_ack(method.delivery_tag)
            seen += [properties.message_id] if properties.message_id else []
    shop.broker.connection.close()
    assert seen == ids


def test_a_failed_event_comes_again_through_its_tiers(shop):
    ids = publish(shop, 3)
    command = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", FAIL_FIRST, "--sql", INVOICE,
               "--first-delay", "20ms", "--immediate", "1", "--drain")
    assert "retried" in shop.ok(*command)
    assert sorted(invoices(shop)) == sorted(ids)


def test_topology_knows_a_stream_from_a_queue(shop):
    check = ("topology", "check", "--scope", "billing", "--topic", TOPIC)
    shop.ok(*check)
    done = shop.run("--broker", shop.broker.plain_url, *check)
    assert done.returncode == 1
    assert "x-queue-type" in done.stdout and "'stream'" in done.stdout and "'quorum'" in done.stdout


def test_several_streams_are_shared_and_nothing_is_read_twice(shop):
    spread = ("consume", "--scope", "spread", "--topic", TOPIC, "--sql", INVOICE, "--guarantee", "at-least-once",
              "--partitions", "4")
    shop.ok(*spread, "--drain")
    readers = [shop.spawn(*spread) for _ in range(2)]
    wait_for(lambda: len(shop.sql("SELECT DISTINCT owner FROM semel_position WHERE scope = 'spread' AND owner <> ''")) == 2,
             what="two readers")
    ids = [shop.publish(aggregate=f"order:{number}") for number in range(12)]
    shop.ok("relay", "--drain")
    wait_for(lambda: sorted(invoices(shop)) == sorted(ids), what="every event once")
    assert [shop.stop(reader) for reader in readers] == [0, 0]
    shop.ok(*spread, "--drain")
    assert sorted(invoices(shop)) == sorted(ids)
