# SPDX-License-Identifier: Apache-2.0
"""`semel demo` prints what it does, its output agrees with the databases, and it leaves nothing behind."""
import os
import pty
import re
import signal
import subprocess
from pathlib import Path

import pytest
from program import wait_for

TABLES = {"orders": "orders", "invoices": "invoice", "reservations": "reservation", "audit rows": "audit"}


def processes_in(folder):
    """Numbers of the processes that work in a folder below this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            folder_of_process = os.readlink(entry / "cwd")
        except OSError:
            continue
        if folder_of_process.startswith(f"{folder}/"):
            found.append(int(entry.name))
    return found


def counts_in(output):
    """The final table: name and number."""
    rows = re.findall(r"^ +=? +(orders|invoices|reservations|audit rows) +(\d+)", output, re.MULTILINE)
    return {name: int(number) for name, number in rows}


def test_everything_adds_up_and_nothing_is_left(bare):
    output = bare.ok("demo", "--dir", ".")
    counts = counts_in(output)
    assert set(counts) == set(TABLES), output
    assert len(set(counts.values())) == 1 and counts["orders"] > 0, output
    assert "FAILED" not in output
    assert "Every committed event is accounted for" in output
    assert list(bare.folder.iterdir()) == []
    assert processes_in(bare.folder) == []


def test_the_output_agrees_with_the_databases(bare):
    output = bare.ok("demo", "--dir", ".", "--keep")
    (folder,) = bare.folder.iterdir()
    store, broker = folder / "semel.db", folder / "semel-broker.db"
    for name, table in TABLES.items():
        assert bare.sql(f"SELECT count(*) FROM {table}", database=store) == [(counts_in(output)[name],)]
    [(events,)] = bare.sql("SELECT count(*) FROM semel_outbox", database=store)
    [(sent,)] = bare.sql("SELECT count(*) FROM semel_log", database=broker)
    assert sent > events
    assert f"{events} events were sent {sent} times" in output
    [(entry,)] = bare.sql("SELECT entry_id FROM semel_dead_letter WHERE parked_behind IS NULL", database=store)
    assert f"semel dlq replay {entry}" in output
    assert str(folder) in output


@pytest.mark.slow
def test_it_survives_five_kills_and_skips_what_was_done(bare):
    output = bare.ok("demo", "--dir", ".")
    assert "5 processes were killed" in output
    skipped = int(re.search(r"(\d+) deliveries were skipped", output).group(1))
    assert skipped > 0


@pytest.mark.slow
def test_no_line_is_wider_than_a_terminal(bare):
    assert max(len(line) for line in bare.ok("demo", "--dir", ".").splitlines()) <= 80


@pytest.mark.slow
def test_colour_is_for_terminals_only(bare):
    assert "\033" not in bare.ok("demo", "--dir", ".")
    ours, theirs = pty.openpty()
    child = bare.spawn("demo", "--dir", ".", stdout=theirs, env={"TERM": "xterm"})
    os.close(theirs)
    shown = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(ours)
    assert child.wait(60) == 0
    assert b"\033[1m1. " in shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_cleans_up(bare, number):
    child = bare.spawn("demo", "--dir", ".", stderr=subprocess.PIPE)
    for line in child.stdout:
        if line.startswith("1. "):
            break
    child.send_signal(number)
    child.stdout.read()
    assert child.wait(30) in (75, 0)  # 0: it ended before the signal
    assert list(bare.folder.iterdir()) == []
    assert processes_in(bare.folder) == []


def test_its_children_die_with_it(bare):
    child = bare.spawn("demo", "--dir", ".")
    for line in child.stdout:
        if line.startswith("2. "):
            break
    child.kill()
    child.wait(30)
    wait_for(lambda: not processes_in(bare.folder), what="the end of the children")


def test_a_folder_that_cannot_be_made_is_named(bare):
    assert "/nowhere" in bare.fails(69, "demo", "--dir", "/nowhere")
