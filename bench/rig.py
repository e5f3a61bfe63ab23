# SPDX-License-Identifier: Apache-2.0
"""What the measurements on real servers share: their arguments, a database of their own, queues, the bare programs, and the
processor time that each process has used. Times on a busy machine are noise; processor time is much less so."""
import argparse
import json
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
TOPIC, KIND = "bench.events", "bench"
BYTES, HEADERS, KEYS = 250, 9, 1000
TICK = os.sysconf("SC_CLK_TCK")
FILL = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)
SELECT 'bench', 'aggregate-' || n %% %s, 'made', json_build_object('n', n, 'fill', repeat('x', %s - 30))
FROM generate_series(1, %s) AS n"""


class Database:
    """One of its own on the test server; without TLS, like the bare programs at the broker."""

    def __init__(self, url, suffix="bench"):
        self.server_url, self.name = url, f"semel_{suffix}_{os.getpid()}"
        self.url = urlsplit(url)._replace(path="/" + self.name, query="sslmode=disable").geturl()
        self.run(url, f"CREATE DATABASE {self.name}")

    @staticmethod
    def run(url, statement, values=None):
        connection = psycopg2.connect(url)
        connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(statement, values)
        found = cursor.fetchall() if cursor.description else None
        connection.close()
        return found

    def do(self, statement, values=None):
        return self.run(self.url, statement, values)

    def number(self, statement):
        return self.do(statement)[0][0]

    def fill(self, events):
        self.empty()
        self.do(FILL, (KEYS, BYTES, events))
        self.settle()

    def empty(self, *more):
        """The outbox, and tables of the bench. By DELETE: a TRUNCATE of the outbox may be refused."""
        for table in ("semel_outbox", "semel_outbox_exception", *more):
            self.do(f"DELETE FROM {table}")
            self.do(f"VACUUM {table}")

    def settle(self):
        """Vacuum and checkpoint now, and not in the middle of what is measured."""
        self.do("VACUUM ANALYZE semel_outbox")
        self.do("CHECKPOINT")

    def published(self):
        return self.number("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'")

    def postmaster(self):
        return parent_of(self.number("SELECT pg_backend_pid()"))

    def drop(self):
        self.run(self.server_url, f"DROP DATABASE {self.name} WITH (FORCE)")


def drop_slot(database, slot):
    database.do("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s AND active", (slot,))
    for _ in range(100):
        if not database.number(f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"):
            break
        time.sleep(0.1)
    database.do("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s", (slot,))


class Broker:
    def __init__(self, url):
        self.url, self.parts = url, urlsplit(url)
        endpoints = json.loads(os.environ.get("SEMEL_TEST_SERVERS", "{}"))
        self.node = endpoints.get("rabbitmq", {}).get("node")

    def channel(self, what):
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        found = what(connection.channel())
        connection.close()
        return found

    def fresh(self, queue, single=False):
        """Empty, quorum, bound to the topic."""
        arguments = {"x-queue-type": "quorum", **({"x-single-active-consumer": True} if single else {})}

        def declare(channel):
            channel.queue_delete(queue)
            channel.exchange_declare(TOPIC, "topic", durable=True)
            channel.queue_declare(queue, durable=True, arguments=arguments)
            channel.queue_bind(queue, TOPIC, "#")

        self.channel(declare)

    def delete(self, *queues):
        for queue in queues:
            self.channel(lambda channel, name=queue: channel.queue_delete(name))

    def ready(self, queue):
        return self.channel(lambda channel: channel.queue_declare(queue, passive=True)).method.message_count

    def process(self):
        """Of the server, if the tests started it."""
        mark = f"RABBITMQ_NODENAME={self.node}\0".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if b"beam" in (folder / "cmdline").read_bytes() and mark in (folder / "environ").read_bytes():
                    return int(folder.name)
            except OSError:
                continue
        return None


class Semel:
    """The program, with its store and broker."""

    def __init__(self, path, database, broker):
        self.words = [path, "--store", database.url, "--broker", broker.url]

    def start(self, *words):
        return subprocess.Popen([*self.words, *map(str, words)], stdout=subprocess.DEVNULL)

    def run(self, *words):
        """Its highest resident memory in MB."""
        child, peak = self.start(*words), 0.0
        while child.poll() is None:
            peak = max(peak, resident_mb(child.pid))
            time.sleep(0.02)
        if child.returncode != 0:
            raise SystemExit(f"semel {words[0]} ended with {child.returncode}")
        return peak


# ---- the bare programs ---------------------------------------------------------------------------


# Their files and libraries, by name.
BARE = {
    "bare_publish": ["bare_publish.c", "-lrabbitmq"],
    "bare_consume": ["bare_consume.c", "-lrabbitmq", "-lpq"],
    "bare_stream": ["bare_stream.c", "-lpq"],
    "latency_rabbitmq": ["latency.c", "far_rabbitmq.c", "-lrabbitmq", "-lpq", "-lpthread"],
    "latency_kafka": ["latency.c", "far_kafka.c", "-lrdkafka", "-lpq", "-lpthread"],
}


def compile_all(folder, names):
    """Their paths, by name."""
    include = subprocess.run(["pg_config", "--includedir"], check=True, capture_output=True, text=True).stdout.strip()
    paths = {name: str(Path(folder) / name) for name in names}
    for name, path in paths.items():
        subprocess.run(["cc", "-std=c17", "-D_GNU_SOURCE", "-O2", f"-I{include}", "-o", path, *BARE[name]], check=True, cwd=HERE)
    return paths


def output(*words):
    return subprocess.run(list(map(str, words)), check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


# ---- processes -----------------------------------------------------------------------------------


def fields_of(pid):
    """From the state on, which is the third."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def parent_of(pid):
    return int(fields_of(pid)[1])


def used_s(pid):
    return sum(int(field) for field in fields_of(pid)[11:13]) / TICK


def ended_s(parent):
    """Of the children that have ended."""
    return sum(int(field) for field in fields_of(parent)[13:15]) / TICK


def server_used_s(parent):
    """A server and its children, those that have ended too. One that ends meanwhile is in neither sum, or in both;
    then all are read again."""
    while True:
        ended, running = ended_s(parent), 0.0
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if parent_of(folder.name) == parent:
                    running += used_s(folder.name)
            except (OSError, IndexError):
                continue
        if ended_s(parent) == ended:
            return used_s(parent) + ended + running


def resident_mb(pid):
    """The most so far; 0 when the process has just ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)


class Meter:
    """Processor seconds of the servers and of the children of this program, between start and stop."""

    def __init__(self, database, broker):
        self.postmaster, self.broker = database.postmaster(), broker.process()

    def read(self):
        own = os.times()
        return {"own": own.children_user + own.children_system,
                "postgres": server_used_s(self.postmaster),
                "broker": used_s(self.broker) if self.broker else 0.0}

    def microseconds(self, before, events):
        """For each event."""
        return {name: (used - before[name]) * 1e6 / events for name, used in self.read().items()}


def middle(values):
    return statistics.median(values)


def load():
    return Path("/proc/loadavg").read_text().split()[0]


def read_arguments(description, parts, numbers, servers, flags=None):
    """numbers: by name, as usual and with --quick; servers: kinds that have to be there; flags: by name, with their help."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("semel")
    parser.add_argument("parts", nargs="*", metavar="PART")
    for name, (usual, _) in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    for name, explanation in (flags or {}).items():
        parser.add_argument(f"--{name}", action="store_true", help=explanation)
    parser.add_argument("--quick", action="store_true", help="a few seconds each, to see that it works")
    options = parser.parse_args()
    unknown = set(options.parts) - set(parts)
    if unknown:
        parser.error(f"no such part: {' '.join(unknown)} (there are {' '.join(parts)})")
    if any(f"SEMEL_TEST_{kind.upper()}" not in os.environ for kind in servers):
        only = " ".join(f"--only {kind}" for kind in servers)
        parser.error(f"run it by tests/support/servers.py run {only} -- …")
    if options.quick:
        vars(options).update({name: quick for name, (_, quick) in numbers.items()})
    options.parts = options.parts or list(parts)
    return options


def run(kind, options):
    """The parts of a bench, which are its methods, one after the other."""
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory() as folder:
        bench = kind(options, Path(folder))
        try:
            bench.init()
            for part in options.parts:
                getattr(bench, part)()
        finally:
            bench.close()
