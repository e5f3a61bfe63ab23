# SPDX-License-Identifier: Apache-2.0
"""One partition of Kafka accepts nothing: it has lost its leader. The others go on, at the same rate and once each; what
belongs to it waits, costs no attempt, and comes in its order when the leader is back."""
import contextlib
import json

import mix
import pytest
from workload import at, attached_to
from kafka_server import cluster
from kafka_space import headers_of
from program import Semel, wait_for
from servers import Servers
from stream import TIMEOUT_S, Stream

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("kafka"),
              pytest.mark.unless("kafka-mock", reason="a mock cluster cannot be killed and come back")]
AGGREGATES, ROUNDS = 60, 20
INSERT = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload, content_type)
    SELECT 'order', t || '-' || n % ?::int, 't.v1', t, ?::text, 'text/plain'
    FROM generate_series(1, ?::int) n, unnest(ARRAY['fine', 'split']) t"""

INSERT_ONE = """INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, topic, payload, content_type)
    VALUES ('order', ?, 't.v1', ?, '1', 'text/plain')"""


@pytest.fixture(scope="module")
def servers(sandbox):
    return Servers(sandbox, ("postgres",))


@pytest.fixture(scope="module")
def nodes(sandbox):
    started = cluster(sandbox)
    yield started
    for node in started:
        node.close()


def make(folder, nodes):
    """The topic `split` has a partition on each node, and no replicas; `fine` does not need the third node; `narrow` keeps
    its leader without it, and accepts nothing."""
    folder.mkdir()
    fresh = Semel(folder)
    fresh.broker.address = ",".join(node.bootstrap() for node in nodes)
    fresh.ok("init")
    place(fresh, "split", [[1], [2], [3]])
    place(fresh, "fine", [[1], [2]])
    place(fresh, "narrow", [[1, 3]], copies_in_sync=2)
    return fresh


@pytest.fixture
def outboxes(nodes, servers, tmp_path):
    """One is polled, one is read from the change stream."""
    with attached_to(at(servers, kafka=nodes[0].endpoints())), contextlib.ExitStack() as ending:
        made = [Outbox(make(tmp_path / source, nodes), source) for source in ("poll", "cdc")]
        for outbox in made:
            ending.callback(outbox.semel.close)
            ending.enter_context(outbox.stream.ended())
        yield made


def place(semel, topic, nodes_of_partitions, copies_in_sync=1):
    from confluent_kafka.admin import NewTopic

    administrator, name = semel.broker.administrator, semel.broker.topic(topic)
    wanted = NewTopic(name, len(nodes_of_partitions), replica_assignment=nodes_of_partitions,
                      config={"min.insync.replicas": str(copies_in_sync)})
    administrator.client.create_topics([wanted], operation_timeout=30)[name].result(60)
    wait_for(lambda: administrator.has_leaders(name, len(nodes_of_partitions)), 60, "it has leaders")


class Outbox:
    def __init__(self, semel, source):
        self.semel, self.round, self.stream, self.log = semel, 0, Stream(semel), semel.folder / "relay.log"
        self.more = 0
        self.stream.init()
        self.words = ("--source", source, "--first-delay", "100ms", "--delay-max", "1s", "--attempts", "2")
        self.words += ("--slot", self.stream.slot) if source == "cdc" else ()
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            self.relay = self.semel.spawn("relay", *self.words, stderr=log)

    def write(self, rounds=1):
        """One event of every aggregate, in one transaction."""
        connection = mix.connect(self.semel.store)
        for _ in range(rounds):
            self.round += 1
            connection.execute(INSERT, (AGGREGATES, str(self.round), AGGREGATES))
            connection.commit()
        connection.close()

    def write_one(self, topic):
        connection = mix.connect(self.semel.store)
        connection.execute(INSERT_ONE, (topic, topic))
        connection.commit()
        connection.close()
        self.more += 1

    def settles(self, waiting, what):
        wanted = {"PUBLISHED": 2 * AGGREGATES * self.round + self.more - waiting, **({"NEW": waiting} if waiting else {})}
        count = "SELECT status, count(*) FROM semel_outbox GROUP BY status"
        wait_for(lambda: dict(self.semel.sql(count)) == wanted, TIMEOUT_S, what)

    def at_the_third(self):
        """The aggregates of the partition that will be lost."""
        return {record.key().decode() for record in self.semel.broker.records("split") if record.partition() == 2}

    def has_leader(self, administrator):
        return administrator.leader_of(self.semel.broker.topic("split"), 2) >= 0

    def arrived(self, topic):
        """Of each aggregate the numbers of its rounds, in the order of the partition; repeats included."""
        found = {}
        for record in self.semel.broker.records(topic):
            found.setdefault(headers_of(record)["semel-aggregate-id"], []).append(int(record.value()))
        return found

    def waits_for_its_partition(self, lost):
        """Its partition is reported; it costs no attempt, and is no dead letter."""
        sql = self.semel.sql
        held = sql("SELECT aggregate_id, state FROM semel_outbox_exception")
        assert {name for name, _ in held} == lost and {state for _, state in held} <= {"retry", "parked"}
        assert sql("SELECT DISTINCT attempts FROM semel_outbox") == [(0,)]
        assert sql("SELECT count(*) FROM semel_dead_letter") == [(0,)]
        reasons = {row[0] for row in sql("SELECT last_error FROM semel_outbox WHERE last_error IS NOT NULL")}
        assert reasons == {"partition 2 of topic split accepts nothing: it has no leader"}
        stalled = [line for line in map(json.loads, self.log.read_text().splitlines()) if "partition stalled" in line["msg"]]
        assert [(line["topic"], line["partition"]) for line in stalled] == [("split", 2)]
        assert "partition 2 of topic split has no leader" in self.semel.run("doctor").stdout

    def check_books(self):
        assert self.semel.stop(self.relay) == 0
        everything = list(range(1, self.round + 1))
        assert self.arrived("fine") == {f"fine-{n}": everything for n in range(AGGREGATES)}
        split = self.arrived("split")
        assert {name: list(dict.fromkeys(numbers)) for name, numbers in split.items()} == {
            f"split-{n}": everything for n in range(AGGREGATES)}
        assert sum(map(len, split.values())) < 1.1 * AGGREGATES * self.round, "few are sent twice"
        assert "relay disconnected from store and broker" not in self.log.read_text()


@pytest.mark.core
def test_a_partition_without_a_leader_stops_no_other_one(outboxes, nodes):
    administrator, lost = nodes[0].administrator(), {}
    for outbox in outboxes:
        outbox.write()
        outbox.settles(0, "all partitions take events")
        lost[outbox] = outbox.at_the_third()
    nodes[2].kill()
    try:
        wait_for(lambda: not any(outbox.has_leader(administrator) for outbox in outboxes), TIMEOUT_S, "they have no leader")
        for outbox in outboxes:
            outbox.write(ROUNDS)
        for outbox in outboxes:
            outbox.settles(len(lost[outbox]) * ROUNDS, "everything else is published and marked")
            outbox.write()
            outbox.settles(len(lost[outbox]) * (ROUNDS + 1), "it goes on while the node is down")
            outbox.waits_for_its_partition(lost[outbox])
            assert outbox.semel.stop(outbox.relay) == 0
            outbox.start()  # another relay has to detect it by itself
            outbox.write()
        for outbox in outboxes:
            outbox.settles(len(lost[outbox]) * (ROUNDS + 2), "a relay that starts meanwhile goes on, too")
    finally:
        nodes[2].start()
    for outbox in outboxes:
        outbox.settles(0, "everything is published")
        outbox.check_books()


def test_a_partition_with_too_few_replicas_in_sync_stops_no_other_one(outboxes, nodes):
    """It has a leader. The relay detects it because other partitions accept events meanwhile."""
    reason = "SELECT last_error, attempts FROM semel_outbox WHERE topic = 'narrow' AND status = 'NEW'"
    expected = ("partition 0 of topic narrow accepts nothing: it does not answer", 0)

    def is_set_apart(outbox):
        outbox.write_one("fine")
        return outbox.semel.sql(reason) == [expected]

    for outbox in outboxes:
        outbox.write_one("narrow")
        outbox.write_one("fine")
        outbox.settles(0, "both topics take events")
    nodes[2].kill()
    try:
        for outbox in outboxes:
            outbox.write_one("narrow")
        for outbox in outboxes:
            wait_for(lambda outbox=outbox: is_set_apart(outbox), TIMEOUT_S, "its partition is set apart")
            outbox.settles(1, "everything else is published and marked")
    finally:
        nodes[2].start()
    for outbox in outboxes:
        outbox.settles(0, "everything is published")
        assert outbox.semel.stop(outbox.relay) == 0
        assert "relay disconnected from store and broker" not in outbox.log.read_text()
