#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Kafka nodes of the test's own (KRaft): one, or a cluster of three, on loopback. Kafka is
no package of Debian: its jars come from Maven Central, once, into a folder of the user's cache, and
are compared with kafka_jars.sha256 each time they are used.

    kafka_server.py --fetch      the jars, if they are not there yet
    kafka_server.py --clean      removes them"""
import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from sandbox import START_S, Missing, free_port, listens, wait_until
from process import Process

VERSION = "3.9.1"
LIST = Path(__file__).with_name("kafka_jars.sha256")
PROJECT = f"""\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>semel</groupId><artifactId>kafka-for-tests</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""
# Small and quick to start: a test's server does not run long enough for the second compiler.
HALF_COMPILED = "-XX:TieredStopAtLevel=1"
MACHINE = ("-Xmx384m", "-XX:+UseSerialGC", HALF_COMPILED, "-Xshare:auto", "-XX:-UsePerfData",
           "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
# Of the users the first may do everything, the second nothing, the third what a test allows it.
ADMINISTRATOR, USER, WRITER, PASSWORD = "administrator", "careful", "writer", "a-secret-of-the-tests"
# The server creates no topic by itself. Clients of the plain listener may do everything, those of the
# secure one what an access rule allows.
SETTINGS = {
    "process.roles": "broker,controller", "controller.listener.names": "CONTROLLER", "inter.broker.listener.name": "PLAIN",
    "listener.security.protocol.map": "PLAIN:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
    "auto.create.topics.enable": "false", "num.partitions": "4", "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4", "transaction.state.log.num.partitions": "4",
    "num.network.threads": "2", "num.io.threads": "4", "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "4194304", "log.index.size.max.bytes": "1048576",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": f"User:ANONYMOUS;User:{ADMINISTRATOR}", "sasl.enabled.mechanisms": "PLAIN",
    "broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500", "log.segment.delete.delay.ms": "1000",
}


# ---- the jars -----------------------------------------------------------------------------------


def cache():
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "semel-test"


def listed():
    """{name of a jar: its SHA-256}"""
    lines = [line.split() for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return {name: digest for digest, name in lines}


def faults(folder):
    """Jars that differ from the list, are missing or are not in it."""
    there = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.jar")}
    return sorted(name for name, _ in set(listed().items()) ^ set(there.items()))


def jars():
    """The folder with them; they are fetched when they are not there. SEMEL_TEST_NO_JARS=1: as if they were not available."""
    if os.environ.get("SEMEL_TEST_NO_JARS"):
        raise Missing("Kafka's jars are not to be had (SEMEL_TEST_NO_JARS)")
    if not shutil.which("java"):
        raise Missing("Java is not installed (Debian: default-jre-headless)")
    folder = cache() / f"kafka-{VERSION}"
    cache().mkdir(parents=True, exist_ok=True)
    with open(cache() / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir() or faults(folder):
            fetch(folder)
    return folder


def fetch(folder):
    """With Maven, which uses the user's mirrors; in strict mode it compares the registry's own sums."""
    if not shutil.which("mvn"):
        raise Missing("Maven is not installed (Debian: maven), and Kafka's jars are not there yet")
    with tempfile.TemporaryDirectory(dir=cache()) as name:
        address = Path(name)
        (address / "pom.xml").write_text(PROJECT, encoding="utf-8")
        words = ["mvn", "-B", "-q", "-C", f"-Dmaven.repo.local={address / 'repository'}",
                 "dependency:copy-dependencies", f"-DoutputDirectory={address / 'jars'}"]
        try:
            done = subprocess.run(words, cwd=address, capture_output=True, text=True, timeout=600, check=False)
        except subprocess.TimeoutExpired as late:
            raise Missing("Kafka's jars could not be fetched: Maven did not end in 10 minutes") from late
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or ["Maven printed no error"]
            raise Missing(f"Kafka's jars could not be fetched: {errors[0]}")
        wrong = faults(address / "jars")
        if wrong:
            raise Missing(f"Kafka's jars are not those of {LIST.name}: {', '.join(wrong)}")
        shutil.rmtree(folder, ignore_errors=True)
        (address / "jars").rename(folder)


# ---- a node -------------------------------------------------------------------------------------


def cluster_id():
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class Kafka(Process):
    """One node, broker and controller at once."""

    def __init__(self, sandbox, number=1, certificates=None, settings=None):
        self.sandbox, self.number, self.jars = sandbox, number, jars()
        self.port, self.secure_port, self.controller_port = free_port(), free_port(), free_port()
        self.folder, self.log = sandbox.make_folder(f"kafka-{self.port}"), sandbox.folder / f"kafka-{self.port}.log"
        self.certificates, self.more, self.child = certificates, settings or {}, None
        sandbox.keep(self)

    def bootstrap(self):
        return f"127.0.0.1:{self.port}"

    def url(self):
        return f"kafka://{self.bootstrap()}"

    def voter(self):
        return f"{self.number}@127.0.0.1:{self.controller_port}"

    # ---- settings ----------------------------------------------------------------------------------

    def configure(self, cluster, nodes=None):
        """Once, before it is started. nodes: all of its cluster."""
        nodes = nodes or [self]
        copies = str(len(nodes))
        listeners = {"PLAIN": f"127.0.0.1:{self.port}", "CONTROLLER": f"127.0.0.1:{self.controller_port}"}
        advertised = {"PLAIN": listeners["PLAIN"]}
        settings = {
            **SETTINGS, "node.id": self.number, "log.dirs": self.folder / "data",
            "controller.quorum.voters": ",".join(node.voter() for node in nodes),
            "default.replication.factor": copies, "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "min.insync.replicas": len(nodes) // 2 + 1, "transaction.state.log.min.isr": len(nodes) // 2 + 1,
        }
        if self.certificates:
            listeners["SECURE"] = f"127.0.0.1:{self.secure_port}"
            advertised["SECURE"] = f"localhost:{self.secure_port}"
            settings.update(self.secure())
        settings["listeners"] = ",".join(f"{name}://{address}" for name, address in listeners.items())
        settings["advertised.listeners"] = ",".join(f"{name}://{address}" for name, address in advertised.items())
        text = "".join(f"{key}={value}\n" for key, value in {**settings, **self.more}.items())
        (self.folder / "server.properties").write_text(text, encoding="utf-8")
        self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", self.folder / "server.properties")
        return self

    def secure(self):
        both = self.folder / "server.pem"
        both.write_text(self.certificates.key.read_text() + self.certificates.certificate.read_text())
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (ADMINISTRATOR, USER, WRITER))
        login = f"org.apache.kafka.common.security.plain.PlainLoginModule required {users};"
        return {"ssl.keystore.type": "PEM", "ssl.keystore.location": both,
                "listener.name.secure.plain.sasl.jaas.config": login}

    # ---- start and stop --------------------------------------------------------------------------------------

    def java(self, *words):
        """SEMEL_TEST_JAVA=full: with both compilers, for measuring."""
        full = os.environ.get("SEMEL_TEST_JAVA") == "full"
        machine = [word for word in MACHINE if not (full and word == HALF_COMPILED)]
        return ["java", *machine, f"-Djava.io.tmpdir={self.folder}", "-cp", f"{self.jars}/*", *words]

    def tool(self, *words):
        """One of Kafka's own tools, to its end."""
        return self.sandbox.run(self.java(*words), None, cwd=self.folder)

    def start(self, wait=True):
        words = self.java("kafka.Kafka", self.folder / "server.properties")
        self.child = self.sandbox.start(words, None, self.log, cwd=self.folder)
        if wait:
            self.wait()
        return self

    def wait(self):
        wait_until(self.answers, START_S, f"Kafka {self.number} answers")

    def answers(self):
        """The port is open before the node answers requests; only an answer counts."""
        if self.child.poll() is not None:
            raise RuntimeError(f"Kafka ended with {self.child.returncode}\n{self.log.read_text()[-3000:]}")
        return listens(self.port) and self.administrator(5).has_broker(self.number)

    def administrator(self, timeout_s=60):
        return Administrator(self.bootstrap(), timeout_s)

    def endpoints(self):
        """What another process needs to connect."""
        return {"port": self.port, "secure_port": self.secure_port, "jars": str(self.jars)}


def single_node(sandbox, certificates=None, settings=None):
    return Kafka(sandbox, certificates=certificates, settings=settings).configure(cluster_id())


def cluster(sandbox, size=3, settings=None):
    """A write needs a majority of its nodes."""
    nodes = [Kafka(sandbox, number, settings=settings) for number in range(1, size + 1)]
    identity = cluster_id()
    for node in nodes:
        node.configure(identity, nodes).start(wait=False)
    for node in nodes:
        node.wait()
    wait_until(lambda: len(nodes[0].administrator().brokers()) == size, 60, "the cluster is whole")
    return nodes


# ---- what an administrator does -------------------------------------------------------------------


class Administrator:
    def __init__(self, bootstrap, timeout_s=60):
        from confluent_kafka.admin import AdminClient

        self.bootstrap, self.timeout_s = bootstrap, timeout_s
        self.client = AdminClient({"bootstrap.servers": bootstrap, "log_level": "0", "socket.timeout.ms": 30000})

    def metadata(self, topic=None):
        return self.client.list_topics(topic, timeout=self.timeout_s)

    def brokers(self):
        return self.metadata().brokers

    def has_broker(self, number):
        from confluent_kafka import KafkaException

        try:
            return number in self.brokers()
        except KafkaException:
            return False

    def topics(self):
        return {name for name in self.metadata().topics if not name.startswith("__")}

    def leader_of(self, topic, partition=0):
        return self.metadata(topic).topics[topic].partitions[partition].leader

    def create(self, topic, partitions=4, copies=1, **settings):
        """settings: of the topic, with _ for the dots."""
        from confluent_kafka.admin import NewTopic

        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        made = self.client.create_topics([NewTopic(topic, partitions, copies, config=config)], operation_timeout=30)
        made[topic].result(60)
        wait_until(lambda: self.has_leaders(topic, partitions), 60, f"{topic} has leaders")

    def has_leaders(self, topic, partitions):
        there = self.metadata().topics.get(topic)
        return there and len(there.partitions) == partitions and all(p.leader >= 0 for p in there.partitions.values())

    def await_node(self):
        """Until the only node has applied all changes so far. That a topic was deleted, created or altered is confirmed by the
        controller; a busy node applies it a moment later, and meanwhile accepts records for a log that is about to be
        removed. It applies changes one by one: when it shows a topic that was created after them, it has begun with the
        last of them, and when it shows the next topic it has finished."""
        for _ in range(2):
            name = f"barrier-{uuid.uuid4()}"
            self.create(name, 1)
            self.delete(name)

    def delete(self, *topics):
        """A topic that is deleted already is no error: a node learns a moment late of a deletion."""
        from confluent_kafka import KafkaError, KafkaException

        for done in self.client.delete_topics(list(topics), operation_timeout=30).values():
            try:
                done.result(60)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--fetch", action="store_true", help="fetch the jars and print where they are")
    what.add_argument("--clean", action="store_true", help="remove what was fetched")
    arguments = parser.parse_args()
    if arguments.clean:
        shutil.rmtree(cache(), ignore_errors=True)
        return 0
    try:
        print(jars())
        return 0
    except Missing as reason:
        print(reason, file=sys.stderr)
        return os.EX_UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main())
