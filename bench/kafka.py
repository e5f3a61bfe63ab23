#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL and Kafka: the change stream and polling against bare programs, in turns, on the test servers.

    /usr/bin/python3 tests/support/servers.py run --measure --only postgres --only kafka -- bench/kafka.py build/semel [PART…] [--quick]

Parts: drain, latency, kill. All of them when none is named. Each is a ratio within one run; docs/benchmarks.md says what is
compared with what, and README.md here how. The database is its own, and dropped."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from rig import (Database, Meter, compile_all, drop_slot, load, middle, output, read_arguments, resident_mb, run,
                 used_s)

PARTITIONS, KEYS, ROWS, BYTES = 4, 1000, 10, 250
PAUSE_US = 100
WARM_EVENTS, WARM_ROUNDS, WARM_GAIN = 100000, 12, 1.05
FILL = """DO $$ BEGIN
FOR i IN 0 .. %s LOOP
    INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload)
    SELECT 'bench', 'aggregate-' || (i * %s + n) %% %s, 'made', '%s', '[' || i * %s + n || ',"' || repeat('x', %s) || '"]'
    FROM generate_series(1, %s) AS n;
    COMMIT;
END LOOP; END $$"""
INSERT_EVENT = ("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload)"
                " VALUES ('bench', $1, 'made', '{}', $2)")
CDC, CDC_MARKED, POLL = ("--source", "cdc", "--marks", "off"), ("--source", "cdc"), ("--source", "poll")


class Kafka:
    def __init__(self, address):
        self.address, self.url, self.count = address, f"kafka://{address}", 0
        self.admin = AdminClient({"bootstrap.servers": address})
        self.observer = Consumer({"bootstrap.servers": address, "group.id": "bench-observer"})

    def fresh(self):
        """The name of a new, empty topic."""
        self.count += 1
        name = f"bench-{os.getpid()}-{self.count}"
        for future in self.admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
            future.result(30)
        while len(self.admin.list_topics(name, 10).topics[name].partitions) != PARTITIONS:
            time.sleep(0.05)
        return name

    def arrived(self, topic):
        ends = [self.observer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in range(PARTITIONS)]
        return sum(ends)

    @staticmethod
    def fill(database, topic, events):
        """In transactions of ten."""
        if events:
            database.do(FILL % (events // ROWS - 1, ROWS, KEYS, topic, ROWS, BYTES - 12, ROWS))
        database.settle()

    def warm(self):
        """Rounds of records until one is not faster than the best before it: by then Java has compiled what the broker does."""
        server = self.process()
        if server and b"TieredStopAtLevel" in Path(f"/proc/{server}/cmdline").read_bytes():
            sys.exit("this Kafka runs without its full compiler: tests/support/servers.py run --measure …")
        topic, rates = self.fresh(), []
        while len(rates) < 3 or (rates[-1] > WARM_GAIN * max(rates[:-1]) and len(rates) < WARM_ROUNDS):
            rates.append(self.send_many(topic))
        print("Kafka warmed up: " + ", ".join(f"{rate:,.0f}/s" for rate in rates), flush=True)

    def send_many(self, topic):
        """Records per second."""
        begin = time.monotonic()
        producer = Producer({"bootstrap.servers": self.address, "enable.idempotence": True, "linger.ms": 5,
                             "queue.buffering.max.messages": WARM_EVENTS})
        headers = [(f"header-{number}", "of some length") for number in range(9)]
        for number in range(WARM_EVENTS):
            producer.produce(topic, "x" * BYTES, f"key-{number % KEYS}", headers=headers)
            producer.poll(0)
        producer.flush(60)
        return WARM_EVENTS / (time.monotonic() - begin)

    def process(self):
        sandbox = os.environ.get("SEMEL_TEST_SANDBOX", "no sandbox").encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if b"java" in (folder / "cmdline").read_bytes() and sandbox in (folder / "environ").read_bytes():
                    return int(folder.name)
            except OSError:
                continue
        return None


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.database, self.kafka = Database(os.environ["SEMEL_TEST_POSTGRES"]), Kafka(os.environ["SEMEL_TEST_KAFKA"])
        self.slot = f"bench_{os.getpid()}"
        self.words = [options.semel, "--store", self.database.url]
        self.bare = compile_all(folder, ("bare_stream", "latency_kafka"))
        self.meter = Meter(self.database, self.kafka)

    def init(self):
        self.run("init")
        if not self.options.quick:
            self.kafka.warm()

    def close(self):
        drop_slot(self.database, self.slot)
        self.database.drop()

    def fill(self, topic, events):
        """Events in transactions of ten behind a fresh slot."""
        drop_slot(self.database, self.slot)
        self.database.empty()
        self.run("init", "--cdc", "--slot", self.slot)
        self.kafka.fill(self.database, topic, events)

    def run(self, *words):
        subprocess.run([*self.words, *words], check=True, stdout=subprocess.DEVNULL)

    def start(self, source):
        more = ("--slot", self.slot) if "cdc" in source else ()
        return subprocess.Popen([*self.words, "--broker", self.kafka.url, "relay", *source, *more],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if not self.options.verbose else None)

    # ---- drain -----------------------------------------------------------------------------------

    def read_bare(self, events, pause_us):
        before = self.meter.read()
        rate = float(output(self.bare["bare_stream"], self.database.url, self.slot, "semel", events, pause_us))
        return {"rate": rate, **self.meter.microseconds(before, events)}

    def watch(self, relay, topic, level):
        while (arrived := self.kafka.arrived(topic)) < level:
            if relay.poll() is not None:
                sys.exit("the relay has ended")
            time.sleep(0.02)
        return arrived, time.monotonic()

    def relay_all(self, topic, source, events):
        """From the start of the program to the last event; and between a tenth and nine tenths of them."""
        before, begin = self.meter.read(), time.monotonic()
        relay = self.start(source)
        low, low_at = self.watch(relay, topic, events // 10)
        high, high_at = self.watch(relay, topic, events * 9 // 10)
        _, end = self.watch(relay, topic, events)
        cost, own = self.meter.microseconds(before, events), used_s(relay.pid) * 1e6 / events
        memory = resident_mb(relay.pid)
        relay.send_signal(signal.SIGTERM)
        relay.wait()
        return {"rate": events / (end - begin), "steady": (high - low) / (high_at - low_at), **cost, "own": own, "memory": memory}

    def drain(self):
        events, runs = self.options.events, {}
        for _ in range(self.options.rounds):
            for source in (CDC, CDC_MARKED, POLL):
                topic = self.kafka.fresh()
                self.fill(topic, events)
                if source == CDC:
                    runs.setdefault("bare reader, at once", []).append(self.read_bare(events, 0))
                if source != POLL:
                    runs.setdefault(f"bare reader, {PAUSE_US} µs", []).append(self.read_bare(events, PAUSE_US))
                runs.setdefault("relay " + " ".join(source), []).append(self.relay_all(topic, source, events))
        self.print_rates(events, runs)

    def print_rates(self, events, runs):
        limit = middle([run["rate"] for run in runs[f"bare reader, {PAUSE_US} µs"]])
        print(f"{events:,} events in transactions of {ROWS}, {PARTITIONS} partitions, {self.options.rounds} rounds, load {load()}")
        for name, rounds in runs.items():
            seen = {key: middle([run[key] for run in rounds]) for key in rounds[0]}
            steady = f", steady {seen['steady']:8,.0f}/s = {seen['steady'] / limit:.2f}" if "steady" in seen else ""
            memory = f", {seen['memory']:.1f} MB" if "memory" in seen else ""
            parties = "  ".join(f"{party} {seen[party]:4.1f}" for party in ("own", "postgres", "broker"))
            print(f"  {name:31} {seen['rate']:8,.0f}/s = {seen['rate'] / limit:.2f} of the reader{steady}; "
                  f"own {seen['own'] / 10:.2f} s for 100k{memory}; processor µs each: {parties}")

    # ---- latency ---------------------------------------------------------------------------------

    def delays(self, topic, *more, statement=INSERT_EVENT):
        rate, warm = self.options.rate, self.options.rate * 2
        host, port = self.kafka.address.rsplit(":", 1)
        words = output(self.bare["latency_kafka"], self.database.url, statement.format(topic), host, port, topic, rate,
                       warm + rate * self.options.seconds, warm, *more).split()
        return f"{words[1]}/s  p50 {words[3]} ms  p99 {words[4]} ms   (commit p50 {words[6]}  p99 {words[7]})  repeated {words[9]}"

    def latency(self):
        print(f"commit to consumer at {self.options.rate} commits a second, load {load()}")
        self.database.do("CREATE TABLE IF NOT EXISTS effect (id text, payload text)")
        for _ in range(self.options.rounds):
            plain = "INSERT INTO effect (id, payload) VALUES ($1, $2)"
            topic = self.kafka.fresh()
            print("  no relay, published by the writer ", self.delays(topic, topic, "key", statement=plain))
            for source in (CDC, CDC_MARKED, POLL):
                self.delays_of_relay(source)

    def delays_of_relay(self, source):
        topic = self.kafka.fresh()
        self.fill(topic, 0)
        relay = self.start(source)
        time.sleep(2)
        before, begin = used_s(relay.pid), time.monotonic()
        delays = self.delays(topic)
        share = (used_s(relay.pid) - before) * 100 / (time.monotonic() - begin)
        print(f"  relay {' '.join(source):28} {delays}   {share:.1f} % of a core, {resident_mb(relay.pid):.1f} MB")
        relay.terminate()
        relay.wait()

    # ---- kill ------------------------------------------------------------------------------------

    def kill(self):
        events = self.options.events
        for source in (CDC, CDC_MARKED, POLL):
            topic = self.kafka.fresh()
            self.fill(topic, events)
            relay = self.start(source)
            self.watch(relay, topic, events // 2)
            relay.kill()
            relay.wait()
            at = self.kafka.arrived(topic)
            relay = self.start(source)
            self.watch(relay, topic, events)
            self.wait_until_quiet(topic)
            relay.terminate()
            relay.wait()
            print(f"relay {' '.join(source)}, killed at {at:,} of {events:,}: {self.kafka.arrived(topic) - events:,} repeated")

    def wait_until_quiet(self, topic):
        """Nothing new for two seconds."""
        last, since = self.kafka.arrived(topic), time.monotonic()
        while time.monotonic() - since < 2:
            time.sleep(0.1)
            if (now := self.kafka.arrived(topic)) != last:
                last, since = now, time.monotonic()


PARTS = ("drain", "latency", "kill")


NUMBERS = {"events": (300000, 10000), "rounds": (3, 1), "rate": (500, 500), "seconds": (10, 2)}


if __name__ == "__main__":
    run(Bench, read_arguments(__doc__, PARTS, NUMBERS, ("postgres", "kafka"), {"verbose": "print what the relay logs, too"}))
