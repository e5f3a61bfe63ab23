# SPDX-License-Identifier: Apache-2.0
"""Where the queue of a subscription is a stream, the store keeps the position, in the transaction of the effect."""
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
# No claim is kept: an event that is processed twice has its effect twice.
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", INVOICE, "--guarantee", "at-least-once", "--drain")


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


def test_a_restart_continues_after_the_last_effect(shop):
    ids = publish(shop, 7)
    shop.ok(*CONSUME, "--max", "3")
    assert invoices(shop) == ids[:3]
    shop.ok(*CONSUME)
    shop.ok(*CONSUME)
    assert invoices(shop) == ids


def test_a_kill_after_the_commit_duplicates_nothing_although_no_claim_is_kept(shop):
    ids = publish(shop, 5)
    done = shop.run(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-commit:kill@1"})
    assert done.returncode == -9
    shop.ok(*CONSUME)
    assert invoices(shop) == ids


def test_a_kill_before_the_commit_loses_nothing(shop):
    ids = publish(shop, 5)
    done = shop.run(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-effect:kill@2"})
    assert done.returncode == -9
    shop.ok(*CONSUME)
    assert invoices(shop) == ids


def test_a_reader_that_was_replaced_while_it_was_paused_commits_nothing(shop):
    ids = publish(shop, 1)
    slow = shop.spawn(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-effect:pause=20000"})
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_position WHERE owner <> ''"), what="a reader")
    shop.sql("UPDATE semel_position SET expires_at = '2020-01-01T00:00:00Z'")
    shop.ok(*CONSUME, "--timeout", "50")
    slow.wait(60)
    assert invoices(shop) == ids


@pytest.mark.parametrize(
    "count, expected", [(2, "ends before this scope's position"), (9, "has another event")], ids=["shorter", "longer"])
def test_a_recreated_stream_is_read_from_its_beginning(shop, count, expected):
    first = publish(shop, 6)
    shop.ok(*CONSUME)
    channel = shop.broker.channel()
    channel.queue_delete(QUEUE)
    shop.broker.connection.close()
    shop.subscribe("billing")
    later = publish(shop, count)
    done = shop.run(*CONSUME, check=True)
    assert expected in done.stderr and "declared again" in done.stderr
    assert invoices(shop) == first + later
    shop.ok("verify", "--scope", "billing")
    assert "declared again" not in shop.run(*CONSUME, check=True).stderr  # the position refers to the new stream now


def test_an_offset_header_of_a_publisher_is_ignored(shop):
    """The broker overwrites the header x-stream-offset that a publisher sets."""
    ids = publish(shop, 2)
    shop.ok(*CONSUME)
    channel = shop.broker.channel()
    for headers in ({"x-stream-offset": 2**40}, None, {"x-stream-offset": -1}, None):
        ids.append(str(uuid.uuid4()))
        properties = pika.BasicProperties(message_id=ids[-1], type="order.created.v1", headers=headers, delivery_mode=2)
        channel.basic_publish(TOPIC, "order.created.v1", b"{}", properties)
        shop.ok(*CONSUME)
    shop.broker.connection.close()
    assert invoices(shop) == ids


def test_trace_reads_the_stream(shop):
    done, waiting = publish(shop, 2)
    shop.ok(*CONSUME[:-1], "--max", "1")
    assert "at the broker" not in "\n".join(line for line in shop.ok("trace", done).splitlines() if "billing" in line)
    assert any("billing" in line and "waiting" in line for line in shop.ok("trace", waiting).splitlines())


def test_a_foreign_client_can_read_the_whole_stream_again(shop):
    ids = publish(shop, 4)
    shop.ok(*CONSUME)
    channel = shop.broker.channel()
    channel.basic_qos(prefetch_count=10)
    seen, polls_left = [], 60
    for method, properties, _ in channel.consume(QUEUE, arguments={"x-stream-offset": "first"}, inactivity_timeout=1):
        if method is None and len(seen) >= len(ids):
            break
        polls_left -= method is None
        assert polls_left, f"{len(seen)} received"
        if method:  # the last may be a marker; pika rejects what is not acked at the end, which a stream does not support
            channel.basic_ack(method.delivery_tag)
            seen += [properties.message_id] if properties.message_id else []
    shop.broker.connection.close()
    assert seen == ids


def test_a_failed_event_is_redelivered_through_its_tiers(shop):
    ids = publish(shop, 3)
    command = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", FAIL_FIRST, "--sql", INVOICE,
               "--first-delay", "20ms", "--immediate", "1", "--drain")
    assert "retried" in shop.ok(*command)
    assert sorted(invoices(shop)) == sorted(ids)


def test_topology_distinguishes_a_stream_from_a_queue(shop):
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
