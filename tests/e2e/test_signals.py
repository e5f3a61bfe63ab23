# SPDX-License-Identifier: Apache-2.0
"""Signals to long-running commands: the first starts a graceful shutdown within the grace period, a second ends it at once."""
import json
import signal
import socket

import pytest

from program import wait_for

pytestmark = pytest.mark.anywhere

CONSUME = ("consume", "--scope", "x", "--topic", "order.events")


def at_work(semel, *words, marker="started"):
    """A consumer whose handler is in the middle of an event."""
    semel.publish()
    semel.ok("relay", "--drain")
    child = semel.spawn(*CONSUME, *words)
    wait_for((semel.folder / marker).exists, what="the handler's start")
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_relay_stops_gracefully_and_prints_what_it_did(semel, number):
    semel.publish()
    child = semel.spawn("relay")
    wait_for(lambda: semel.sql("SELECT status FROM semel_outbox") == [("PUBLISHED",)])
    assert semel.stop(child, number) == 0
    assert child.stdout.read() == "published 1 event\n"


@pytest.mark.core
def test_a_consumer_stops_gracefully_and_prints_what_it_did(semel):
    semel.sql("CREATE TABLE seen (id TEXT)")
    semel.publish()
    semel.ok("relay", "--drain")
    child = semel.spawn(*CONSUME, "--sql", "INSERT INTO seen VALUES (:id)", "--json")
    wait_for(lambda: semel.sql("SELECT count(*) FROM seen") == [(1,)])
    assert semel.stop(child) == 0
    assert json.loads(child.stdout.read()) == {"done": 1, "duplicate": 0, "retried": 0, "dead": 0, "parked": 0}


def test_a_hangup_changes_nothing(semel):
    child = semel.spawn("relay")
    semel.publish()
    wait_for(lambda: semel.sql("SELECT status FROM semel_outbox") == [("PUBLISHED",)])
    child.send_signal(signal.SIGHUP)
    semel.publish()
    wait_for(lambda: semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(2,)])
    assert semel.stop(child) == 0


def waiting_for_its_broker(semel, silent, *words):
    """A child whose broker has accepted the connection and sends nothing."""
    child = semel.spawn("--broker", f"amqp://127.0.0.1:{silent.getsockname()[1]}", *words)
    silent.settimeout(60)
    return child, silent.accept()[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("words", [("relay",), (*CONSUME, "--exec", "true")], ids=["relay", "consume"])
def test_a_command_that_is_still_starting_stops_at_once_without_an_error(semel, words, number):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        child, connection = waiting_for_its_broker(semel, silent, *words)
        with connection:
            child.send_signal(signal.SIGHUP)
            assert semel.stop(child, number) == 0
    assert (child.stdout.read(), child.stderr.read()) == ("", "")


@pytest.mark.core
def test_what_is_in_flight_is_finished_within_the_grace_period(semel):
    child = at_work(semel, "--exec", "touch started; while ! test -e go; do sleep 0.05; done; touch finished")
    child.send_signal(signal.SIGTERM)
    (semel.folder / "go").touch()
    assert child.wait(30) == 0
    assert (semel.folder / "finished").exists()
    assert semel.sql("SELECT status FROM semel_inbox") == [("PROCESSED",)]


@pytest.mark.slow
def test_a_longer_grace_period_applies_to_calls_too(semel):
    """A call that takes longer than the default grace period is finished, and not made again."""
    child = at_work(semel, "--grace", "2m", "--exec", "touch started; sleep 13; echo >>finished")
    assert semel.stop(child) == 0
    assert semel.sql("SELECT status FROM semel_inbox") == [("PROCESSED",)]


def test_after_the_grace_period_it_ends_with_75(semel):
    child = at_work(semel, "--grace", "1s", "--exec", "touch started; sleep 600")
    assert semel.stop(child) == 75
    assert "grace" in child.stderr.read()


def test_a_second_signal_ends_it_at_once(semel):
    child = at_work(semel, "--grace", "1h", "--exec", "touch started; sleep 600")
    child.send_signal(signal.SIGTERM)
    wait_for(lambda: child.poll() is not None or child.send_signal(signal.SIGTERM))
    assert child.returncode == 128 + signal.SIGTERM
