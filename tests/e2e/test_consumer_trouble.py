# SPDX-License-Identifier: Apache-2.0
"""A consumer in bad circumstances: a full disk, a damaged file, no descriptor left, a clock that jumps. It waits or
ends with words that help; afterwards every event was handled, and there is no dead letter."""
import glob
import json
import os
import resource
import signal
import sqlite3

import pytest
from endpoint import Endpoint
from program import Semel, wait_for

pytestmark = [pytest.mark.only("sqlite"), pytest.mark.only("local")]

TOPIC = "order.events"
SQL = "INSERT INTO effect (id) VALUES (:id)"
EXEC = "cat >/dev/null; echo $SEMEL_EVENT_ID >>{calls}"
HANDLERS = ("sql", "exec", "http")
WAYS = ("consume", "run")
LIBRARIES = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")


class Desk:
    """One subscription with one kind of handler, by `consume` or by `run`, and what its handler has seen."""

    def __init__(self, folder, handler, way="consume", aside=None, **more):
        """aside: where it says things, and where a program writes."""
        self.semel, self.endpoint, self.handler, self.way = Semel(folder), Endpoint(), handler, way
        self.options = more
        self.semel.ok("init")
        self.semel.sql("CREATE TABLE effect (id TEXT)")
        self.ids, self.said, self.calls = [], (aside or folder) / "said", (aside or folder) / "calls"

    def close(self):
        self.semel.close()
        self.endpoint.__exit__()

    def value(self):
        return {"sql": SQL, "exec": EXEC.format(calls=self.calls), "http": self.endpoint.url}[self.handler]

    def words(self):
        more = [word for key, value in self.options.items() for word in (f"--{key}", value)]
        if self.way == "consume":
            return ["consume", "--scope", "billing", "--topic", TOPIC, f"--{self.handler}", self.value(), *more]
        subscription = {"scope": "billing", "topics": [TOPIC], self.handler: self.value(), **self.options}
        (self.semel.folder / "semel.yaml").write_text(json.dumps({"subscriptions": [subscription]}))
        return ["--config", "semel.yaml", "run"]

    def start(self, **options):
        return self.semel.spawn(*self.words(), stderr=open(self.said, "a"), **options)

    def publish(self, count=20, **options):
        lines = [json.dumps({"type": "order.created.v1", "aggregateType": "order", "aggregateId": str(number % 4), "payload": {}})
                 for number in range(count)]
        self.ids += self.semel.ok("publish", "--batch", input="\n".join(lines), **options).split()
        self.semel.ok("relay", "--drain", **options)

    def tells(self, text):
        wait_for(lambda: text in self.said.read_text(), what=f"{text!r} in what it says")

    def handled(self):
        """The ids that the handler was given, each as often as it was."""
        if self.handler == "sql":
            return [row[0] for row in self.semel.sql("SELECT id FROM effect")]
        if self.handler == "http":
            return [headers["Idempotency-Key"].strip('"') for _, headers, _ in self.endpoint.requests]
        return self.calls.read_text().split() if self.calls.exists() else []

    def processed(self):
        rows = self.semel.sql("SELECT count(*) FROM semel_inbox WHERE scope = 'billing' AND status = 'PROCESSED'")
        return rows[0][0]

    def wait_until_all_are_processed(self):
        wait_for(lambda: self.processed() == len(self.ids), timeout=120, what="all events are processed")

    def check_books(self, repeats=False):
        """repeats: calls may have been made again, with the same id."""
        handled = self.handled()
        assert sorted(set(handled)) == sorted(self.ids), "an event was lost"
        assert repeats or len(handled) == len(set(handled)), "an event was handled twice"
        assert self.semel.ok("dlq", "count").strip() == "0"
        self.semel.ok("verify")


@pytest.fixture
def desk_at():
    made = []

    def make(*words, **more):
        made.append(Desk(*words, **more))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


# ---- a full disk ------------------------------------------------------------------------------------


def fill(disk):
    """Until nothing more can be written."""
    with open(disk / "filler", "wb", buffering=0) as filler:
        for size in (65536, 4096):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                pass


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_full_disk_is_waited_for(desk_at, disk_of, tmp_path, handler, way):
    disk = disk_of(16)
    desk = desk_at(disk, handler, way, aside=tmp_path)
    child = desk.start()
    desk.publish(4)
    desk.wait_until_all_are_processed()
    desk.semel.freeze(child)
    desk.publish()
    fill(disk)
    child.send_signal(signal.SIGCONT)
    desk.tells("disk is full")
    assert child.poll() is None
    (disk / "filler").unlink()
    desk.wait_until_all_are_processed()
    assert desk.semel.stop(child) == 0
    desk.check_books(repeats=handler != "sql")


@pytest.mark.slow
def test_what_the_handler_writes_finds_no_room_and_costs_no_attempt(desk_at, disk_of, tmp_path):
    """The handler's own statement meets the full disk, not the claim."""
    disk = disk_of(16)
    desk = desk_at(disk, "sql", aside=tmp_path, attempts="1")
    desk.semel.sql("CREATE TRIGGER large AFTER INSERT ON effect BEGIN INSERT INTO effect SELECT zeroblob(17000000)"
                   " WHERE NOT EXISTS (SELECT 1 FROM effect WHERE length(id) > 100); END")
    desk.publish(4)
    done = desk.semel.run(*desk.words(), "--drain", "--timeout", "2s")
    assert done.returncode == 75 and "disk is full" in done.stderr, done.stderr
    desk.semel.sql("DROP TRIGGER large")
    desk.semel.ok(*desk.words(), "--drain")
    desk.check_books()


# ---- a damaged file ---------------------------------------------------------------------------------


def overwrite(path, page):
    with open(path, "r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xa5" * 4096)


def without_log(path):
    for log in (f"{path}-wal", f"{path}-shm"):
        if os.path.exists(log):
            os.unlink(log)


def checkpointed(path):
    """The number of each table's first page, in a file that has no log beside it."""
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = dict(connection.execute("SELECT name, rootpage FROM sqlite_schema WHERE rootpage > 0"))
    connection.close()
    without_log(path)
    return pages


# File, table (None: the header), handler.
DAMAGE = [("store", "effect", "sql")] + [
    (file, table, handler) for handler in HANDLERS
    for file, table in (("store", "semel_inbox"), ("broker", "semel_log"), ("store", None), ("broker", None))]


@pytest.mark.slow
@pytest.mark.parametrize("file, table, handler", DAMAGE)
def test_a_damaged_file_is_named_and_makes_no_dead_letter(desk_at, tmp_path, file, table, handler):
    desk = desk_at(tmp_path, handler)
    desk.publish()
    path = desk.semel.store if file == "store" else desk.semel.broker
    pages = checkpointed(path)
    kept = path.read_bytes()
    overwrite(path, pages[table] if table else 1)
    done = desk.semel.run(*desk.words(), "--drain", "--timeout", "2s")
    assert done.returncode in (65, 69, 75), done.stderr
    assert path.name in done.stderr and ("the file is damaged" in done.stderr or "is no SQLite database" in done.stderr)
    without_log(path)
    path.write_bytes(kept)
    desk.semel.ok(*desk.words(), "--drain")
    desk.check_books()


# ---- no descriptor left -----------------------------------------------------------------------------


def limit_to(child, number):
    resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (number, resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", HANDLERS)
def test_descriptors_that_run_out_are_waited_for(desk_at, tmp_path, handler, way):
    desk = desk_at(tmp_path, handler, way, attempts="1")
    child = desk.start()
    desk.publish(4)
    desk.wait_until_all_are_processed()
    limit_to(child, 3)
    desk.publish()
    if handler == "sql":  # needs none of its own
        desk.wait_until_all_are_processed()
    else:
        desk.tells("breaker open, fetching paused")
    assert child.poll() is None
    limit_to(child, 1024)
    desk.wait_until_all_are_processed()
    assert desk.semel.stop(child) == 0
    desk.check_books()


@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
def test_too_few_descriptors_from_the_start_end_with_a_reason(desk_at, tmp_path, handler):
    """Whatever the limit is: it says what is missing, or it takes some events, and nobody's attempts are spent."""
    desk = desk_at(tmp_path, handler, attempts="1")
    desk.publish()
    for limit in range(6, 40, 2):
        done = desk.semel.run(*desk.words(), "--drain", "--timeout", "1s",
                              preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        assert done.returncode in (0, 69, 75), done.stderr
        if done.returncode == 69:
            assert any(text in done.stderr for text in ("raise the limit", "descriptors")), done.stderr
        if desk.processed() > 0:
            break
    desk.semel.ok(*desk.words(), "--drain")
    desk.check_books()


# ---- a clock that jumps -----------------------------------------------------------------------------


class Clock:
    """The time of day of all programs that are started with its environment."""

    def __init__(self, folder):
        self.file = folder / "clock"
        self.jump("+0")
        self.environment = {"LD_PRELOAD": LIBRARIES[0], "FAKETIME_TIMESTAMP_FILE": str(self.file), "FAKETIME_NO_CACHE": "1",
                            "FAKETIME_DONT_FAKE_MONOTONIC": "1"}

    def jump(self, text):
        fresh = self.file.with_suffix(".new")
        fresh.write_text(text)
        fresh.rename(self.file)


@pytest.mark.slow
@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not here (Debian's package faketime)")
@pytest.mark.parametrize("claim", ["same-tx", "separate"])
@pytest.mark.parametrize("jump", ["+1h", "-1h"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_clock_that_jumps_loses_nothing(desk_at, tmp_path, handler, jump, claim):
    clock = Clock(tmp_path)
    desk = desk_at(tmp_path, handler, claim=claim)
    child = desk.start(env=clock.environment)
    desk.publish(env=clock.environment)
    desk.wait_until_all_are_processed()
    clock.jump(jump)
    desk.publish(env=clock.environment)
    desk.wait_until_all_are_processed()
    child.kill()  # whoever comes next finds claims and leases of another time
    child.wait()
    desk.publish(env=clock.environment)
    child = desk.start(env=clock.environment)
    desk.wait_until_all_are_processed()
    clock.jump("+0")
    desk.publish(env=clock.environment)
    desk.wait_until_all_are_processed()
    assert desk.semel.stop(child) == 0
    desk.check_books()


@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not here (Debian's package faketime)")
@pytest.mark.parametrize("jump", ["+1h", "-1h"])
def test_a_retry_that_waits_while_the_clock_jumps_comes(desk_at, tmp_path, jump):
    """Ahead it comes early; back it may wait until the clock is where it was, and no longer."""
    clock = Clock(tmp_path)
    desk = desk_at(tmp_path, "exec", **{"immediate": "1", "first-delay": "10s", "delay-max": "10s"})
    (tmp_path / "fail").touch()
    desk.value = lambda: f"if [ -e {tmp_path}/fail ]; then exit 1; fi; {EXEC.format(calls=desk.calls)}"
    child = desk.start(env=clock.environment)
    desk.publish(1, env=clock.environment)
    desk.tells("event failed, retrying")
    (tmp_path / "fail").unlink()
    clock.jump(jump)
    desk.publish(4, env=clock.environment)
    wait_for(lambda: desk.processed() >= 3, what="the other aggregates go on")
    clock.jump("+1m")
    desk.wait_until_all_are_processed()
    assert desk.semel.stop(child) == 0
    desk.check_books()
