#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""Load from foreign writers while everything that works on it is killed with -9, or stopped for
longer than its lease, at random; then all is run to its end, and the checker must find nothing.
Some of the processes are started with a failpoint armed, so that deaths and pauses also meet the
narrow windows that random kills would seldom find.

What is hit and when is random, from a seed that is printed. No time decides the outcome: after
the faults everything gets as long as it needs."""
import argparse
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "support"))

import mix  # noqa: E402
from checker import Effects  # noqa: E402
from mix import ask, url_of  # noqa: E402
from program import PROGRAM  # noqa: E402
from shop import REFUSE_POISON, TABLES, Shop  # noqa: E402

HERE = Path(__file__).resolve().parent
LEASE_MS = 200
LEASE = ("--lease", f"{LEASE_MS}ms", "--grace", "10m")
RETRIES = ("--first-delay", "50ms", "--delay-max", "500ms")
TIMEOUT_S = 900
# A process that is paused here holds no lock, so others continue, and it resumes after it has lost its lease.
PAUSES = ("relay.before-publish", "relay.after-confirm", "consume.after-receive", "consume.after-commit",
          "consume.after-ack", "consume.after-requeue")


@dataclass
class Member:
    """A process that is always started again."""

    name: str
    start: callable
    child: subprocess.Popen = None
    stopped_until: float = 0  # by SIGSTOP


class Soak(Shop):
    """billing: SQL beside the orders. stock: SQL in a database of its own, and sometimes poisoned.
    audit: a program with a transaction of its own."""

    def __init__(self, folder, seed, program=PROGRAM):
        super().__init__(folder, program)
        self.chance, self.counts, self.members = random.Random(seed), Counter(), []
        self.points = [row["name"] for row in self.json("failpoints")]
        self.stock = self.backend.database("stock")
        self.log = open(self.folder / "log", "ab")  # noqa: SIM115
        self.by_sql("billing", *LEASE, *RETRIES)
        self.ok("--store", url_of(self.stock), "init")
        self.script(TABLES, self.stock)
        self.by_sql("stock", *LEASE, *RETRIES, before=(REFUSE_POISON,), store=self.stock)
        effects = Effects("audit", self.folder / "audit.db", "effect_audit")
        self.add("audit", ("--pipe", f"{sys.executable} -B '{HERE / 'audit_handler.py'}' audit.db"), effects,
                 (*LEASE, *RETRIES, "--concurrency", "2"))
        self.open_members()

    def close(self):
        super().close()
        self.log.close()

    # ---- the members -------------------------------------------------------------------------

    def open_members(self):
        for number in range(2):
            self.members.append(Member(f"relay {number}", lambda: self.work("relay", *LEASE)))
        for subscription, count in zip(self.subscriptions, (2, 3, 2)):
            for number in range(count):
                name, words = f"{subscription.scope} {number}", subscription.words
                self.members.append(Member(name, lambda words=words: self.work(*words)))
        for number in range(2):
            self.members.append(Member(f"writer {number}", self.write))
        for member in self.members:
            member.child = member.start()

    def work(self, *words):
        party = "relay." if "relay" in words else "consume."
        env = {"SEMEL_LOG_LEVEL": "error", "SEMEL_FAILPOINT": self.random_failpoint(party)}
        return self.spawn(*words, env=env, stdout=self.log, stderr=self.log)

    def random_failpoint(self, party):
        """A kill or a pause at some later moment, or none."""
        draw, hit = self.chance.random(), self.chance.randint(1, 30)
        if draw < 0.4:
            return f"{self.chance.choice([p for p in self.points if p.startswith(party)])}:kill@{hit}"
        if draw < 0.6:
            return f"{self.chance.choice([p for p in PAUSES if p.startswith(party)])}:pause={3 * LEASE_MS}@{hit}"
        return ""

    def write(self):
        words = [sys.executable, "-B", HERE / "writer.py", self.store, str(self.chance.random())]
        path = f"{HERE}:{HERE.parent / 'support'}"
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                 env={**self.environment(), "PYTHONPATH": path, "SEMEL_TEST_MIX": mix.NAME}, start_new_session=True)
        self.children.append(child)
        return child

    def wait(self, child):
        """Its exit code. Meanwhile stopped members are resumed in time: one may hold a lock."""
        until = time.monotonic() + TIMEOUT_S
        while child.poll() is None:
            self.resume_stopped(time.monotonic())
            assert time.monotonic() < until, f"{child.args} does not end (see {self.log.name})"
            time.sleep(0.005)
        return child.returncode

    def run_by_hand(self, point, *words):
        """A command of an operator, which may hit a failpoint."""
        child = self.spawn(*words, env={"SEMEL_FAILPOINT": point}, stdout=self.log, stderr=self.log)
        self.wait(child)
        self.children.remove(child)

    def restart(self, member):
        self.wait(member.child)
        self.children.remove(member.child)
        member.child, member.stopped_until = member.start(), 0

    # ---- what can happen ---------------------------------------------------------------------

    def kill(self, member):
        member.child.kill()
        self.restart(member)

    def stop_for_longer_than_its_lease(self, member):
        if not member.name.startswith("writer"):
            member.child.send_signal(signal.SIGSTOP)
            member.stopped_until = time.monotonic() + self.chance.uniform(1.5, 4) * LEASE_MS / 1000

    def terminate(self, member):
        """After SIGTERM it ends well, unless it hits its failpoint or has only just begun."""
        if member.name.startswith("writer"):
            return
        member.child.terminate()
        code = self.wait(member.child)
        assert code in (0, -signal.SIGKILL, -signal.SIGTERM), f"{member.name} ended with {code} after SIGTERM (see {self.log.name})"
        self.restart(member)

    def publish_by_command(self, _member):
        """One more producer: `semel publish`, its business change in the same transaction."""
        aggregate, event_id = "by-command", str(uuid.UUID(int=self.chance.getrandbits(128), version=4))
        ((number,),) = self.sql("SELECT 1 + count(*) FROM orders WHERE aggregate = ?", aggregate)
        words = ("publish", "--id", event_id, "--type", "order.changed.v1", "--aggregate", f"order:{aggregate}",
                 "--payload", f'{{"number": {number}}}', "--sql",
                 f"INSERT INTO orders VALUES ('{event_id}', '{aggregate}', {number})")
        point = self.chance.choice(("", "publish.before-commit:kill", "publish.after-commit:kill"))
        self.run_by_hand(point, *words)

    def replay_the_poisoned(self, _member):
        """The cause is repaired and the dead letters are replayed, by an operator whose command may be killed."""
        self.accept_poison()
        point = self.chance.choice(("", "dlq.after-publish:kill@2", "dlq.after-mark:kill@2"))
        self.run_by_hand(point, "--store", url_of(self.stock), "dlq", "replay", "--all")

    def sql(self, *words, **options):
        self.resume_stopped(math.inf)  # one of them might hold the lock that this waits for
        return super().sql(*words, **options)

    def accept_poison(self):
        pending = "SELECT event_id FROM semel_dead_letter WHERE parked_behind IS NULL AND status = 'PENDING'"
        ids = self.sql(pending, database=self.stock)
        for (event_id,) in ids:
            self.sql("INSERT INTO accepted VALUES (?)", event_id, database=self.stock)

    def ended_by_itself(self, member):
        """At its failpoint; or the store was locked for too long when it started, which it reports."""
        code = member.child.returncode
        assert code in (-signal.SIGKILL, os.EX_UNAVAILABLE, os.EX_TEMPFAIL), (
            f"{member.name} ended by itself with {code} (see {self.log.name})")
        self.restart(member)

    # ---- faults ---------------------------------------------------------------------------

    def resume_stopped(self, now):
        for member in self.members:
            if member.stopped_until and member.stopped_until <= now:
                member.child.send_signal(signal.SIGCONT)
                member.stopped_until = 0

    def inject_faults(self, seconds):
        events = (self.kill,) * 12 + (self.stop_for_longer_than_its_lease, self.terminate)
        events += (self.publish_by_command,) * 4 + (self.replay_the_poisoned,)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(self.chance.uniform(0.01, 0.15))
            self.resume_stopped(time.monotonic())
            running = [m for m in self.members if not m.stopped_until]
            member = self.chance.choice([m for m in running if m.child.poll() is not None] or running)
            event = self.chance.choice(events) if member.child.poll() is None else self.ended_by_itself
            event(member)
            self.counts[event.__name__.replace("_", " ")] += 1

    def kill_all(self):
        """Kills all members at once; none shuts down."""
        for member in self.members:
            member.child.kill()
        for member in self.members:
            member.child.wait(TIMEOUT_S)

    def recover(self):
        """Everything to its end, the dead letters too."""
        timeout = ("--timeout", f"{TIMEOUT_S}s")
        self.relay(*timeout, timeout=TIMEOUT_S + 60)
        while True:  # each round brings the followers as far as the next poisoned one behind them
            for subscription in self.subscriptions:
                self.consume(subscription, *timeout, timeout=TIMEOUT_S + 60)
            self.accept_poison()
            if self.ok("--store", url_of(self.stock), "dlq", "count").strip() == "0":
                return
            self.ok("--store", url_of(self.stock), "dlq", "replay", "--all")

    # ---- proof -------------------------------------------------------------------------------

    def findings(self):
        found = [str(problem) for problem in self.problems()]
        files = (self.store, self.stock, self.broker, self.folder / "audit.db")
        for database in (thing for thing in files if isinstance(thing, Path)):
            for (result,) in ask(database, "PRAGMA integrity_check"):
                if result != "ok":
                    found.append(f"{database.name}: {result}")
        found += [f"{entry[0]} is a dead letter still" for entry in ask(
            self.stock, "SELECT event_id FROM semel_dead_letter WHERE status = 'PENDING'")]
        done = self.run("verify", "--consumer-store", url_of(self.stock), timeout=TIMEOUT_S)
        if done.returncode != 0:
            found.append(f"verify ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return found

    def sum(self):
        ((orders,),) = ask(self.store, "SELECT count(*) FROM orders")
        ((dead,),) = ask(self.stock, "SELECT count(*) FROM semel_dead_letter")
        repeats = self.repeats_at_the_broker()
        happened = ", ".join(f"{count} × {name}" for name, count in sorted(self.counts.items()))
        return f"{orders} events, {repeats} repeats at the broker, {dead} poisoned; {happened}"


def soak(folder, seconds, seed, program=PROGRAM):
    """What went wrong, and what happened."""
    shop = Soak(folder, seed, program)
    try:
        shop.inject_faults(seconds)
        shop.kill_all()
        shop.recover()
        return shop.findings(), shop.sum()
    finally:
        shop.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long load and faults last")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--folder", type=Path, help="a fresh folder to keep; else it is removed")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)
    if arguments.folder:
        arguments.folder.mkdir(parents=True)
        found, happened = soak(arguments.folder, arguments.seconds, arguments.seed)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found, happened = soak(Path(folder), arguments.seconds, arguments.seed)
    print(happened)
    for text in found:
        print(text)
    print("nothing lost, nothing doubled, no ghosts, order kept" if not found else f"{len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
