#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Two builds of the program, in turns: is the second slower than the first?

    bench/compare.py BEFORE AFTER [--rounds N] [--events N]
    /usr/bin/python3 tests/support/servers.py run --only postgres --only rabbitmq -- bench/compare.py BEFORE AFTER
    /usr/bin/python3 tests/support/servers.py run --measure --only postgres --only kafka -- bench/compare.py BEFORE AFTER

Without servers: publish, relay and consume on files. With RabbitMQ: relay and consume on PostgreSQL and RabbitMQ, and consuming
beside one aggregate that is held. With Kafka: the relay over the change stream, with and without marks, and by polling, after
Kafka was warmed up. Each side has a store of its own; which one begins changes from round to round. Printed are
medians, the ratio after / before of the time and of the processor time of the program (and of PostgreSQL), and the spread of
that over the rounds."""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig import Broker, Database, drop_slot, server_used_s, load, middle

HELD_EVENTS = 4000
FILL = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT %s, 'aggregate-' || n %% 1000, 'made', json_build_object('n', n, 'fill', repeat('x', 220)) FROM generate_series(1, %s) AS n"""
POISON = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (%s, 'poison', 'made', '{\"n\": 0}')"
EFFECT = "INSERT INTO effect (id, payload) VALUES (:id, :payload)"
# Breaks the constraint for the event without a number.
REFUSE = "INSERT INTO refused SELECT 1 WHERE :aggregate_id = 'poison'"


class Side:
    def __init__(self, name, program, folder):
        self.name, self.program, self.folder = name, str(Path(program).absolute()), Path(folder)
        self.folder.mkdir()

    def run(self, *words, text=None):
        """Seconds of one run, and seconds of a processor of the program and of the database."""
        served, begin = self.served_s(), time.monotonic()
        child = subprocess.Popen([self.program, *map(str, words)], cwd=self.folder, stdin=subprocess.PIPE if text else subprocess.DEVNULL,
                                 stdout=subprocess.DEVNULL, env={**os.environ, "SEMEL_LOG_LEVEL": "error"})
        if text:
            child.stdin.write(text)
            child.stdin.close()
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode != 0:
            sys.exit(f"{self.name}: {words} ended with {child.returncode}")
        return time.monotonic() - begin, used.ru_utime + used.ru_stime, self.served_s() - served

    def served_s(self):
        return 0.0


def lines_of(events):
    rows = ({"type": "made", "aggregateType": "bench", "aggregateId": f"aggregate-{n % 1000}", "payload": {"n": n, "fill": "x" * 220}}
            for n in range(events))
    return "\n".join(map(json.dumps, rows)).encode()


class Files(Side):
    """SQLite and the local broker."""
    PARTS = ("publish, all in a transaction", "relay", "consume, SQL handler")

    def round(self, events, number):
        folder = self.folder / str(number)
        folder.mkdir()
        words = ["--store", f"sqlite:{folder}/semel.db", "--broker", f"local:{folder}/broker.db"]
        self.run(*words, "init")
        subprocess.run(["sqlite3", folder / "semel.db", "CREATE TABLE effect (id TEXT, payload TEXT)"], check=True)
        return [
            self.run(*words, "publish", "--batch", text=lines_of(events)),
            self.run(*words, "relay", "--drain", "--timeout", "10m"),
            self.run(*words, "consume", "--scope", "bench", "--topic", "bench.events", "--sql", EFFECT, "--drain", "--timeout", "10m"),
        ]


class Servers(Side):
    """PostgreSQL and RabbitMQ."""
    PARTS = ("relay", "consume, SQL handler", f"consume {HELD_EVENTS:,}, none held", f"consume {HELD_EVENTS:,}, one aggregate held")

    def __init__(self, name, program, folder):
        super().__init__(name, program, folder)
        self.postmaster = None
        self.database, self.kind = Database(os.environ["SEMEL_TEST_POSTGRES"], name), f"bench{name}"
        self.words = ["--store", self.database.url, "--broker", Broker(os.environ["SEMEL_TEST_RABBITMQ"]).url]
        self.run(*self.words, "init")
        self.database.do("CREATE TABLE effect (id text, payload text)")
        self.database.do("CREATE TABLE refused (one integer CHECK (one = 0))")
        self.postmaster = self.database.postmaster()
        self.consume()

    def served_s(self):
        return server_used_s(self.postmaster) if self.postmaster else 0.0

    def consume(self):
        return self.run(*self.words, "consume", "--scope", "bench", "--topic", f"{self.kind}.events", "--sql", REFUSE, "--sql", EFFECT,
                        "--batch", 500, "--drain", "--timeout", "10m")

    def relay(self):
        return self.run(*self.words, "relay", "--drain", "--timeout", "10m")

    def fill(self, events):
        self.database.empty("effect")
        self.database.do(FILL, (self.kind, events))
        self.database.settle()

    def held(self):
        """The time of HELD_EVENTS events, in a scope that has no aggregate on hold, and then one."""
        found = []
        for poison in (False, True):
            if poison:
                self.database.do(POISON, (self.kind,))
                self.relay()
                self.consume()
            self.fill(HELD_EVENTS)
            self.relay()
            found.append(self.consume())
        for table in ("semel_hold", "semel_dead_letter"):
            self.database.do(f"DELETE FROM {table}")
        return found

    def round(self, events, _number):
        self.fill(events)
        return [self.relay(), self.consume(), *self.held()]

    def close(self):
        self.database.drop()


class Stream(Side):
    """PostgreSQL and Kafka: `relay --drain` from its start to its end. The slot is there for as long as one drain takes:
    the other side's rows are not decoded for it."""
    SOURCES = (("--source", "cdc"), ("--source", "cdc", "--marks", "off"), ("--source", "poll"))
    PARTS = tuple("relay " + " ".join(source) for source in SOURCES)
    kafka = None

    def __init__(self, name, program, folder):
        super().__init__(name, program, folder)
        if not Stream.kafka:
            import kafka  # its client is needed only here
            Stream.kafka = kafka.Kafka(os.environ["SEMEL_TEST_KAFKA"])
            Stream.kafka.warm()
        self.postmaster = None
        self.database, self.slot = Database(os.environ["SEMEL_TEST_POSTGRES"], name), f"compare_{name}_{os.getpid()}"
        self.words = ["--store", self.database.url, "--broker", self.kafka.url]
        self.run(*self.words, "init")
        self.postmaster = self.database.postmaster()

    def served_s(self):
        return server_used_s(self.postmaster) if self.postmaster else 0.0

    def drain(self, source, events):
        topic = self.kafka.fresh()
        slot = ("--slot", self.slot) if "cdc" in source else ()
        self.database.empty()
        if slot:
            self.run(*self.words, "init", "--cdc", *slot)
        self.kafka.fill(self.database, topic, events)
        found = self.run(*self.words, "relay", *source, *slot, "--drain", "--timeout", "10m")
        drop_slot(self.database, self.slot)
        if (arrived := self.kafka.arrived(topic)) < events:
            sys.exit(f"{self.name}: {arrived} of {events} events arrived")
        return found

    def round(self, events, _number):
        return [self.drain(source, events) for source in self.SOURCES]

    def close(self):
        drop_slot(self.database, self.slot)
        self.database.drop()


def kind_of():
    if "SEMEL_TEST_POSTGRES" not in os.environ:
        return Files
    return Stream if "SEMEL_TEST_KAFKA" in os.environ else Servers


def compare(sides, options):
    rounds = []
    for number in range(options.rounds):
        found = {side.name: side.round(options.events, number) for side in (sides if number % 2 else sides[::-1])}
        rounds.append((found["before"], found["after"]))
    print(f"{options.rounds} rounds, {options.events:,} events, load {load()}")
    for at, part in enumerate(sides[0].PARTS):
        for kind, name in ((0, "seconds"), (1, "processor"), (2, "PostgreSQL")):
            pairs = [(before[at][kind], after[at][kind]) for before, after in rounds]
            if not all(before > 0 for before, _ in pairs):
                continue
            ratios = sorted(after / before for before, after in pairs)
            print(f"  {part:40} {name:10} before {middle([p[0] for p in pairs]):7.3f}  after {middle([p[1] for p in pairs]):7.3f}"
                  f"  after / before {middle(ratios):5.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--events", type=int, default=20000)
    options = parser.parse_args()
    kind = kind_of()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp")) as folder:
        sides = [kind("before", options.before, f"{folder}/before"), kind("after", options.after, f"{folder}/after")]
        try:
            compare(sides, options)
        finally:
            for side in sides:
                getattr(side, "close", lambda: None)()


if __name__ == "__main__":
    main()
