#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL to RabbitMQ: the relay against a bare librabbitmq publisher, in turns, on the test servers.

    /usr/bin/python3 tests/support/servers.py run -- bench/servers.py build/semel [--events N] [--rounds N]

Each round publishes N events by the bare program without headers, by the bare program with as many headers as the
relay sends, and by the relay from a full outbox. The medians and their ratios are printed; the database is its own."""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import pika
import psycopg2

HERE = Path(__file__).resolve().parent
EXCHANGE, QUEUE, BYTES, HEADERS, KEYS = "bench.events", "bench.queue", 250, 9, 1000
FILL = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT 'bench', 'aggregate-' || n %% %s, 'made', json_build_object('n', n, 'fill', repeat('x', %s - 30))
FROM generate_series(1, %s) AS n"""


class Database:
    """One of its own on the test server."""

    def __init__(self, url):
        self.home, self.name = url, f"semel_bench_{os.getpid()}"
        self.url = urlsplit(url)._replace(path="/" + self.name).geturl()
        self.do(url, f"CREATE DATABASE {self.name}")

    @staticmethod
    def do(url, statement, values=None):
        connection = psycopg2.connect(url)
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(statement, values)
        found = cursor.fetchall() if cursor.description else None
        connection.close()
        return found

    def fill(self, events):
        self.do(self.url, "TRUNCATE semel_outbox, semel_outbox_exception")
        self.do(self.url, FILL, (KEYS, BYTES, events))
        self.do(self.url, "ANALYZE semel_outbox")
        self.do(self.url, "CHECKPOINT")

    def published(self):
        return self.do(self.url, "SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'")[0][0]

    def drop(self):
        self.do(self.home, f"DROP DATABASE {self.name}")


class Broker:
    def __init__(self, url):
        self.url, self.parts = url, urlsplit(url)

    def fresh_queue(self):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        channel = connection.channel()
        channel.queue_delete(QUEUE)
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(QUEUE, EXCHANGE, "#")
        connection.close()

    def bare(self, program, events, window, headers):
        self.fresh_queue()
        way = [EXCHANGE, "made"] if headers else ["", QUEUE]
        words = [program, self.parts.hostname, self.parts.port, *way, events, BYTES, window, headers]
        return float(subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True).stdout)


def resident_mb(pid):
    """The most so far; 0 when the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


def relay(semel, database, broker, events, window):
    """Events per second from the start of the process to its end, and its highest resident memory in MB."""
    database.fill(events)
    broker.fresh_queue()
    words = ["--store", database.url, "--broker", broker.url, "relay", "--drain", "--timeout", "10m", "--window", window]
    begin = time.monotonic()
    child = subprocess.Popen([semel, *map(str, words)], stdout=subprocess.DEVNULL)
    peak = 0.0
    while child.poll() is None:
        peak = max(peak, resident_mb(child.pid))
        time.sleep(0.02)
    taken = time.monotonic() - begin
    if child.returncode != 0 or database.published() != events:
        sys.exit("the relay did not publish all of them")
    return events / taken, peak


def report(rows, memory):
    middle = {name: statistics.median(values) for name, values in rows.items()}
    for name, value in middle.items():
        print(f"{name:42} {value:10,.0f} events/s   relay / it: {middle['relay'] / value:.2f}")
    print(f"{'relay, highest resident memory':42} {max(memory):10.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("semel")
    parser.add_argument("--events", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, default=2000)
    told = parser.parse_args()
    if "SEMEL_TEST_POSTGRES" not in os.environ:
        parser.error("run it by tests/support/servers.py run -- …")
    database, broker = Database(os.environ["SEMEL_TEST_POSTGRES"]), Broker(os.environ["SEMEL_TEST_RABBITMQ"])
    rows, memory = {"bare": [], "bare, topic exchange and headers": [], "relay": []}, []
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare_publish"
        subprocess.run(["cc", "-O2", "-o", bare, HERE / "bare_publish.c", "-lrabbitmq"], check=True)
        try:
            subprocess.run([told.semel, "--store", database.url, "init"], check=True, stdout=subprocess.DEVNULL)
            for _ in range(told.rounds):
                rows["bare"].append(broker.bare(bare, told.events, told.window, 0))
                rate, peak = relay(told.semel, database, broker, told.events, told.window)
                rows["relay"].append(rate)
                memory.append(peak)
                rows["bare, topic exchange and headers"].append(
                    broker.bare(bare, told.events, told.window, HEADERS))
        finally:
            database.drop()
    report(rows, memory)


if __name__ == "__main__":
    main()
