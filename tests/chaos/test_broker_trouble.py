# SPDX-License-Identifier: Apache-2.0
"""A RabbitMQ that runs and does not work: it is blocked by an alarm, its queues are full or
deleted, it closes channels, requeues deliveries, or waits for a heartbeat. No event is lost by that,
and what is no answer about an event costs it no attempt."""
import signal
import time

import mix
import pytest
from workload import LEASE, RETRIES, TIMEOUT, workload, effects, check_books, wait_for_effects, read_log, spawn_logged, waiting
from program import wait_for
from runbook import RunbookReader
from shop import TOPIC

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]

FAIL_THREE_TIMES = "SELECT fail_when(:attempt < 4 AND json_extract(:payload, '$.flaky') = 'true')"
BE_SLOW = "SELECT pg_sleep(6) WHERE json_extract(:payload, '$.slow') = 'true'"


@pytest.fixture
def shop(shop_on_own_servers):
    return shop_on_own_servers


@pytest.fixture
def administrator(shop):
    return mix.servers.attached.administrator


@pytest.fixture
def alarm(administrator):
    """Raises it; it is cleared at the latest when the test ends."""
    def raise_it():
        administrator.raise_memory_alarm()
        wait_for(lambda: "memory" in administrator.alarms(), 60, "the alarm")
    yield raise_it
    administrator.clear_memory_alarm()


def attempts(shop):
    """The most that any event has used."""
    ((most,),) = shop.sql("SELECT max(attempts) FROM semel_outbox")
    return most


# ---- alarms -------------------------------------------------------------------------------------


def test_an_alarm_pauses_the_relay_and_costs_no_attempts(shop, administrator, alarm):
    with workload(shop) as producer:
        alarm()
        wait_for(lambda: waiting(shop) > 300, 60, "events that wait")
        wait_for(lambda: "is blocked" in read_log(shop), 60, "a log line about it")
        administrator.clear_memory_alarm()
        wait_for_effects(shop, producer)
    assert attempts(shop) == 0
    check_books(shop)


def test_a_drain_that_ends_under_an_alarm_reports_the_reason_and_the_backlog(shop, alarm):
    shop.load(aggregates=8, each=5)
    alarm()
    shop.drain_times_out("relay", expected=["40 events wait", "is blocked"])
    assert attempts(shop) == 0
    done = shop.run("doctor")
    assert done.returncode == 1 and "problem  broker-alarm        the broker blocks publishing" in done.stdout, done.stdout


def test_the_runbook_of_an_alarm_reports_it_and_afterwards_everything_is_done(shop, administrator, alarm):
    shop.load(aggregates=4, each=2)
    alarm()
    reader = RunbookReader(shop.folder, shop.backend.environment())
    reader.follow("broker-alarm", until="\n## Verify")
    assert (75, "relay --drain --timeout 5s") in reader.codes()
    assert "problem  broker-alarm" in reader.answer("semel doctor")
    administrator.clear_memory_alarm()
    reader.follow("broker-alarm", since="\n## Verify")
    assert "published 8 events" in reader.printed[0] and "0 not yet published" in reader.printed[0]
    shop.recover()
    shop.check_books()


def tls_url(shop):
    attached = mix.servers.attached
    return attached.rabbitmq_tls_url(shop.broker.name, "guest:guest") + f"?cacert={attached.authority}&heartbeat=2"


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_a_relay_that_is_stopped_under_an_alarm_ends_well(shop, alarm, scheme):
    """Also with more in flight than a socket buffers."""
    shop.load(aggregates=200, each=1, text="x" * 100_000)
    alarm()
    env = {"SEMEL_BROKER": tls_url(shop)} if scheme == "amqps" else {}
    relay = spawn_logged(shop, "relay", *LEASE, env=env)
    wait_for(lambda: "is blocked" in read_log(shop), 60, "a log line about it")
    assert shop.stop(relay, timeout=60) == 0, read_log(shop)
    assert attempts(shop) == 0


def healthy(shop):
    """Of the effects: the flaky one may be done before the alarm, or after it."""
    ((count,),) = shop.sql("SELECT count(*) FROM effect_audit WHERE aggregate LIKE 'healthy-%'")
    return count


def test_a_consumer_that_cannot_put_a_retry_back_goes_on_with_the_rest(shop, administrator, alarm):
    """Its retries wait in the blocked connection; deliveries and acks are on another one."""
    audit = shop.by_sql("audit", *LEASE, *RETRIES, before=(FAIL_THREE_TIMES,))
    shop.load(aggregates=2, each=3, flaky=True)
    shop.relay()
    alarm()
    consumer = spawn_logged(shop, *audit.words)
    wait_for(lambda: "is blocked" in read_log(shop), 60, "a retry that is not accepted")
    administrator.clear_memory_alarm()
    wait_for(lambda: effects(shop, "audit") == 6, 60, "the retries")
    for number in range(30):
        shop.order(f"healthy-{number}")
    shop.order("o-0", flaky=True)
    shop.relay()
    alarm()
    wait_for(lambda: healthy(shop) == 30, 60, "the healthy ones, under the alarm")
    assert "memory" in administrator.alarms()
    administrator.clear_memory_alarm()
    wait_for(lambda: effects(shop, "audit") == 37, 60, "the last one")
    assert shop.stop(consumer) == 0, read_log(shop)
    check_books(shop)


# ---- full, and emptied --------------------------------------------------------------------------


def test_a_full_queue_refuses_and_what_it_refused_comes_when_it_is_empty(shop, administrator):
    vhost = shop.broker.name
    administrator.limit_queues(vhost, "^billing", 5)
    shop.load(aggregates=10, each=5)
    relay = spawn_logged(shop, "relay", *LEASE, *RETRIES, "--attempts", "1000")
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE attempts > 1")[0][0] > 0, 60, "refusals")
    assert 0 < waiting(shop) < 50
    consumer = spawn_logged(shop, *shop.subscriptions[0].words)
    wait_for(lambda: effects(shop) == 50, 60, "everything")
    assert shop.stop(relay) == 0 and shop.stop(consumer) == 0
    administrator.lift_limits(vhost)
    check_books(shop)


def test_what_a_full_queue_refuses_for_too_long_is_a_dead_letter_and_can_be_replayed(shop, administrator):
    vhost = shop.broker.name
    administrator.limit_queues(vhost, "^billing", 5)
    shop.load(aggregates=10, each=3)
    shop.relay("--attempts", "2", *RETRIES)
    letters = shop.json("dlq", "list", "--limit", "1000")
    assert letters and all(letter["sourceService"] == "relay" for letter in letters)
    administrator.lift_limits(vhost)
    for _ in range(5):
        shop.ok("dlq", "replay", "--all")
        shop.relay(*RETRIES)
        if shop.dead_letters() == 0:
            break
    check_books(shop)


def test_deleted_queues_make_events_unroutable_and_nothing_is_lost(shop, administrator):
    vhost = shop.broker.name
    shop.load(aggregates=5, each=2)
    shop.recover()
    shop.backend.log()  # what the witness has received until now
    relay = spawn_logged(shop, "relay", *LEASE, *RETRIES, "--attempts", "2")
    administrator.delete_queues(vhost)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: shop.dead_letters() == 5, 60, "dead letters")
    for letter in shop.json("dlq", "list"):
        assert TOPIC in letter["failureReason"] and "order.changed.v1" in letter["failureReason"], letter
        assert letter["attempts"] == 2, letter
    shop.broker.witnessed.clear()
    shop.backend.witness(TOPIC)
    shop.subscribe("billing")
    shop.ok("dlq", "replay", "--all")
    wait_for(lambda: waiting(shop) == 0, 60, "everything published")
    assert shop.stop(relay) == 0
    check_books(shop)


def test_an_exchange_that_vanishes_under_the_relay_is_made_again(shop, administrator):
    """The broker closes the channel for it; what was in flight is refused or sent again, never lost."""
    shop.load(aggregates=5, each=2)
    relay = spawn_logged(shop, "relay", *LEASE, *RETRIES, "--attempts", "1000")
    wait_for(lambda: waiting(shop) == 0, 60, "its work")
    administrator.delete_exchange(shop.broker.name, TOPIC)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: attempts(shop) > 0, 60, "an event that no queue gets")
    relay.send_signal(signal.SIGSTOP)  # an event between the two bindings would reach only one of the queues
    shop.broker.witnessed.clear()
    shop.backend.witness(TOPIC)
    shop.subscribe("billing")
    relay.send_signal(signal.SIGCONT)
    wait_for(lambda: waiting(shop) == 0, 60, "everything published")
    assert shop.stop(relay) == 0, read_log(shop)
    check_books(shop)


def test_an_event_that_the_broker_finds_too_large_is_a_dead_letter_and_the_others_go_on(shop, administrator):
    """It closes the channel for it, with everything else that is on it."""
    with administrator.setting(max_message_size=2000):
        large = shop.order("large", text="x" * 3000)
        shop.load(aggregates=8, each=5)
        shop.relay("--attempts", "1000", *RETRIES)
    (letter,) = shop.json("dlq", "list")
    assert letter["originalEventId"] == large and "max size 2000" in letter["failureReason"], letter
    shop.ok("dlq", "replay", letter["dlqEntryId"])
    check_books(shop)


# ---- the consumer's side ------------------------------------------------------------------------


def test_a_queue_that_vanishes_under_its_consumer_is_made_again(shop, administrator):
    vhost = shop.broker.name
    shop.load(aggregates=5, each=2)
    shop.recover()
    consumer = spawn_logged(shop, *shop.subscriptions[0].words)
    shop.load(aggregates=5, each=1)
    shop.relay()
    wait_for(lambda: effects(shop) == 15, 60, "its work")
    shop.backend.log()
    administrator.delete_queues(vhost)
    shop.broker.witnessed.clear()
    shop.backend.witness(TOPIC)
    wait_for(lambda: administrator.is_bound(vhost, f"billing.{TOPIC}", TOPIC), 60, "the queue, where events come to it")
    shop.load(aggregates=5, each=1)
    shop.relay(*TIMEOUT)
    wait_for(lambda: effects(shop) == 20, 60, "its work")
    assert shop.stop(consumer) == 0
    check_books(shop)


def slow_by_sql(shop):
    return shop.by_sql("slow", *LEASE, *RETRIES, before=(BE_SLOW,))


def slow_by_exec(shop):
    return shop.by_exec("slow", *LEASE, *RETRIES, before="case \"$body\" in *slow*) sleep 6 ;; esac")


@pytest.mark.parametrize("make", [slow_by_sql, slow_by_exec])
def test_a_handler_that_is_slower_than_the_broker_allows_runs_once(shop, administrator, make):
    """consumer_timeout: the broker closes the channel and redelivers to the next consumer."""
    slow = make(shop)
    with administrator.setting(consumer_timeout=1000, channel_tick_interval=300):
        shop.order("o-0", slow=True)
        shop.load(aggregates=3, each=2)
        shop.relay()
        consumer = spawn_logged(shop, *slow.words)
        wait_for(lambda: "broker closed the channel" in read_log(shop), 60, "a delivery that is requeued")
        wait_for(lambda: len(slow.effects.read()) == 7, 60, "everything")
        assert shop.stop(consumer) == 0, read_log(shop)
    check_books(shop)


def check_connections_stay(shop, administrator, seconds):
    """None is opened or closed in that time."""
    before = administrator.connections(shop.broker.name)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert administrator.connections(shop.broker.name) == before, read_log(shop)
        time.sleep(0.5)  # not for a condition: nothing shall happen


@pytest.mark.parametrize("scheme", ["amqp", "amqps"])
def test_heartbeats_are_kept_while_the_relay_waits_and_while_a_handler_is_slow(shop, administrator, scheme):
    """The broker closes a connection after six seconds without a heartbeat."""
    slow = slow_by_sql(shop)
    env = {"SEMEL_BROKER": tls_url(shop) if scheme == "amqps" else shop.broker.url + "?heartbeat=2"}
    shop.order("o-0", slow=True)
    relay = spawn_logged(shop, "relay", "--lease", "60s", "--poll", "60s", env=env)
    wait_for(lambda: waiting(shop) == 0, 60, "its work")
    consumer = spawn_logged(shop, *slow.words, env=env)
    wait_for(lambda: shop.sql("SELECT 1 FROM pg_stat_activity WHERE query LIKE '%pg_sleep%' AND wait_event = 'PgSleep'"),
             60, "the handler at work")
    check_connections_stay(shop, administrator, 9)
    wait_for(lambda: effects(shop, "slow") == 1, 60, "its effect")
    assert shop.stop(relay) == 0 and shop.stop(consumer) == 0
    assert '"warn"' not in read_log(shop)
    check_books(shop)
