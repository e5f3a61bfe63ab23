# SPDX-License-Identifier: Apache-2.0
"""Topics and groups of one test at a Kafka that all tests share: they have the test's prefix."""
import socket
import struct
import subprocess

import pytest

pytest.importorskip("confluent_kafka", reason="python3-confluent-kafka is not installed")
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition  # noqa: E402
from kafka_server import Administrator  # noqa: E402
from sandbox import wait_until  # noqa: E402

NOT_YET = (KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR)
IN_PASSING = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)  # the client connects again
QUIET = {"log_level": 0, "socket.timeout.ms": 30000}


class Space:
    retains, overlaps = True, True

    def __init__(self, address, name):
        self.address, self.prefix = address, f"{name}."
        self.administrator = Administrator(address)

    @property
    def url(self):
        return self.url_with()

    def url_with(self, address=None, **parameters):
        """parameters: of the URL, with _ for the dots."""
        words = {"prefix": self.prefix, **dotted(parameters)}
        return f"kafka://{address or self.address}/?" + "&".join(f"{key}={value}" for key, value in words.items())

    # ---- topics --------------------------------------------------------------------------------

    def topic(self, name):
        """As it is called at the broker."""
        return self.prefix + name

    def create(self, name, partitions=4, **settings):
        self.administrator.create(self.topic(name), partitions, **settings)

    def topics(self):
        """Those of the test, by the names that Semel uses."""
        return {name.removeprefix(self.prefix) for name in self.administrator.topics() if name.startswith(self.prefix)}

    def allow(self, user, name, jars):
        """To write there. By Kafka's own tool: the library of the tests has no call for access rules."""
        words = ["java", "-Xmx128m", "-cp", f"{jars}/*", "kafka.admin.AclCommand", "--bootstrap-server", self.address, "--add",
                 "--allow-principal", f"User:{user}", "--producer", "--topic", self.topic(name)]
        subprocess.run(words, check=True, capture_output=True, timeout=60)

    # ---- foreign clients -------------------------------------------------------------------------

    def producer(self, **settings):
        return Producer({"bootstrap.servers": self.address, "acks": "all", **QUIET, **dotted(settings)})

    def produce(self, name, value=b"{}", key=None, headers=(), producer=None, **more):
        """One record, which has arrived when this returns; returns (partition, offset)."""
        arrived = []

        def report(error, record):
            arrived.append((error, record))
        producer = producer or self.producer()
        producer.produce(self.topic(name), value=value, key=key, headers=list(headers), on_delivery=report, **more)
        assert producer.flush(60) == 0
        ((error, record),) = arrived
        assert error is None, error
        return record.partition(), record.offset()

    def records(self, name, isolation="read_uncommitted"):
        """All records of a topic, those of a partition in their order."""
        topic = self.topic(name)
        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "witness", "enable.auto.commit": False,
                             "isolation.level": isolation, "enable.partition.eof": True, **QUIET})
        try:
            there = wait_until(lambda: consumer.list_topics(topic, timeout=60).topics[topic].partitions, 60, "its partitions")
            consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in there])
            return list(read_to_the_end(consumer, set(there)))
        finally:
            consumer.close()

    # ---- groups ----------------------------------------------------------------------------------

    def delete_group(self, scope):
        """As an administrator does. By a request of Kafka's protocol: the library of the tests has no call for it. The
        only node coordinates every group."""
        name = (self.prefix + scope).encode()
        body = struct.pack(">hhi", 42, 0, 1) + string(b"test") + struct.pack(">i", 1) + string(name)
        host, _, port = self.address.rpartition(":")
        with socket.create_connection((host, int(port)), 60) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = connection.makefile("rb")
            (length,) = struct.unpack(">i", answer.read(4))
            (error,) = struct.unpack(">h", answer.read(length)[-2:])
        assert error == 0, f"the group was not deleted: {error}"

    # ---- as the mix has it -----------------------------------------------------------------------

    def witness(self, topic):
        """Nothing to do: Kafka keeps what it got."""

    def log(self):
        """Everything that ever arrived: (id, aggregate id, payload)."""
        main = [name for name in self.topics() if ".retry." not in name and not name.endswith(".dlt")]
        seen = [(headers_of(record), record.value()) for name in main for record in self.records(name)]
        return [(headers["ce_id"], headers["semel-aggregate-id"], value) for headers, value in seen]

    def things(self):
        """Topics and groups."""
        groups = {group.id for group in self.administrator.client.list_groups(timeout=60)}
        return self.topics() | {name.removeprefix(self.prefix) for name in groups if name.startswith(self.prefix)}

    def consumers(self, scope, _topic):
        """Members of the group, once the partitions are assigned. A coordinator that was elected just now does not
        have them yet."""
        try:
            found = self.administrator.client.list_groups(self.prefix + scope, timeout=60)
        except KafkaException as error:
            if error.args[0].code() not in NOT_YET:
                raise
            return 0
        return sum(len(group.members) for group in found if group.state == "Stable")

    def expire_consumers(self):
        """Nothing to do: the client's own thread still sends heartbeats, and partitions are reassigned all the same."""

    def close(self):
        mine = [self.topic(name) for name in self.topics()]
        if mine:
            self.administrator.delete(*mine)


class Lasting(Space):
    """At the mock cluster, where a topic cannot be deleted: it goes with the cluster."""

    def close(self):
        """Nothing to do."""


def string(text):
    return struct.pack(">h", len(text)) + text


def dotted(settings):
    return {key.replace("_", "."): value for key, value in settings.items()}


def read_to_the_end(consumer, partitions):
    silent = 0
    while partitions:
        record = consumer.poll(1)
        if record is None or (record.error() and record.error().code() in IN_PASSING):
            silent += 1
            assert silent < 60, f"no end of {partitions}"
            continue
        silent = 0
        if not record.error():
            yield record
        elif record.error().code() == KafkaError._PARTITION_EOF:
            partitions.discard(record.partition())
        elif not record.error().retriable():
            raise KafkaException(record.error())


def headers_of(record):
    """As text; a name that comes twice has its last value."""
    return {name: value.decode() if value is not None else None for name, value in record.headers() or ()}
