# SPDX-License-Identifier: Apache-2.0
"""`semel top`: the dashboard, printed once into a pipe, refreshed on a terminal, which is restored at the end."""
import codecs
import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import termios

import pytest
from program import wait_for
from story import deliver, prepare

pytestmark = pytest.mark.anywhere
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


class Terminal:
    """A terminal with `semel top` on it."""

    def __init__(self, semel, *words, rows=30, columns=120):
        self.ours, theirs = pty.openpty()
        self.resize(rows, columns)
        self.before = termios.tcgetattr(theirs)
        self.child = semel.spawn("top", *words, stdin=theirs, stdout=theirs, stderr=theirs)
        self.theirs, self.seen, self.decoder = theirs, "", codecs.getincrementaldecoder("utf-8")()

    def resize(self, rows, columns):
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def text(self):
        """All that was written so far."""
        while select.select([self.ours], [], [], 0)[0]:
            self.seen += self.decoder.decode(os.read(self.ours, 65536))  # a read may end in the middle of a character
        return self.seen

    def screens(self):
        """What was drawn from the top, each time."""
        return self.text().split("\x1b[H")[1:]

    def press(self, keys):
        os.write(self.ours, keys.encode())

    def ended(self):
        """The exit code; the terminal must have been restored."""
        wait_for(lambda: self.text() is not None and self.child.poll() is not None, 60, "the end")
        assert LEAVE in self.text() and "\x1b[?25h" in self.text()
        assert termios.tcgetattr(self.theirs) == self.before
        return self.child.returncode

    def close(self):
        os.close(self.ours)
        os.close(self.theirs)


@contextlib.contextmanager
def terminal(*words, **options):
    made = Terminal(*words, **options)
    try:
        wait_for(lambda: "q: quit" in made.text(), 60, "the first screen")
        assert made.text().startswith(ENTER)
        yield made
    finally:
        made.close()


def test_into_a_pipe_it_prints_once(shop):
    deliver(shop, ("bad", "1"), ("behind", "1"), ("good", "2"))
    shop.publish()
    text = shop.ok("top")
    assert "\x1b" not in text and "\nready\n" in text
    rows = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line.strip()}
    assert rows["outbox"][:5] == ["1", "0", "0", "0", "1"]
    lag, change, delayed, waiting, parked, blocked, dead = rows["billing"][:7]
    assert (change, parked, blocked, dead) == ("-", "1", "0", "1") and lag.isdigit()
    dashboard = shop.json("top")
    assert dashboard["outbox"]["waiting"] == 1 and dashboard["pending"] == 1 and dashboard["reasons"] == []


def test_without_a_store_it_fails(bare):
    assert bare.fails(69, "top", env={"SEMEL_STORE": "postgres://127.0.0.1:1/x"})
    assert bare.fails(64, "top", "--interval", "1ms")


def test_on_a_terminal_it_refreshes_follows_its_size_and_ends_with_q(shop):
    with terminal(shop, "--interval", "1s") as screen:
        shop.publish()
        wait_for(lambda: any(line.split()[:2] == ["outbox", "1"] for line in screen.screens()[-1].splitlines()), 60,
                 "the new event is shown")
        screen.resize(4, 20)
        screen.child.send_signal(signal.SIGWINCH)
        wait_for(lambda: screen.screens()[-1].count("\r\n") == 3 and screen.screens()[-1].endswith("\x1b[J"), 60, "four rows")
        lines = screen.screens()[-1].replace("\x1b[K", "").replace("\x1b[J", "").replace("\r", "").split("\n")
        assert max(map(len, lines)) <= 20
        screen.press("xq")
        assert screen.ended() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_the_terminal_is_restored(shop, number):
    with terminal(shop) as screen:
        screen.child.send_signal(number)
        assert screen.ended() == 0
