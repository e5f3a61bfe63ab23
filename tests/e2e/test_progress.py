# SPDX-License-Identifier: Apache-2.0
"""Commands that take long show their progress on a terminal, and nowhere else."""
import os
import pty
import select
import time

import pytest

from story import HANDLER, consume, prepare, publish, relay

WIPE = "\r\033[K"
BENCH = ("bench", "--rounds", "1", "--turns", "1", "--transactions", "1", "--events", "1", "--backlog", "1000", "--dir", ".")
SCOPE = ("consume", "--scope", "billing", "--topic", "order.events")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


class Terminal:
    """A child whose stderr is a terminal, and what it has printed there."""

    def __init__(self, shop, *words):
        self.ours, theirs = pty.openpty()
        self.shown = ""
        self.child = shop.spawn(*words, stderr=theirs, env={"SEMEL_LOG": "text"})
        os.close(theirs)

    def read(self):
        """False when the other end is closed."""
        try:
            chunk = os.read(self.ours, 65536)
        except OSError:
            return False
        self.shown += chunk.decode()
        return bool(chunk)

    def shows(self, text):
        until = time.monotonic() + 60
        while text not in self.shown:
            assert select.select([self.ours], [], [], max(0, until - time.monotonic()))[0], self.shown
            assert self.read(), self.shown
        return True

    def ends(self):
        """Its exit code; the line is wiped in the end."""
        while self.read():
            pass
        os.close(self.ours)
        assert self.shown.endswith(WIPE), self.shown
        return self.child.wait(60)


def test_a_consumer_that_drains(shop):
    for number in range(2):
        publish(shop, str(number), "1")
    relay(shop)
    terminal = Terminal(shop, *SCOPE, "--drain", "--exec", "[ -e first ] || { touch first; exit 0; }; until [ -e go ]; do sleep 0.05; done")
    assert terminal.shows(f"{WIPE}1 events done")
    (shop.folder / "go").touch()
    assert terminal.ends() == 0


def test_a_relay_that_drains(shop):
    publish(shop, "first")
    terminal = Terminal(shop, "relay", "--drain")
    assert terminal.ends() == 0
    assert "1 events published" in terminal.shown


def test_verify_that_waits(shop):
    publish(shop, "first")
    relay(shop)
    consume(shop)
    publish(shop, "second")
    terminal = Terminal(shop, "verify", "--wait", "2m")
    assert terminal.shows("deliveries in transit")
    relay(shop)
    consume(shop)
    assert terminal.ends() == 0


def test_a_replay_has_a_bar(shop):
    publish(shop, "first")
    relay(shop)
    terminal = Terminal(shop, "replay")
    assert terminal.ends() == 0
    assert "100% 1 events replayed" in terminal.shown


def test_a_prune_counts_rows(shop):
    terminal = Terminal(shop, "prune")
    assert terminal.ends() == 0
    assert " rows" in terminal.shown


def test_a_bench_shows_its_rounds(shop):
    terminal = Terminal(shop, *BENCH)
    assert terminal.ends() == 0
    assert "0% 0 rounds: publish, one event in a transaction" in terminal.shown


def test_no_progress_is_written_to_a_pipe(shop):
    publish(shop, "first")
    for words in (("relay", "--drain"), (*SCOPE, "--drain", "--sql", HANDLER.format(scope="billing")), ("verify", "--wait", "1m"), ("replay",), ("prune",)):
        assert shop.run(*words, check=True).stderr == ""
