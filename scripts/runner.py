# SPDX-License-Identifier: Apache-2.0
"""How the test command runs what it runs: commands with a time limit, counted results, servers that all stages
share, and the guarantee that nothing is left behind.

Everything is written below one temporary folder, which goes with the run however that ends. It is in memory where
there is enough of it: databases and brokers wait for the disk at every commit, and what the tests promise is about
processes that die, not about machines.
"""
import concurrent.futures
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import servers  # noqa: E402
from sandbox import MARK, Sandbox, members_of  # noqa: E402

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
STAGE_MARK = "RUN_TESTS_STAGE"  # in the environment of whatever a stage starts
MEMORY = Path("/dev/shm")
MEMORY_MIN = 8 << 30  # bytes that have to be free, in the file system and in the machine


class Interrupted(Exception):
    """The run ends: no further command is started."""


def say(text, lock=threading.Lock()):  # noqa: B008: one lock for the process, on purpose
    with lock:
        print(text, flush=True)


def tail(text, lines=80):
    return "\n".join(text.rstrip().splitlines()[-lines:])


class Counts:
    """Counted results. Failures are printed where they happen, skipped tests again at the end. What a stage
    counts counts for the run, too."""

    def __init__(self, parent=None):
        self.by_outcome = {PASSED: 0, FAILED: 0, SKIPPED: 0}
        self.failures, self.skips, self.parent = [], [], parent
        self.lock = threading.Lock()

    def add(self, name, outcome, detail=""):
        if outcome == FAILED and not self.parent:
            indented = "\n    " + detail.rstrip().replace("\n", "\n    ") if detail else ""
            say(f"  FAILED {name}{indented}")
        with self.lock:
            self.by_outcome[outcome] += 1
            if outcome == FAILED:
                self.failures.append(name)
            elif outcome == SKIPPED:
                self.skips.append(f"{name}: {detail or 'no reason given'}")
        if self.parent:
            self.parent.add(name, outcome, detail)

    def line(self):
        return ", ".join(f"{self.by_outcome[key]} {key}" for key in (PASSED, FAILED, SKIPPED))


class Processes:
    """Children run in sessions of their own, and orphans get this process as their parent: so all can be ended."""

    def __init__(self):
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
        self.spared = set()  # outlive the run's stages

    def descendants(self):
        """Running processes below this one: {pid: command line}."""
        parents, commands = {}, {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (OSError, IndexError):
                continue
            if fields[0] not in "ZX" and int(entry.name) not in self.spared:
                parents[int(entry.name)] = int(fields[1])
                commands[int(entry.name)] = command.strip()
        found, wave = {}, {os.getpid()}
        while wave:
            wave = {pid for pid, parent in parents.items() if parent in wave and pid not in found}
            found.update({pid: commands[pid] for pid in wave})
        return found

    def left_over(self, stage, timeout_s=20.0):
        """What a stage has left running, after some time to end by itself."""
        until = time.monotonic() + timeout_s
        while True:
            left = {pid: command for pid, command in self.descendants().items() if has_mark(pid, stage)}
            if not left or time.monotonic() > until:
                return left
            time.sleep(0.05)

    def kill_all(self):
        for _ in range(20):
            left = self.descendants()
            if not left:
                break
            end(left)
            time.sleep(0.05)

    def end_all(self):
        """Reaps orphans, too, which no other process waits for; no stage may be running any more."""
        self.kill_all()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def has_mark(pid, stage):
    try:
        return f"{STAGE_MARK}={stage}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def end(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def in_memory():
    """The folder in memory for what is temporary; None: there is too little, or the caller has chosen a folder."""
    if os.environ.get("TMPDIR") or not MEMORY.is_dir():
        return None
    options = os.statvfs(MEMORY)
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    free = min(shutil.disk_usage(MEMORY).free, int(meminfo["MemAvailable"].split()[0]) * 1024)
    usable = free >= MEMORY_MIN and not options.f_flag & os.ST_NOEXEC and os.access(MEMORY, os.W_OK)
    return MEMORY if usable else None


class SharedServers:
    """PostgreSQL, RabbitMQ and Kafka for all stages. They are started once, when the first stage asks for them; tests
    make databases, virtual hosts and topics of their own there."""

    def __init__(self, run):
        self.run, self.lock = run, threading.Lock()
        self.lacking = {}
        self.sandbox, self.variables = None, None
        # A server is ended with the thread that has started it, so that one has to last.
        self.thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)

    def missing(self, kind):
        """Empty, or what has to be installed for this kind."""
        with self.lock:
            if kind not in self.lacking:
                self.lacking[kind] = servers.what_is_missing([kind])
            return self.lacking[kind]

    def environment(self):
        """How a test finds those that are there; Kafka is a mock cluster where it cannot be had."""
        kinds = [kind for kind in servers.KINDS if not self.missing(kind)]
        if self.missing("kafka") and not self.missing(servers.MOCK):
            kinds.append(servers.MOCK)
        with self.lock:
            if self.variables is None:
                self.variables = self.thread.submit(self.start, kinds).result()
            return self.variables

    def start(self, kinds):
        self.sandbox = Sandbox(self.run.temporary)
        self.run.processes.spared.add(self.sandbox.watcher.pid)
        return servers.Servers(self.sandbox, kinds).environment()

    def close(self):
        if self.sandbox:
            self.sandbox.close()
        self.thread.shutdown()


class Run:
    """One run of the test command: its counts, the temporary folder, the servers."""

    def __init__(self, quick=False):
        self.quick = quick
        self.counts, self.durations = Counts(), []
        self.processes = Processes()
        self.sandbox = Sandbox(in_memory())  # its watcher clears up after us, also when we are killed
        self.processes.spared.add(self.sandbox.watcher.pid)
        self.temporary = self.sandbox.folder
        self.servers = SharedServers(self)
        self.ending = threading.Event()
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SEMEL", "CMOCKA", "PYTEST", "PYTHON"))
        }
        self.environment.update(
            TMPDIR=str(self.temporary),
            PYTHONPYCACHEPREFIX=str(ROOT / "build-test" / "pycache"),  # pytest's rewritten modules: most of what a worker's start costs
            SEMEL_TREE=str(ROOT),
            LC_ALL="C.UTF-8",
            **{MARK: str(self.temporary)},
        )

    def check_left_over(self, timeout_s=20.0):
        """After the last stage: only the servers may be there."""
        until = time.monotonic() + timeout_s
        while True:
            ours = set(members_of(self.servers.sandbox.folder)) if self.servers.sandbox else set()
            left = {pid: command for pid, command in self.processes.descendants().items() if pid not in ours}
            if not left or time.monotonic() > until:
                break
            time.sleep(0.05)
        if left:
            self.counts.add("the run leaves nothing running", FAILED, "\n".join(left.values()))

    def close(self):
        self.ending.set()
        self.processes.end_all()
        self.servers.close()
        self.sandbox.close()


class Stage:
    """A stage of the run at work: it calls commands and counts what they find, and may do so from several threads."""

    def __init__(self, run, name):
        self.run, self.name, self.quick = run, name, run.quick
        self.counts = Counts(run.counts)
        self.temporary, self.servers = run.temporary, run.servers
        self.environment = {**run.environment, STAGE_MARK: name}
        self.lock, self.used_s = threading.Lock(), 0.0

    def command(self, words, timeout_s, extra=None):
        """Returns (exit code, output). The code is None when the time ran out."""
        if self.run.ending.is_set():
            raise Interrupted
        environment = dict(self.environment, **(extra or {}))
        with tempfile.TemporaryFile(dir=self.temporary) as log:
            try:
                child = subprocess.Popen(
                    [str(word) for word in words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )
            except OSError as problem:
                return 127, str(problem)
            code = self.wait(child, timeout_s)
            log.seek(0)
            return code, log.read().decode(errors="replace")

    def wait(self, child, timeout_s):
        """The exit code of a child, which is killed when its time-out is over; counts its processor time, and that of
        the children that it has waited for."""
        until, in_time = time.monotonic() + timeout_s, True
        while True:
            pid, status, used = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > until and in_time:
                os.killpg(child.pid, signal.SIGKILL)
                in_time = False
            time.sleep(0.01)
        child.returncode = os.waitstatus_to_exitcode(status)
        with self.lock:
            self.used_s += used.ru_utime + used.ru_stime
        if self.run.ending.is_set():
            raise Interrupted
        return child.returncode if in_time else None

    def check(self, name, words, timeout_s=300, extra=None):
        """A command that is one test: exit code 0 is a pass."""
        code, output = self.command(words, timeout_s, extra)
        if code is None:
            output += f"\nnot finished after {timeout_s} s"
        self.counts.add(name, PASSED if code == 0 else FAILED, tail(output))
        return code == 0

    def at_once(self, functions, workers=None):
        """Calls all of them, several at a time."""
        with concurrent.futures.ThreadPoolExecutor(max_workers=workers or len(functions)) as pool:
            for done in [pool.submit(function) for function in functions]:
                done.result()

    def end(self):
        """What is still running is ended, and counts against the stage."""
        left = self.run.processes.left_over(self.name)
        if left:
            self.counts.add(f"{self.name} leaves nothing running", FAILED, "\n".join(left.values()))
            end(left)
