# SPDX-License-Identifier: Apache-2.0
"""A random sequence of operators' actions, on the real program: publishing, poison, replays and discards of dead letters,
replays of all kinds, prune and pause on two aggregates, with kills between. However it went, it can be brought to an end:
every drain ends, every event has run or was discarded, nothing ran again without a request, no consumer spins, and what
`verify` reports, its own command repairs. tests/model does the same in one process, and faster."""
import json
import os
import random
import re
import resource
import shlex
import signal
from collections import Counter, defaultdict

import pytest
from mix import BROKER
from program import Semel

pytestmark = pytest.mark.anywhere

STEPS = int(os.environ.get("SEMEL_WALK_STEPS", "60"))
SEEDS = [int(word) for word in os.environ.get("SEMEL_WALK_SEEDS", "2 8").split()]
# More options of both subscriptions.
SHAPES = {"plain": (), "strict": ("--order", "strict", "--strict-wait", "1s"), "skip": ("--poison", "skip")}
WALKS = [(shape, seed) for shape in SHAPES for seed in SEEDS[:None if shape == "plain" else 1]]
AGGREGATES = ("order:a", "order:b")
TOPIC = "order.events"
TABLES = """
CREATE TABLE effect (id TEXT);
CREATE TABLE accepted (id TEXT);
CREATE TABLE healthy (yes INTEGER CONSTRAINT "the order is poison" CHECK (yes <> 0));
"""
POISON = "CAST(json_extract(:payload, '$.poison') AS TEXT) IN ('1', 'true')"
REFUSE = f"INSERT INTO healthy SELECT 0 WHERE {POISON} AND NOT EXISTS (SELECT 1 FROM accepted WHERE id = :id)"
KEEP = "INSERT INTO effect (id) VALUES (:id)"
# A payment: its effect is a line in a file, and it must not happen twice without a request.
PAY = """read -r body
    case "$body" in *'"poison": true'*) [ -e "accepted.$SEMEL_EVENT_ID" ] || exit 65 ;; esac
    echo "$SEMEL_EVENT_ID" >>paid"""
SCOPES = {
    "billing": ("--sql", REFUSE, "--sql", KEEP),
    "paying": ("--exec", PAY, "--claim", "separate"),
}
QUICK = ("--attempts", "2", "--immediate", "2", "--timeout", "60s")
WINDOWS = {
    "relay": ("relay.after-claim", "relay.after-publish", "relay.after-confirm", "relay.after-mark"),
    "consume": ("consume.after-receive", "consume.after-claim", "consume.after-effect", "consume.after-commit", "consume.after-ack"),
    "dlq": ("dlq.after-publish", "dlq.after-mark"),
    "replay": ("replay.after-publish",),
}
LINES_MAX, PROCESSOR_S = 400, 20.0  # of one drain of at most some dozens of events


class Walk:
    def __init__(self, folder, shape, seed):
        self.semel, self.chance, self.more = Semel(folder, tables=True), random.Random(seed), SHAPES[shape]
        for statement in filter(str.strip, TABLES.split(";\n")):
            self.semel.sql(statement)
        self.semel.subscribe(*SCOPES, topic=TOPIC)
        self.ids, self.path = [], []
        self.requested = defaultdict(Counter)  # how often an operator requested one more run
        self.given_up = defaultdict(set)
        self.paused = set()
        self.deliver()  # from now on the subscriptions exist
        (folder / "semel.yaml").write_text("retention: {outbox: 1s, inbox: 30d, dead-letters: 7d}\n")

    # ---- how the program is run ------------------------------------------------------------------

    def run(self, *words, kill=None):
        """kill: the window in which it may be killed this time; it need not reach it."""
        env = {"SEMEL_FAILPOINT": f"{kill}:kill@{self.chance.randrange(1, 4)}"} if kill else {}
        self.path.append(f"{' '.join(f'{key}={value}' for key, value in env.items())} semel {shlex.join(words)}".strip())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = self.semel.run(*words, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.path[-1] += f"  # {done.returncode}"
        assert done.stderr.count("\n") < LINES_MAX, self.report(f"it repeats itself:\n{done.stderr[:2000]}")
        assert used < PROCESSOR_S, self.report(f"it repeats itself: {used:.1f} s of a processor")
        assert done.returncode != 70, self.report(done.stderr)
        return done

    def maybe(self, kind):
        return self.chance.choice(WINDOWS[kind]) if self.chance.random() < 0.3 else None

    def report(self, reason):
        return "\n".join([reason, "The steps before:", *self.path])

    def letters(self, *more):
        return json.loads(self.semel.ok("dlq", "list", "--json", *more))

    # ---- the steps -------------------------------------------------------------------------------

    def publish(self):
        payload = json.dumps({"poison": self.chance.random() < 0.5})
        aggregate = self.chance.choice(AGGREGATES)
        self.ids.append(self.semel.publish("--payload", payload, aggregate=aggregate))
        self.path.append(f"semel publish --aggregate {aggregate} --payload '{payload}'  # {self.ids[-1]}")

    def relay(self):
        self.run("relay", "--drain", kill=self.maybe("relay"))

    def consume(self, kill=True):
        scope = self.chance.choice(list(SCOPES))
        self.drain(scope, self.maybe("consume") if kill else None)

    def drain(self, scope, kill=None):
        """It ends, killed or not; paused it reads nothing, and has a short time-out."""
        waits = ("--timeout", "1s") if scope in self.paused else QUICK[-2:]
        done = self.run("consume", "--scope", scope, "--topic", TOPIC, *SCOPES[scope], *self.more, *QUICK[:-2], *waits, "--drain",
                        kill=kill)
        good = (0, -signal.SIGKILL) if kill else (0,)
        assert done.returncode in good or scope in self.paused, self.report(f"a drain does not end:\n{done.stderr[-3000:]}")

    def accept(self):
        if self.ids:
            self.accept_one(self.chance.choice(self.ids))

    def accept_one(self, event):
        self.semel.sql("INSERT INTO accepted VALUES (?)", event)
        (self.semel.folder / f"accepted.{event}").touch()
        self.path.append(f"# {event} is no poison any more")

    def pending(self):
        entries = self.letters("--status", "PENDING")
        return self.chance.choice(entries) if entries else None

    def replay_letter(self):
        entry = self.pending()
        if entry:
            self.requested[entry["sourceService"]][entry["originalEventId"]] += 1
            self.run("dlq", "replay", entry["dlqEntryId"], kill=self.maybe("dlq"))

    def discard_letter(self):
        entry = self.pending()
        if entry:
            self.given_up[entry["sourceService"]].add(entry["originalEventId"])
            self.run("dlq", "discard", entry["dlqEntryId"])

    def selection(self):
        words = ["--aggregate", self.chance.choice(AGGREGATES)] if self.chance.random() < 0.7 else []
        return words + (["--max", str(self.chance.randrange(1, 4))] if self.chance.random() < 0.5 else [])

    def replay(self):
        scope = ["--scope", self.chance.choice(list(SCOPES))] if self.chance.random() < 0.5 else []
        self.run("replay", *self.selection(), *scope, kill=self.maybe("replay"))

    def reprocess(self):
        """Whatever was selected may run once more."""
        scope = self.chance.choice(list(SCOPES))
        force = ["--force"] if self.chance.random() < 0.5 else []
        self.requested[scope].update(self.ids)
        self.run("replay", *self.selection(), "--scope", scope, "--reprocess", *force, kill=self.maybe("replay"))

    def prune(self):
        self.run("--config", "semel.yaml", "prune")

    def pause(self):
        scope = self.chance.choice(list(SCOPES))
        word = "resume" if scope in self.paused else "pause"
        (self.paused.remove if scope in self.paused else self.paused.add)(scope)
        self.run("subscriptions", word, scope)

    def lose_copies(self):
        """What was sent to a subscription alone and not taken yet is lost, as after a restore of the broker."""
        if BROKER == "local":
            self.semel.sql("DELETE FROM semel_delayed", database=self.semel.broker)
            self.path.append("sqlite3 semel-broker.db 'DELETE FROM semel_delayed'")

    STEPS = ([publish] * 6 + [relay] * 4 + [consume] * 9 + [accept] * 2 + [replay_letter] * 4 + [discard_letter] * 4
             + [replay] * 6 + [reprocess] * 2 + [prune, pause, lose_copies])

    # ---- the end ---------------------------------------------------------------------------------

    def bring_to_an_end(self):
        for scope in list(self.paused):
            self.run("subscriptions", "resume", scope)
            self.paused.remove(scope)
        for event in self.ids:
            self.accept_one(event)
        self.path[-len(self.ids):] = ["# nothing is poison any more"]
        self.deliver()
        for _ in range(len(self.ids) + 4):
            entries = self.letters("--status", "PENDING")
            if not entries:
                return
            for entry in entries:
                self.requested[entry["sourceService"]][entry["originalEventId"]] += 1
                word = "replay" if entry["replayCount"] < 3 else "discard"
                if word == "discard":
                    self.given_up[entry["sourceService"]].add(entry["originalEventId"])
                self.run("dlq", word, entry["dlqEntryId"])
            self.deliver()
        raise AssertionError(self.report("dead letters come again and again"))

    def deliver(self):
        self.run("relay", "--drain")
        for scope in SCOPES:
            self.drain(scope)

    def repair(self):
        """What verify reports is repaired by the commands that it prints."""
        for _ in range(4):
            done = self.run("verify", "--wait", "5s")
            if done.returncode == 0:
                return
            printed = done.stdout + done.stderr
            commands = set(re.findall(r"semel ((?:dlq|replay|repair)\b[^)`\n]*)", printed))
            assert commands, self.report(f"verify names no command:\n{printed}")
            for command in sorted(commands):
                self.run(*shlex.split(command.rstrip(". ")))
            self.deliver()
        raise AssertionError(self.report(f"what verify reports is not repaired by its commands:\n{printed}"))

    def ran(self, scope):
        if scope == "billing":
            return Counter(row[0] for row in self.semel.sql("SELECT id FROM effect"))
        paid = self.semel.folder / "paid"
        return Counter(paid.read_text().split() if paid.exists() else [])

    def check(self):
        for scope in SCOPES:
            ran = self.ran(scope)
            for event in self.ids:
                assert ran[event] > 0 or event in self.given_up[scope], self.report(f"{event} never ran in {scope}")
                assert ran[event] <= 1 + self.requested[scope][event], self.report(f"{event} ran {ran[event]} times in {scope}")
        assert self.semel.ok("dlq", "count").strip() == "0"


@pytest.mark.parametrize("shape, seed", WALKS)
def test_whatever_operators_do_it_can_be_brought_to_an_end(tmp_path, shape, seed):
    walk = Walk(tmp_path, shape, seed)
    try:
        for _ in range(STEPS):
            walk.chance.choice(Walk.STEPS)(walk)
        walk.bring_to_an_end()
        walk.repair()
        walk.bring_to_an_end()  # what was repaired may have failed once more
        walk.check()
    finally:
        walk.semel.close()
