# SPDX-License-Identifier: Apache-2.0
"""What the tests of the built program share: the program in a folder of its own, and time-outs."""
import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import mix
from sandbox import suspend

TREE = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("SEMEL_BIN", TREE / "build" / "semel")).absolute()


DRAIN = ("--timeout", "120s")  # unless a test gives another one: a slow machine is no failure


def wait_for(condition, timeout=60.0, what="the condition"):
    """Polls until the answer is true, and returns it."""
    until = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        assert time.monotonic() < until, f"{what} did not come true within {timeout} s"
        time.sleep(0.02)


def handles_signal(pid, number):
    """Has the program a handler for this signal? Just after its start it has none yet."""
    if number == signal.SIGKILL:
        return True
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return int(line.split()[1], 16) >> (number - 1) & 1
    return False


PIPE_BYTES = 1 << 20  # what the system lets every user have


def enlarge_pipe(stream):
    """So that a program that writes much does not wait for a test that reads it later, or never."""
    try:
        if stream:
            fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except PermissionError:
        pass  # a user other than root has so much for all pipes together


def kill_group(child):
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def rest_of(stream):
    """What is left in a pipe, without waiting until every process has closed it."""
    if not stream or stream.closed:
        return ""
    os.set_blocking(stream.fileno(), False)
    try:
        return os.read(stream.fileno(), 65536).decode(errors="replace")[-2000:]
    except BlockingIOError:
        return ""


def end_of(path):
    return f"{path.name}\n{path.read_text(errors='replace')[-4000:]}"


def is_free(path):
    """Could another process write to this file now? The local broker's writers also queue at a file beside it."""
    turn = Path(f"{path}-turn")
    if turn.exists():
        with open(turn) as queue:
            try:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
    connection = sqlite3.connect(path, timeout=0.2, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return False
    finally:
        connection.close()
    return True


class Semel:
    """The program at work in one fresh folder, with a store and a broker of its own: files there,
    or what the mix has instead."""

    def __init__(self, folder, program=PROGRAM, tables=False):
        """tables: with those that `init` makes."""
        self.folder, self.program = Path(folder), program
        self.backend, self.children = mix.Backend(folder, program if tables else None), []
        self.store = self.backend.store
        self.broker = self.backend.broker.path if mix.BROKER == "local" else self.backend.broker
        if tables and not self.backend.tables_are_there:
            self.ok("init")

    def environment(self, extra=None):
        mine = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
        return {**mine, **self.backend.environment(), **(extra or {})}

    def words(self, words):
        """As they are given to the program."""
        timeout = DRAIN if "--drain" in words and "--timeout" not in words else ()
        return self.backend.words((*words, *timeout))

    def run(self, *words, check=False, env=None, timeout=180, **options):
        """One run to its end. Words may be bytes; output is text unless text=False."""
        options.setdefault("text", True)
        if "stdin" not in options and "input" not in options:
            options["stdin"] = subprocess.DEVNULL
        done = subprocess.run(
            [self.program, *self.words(words)], cwd=self.folder, env=self.environment(env), timeout=timeout, check=False,
            stdout=options.pop("stdout", subprocess.PIPE), stderr=options.pop("stderr", subprocess.PIPE), **options,
        )
        if check:
            assert done.returncode == 0, f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def ok(self, *words, **options):
        """Standard output of a run that must succeed."""
        return self.run(*words, check=True, **options).stdout

    def json(self, *words, **options):
        return json.loads(self.ok(*words, "--json", **options))

    def fails(self, code, *words, **options):
        """The error message of a run that must end with this code and print one line."""
        done = self.run(*words, **options)
        assert done.returncode == code, f"{words} ended with {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        lines = [line for line in done.stderr.splitlines() if line.startswith("semel: ")]
        assert len(lines) == 1, done.stderr
        return lines[0].removeprefix("semel: ")

    def drain_times_out(self, *words, expected, **options):
        """The error message of a drain that cannot end, with all of these texts. Until it has them, the drain runs again
        with a longer time-out."""
        for seconds in (1, 4, 16, 64):
            complaint = self.fails(75, *words, "--drain", "--timeout", f"{seconds}s", **options)
            if all(text in complaint for text in expected):
                return complaint
        raise AssertionError(f"{expected} is not in: {complaint}")

    def publish(self, *words, type="order.created.v1", aggregate="order:1", **options):
        """The id of a published event."""
        return self.ok("publish", "--type", type, "--aggregate", aggregate, *words, **options).strip()

    def sql(self, statement, *parameters, database=None):
        connection = mix.connect(database or self.store, timeout=30)
        try:
            rows = list(connection.execute(statement, parameters).fetchall())
            connection.commit()
            return rows
        finally:
            connection.close()

    def subscribe(self, *scopes, topic="order.events"):
        """Before anything is published: not every broker retains events for later subscribers."""
        if self.backend.broker.retains:
            return
        wanted = [{"scope": scope, "topics": [topic], "exec": "true"} for scope in scopes]
        config = self.folder / ".topology.yaml"
        config.write_text(json.dumps({"subscriptions": wanted}))
        wait_for(lambda: self.is_applied(config), what="the topology")

    def is_applied(self, config):
        """False if RabbitMQ failed itself: while other tests create and delete virtual hosts, it may abort the transactions of
        its database (Mnesia: cyclic), and then it closes the connection of whoever declares a queue."""
        done = self.run("--config", str(config), "topology", "apply")
        failed_itself = done.returncode == 69 and "closed the connection: INTERNAL_ERROR" in done.stderr
        assert done.returncode == 0 or failed_itself, done.stderr
        return not failed_itself

    def broker_is_untouched(self):
        """Nothing was created there; of a server that is unknown, since other tests use it."""
        return not isinstance(self.broker, Path) or not self.broker.exists()

    def spawn(self, *words, env=None, **options):
        """A run in the background; whatever is left of it is killed when the test ends."""
        child = subprocess.Popen(
            [self.program, *self.words(words)], cwd=self.folder, env=self.environment(env), start_new_session=True,
            stdin=options.pop("stdin", subprocess.DEVNULL), stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE), text=True, **options,
        )
        enlarge_pipe(child.stderr)
        self.children.append(child)
        return child

    def stop(self, child, number=signal.SIGTERM, timeout=60):
        """Sends the signal and returns the exit code."""
        wait_for(lambda: child.poll() is not None or handles_signal(child.pid, number), what="a program that handles signals")
        child.send_signal(number)
        return child.wait(timeout)

    def freeze(self, child):
        """Stops the child (SIGSTOP) where it holds no lock: in the middle of a commit it would keep
        the file locked."""
        wait_for(lambda: self._frozen_without_a_lock(child), what="a moment without a lock")

    def _frozen_without_a_lock(self, child):
        suspend(child.pid)
        files = [path for path in (self.store, self.broker) if isinstance(path, Path)]
        if all(map(is_free, files)) and mix.is_idle(self.store):
            return True
        child.send_signal(signal.SIGCONT)
        return False

    def outputs(self):
        """What the children printed on stderr, or to a log file of their own, for the report of a failed test; it
        kills them."""
        logs = []
        for child in self.children:
            ended = child.poll()
            kill_group(child)
            logs.append(f"{' '.join(map(str, child.args[1:]))} ({'at work' if ended is None else ended})\n{rest_of(child.stderr)}")
        return "\n".join([*logs, *map(end_of, sorted(self.folder.glob("*log")))])

    def close(self):
        for child in self.children:
            kill_group(child)
            for stream in (child.stdin, child.stdout, child.stderr):
                if stream:
                    stream.close()
        self.backend.close()
