# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster: a Kafka that needs no Java, and that returns errors on request. In this process for tests that
request them; in one of its own for the suites of the mixes, where no real Kafka is available. What it cannot do
(declare and delete topics, list groups, remember after its end) is for the real one.

    kafka_mock.py FILE      runs one, writes its address to the file, and stays"""
import contextlib
import ctypes
import signal
import sys
from pathlib import Path

from sandbox import wait_until

PRODUCE, FETCH, METADATA, OFFSET_COMMIT, JOIN, HEARTBEAT, PRODUCER_ID = 0, 1, 3, 8, 11, 12, 22
# Error codes of Kafka's protocol.
NOT_LEADER, TOO_LARGE, TOPIC_UNAUTHORIZED, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, UNKNOWN_PRODUCER = 6, 10, 29, 19, 45, 59
REBALANCING, NOT_COORDINATOR, UNKNOWN_MEMBER = 27, 16, 25


def library():
    lib = ctypes.CDLL("librdkafka.so.1")
    pointer = ctypes.c_void_p
    shapes = {
        "rd_kafka_conf_new": (pointer,),
        "rd_kafka_conf_set": (ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_char_p, pointer, ctypes.c_size_t),
        "rd_kafka_new": (pointer, ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t),
        "rd_kafka_destroy": (None, pointer),
        "rd_kafka_mock_cluster_new": (pointer, pointer, ctypes.c_int),
        "rd_kafka_mock_cluster_destroy": (None, pointer),
        "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, pointer),
        "rd_kafka_mock_push_request_errors_array": (None, pointer, ctypes.c_int16, ctypes.c_size_t, pointer),
        "rd_kafka_mock_clear_request_errors": (None, pointer, ctypes.c_int16),
        "rd_kafka_mock_topic_create": (ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
        "rd_kafka_mock_topic_set_error": (None, pointer, ctypes.c_char_p, ctypes.c_int),
        "rd_kafka_mock_partition_set_leader": (ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32),
        "rd_kafka_mock_broker_set_down": (ctypes.c_int, pointer, ctypes.c_int32),
        "rd_kafka_mock_broker_set_up": (ctypes.c_int, pointer, ctypes.c_int32),
        "rd_kafka_mock_broker_set_rtt": (ctypes.c_int, pointer, ctypes.c_int32, ctypes.c_int),
    }
    for name, (result, *arguments) in shapes.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class MockKafka:
    def __init__(self, brokers=1):
        self.lib, self.brokers = library(), brokers
        conf = self.lib.rd_kafka_conf_new()
        self.lib.rd_kafka_conf_set(conf, b"log_level", b"0", None, 0)
        text = ctypes.create_string_buffer(200)
        producer = 0
        self.client = self.lib.rd_kafka_new(producer, conf, text, len(text))
        if not self.client:
            raise RuntimeError(text.value.decode())
        self.cluster = self.lib.rd_kafka_mock_cluster_new(self.client, brokers)

    def bootstrap(self):
        return self.lib.rd_kafka_mock_cluster_bootstraps(self.cluster).decode()

    def create(self, topic, partitions=4):
        self.lib.rd_kafka_mock_topic_create(self.cluster, topic.encode(), partitions, self.brokers)

    def push_errors(self, request, *errors):
        """The next requests of this kind are answered with these."""
        codes = (ctypes.c_int * len(errors))(*errors)
        self.lib.rd_kafka_mock_push_request_errors_array(self.cluster, request, len(errors), codes)

    def clear_errors(self, request):
        self.lib.rd_kafka_mock_clear_request_errors(self.cluster, request)

    def refuse(self, topic, error):
        self.lib.rd_kafka_mock_topic_set_error(self.cluster, topic.encode(), error)

    def set_leader(self, topic, partition, broker):
        self.lib.rd_kafka_mock_partition_set_leader(self.cluster, topic.encode(), partition, broker)

    @contextlib.contextmanager
    def down(self, broker=1):
        self.lib.rd_kafka_mock_broker_set_down(self.cluster, broker)
        try:
            yield
        finally:
            self.lib.rd_kafka_mock_broker_set_up(self.cluster, broker)

    def delay(self, milliseconds, broker=1):
        """Delays every answer."""
        self.lib.rd_kafka_mock_broker_set_rtt(self.cluster, broker, milliseconds)

    def close(self):
        self.lib.rd_kafka_mock_cluster_destroy(self.cluster)
        self.lib.rd_kafka_destroy(self.client)


class MockServer:
    """A mock cluster for several processes, in the place of a kafka_server.Kafka."""

    def __init__(self, sandbox):
        library()  # fails where it is not installed
        self.sandbox, self.child = sandbox, None
        self.folder, self.log = sandbox.make_folder("kafka-mock"), sandbox.folder / "kafka-mock.log"
        self.address = self.folder / "address"
        sandbox.keep(self)

    def start(self, wait=True):
        words = [sys.executable, "-B", __file__, self.address]
        self.child = self.sandbox.start(words, None, self.log, cwd=self.folder)
        if wait:
            self.wait()
        return self

    def wait(self):
        wait_until(self.answers, 60, "the mock cluster answers")

    def answers(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"the mock cluster ended with {self.child.returncode}\n{self.log.read_text()[-3000:]}")
        return self.address.exists()

    def bootstrap(self):
        return self.address.read_text(encoding="ascii")

    def endpoints(self):
        return {"port": int(self.bootstrap().rpartition(":")[2])}

    def close(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait()


def main():
    cluster, address = MockKafka(), Path(sys.argv[1])
    half = address.with_suffix(".half")
    half.write_text(cluster.bootstrap(), encoding="ascii")
    half.rename(address)
    signal.pause()


if __name__ == "__main__":
    main()
