#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL and RabbitMQ: Semel against bare programs, in turns, on the test servers.

    /usr/bin/python3 tests/support/servers.py run -- bench/servers.py build/semel [PART…] [--quick]

Parts: relay, consume, latency, backlog, kill, rows. All of them when none is named. Each is a ratio within one run;
docs/benchmarks.md says what is compared with what, and README.md here how. The database is its own, and dropped."""
import os
import subprocess
import sys
import time
from pathlib import Path

import rows
from rig import (BYTES, HEADERS, KIND, TOPIC, Broker, Database, Meter, Semel, compile_all, load, middle, output,
                 read_arguments, resident_mb, run, used_s)

QUEUE, BARE_QUEUE, SCOPE = "bench.queue", "bench.bare", "bench"
INSERT_EVENT = ("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                f" VALUES ('{KIND}', $1, 'made', $2)")
INSERT_EFFECT = "INSERT INTO effect (id, payload) VALUES ({}, {})"
BATCH = 500


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.database, self.broker = Database(os.environ["SEMEL_TEST_POSTGRES"]), Broker(os.environ["SEMEL_TEST_RABBITMQ"])
        self.semel = Semel(options.semel, self.database, self.broker)
        self.bare = compile_all(folder, ("bare_publish", "bare_consume", "latency_rabbitmq"))
        self.address = [self.broker.parts.hostname, self.broker.parts.port]

    def init(self):
        subprocess.run([*self.semel.words[:3], "init"], check=True, stdout=subprocess.DEVNULL)
        self.database.do("CREATE TABLE effect (id text, payload text)")
        self.meter = Meter(self.database, self.broker)

    def close(self):
        self.broker.delete(QUEUE, BARE_QUEUE, f"{SCOPE}.{TOPIC}")
        self.database.drop()

    def measured(self, events, action):
        """Events per second, microseconds of processor time by process, and what the action returned."""
        before, begin = self.meter.read(), time.monotonic()
        found = action()
        return events / (time.monotonic() - begin), self.meter.microseconds(before, events), found

    # ---- relay -----------------------------------------------------------------------------------

    def publish_bare(self, way, headers, events):
        self.broker.fresh(QUEUE)
        return self.measured(events, lambda: output(self.bare["bare_publish"], *self.address, *way, events, BYTES,
                                                    self.options.window, headers))

    def drain(self, *more):
        return self.semel.run("relay", "--drain", "--timeout", "10m", "--window", self.options.window, *more)

    def publish_by_relay(self, events):
        self.database.fill(events)
        self.broker.fresh(QUEUE)
        found = self.measured(events, self.drain)
        if self.database.published() != events:
            sys.exit("the relay did not publish all of them")
        return found

    def relay(self):
        events, runs = self.options.events, {"bare": [], "bare, topic exchange and headers": [], "relay": []}
        for _ in range(self.options.rounds):
            runs["bare"].append(self.publish_bare(["", QUEUE], 0, events))
            runs["relay"].append(self.publish_by_relay(events))
            runs["bare, topic exchange and headers"].append(self.publish_bare([TOPIC, "made"], HEADERS, events))
        self.compare("publish to a quorum queue", runs, "relay")
        print(f"  relay, highest resident memory {max(run[2] for run in runs['relay']):.1f} MB")

    def compare(self, title, runs, ours):
        print(f"{title}: {self.options.events:,} events, {self.options.rounds} rounds, load {load()}")
        rates = {name: middle([run[0] for run in rounds]) for name, rounds in runs.items()}
        costs = {name: {party: middle([run[1][party] for run in rounds]) for party in rounds[0][1]}
                 for name, rounds in runs.items()}
        sums = {name: sum(cost.values()) for name, cost in costs.items()}
        for name, rate in rates.items():
            line = "  ".join(f"{party} {used:5.1f}" for party, used in costs[name].items())
            print(f"  {name:34} {rate:8,.0f}/s  {ours} / it {rates[ours] / rate:5.2f}   processor µs each: {line}"
                  f"  sum {sums[name]:5.1f}  it / {ours} {sums[name] / sums[ours]:5.2f}")

    # ---- consume ---------------------------------------------------------------------------------

    def consume_by_semel(self):
        sql = INSERT_EFFECT.format(":id", ":payload")
        self.semel.run("consume", "--scope", SCOPE, "--topic", TOPIC, "--sql", sql, "--batch", BATCH, "--drain", "--timeout", "10m")

    def consume_bare(self, events):
        sql = INSERT_EFFECT.format("$1", "$2")
        output(self.bare["bare_consume"], *self.address, BARE_QUEUE, self.database.url, sql, events, BATCH)

    def consume(self):
        events, runs = self.options.events, {"bare loop, no guard": [], "consume": []}
        self.broker.delete(QUEUE, f"{SCOPE}.{TOPIC}")
        self.broker.fresh(BARE_QUEUE, single=True)
        self.consume_by_semel()  # declares its queue
        for number in range(self.options.rounds):
            self.database.fill(events)
            self.database.do("TRUNCATE effect")
            self.drain()
            self.database.settle()
            turns = [("bare loop, no guard", lambda: self.consume_bare(events)), ("consume", self.consume_by_semel)]
            for name, action in turns if number % 2 else reversed(turns):
                runs[name].append(self.measured(events, action))
            if self.database.number("SELECT count(*) FROM effect") != 2 * events:
                sys.exit("an event was lost or doubled")
        self.compare("consume effectively once", runs, "consume")

    # ---- latency ---------------------------------------------------------------------------------

    def delays(self, seconds, *more, statement=INSERT_EVENT):
        rate, warm = self.options.rate, self.options.rate * 2
        words = output(self.bare["latency_rabbitmq"], self.database.url, statement, *self.address, QUEUE, rate,
                       warm + rate * seconds, warm, *more).split()
        return f"{words[1]}/s  p50 {words[3]} ms  p99 {words[4]} ms   (commit p50 {words[6]}  p99 {words[7]})  repeated {words[9]}"

    def latency(self):
        print(f"commit to consumer at {self.options.rate} commits a second, load {load()}")
        self.database.fill(0)
        self.broker.fresh(QUEUE)
        for _ in range(self.options.rounds):
            plain = "INSERT INTO effect (id, payload) VALUES ($1, $2)"
            print("  no relay, published by the writer ", self.delays(self.options.seconds, TOPIC, "made", statement=plain))
            relay = self.semel.start("relay")
            time.sleep(2)
            before, begin = used_s(relay.pid), time.monotonic()
            delays = self.delays(self.options.seconds)
            share = (used_s(relay.pid) - before) * 100 / (time.monotonic() - begin)
            print(f"  relay                              {delays}   {share:.1f} % of a core, {resident_mb(relay.pid):.1f} MB")
            relay.terminate()
            relay.wait()

    # ---- backlog ---------------------------------------------------------------------------------

    def watch_queue(self, relay, level):
        while self.broker.ready(QUEUE) < level:
            if relay.poll() is not None:
                sys.exit("the relay has ended")
            time.sleep(0.05)
        return self.broker.ready(QUEUE), time.monotonic(), self.meter.read(), used_s(relay.pid)

    def measure_backlog(self, backlog, events):
        """Events per second and processor time over the same number of events, behind a warm-up of as many. The
        database is the part that could get slower."""
        self.database.fill(backlog)
        self.broker.fresh(QUEUE)
        relay = self.semel.start("relay", "--window", self.options.window)
        first, begin, before, own = self.watch_queue(relay, events)
        last, end, after, own_after = self.watch_queue(relay, events * 2)
        relay.kill()
        relay.wait()
        return (last - first) / (end - begin), (after["postgres"] - before["postgres"] + own_after - own) * 1e6 / (last - first)

    def backlog(self):
        events = self.options.events // 4
        runs = {events * 2 + 1000: [], self.options.backlog: []}
        for _ in range(self.options.rounds):
            for waiting, rounds in runs.items():
                rounds.append(self.measure_backlog(waiting, events))
        print(f"relay, {events:,} events with so many waiting at their end, load {load()}")
        for waiting, rounds in runs.items():
            rate, used = middle([run[0] for run in rounds]), middle([run[1] for run in rounds])
            print(f"  {waiting - 2 * events:10,} waiting: {rate:8,.0f}/s, processor µs each of database and relay {used:5.1f}")

    # ---- kill ------------------------------------------------------------------------------------

    def kill(self):
        events = self.options.events
        self.database.fill(events)
        self.broker.fresh(QUEUE)
        relay = self.semel.start("relay", "--window", self.options.window)
        self.watch_queue(relay, events // 2)
        relay.kill()
        relay.wait()
        self.drain()
        print(f"killed in the middle of {events:,}: {self.broker.ready(QUEUE) - events:,} repeated, window {self.options.window:,}")

    # ---- rows ------------------------------------------------------------------------------------

    def rows(self):
        self.broker.fresh(QUEUE)  # without one every event would be refused, and the relay never wait
        rows.measure(self.database, self.semel, self.options)


PARTS = ("relay", "consume", "latency", "backlog", "kill", "rows")


NUMBERS = {"events": (100000, 4000), "backlog": (1000000, 8000), "rounds": (3, 1), "window": (1000, 1000),
           "rate": (500, 500), "seconds": (20, 2)}


if __name__ == "__main__":
    run(Bench, read_arguments(__doc__, PARTS, NUMBERS, ("postgres", "rabbitmq")))
