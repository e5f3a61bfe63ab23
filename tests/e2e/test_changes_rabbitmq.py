# SPDX-License-Identifier: Apache-2.0
"""Changes by operators at RabbitMQ under running relays and consumers: these recover by themselves; verify finds the events
that were lost at the broker, and the command that it prints delivers them again."""
import contextlib
import json
import shlex
import signal

import mix
import pytest
from mix import fail_when
from program import wait_for
from story import HANDLER, prepare, publish, words

pytestmark = [pytest.mark.anywhere, pytest.mark.only("rabbitmq")]

pytest.importorskip("pika")

TOPIC, QUEUE = "order.events", "billing.order.events"
RETRIES = ("--immediate", "1", "--first-delay", "50ms", "--delay-max", "500ms")
FLAKY = fail_when("json_extract(:payload, '$.word') = 'flaky'")


@pytest.fixture
def shop(semel):
    prepare(semel)
    with contextlib.closing(mix.connect(semel.store)) as connection:
        connection.script("CREATE TABLE open (word text)")
        connection.commit()
    return semel


@pytest.fixture
def administrator(shop):
    return mix.servers.attached.administrator


@pytest.fixture
def channel(shop):
    channel = shop.broker.channel()
    connection = shop.broker.connection
    yield channel
    connection.close()


def quick(shop):
    """Bindings are declared again at every heartbeat."""
    joint = "&" if "?" in shop.broker.url else "?"
    return {"SEMEL_BROKER": f"{shop.broker.url}{joint}heartbeat=1", "SEMEL_LOG_LEVEL": "warn"}


def consumer(*more, retries=RETRIES):
    return ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", HANDLER.format(scope="billing"), *retries, *more)


def published(shop, *pairs):
    ids = [publish(shop, word, aggregate) for word, aggregate in pairs]
    shop.ok("relay", "--drain")
    return ids


def start_both(shop, *more):
    """A relay and a consumer, which keep running."""
    relay = shop.spawn("relay", *RETRIES[2:], "--attempts", "1000", env=quick(shop))
    billing = shop.spawn(*consumer(*more), env=quick(shop))
    publish(shop, "hello", "0")
    wait_for(lambda: "hello" in words(shop), what="the first effect")
    return relay, billing


def verify(shop, code=0):
    done = shop.run("verify", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def advised(shop, problem):
    advice = json.loads(shop.run("verify", "--json").stdout)["advice"]
    return [each["command"] for each in advice if each["problem"] == problem]


def apply_remedy(shop, problem):
    """Runs the command that verify prints; the server counts a deleted queue for a moment longer."""
    (command,) = wait_for(lambda: advised(shop, problem), what=f"advice on {problem} events")
    assert command in shop.run("verify").stdout
    return shop.ok(*shlex.split(command)[1:])


def missing(shop):
    (scope,) = verify(shop, 1)["scopes"]
    return sorted(scope["missingIds"])


# ---- retry tiers --------------------------------------------------------------------------------


def under_retry(shop, delay):
    """The event "flaky" is in a tier when this consumer has ended."""
    retries = ("--immediate", "1", "--first-delay", delay, "--delay-max", delay)
    child = shop.spawn(*consumer("--sql", FLAKY, retries=retries))
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_hold"), what="an event under retry")
    assert shop.stop(child) == 0


def test_a_longer_tier_of_earlier_settings_is_drained(shop):
    published(shop, ("flaky", "1"), ("second", "1"))
    under_retry(shop, "4s")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["flaky", "second"]
    verify(shop)


def test_a_deleted_tier_does_not_hide_longer_ones(shop, channel):
    published(shop, ("flaky", "1"))
    under_retry(shop, "4s")
    channel.queue_delete(f"{QUEUE}.retry.1")
    (scope,) = verify(shop, 1)["scopes"]
    assert (scope["waiting"], scope["stuck"], scope["missing"]) == (1, 0, 0)
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["flaky"]
    verify(shop)


def test_retries_of_a_tier_that_was_deleted_are_stuck_and_sent_again(shop, channel):
    published(shop, ("flaky", "1"), ("second", "1"))
    under_retry(shop, "60s")
    for tier in (6, 7):  # by chance the delay is shorter, down to 30 s; these have 32 and 64 s
        channel.queue_delete(f"{QUEUE}.retry.{tier}")
    apply_remedy(shop, "stuck")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["flaky", "second"]
    verify(shop)


def test_a_consumer_declares_a_deleted_tier_again(shop, channel):
    relay, billing = start_both(shop, "--sql", fail_when(":attempt < 3 AND json_extract(:payload, '$.word') = 'flaky'"))
    publish(shop, "flaky", "1")
    wait_for(lambda: "flaky" in words(shop))
    for tier in range(1, 8):
        channel.queue_delete(f"{QUEUE}.retry.{tier}")
    publish(shop, "flaky", "2")
    wait_for(lambda: words(shop).count("flaky") == 2, what="a retry through a tier that was declared again")
    assert shop.stop(relay) == 0 and shop.stop(billing) == 0
    verify(shop)


# ---- exchanges and bindings ---------------------------------------------------------------------


def test_a_deleted_exchange_is_declared_and_bound_again(shop, administrator):
    relay, billing = start_both(shop)
    administrator.delete_exchange(shop.broker.name, TOPIC)
    publish(shop, "second", "1")
    wait_for(lambda: "second" in words(shop), what="an event through the exchange that was declared again")
    assert shop.stop(relay) == 0 and shop.stop(billing) == 0
    verify(shop)


def test_a_removed_binding_is_declared_again_and_missed_events_are_recovered(shop, administrator):
    relay, billing = start_both(shop)
    shop.subscribe("audit")
    shop.freeze(billing)
    administrator.unbind(shop.broker.name, QUEUE, TOPIC)
    lost = publish(shop, "lost", "1")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", lost), what="its confirmation")
    billing.send_signal(signal.SIGCONT)
    wait_for(lambda: administrator.is_bound(shop.broker.name, QUEUE, TOPIC), what="the binding")
    publish(shop, "second", "1")
    wait_for(lambda: "second" in words(shop))
    assert shop.stop(relay) == 0 and shop.stop(billing) == 0
    assert missing(shop) == [lost]
    apply_remedy(shop, "missing")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["hello", "second", "lost"]
    verify(shop)


# ---- queues -------------------------------------------------------------------------------------


@pytest.mark.unless("rabbitmq-stream", reason="a stream cannot be purged, and one that is declared again has its own test")
@pytest.mark.parametrize("how", ["purged", "deleted", "declared again"])
def test_events_of_an_emptied_queue_are_found_and_recovered(shop, channel, how):
    published(shop, ("first", "1"))
    shop.ok(*consumer("--drain"))
    lost = published(shop, ("second", "1"), ("third", "2"))
    if how == "purged":
        channel.queue_purge(QUEUE)
    else:
        channel.queue_delete(QUEUE)
    if how == "declared again":
        shop.subscribe("billing")
    assert missing(shop) == sorted(lost)
    apply_remedy(shop, "missing")
    shop.ok(*consumer("--drain"))
    assert sorted(words(shop)) == ["first", "second", "third"]
    verify(shop)


LOSING = {"max-length": '{<<"max-length">>, 2}, {<<"overflow">>, <<"drop-head">>}', "message-ttl": '{<<"message-ttl">>, 10}'}


@pytest.mark.unless("rabbitmq-stream", reason="a stream is shortened by other policies")
@pytest.mark.parametrize("policy", LOSING)
def test_events_that_a_policy_has_dropped_are_found_and_recovered(shop, administrator, channel, policy):
    shop.ok(*consumer("--drain"))
    administrator.set_policy(shop.broker.name, "losing", QUEUE, f"[{LOSING[policy]}]")
    ids = published(shop, *((str(number), str(number)) for number in range(6)))
    dropped = 4 if policy == "max-length" else 6
    wait_for(lambda: channel.queue_declare(f"{QUEUE}.parked", passive=True).method.message_count == dropped,
             what="copies of the dropped events")
    administrator.delete_policy(shop.broker.name, "losing")
    shop.ok(*consumer("--drain"))
    assert len(missing(shop)) == dropped and set(missing(shop)) <= set(ids)
    apply_remedy(shop, "missing")
    shop.ok(*consumer("--drain"))
    assert sorted(words(shop)) == [str(number) for number in range(6)]
    verify(shop)


@pytest.mark.unless("rabbitmq-stream", reason="it is about queues")
def test_a_queue_with_another_definition_is_refused_and_reported(shop, channel):
    """As after an import of definitions."""
    relay, billing = start_both(shop)
    shop.freeze(billing)
    channel.queue_delete(QUEUE)
    channel.exchange_delete(f"{QUEUE}.owner")
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "classic"})
    channel.queue_bind(QUEUE, TOPIC, "#")
    billing.send_signal(signal.SIGCONT)
    kept = publish(shop, "second", "1")
    assert billing.wait(60) == 78
    assert "nothing was changed" in billing.stderr.read()
    assert f"the queue {QUEUE} exists with another" in shop.run("doctor").stdout
    wait_for(lambda: channel.queue_declare(QUEUE, passive=True).method.message_count == 1, what="the event in that queue")
    channel.queue_delete(QUEUE)
    shop.subscribe("billing")
    assert missing(shop) == [kept]
    apply_remedy(shop, "missing")
    shop.ok(*consumer("--drain"))
    assert shop.stop(relay) == 0 and words(shop) == ["hello", "second"]
    verify(shop)


def routed(shop, word, key):
    """An event that no queue receives is a dead letter of the relay."""
    publish(shop, word, word, "--routing-key", key)
    shop.ok("relay", "--drain", "--attempts", "1")


def test_another_binding_is_added_and_the_one_before_it_stays_until_it_is_removed(shop, administrator):
    def consume(*more):
        shop.ok("consume", "--scope", "europe", "--topic", TOPIC, "--sql", HANDLER.format(scope="europe"), "--drain", *more)

    shop.ok("topology", "apply", "--scope", "europe", "--topic", TOPIC, "--bind", "*.eu")
    consume("--bind", "*.eu")
    routed(shop, "eu1", "order.eu")
    routed(shop, "us1", "order.us")
    consume()  # wider: what was published before needs a replay
    routed(shop, "us2", "order.us")
    consume()
    assert words(shop, "europe") == ["eu1", "us2"]
    (command,) = [each["command"] for each in json.loads(shop.run("verify", "--json", "--scope", "europe").stdout)["advice"]
                  if each["problem"] == "missing"]
    shop.ok(*shlex.split(command)[1:])
    consume()
    assert words(shop, "europe") == ["eu1", "us2", "us1"]
    consume("--bind", "*.eu")  # narrower: the wide binding stays until an operator removes it
    routed(shop, "us3", "order.us")
    consume("--bind", "*.eu")
    administrator.unbind(shop.broker.name, f"europe.{TOPIC}", TOPIC)
    routed(shop, "us4", "order.us")
    routed(shop, "eu4", "order.eu")
    consume("--bind", "*.eu")
    assert words(shop, "europe") == ["eu1", "us2", "us1", "us3", "eu4"]
    shop.ok("verify", "--scope", "europe")


# ---- virtual hosts and permissions --------------------------------------------------------------


def test_a_deleted_virtual_host_is_reported_and_all_events_are_recovered(shop, administrator):
    relay, billing = start_both(shop)
    shop.freeze(billing)
    second = publish(shop, "second", "2")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", second), what="its confirmation")
    administrator.delete_vhost(shop.broker.name)
    publish(shop, "third", "2")
    billing.send_signal(signal.SIGCONT)
    for child in (relay, billing):
        assert child.wait(60) == 78
        assert "virtual host" in child.stderr.read()
    administrator.add_vhost(shop.broker.name)
    shop.subscribe("billing")
    assert missing(shop) == [second]
    apply_remedy(shop, "missing")
    shop.ok("relay", "--drain", "--attempts", "1")
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["hello", "second", "third"]


def test_permissions_revoked_from_a_consumer_are_reported_and_nothing_is_lost(shop, administrator):
    billing = shop.spawn(*consumer(), env=quick(shop))
    published(shop, ("first", "1"))
    wait_for(lambda: words(shop) == ["first"])
    published(shop, ("second", "1"))
    administrator.permit("guest", shop.broker.name, "^$", "^$", "^$")
    administrator.close_connections(shop.broker.name)
    assert billing.wait(60) == 78
    assert "ACCESS_REFUSED" in billing.stderr.read()
    administrator.permit("guest", shop.broker.name)
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["first", "second"]
    verify(shop)


def test_a_relay_waits_for_revoked_permissions(shop, administrator):
    relay = shop.spawn("relay", "--attempts", "1000", *RETRIES[2:], env=quick(shop))
    published(shop, ("first", "1"))
    administrator.permit("guest", shop.broker.name, "^$", "^$", "^$")
    administrator.close_connections(shop.broker.name)
    publish(shop, "second", "1")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE attempts > 0"), what="a refusal")
    done = shop.run("doctor")
    assert done.returncode == 1 and "ACCESS_REFUSED" in done.stdout, done.stdout
    administrator.permit("guest", shop.broker.name)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(2,)], what="the event")
    assert shop.stop(relay) == 0 and shop.json("dlq", "list") == []
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["first", "second"]


def test_a_consumer_whose_permission_to_bind_is_revoked_keeps_running(shop, administrator):
    relay, billing = start_both(shop)
    administrator.permit("guest", shop.broker.name, "^$")
    publish(shop, "second", "1")
    wait_for(lambda: "second" in words(shop), what="another event")
    administrator.permit("guest", shop.broker.name)
    assert shop.stop(relay) == 0 and shop.stop(billing) == 0
    verify(shop)
