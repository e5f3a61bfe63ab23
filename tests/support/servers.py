#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Real servers for tests and for developers, in one temporary folder, gone when it ends:

    servers.py start KIND                         prints the URLs, and stays until it is interrupted
    servers.py run [--only KIND]… [--measure] -- COMMAND      for as long as COMMAND runs; its exit code

KIND is postgres, rabbitmq, kafka, or kafka-mock, a Kafka that needs no Java and can do less;
start also has cluster and kafka-cluster, of three nodes. Without
--only a command gets PostgreSQL and RabbitMQ. It finds them in SEMEL_TEST_POSTGRES, SEMEL_TEST_RABBITMQ
and SEMEL_TEST_KAFKA."""
import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import kafka_mock
import kafka_server
import postgres_server
import rabbitmq_server
from sandbox import MARK, Missing, Sandbox
from postgres_server import Postgres
from rabbitmq_server import Administrator, Control, RabbitMQ, cluster

APT = "apt-get install -y --no-install-recommends"
PACKAGES = "postgresql-15 rabbitmq-server python3-psycopg2 python3-pika openssl"
PACKAGES_OF_KAFKA = "default-jre-headless maven python3-confluent-kafka kcat"
KINDS, USUAL, MOCK = ("postgres", "rabbitmq", "kafka"), ("postgres", "rabbitmq"), "kafka-mock"
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Certificates:
    """An authority of the test's own, and a certificate of it for localhost and 127.0.0.1."""

    def __init__(self, sandbox, name="tls"):
        self.folder = sandbox.folder / name
        self.folder.mkdir(mode=0o755)
        self.authority, self.certificate = self.folder / "authority.pem", self.folder / "server.pem"
        self.key, authority_key = self.folder / "server.key", self.folder / "authority.key"
        request, extension = self.folder / "request.pem", self.folder / "extension"
        extension.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        self.openssl("req", "-x509", *curve, "-days", "2", "-subj", f"/CN=authority of {name}",
                     "-keyout", authority_key, "-out", self.authority)
        self.openssl("req", "-new", *curve, "-subj", "/CN=localhost", "-keyout", self.key, "-out", request)
        self.openssl("x509", "-req", "-in", request, "-CA", self.authority, "-CAkey", authority_key, "-days", "2",
                     "-CAcreateserial", "-extfile", extension, "-out", self.certificate)

    @staticmethod
    def openssl(*words):
        subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True, stdin=subprocess.DEVNULL)


class Servers:
    """Those of the kinds, with TLS. A child process attaches to them by the environment."""

    VARIABLE = "SEMEL_TEST_SERVERS"

    def __init__(self, sandbox, kinds=USUAL):
        self.sandbox, self.certificates = sandbox, Certificates(sandbox)
        self.postgres = self.rabbitmq = self.kafka = None
        if "rabbitmq" in kinds:
            self.rabbitmq = RabbitMQ(sandbox, certificates=self.certificates).start(wait=False)
        if "kafka" in kinds:
            self.kafka = kafka_server.single_node(sandbox, self.certificates).start(wait=False)
        elif MOCK in kinds:
            self.kafka = kafka_mock.MockServer(sandbox).start(wait=False)
        if "postgres" in kinds:
            self.postgres = Postgres(sandbox, certificates=self.certificates).create()
        for slow in (self.rabbitmq, self.kafka):
            if slow:
                slow.wait()

    def environment(self):
        env = {self.VARIABLE: json.dumps({
            "authority": str(self.certificates.authority),
            "postgres": f"127.0.0.1:{self.postgres.port}" if self.postgres else None,
            "rabbitmq": self.rabbitmq.endpoints() if self.rabbitmq else None,
            "kafka": self.kafka.endpoints() if self.kafka else None})}
        if self.postgres:
            env["SEMEL_TEST_POSTGRES"] = self.postgres.url()
            env["PGSSLMODE"] = "disable"  # a handshake costs more than most statements; tests of TLS set it in the URL
        if self.rabbitmq:
            env["SEMEL_TEST_RABBITMQ"] = self.rabbitmq.url()
        if self.kafka:
            env["SEMEL_TEST_KAFKA"] = self.kafka.bootstrap()
        return env


def find_postgres():
    import psycopg2  # noqa: F401

    postgres_server.binaries()


def find_rabbitmq():
    import pika  # noqa: F401

    if not rabbitmq_server.SERVER.exists():
        raise Missing("RabbitMQ is not installed")


def find_kafka():
    """Its jars are fetched by this when they are not there."""
    import confluent_kafka  # noqa: F401

    kafka_server.jars()


def find_mock():
    import confluent_kafka  # noqa: F401

    try:
        kafka_mock.library()
    except OSError as reason:
        raise Missing("librdkafka is not installed") from reason


NEEDED = {"postgres": (find_postgres, PACKAGES), "rabbitmq": (find_rabbitmq, PACKAGES),
          "kafka": (find_kafka, PACKAGES_OF_KAFKA), MOCK: (find_mock, "librdkafka1 python3-confluent-kafka")}


def what_is_missing(kinds=USUAL):
    """Empty, or a line with what to install."""
    for kind in kinds:
        find, packages = NEEDED[kind]
        try:
            find()
        except (Missing, ImportError) as reason:
            return f"{reason}; as root: {APT} {packages}"
    return ""


# ---- attached ----------------------------------------------------------------------------------


class Attached:
    """The servers of an enclosing `run`, or those that endpoints names."""

    def __init__(self, endpoints=None):
        self.endpoints = json.loads(endpoints or os.environ[Servers.VARIABLE])
        self.authority, self.control = Path(self.endpoints["authority"]), None

    def postgres_url(self, database="semel", user="semel", address=None, **parameters):
        """address: host and port of a proxy before it."""
        parameters = {**self.endpoints.get("parameters", {}), **parameters}
        more = "&".join(f"{key}={value}" for key, value in parameters.items())
        return f"postgres://{user}@{address or self.endpoints['postgres']}/{database}{'?' + more if more else ''}"

    def rabbitmq_url(self, vhost="", user="guest:guest"):
        return f"amqp://{user}@127.0.0.1:{self.endpoints['rabbitmq']['port']}/{vhost}"

    def rabbitmq_tls_url(self, vhost, user):
        return f"amqps://{user}@localhost:{self.endpoints['rabbitmq']['tls_port']}/{vhost}"

    def kafka_address(self):
        return f"127.0.0.1:{self.endpoints['kafka']['port']}"

    def kafka_secure_address(self):
        """By name, with the password of kafka_server."""
        return f"localhost:{self.endpoints['kafka']['secure_port']}"

    def ask(self, expression):
        if not self.control:
            self.control = Control(self.endpoints["rabbitmq"]["node"], self.endpoints["rabbitmq"]["environment"])
        return self.control.ask(expression)

    @property
    def administrator(self):
        return Administrator(self.ask)

    def close(self):
        if self.control:
            self.control.close()
            self.control = None


# ---- as a command ------------------------------------------------------------------------------


def interrupted(number, _frame):
    for other in INTERRUPTS:
        signal.signal(other, signal.SIG_IGN)
    raise SystemExit(128 + number)


def start(kind):
    with Sandbox() as sandbox:
        if kind == "cluster":
            lines = [f"SEMEL_TEST_RABBITMQ_{number}={node.url()}" for number, node in enumerate(cluster(sandbox), 1)]
        elif kind == "kafka-cluster":
            lines = ["SEMEL_TEST_KAFKA=" + ",".join(node.bootstrap() for node in kafka_server.cluster(sandbox))]
        else:
            servers = Servers(sandbox, [kind])
            env = servers.environment()
            lines = [f"{key}={value}" for key, value in env.items() if key != Servers.VARIABLE]
            lines.append(f"authority={servers.certificates.authority}")
        print("\n".join(lines), flush=True)
        print("they run until you interrupt this (Ctrl-C)", file=sys.stderr)
        signal.pause()


def run(words, kinds):
    with Sandbox() as sandbox:
        servers = Servers(sandbox, kinds)
        child = subprocess.Popen(words, env={**os.environ, **servers.environment(), MARK: str(sandbox.folder)})
        try:
            code = child.wait()
        finally:
            if child.poll() is None:
                child.terminate()
                try:
                    child.wait(15)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
        return code if code >= 0 else 128 - code


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="print the URLs and stay")
    starting.add_argument("kind", choices=(*KINDS, MOCK, "cluster", "kafka-cluster"))
    running = commands.add_parser("run", help="run a command with them")
    running.add_argument("--only", choices=(*KINDS, MOCK), action="append", help="which ones; may be repeated")
    running.add_argument("--measure", action="store_true", help="Kafka's Java with its full compiler, for a bench")
    running.add_argument("words", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    arguments = parser.parse_args()
    for number in INTERRUPTS:
        signal.signal(number, interrupted)
    try:
        if arguments.command == "start":
            return start(arguments.kind)
        words = arguments.words[1:] if arguments.words[:1] == ["--"] else arguments.words
        if not words:
            parser.error("run needs a command")
        if arguments.measure:
            os.environ["SEMEL_TEST_JAVA"] = "full"
        return run(words, arguments.only or USUAL)
    except Missing as reason:
        print(f"{reason}; as root: {APT} {PACKAGES} {PACKAGES_OF_KAFKA}", file=sys.stderr)
        return os.EX_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
