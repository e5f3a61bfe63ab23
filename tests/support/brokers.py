# SPDX-License-Identifier: Apache-2.0
"""The brokers of the mixes. A test gets one of its own: a file, or a part of the server of the run that
no other test uses. Each has its URL for the program, and every event that was ever published to it:

    url           for SEMEL_BROKER
    retains       whether a late subscriber gets what was published before
    overlaps      whether events are confirmed while later ones are being sent
    witness()     before anything is published to the topic
    log()         whatever arrived since: (id, aggregate id, payload), repeats too
    things()      names of what was made there
    consumers()   how many there are of the scope
    expire_consumers()     disconnects consumers that do not respond, where their time-out is too long for a test
    close()       it is gone

A new one is a class here, a line in BROKERS, and its starter in servers.py."""
import itertools
import os
import sqlite3
from pathlib import Path

COUNTER = itertools.count(1)


def fresh_name(word, joint="-"):
    return joint.join((word, str(os.getpid()), str(next(COUNTER))))


def servers():
    """Those of the enclosing run."""
    from servers import Attached

    if not hasattr(servers, "attached"):
        servers.attached = Attached()
    return servers.attached


class LocalFile:
    """The local broker: its log is a table, where everything stays."""

    retains, overlaps = True, False

    def __init__(self, folder):
        self.path = Path(folder) / "semel-broker.db"
        self.url = "local:semel-broker.db"  # from where the program is run, as a user would write it

    def witness(self, topic):
        """Nothing to do."""

    def log(self):
        return log_of(self.path)

    def things(self):
        if not self.path.exists():
            return set()
        return {name for (name,) in rows_of(self.path, "SELECT name FROM semel_topic UNION SELECT scope FROM semel_subscription")}

    def consumers(self, _scope, _topic):
        ((count,),) = rows_of(self.path, "SELECT count(DISTINCT owner) FROM semel_share")
        return count

    def expire_consumers(self):
        """Its lease runs out."""

    def close(self):
        """It goes with its folder."""


def rows_of(path, statement, *parameters):
    connection = sqlite3.connect(path, timeout=60)
    try:
        return connection.execute(statement, parameters).fetchall()
    finally:
        connection.close()


def log_of(path):
    """Of a local broker's file, which is not there before something was published."""
    if not path.exists() or not rows_of(path, "SELECT 1 FROM sqlite_schema WHERE name = 'semel_log'"):
        return []
    return rows_of(path, "SELECT id, aggregate_id, payload FROM semel_log")


class VirtualHost:
    """A RabbitMQ of the test's own. It keeps a witness: a queue that gets whatever is published."""

    retains, overlaps = False, True

    def __init__(self, _folder):
        self.name = fresh_name("test")
        servers().administrator.add_vhost(self.name)
        self.url = servers().rabbitmq_url(self.name)
        self.seen, self.witnessed = [], set()

    def channel(self):
        import pika

        self.connection = pika.BlockingConnection(pika.URLParameters(self.url))
        return self.connection.channel()

    def witness(self, topic):
        if topic in self.witnessed:
            return
        channel = self.channel()
        channel.exchange_declare(topic, "topic", durable=True)
        channel.queue_declare(f"witness.{topic}", durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_bind(f"witness.{topic}", topic, "#")
        self.connection.close()
        self.witnessed.add(topic)

    def log(self):
        channel = self.channel()
        for topic in self.witnessed:
            while True:
                method, properties, body = channel.basic_get(f"witness.{topic}", auto_ack=True)
                if method is None:
                    break
                self.seen.append((properties.message_id, properties.headers["semel-aggregate-id"], body))
        self.connection.close()
        return self.seen

    def things(self):
        return servers().administrator.names(self.name)

    def consumers(self, scope, topic):
        return servers().administrator.consumers(self.name, f"{scope}.{topic}")

    def expire_consumers(self):
        """As after missed heartbeats, which would take too long for a test."""
        servers().administrator.close_connections(self.name)

    def close(self):
        servers().administrator.delete_vhost(self.name)


class Streams(VirtualHost):
    """The same, where the queue of a subscription is a stream."""

    def __init__(self, folder):
        super().__init__(folder)
        self.plain_url = self.url
        self.url += "?queue-type=stream"

    def channel(self):
        import pika

        self.connection = pika.BlockingConnection(pika.URLParameters(self.plain_url))
        return self.connection.channel()

    def consumers(self, scope, topic):
        """A stream does not report its readers; the node counts them. A standby reads nothing, but is connected."""
        administrator = servers().administrator
        return administrator.readers(self.name, f"{scope}.{topic}") and administrator.connections(self.name).count("<")


def kafka(_folder):
    """Topics of the test's own at the Kafka of the run."""
    from kafka_space import Space

    return Space(servers().kafka_address(), fresh_name("test"))


def kafka_mock(_folder):
    """The same at the mock cluster."""
    from kafka_space import Lasting

    return Lasting(servers().kafka_address(), fresh_name("test"))


BROKERS = {"local": LocalFile, "rabbitmq": VirtualHost, "rabbitmq-stream": Streams, "kafka": kafka, "kafka-mock": kafka_mock}
