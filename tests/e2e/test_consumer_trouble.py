# SPDX-License-Identifier: Apache-2.0
"""A consumer with a full disk, a damaged file, no free descriptor, or a clock that jumps. It waits, or exits with an error
that helps; afterwards every event was handled, and there is no dead letter."""
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


class Subscription:
    """One subscription with one kind of handler, by `consume` or by `run`, and the events that its handler got."""

    def __init__(self, folder, handler, way="consume", aside=None, **more):
        """aside: the directory of its log, and of what a program writes."""
        self.semel, self.endpoint, self.handler, self.way = Semel(folder), Endpoint(), handler, way
        self.options = more
        self.semel.ok("init")
        self.semel.sql("CREATE TABLE effect (id TEXT)")
        self.ids, self.log, self.calls = [], (aside or folder) / "log", (aside or folder) / "calls"

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
        return self.semel.spawn(*self.words(), stderr=open(self.log, "a"), **options)

    def publish(self, count=20, **options):
        lines = [json.dumps({"type": "order.created.v1", "aggregateType": "order", "aggregateId": str(number % 4), "payload": {}})
                 for number in range(count)]
        self.ids += self.semel.ok("publish", "--batch", input="\n".join(lines), **options).split()
        self.semel.ok("relay", "--drain", **options)

    def wait_for_log(self, text):
        wait_for(lambda: text in self.log.read_text(), what=f"{text!r} in the log")

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
def subscription_at():
    made = []

    def make(*words, **more):
        made.append(Subscription(*words, **more))
        return made[-1]

    yield make
    for subscription in made:
        subscription.close()


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
def test_a_full_disk_is_waited_for(subscription_at, disk_of, tmp_path, handler, way):
    disk = disk_of(16)
    subscription = subscription_at(disk, handler, way, aside=tmp_path)
    child = subscription.start()
    subscription.publish(4)
    subscription.wait_until_all_are_processed()
    subscription.semel.freeze(child)
    subscription.publish()
    fill(disk)
    child.send_signal(signal.SIGCONT)
    subscription.wait_for_log("disk is full")
    assert child.poll() is None
    (disk / "filler").unlink()
    subscription.wait_until_all_are_processed()
    assert subscription.semel.stop(child) == 0
    subscription.check_books(repeats=handler != "sql")


@pytest.mark.slow
def test_a_write_of_the_handler_to_a_full_disk_costs_no_attempt(subscription_at, disk_of, tmp_path):
    """The handler's own statement meets the full disk, not the claim."""
    disk = disk_of(16)
    subscription = subscription_at(disk, "sql", aside=tmp_path, attempts="1")
    subscription.semel.sql("CREATE TRIGGER large AFTER INSERT ON effect BEGIN INSERT INTO effect SELECT zeroblob(17000000)"
                   " WHERE NOT EXISTS (SELECT 1 FROM effect WHERE length(id) > 100); END")
    subscription.publish(4)
    done = subscription.semel.run(*subscription.words(), "--drain", "--timeout", "2s")
    assert done.returncode == 75 and "disk is full" in done.stderr, done.stderr
    subscription.semel.sql("DROP TRIGGER large")
    subscription.semel.ok(*subscription.words(), "--drain")
    subscription.check_books()


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
def test_a_damaged_file_is_named_and_makes_no_dead_letter(subscription_at, tmp_path, file, table, handler):
    subscription = subscription_at(tmp_path, handler)
    subscription.publish()
    path = subscription.semel.store if file == "store" else subscription.semel.broker
    pages = checkpointed(path)
    kept = path.read_bytes()
    overwrite(path, pages[table] if table else 1)
    done = subscription.semel.run(*subscription.words(), "--drain", "--timeout", "2s")
    assert done.returncode in (65, 69, 75), done.stderr
    assert path.name in done.stderr and ("the file is damaged" in done.stderr or "is not a SQLite database" in done.stderr)
    without_log(path)
    path.write_bytes(kept)
    subscription.semel.ok(*subscription.words(), "--drain")
    subscription.check_books()


# ---- no descriptor left -----------------------------------------------------------------------------


def limit_to(child, number):
    resource.prlimit(child.pid, resource.RLIMIT_NOFILE, (number, resource.prlimit(child.pid, resource.RLIMIT_NOFILE)[1]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", HANDLERS)
def test_descriptors_that_run_out_are_waited_for(subscription_at, tmp_path, handler, way):
    subscription = subscription_at(tmp_path, handler, way, attempts="1")
    child = subscription.start()
    subscription.publish(4)
    subscription.wait_until_all_are_processed()
    limit_to(child, 3)
    subscription.publish()
    if handler == "sql":  # needs no further descriptor
        subscription.wait_until_all_are_processed()
    else:
        subscription.wait_for_log("breaker open, fetching paused")
    assert child.poll() is None
    limit_to(child, 1024)
    subscription.wait_until_all_are_processed()
    assert subscription.semel.stop(child) == 0
    subscription.check_books()


@pytest.mark.slow
@pytest.mark.parametrize("handler", HANDLERS)
def test_too_few_descriptors_from_the_start_end_with_a_reason(subscription_at, tmp_path, handler):
    """At every limit it reports what is missing, or handles some events; no attempt is spent."""
    subscription = subscription_at(tmp_path, handler, attempts="1")
    subscription.publish()
    for limit in range(6, 40, 2):
        done = subscription.semel.run(*subscription.words(), "--drain", "--timeout", "1s",
                              preexec_fn=lambda limit=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
        assert done.returncode in (0, 69, 75), done.stderr
        if done.returncode == 69:
            assert any(text in done.stderr for text in ("raise the limit", "descriptors")), done.stderr
        if subscription.processed() > 0:
            break
    subscription.semel.ok(*subscription.words(), "--drain")
    subscription.check_books()


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
@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed (Debian's package faketime)")
@pytest.mark.parametrize("claim", ["same-tx", "separate"])
@pytest.mark.parametrize("jump", ["+1h", "-1h"])
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_clock_that_jumps_loses_nothing(subscription_at, tmp_path, handler, jump, claim):
    clock = Clock(tmp_path)
    subscription = subscription_at(tmp_path, handler, claim=claim)
    child = subscription.start(env=clock.environment)
    subscription.publish(env=clock.environment)
    subscription.wait_until_all_are_processed()
    clock.jump(jump)
    subscription.publish(env=clock.environment)
    subscription.wait_until_all_are_processed()
    child.kill()  # the next consumer finds claims and leases of another time
    child.wait()
    subscription.publish(env=clock.environment)
    child = subscription.start(env=clock.environment)
    subscription.wait_until_all_are_processed()
    clock.jump("+0")
    subscription.publish(env=clock.environment)
    subscription.wait_until_all_are_processed()
    assert subscription.semel.stop(child) == 0
    subscription.check_books()


@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed (Debian's package faketime)")
@pytest.mark.parametrize("jump", ["+1h", "-1h"])
def test_a_delayed_retry_runs_although_the_clock_jumps(subscription_at, tmp_path, jump):
    """After a jump ahead it runs early; after a jump back it may wait until the clock is where it was, and no longer."""
    clock = Clock(tmp_path)
    subscription = subscription_at(tmp_path, "exec", **{"immediate": "1", "first-delay": "10s", "delay-max": "10s"})
    (tmp_path / "fail").touch()
    subscription.value = lambda: f"if [ -e {tmp_path}/fail ]; then exit 1; fi; {EXEC.format(calls=subscription.calls)}"
    child = subscription.start(env=clock.environment)
    subscription.publish(1, env=clock.environment)
    subscription.wait_for_log("event failed, retrying")
    (tmp_path / "fail").unlink()
    clock.jump(jump)
    subscription.publish(4, env=clock.environment)
    wait_for(lambda: subscription.processed() >= 3, what="the events of the other aggregates")
    clock.jump("+1m")
    subscription.wait_until_all_are_processed()
    assert subscription.semel.stop(child) == 0
    subscription.check_books()
