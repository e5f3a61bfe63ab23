# SPDX-License-Identifier: Apache-2.0
"""The sequences of tests/model, random from a seed, on the real program and any mix of store and broker: slower, on the
machine's clock, and without what only a test's own disk can do (time that passes, copies that are lost, files that are put
back). Settings change from one start to the next, and objects are changed as administrators do it: queues, exchanges and
bindings, topics, partitions and groups, the slot, the publication and the outbox. They are judged as a walk is (test_walk.py)."""
import contextlib
import json
import os
import subprocess

import pytest
from mix import BROKER, SOURCE, STORE
from program import TREE, wait_for
from test_walk import AGGREGATES, SCOPES, SHAPES, TOPIC, WINDOWS, Walk

MODEL = os.path.join(os.environ.get("SEMEL_BUILD", TREE / "build-test"), "tests", "semel_model")
SEEDS = [int(word) for word in os.environ.get("SEMEL_MODEL_SEEDS", "11 12 13 14").split()]
LENGTH = os.environ.get("SEMEL_MODEL_STEPS", "25")
NAMES = list(SCOPES)

if BROKER == "kafka":
    from confluent_kafka.admin import NewPartitions

pytestmark = [
    pytest.mark.anywhere,
    pytest.mark.skipif(not os.path.exists(MODEL), reason="semel_model is not built (scripts/test model-servers does)"),
]


def sequence_of(seed):
    words = [MODEL, "--kind", "print", "--seed", str(seed), "--steps", LENGTH, "--often", "change", "--often", "drop"]
    return [json.loads(line) for line in subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()]


# Settings of a scope that may change; the shape of the walk has precedence.
NUMBERS = ((), ("--batch", "1"), ("--first-delay", "100ms", "--delay-max", "100ms"), ("--prefetch-bytes", "4096"))
CLAIMS = ((), ("--claim", "separate"), ("--claim", "same-tx"), ("--claim", "separate"))
POISONS = ((), ("--poison", "park-key"), ("--poison", "block"), ("--poison", "skip"))
ORDERS = ((), ("--order", "aggregate"), ("--order", "strict", "--strict-wait", "1s"), ("--order", "aggregate"))
SETTINGS = {0: NUMBERS, 1: CLAIMS, 2: POISONS, 3: ORDERS}
WINDOWS_OF_RELAY = ((), ("--window", "1"), ("--window", "3"), ("--attempts", "20"))


class ModelWalk(Walk):
    """The steps come from the model, and only the moment of a kill within a window is random."""

    def __init__(self, folder, shape, seed):
        self.settings, self.relay_words = {name: {} for name in NAMES}, ()
        super().__init__(folder, shape, seed)

    def drain(self, scope, kill=None):
        """With the scope's settings of now."""
        shape = self.more
        changed = [value for value in self.settings[scope].values() if value and value[0] not in (*shape, *SCOPES[scope])]
        self.more = (*shape, *(word for words in changed for word in words))
        try:
            super().drain(scope, kill)
        finally:
            self.more = shape

    def deliver(self):
        self.run("relay", "--drain", *self.relay_words)
        for scope in SCOPES:
            self.drain(scope)

    # ---- settings --------------------------------------------------------------------------------

    def do_change(self, step):
        kind, value = step["b"] % 6, step["c"] % 4
        if kind == 5:
            self.relay_words = WINDOWS_OF_RELAY[value]
        elif kind in SETTINGS:
            self.settings[NAMES[step["a"] % 2]][kind] = SETTINGS[kind][value]

    # ---- objects of broker and store -------------------------------------------------------------------------------

    def do_drop(self, step):
        """The consumers run at once to declare again what is theirs, as running ones would."""
        scope = NAMES[step["a"] % 2]
        choices = [*getattr(self, f"drops_of_{BROKER}", list)(), *getattr(self, f"drops_of_{STORE}", list)()]
        if choices:
            chosen = choices[(step["b"] + step["c"]) % len(choices)]
            self.path.append(f"# {chosen.__name__.replace('_', ' ')} ({scope})")
            chosen(scope)
            for name in NAMES:
                self.drain(name)

    def drops_of_rabbitmq(self):
        return [self.delete_queue, self.delete_exchange, self.unbind_queue]

    @contextlib.contextmanager
    def channel(self):
        broker = self.semel.backend.broker
        channel = broker.channel()
        try:
            yield channel
        finally:
            broker.connection.close()

    def delete_queue(self, scope):
        with self.channel() as channel:
            channel.queue_delete(f"{scope}.{TOPIC}")

    def delete_exchange(self, _scope):
        with self.channel() as channel:
            channel.exchange_delete(TOPIC)

    def unbind_queue(self, scope):
        with self.channel() as channel:
            channel.queue_unbind(f"{scope}.{TOPIC}", TOPIC, "#")

    def drops_of_kafka(self):
        return [self.recreate_topic, self.add_partitions, self.delete_group_of]

    def recreate_topic(self, _scope):
        space = self.semel.backend.broker
        space.administrator.delete(space.topic(TOPIC))
        wait_for(lambda: TOPIC not in space.topics(), 60, "the topic is gone")
        space.create(TOPIC)

    def add_partitions(self, _scope):
        """Up to eight."""
        client = self.semel.backend.broker.administrator.client
        name = self.semel.backend.broker.topic(TOPIC)
        there = len(client.list_topics(name, timeout=60).topics[name].partitions)
        if 0 < there < 8:
            for future in client.create_partitions([NewPartitions(name, there + 1)]).values():
                future.result(60)

    def delete_group_of(self, scope):
        space = self.semel.backend.broker
        if scope in space.things():
            space.delete_group(scope)

    def drops_of_postgres(self):
        stream = [self.drop_slot, self.recreate_publication] if SOURCE == "cdc" else []
        return [*stream, self.try_to_truncate]

    def drop_slot(self, _scope):
        self.semel.sql("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                       " WHERE database = current_database() AND NOT active")

    def recreate_publication(self, _scope):
        self.semel.sql("ALTER PUBLICATION semel DROP TABLE semel_outbox")
        self.do_publish({"a": 0, "b": 0})  # in the gap
        self.semel.sql("ALTER PUBLICATION semel ADD TABLE semel_outbox")

    def try_to_truncate(self, _scope):
        with pytest.raises(Exception, match="(?i)truncate|prune"):
            self.semel.sql("TRUNCATE semel_outbox RESTART IDENTITY")

    def window(self, step, kind):
        if step["fault"] == "none":
            return None
        return step["at"] if step["at"] in WINDOWS[kind] else WINDOWS[kind][step["number"] % len(WINDOWS[kind])]

    def nth_letter(self, step):
        entries = self.letters("--status", "PENDING")
        return entries[step["a"]] if step["a"] < len(entries) else None

    def selected(self, step):
        words = ["--aggregate", AGGREGATES[step["b"] % 3 - 1]] if step["b"] % 3 else []
        return words + (["--max", "1"] if step["c"] % 2 else [])

    def do_publish(self, step):
        payload = json.dumps({"poison": step["b"] % 3 > 0})
        self.ids.append(self.semel.publish("--payload", payload, aggregate=AGGREGATES[step["a"] % 2]))
        self.path.append(f"semel publish --aggregate {AGGREGATES[step['a'] % 2]} --payload '{payload}'  # {self.ids[-1]}")

    def do_relay(self, step):
        self.run("relay", "--drain", *self.relay_words, kill=self.window(step, "relay"))

    def do_consume(self, step):
        self.drain(NAMES[step["a"] % 2], self.window(step, "consume"))

    def do_verdict(self, step):
        if self.ids and step["b"] % 3 == 0:
            self.accept_one(self.ids[step["a"] % len(self.ids)])

    def do_dlq_replay(self, step):
        entry = self.nth_letter(step)
        if entry:
            self.requested[entry["sourceService"]][entry["originalEventId"]] += 1
            self.run("dlq", "replay", entry["dlqEntryId"], kill=self.window(step, "dlq"))

    def do_dlq_discard(self, step):
        entry = self.nth_letter(step)
        if entry:
            self.given_up[entry["sourceService"]].add(entry["originalEventId"])
            self.run("dlq", "discard", entry["dlqEntryId"])

    def do_replay(self, step):
        scope = ["--scope", NAMES[step["a"] % 3 - 1]] if step["a"] % 3 else []
        self.run("replay", *self.selected(step), *scope, kill=self.window(step, "replay"))

    def do_reprocess(self, step):
        scope = NAMES[step["a"] % 2]
        self.requested[scope].update(self.ids)
        self.run("replay", *self.selected(step), "--scope", scope, "--reprocess", kill=self.window(step, "replay"))

    def do_prune(self, _step):
        self.prune()

    def do_pause(self, step):
        scope = NAMES[step["a"] % 2]
        self.run("subscriptions", "resume" if scope in self.paused else "pause", scope)
        self.paused ^= {scope}

    def do_lose(self, _step):
        self.lose_copies()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_of_the_model_can_be_brought_to_an_end(tmp_path, seed):
    walk = ModelWalk(tmp_path, list(SHAPES)[seed % len(SHAPES)], seed)
    try:
        for step in sequence_of(seed):
            do = getattr(walk, "do_" + step["step"].replace("-", "_"), None)
            if do:
                do(step)
        walk.bring_to_an_end()
        walk.repair()
        walk.bring_to_an_end()  # what was repaired may have failed once more
        walk.check()
    finally:
        walk.semel.close()
