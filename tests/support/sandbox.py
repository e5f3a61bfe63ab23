# SPDX-License-Identifier: Apache-2.0
"""A sandbox: one temporary folder in which the servers of a test run work, and which none of them outlives.

Whatever ends the run, also a kill -9 of it, a watcher outside its session then ends every process
that belongs to the sandbox (by folder or by mark, since servers leave sessions and rename themselves)
and removes the folder."""
import atexit
import ctypes
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MARK = "SEMEL_TEST_SANDBOX"
START_S = 300  # for a server to start or to end: every worker of a run may have its own, and all start at once
LIBC = ctypes.CDLL(None)
STOPPED = set("TZX")  # states of a thread that does nothing until it gets SIGCONT, or ever


class Missing(Exception):
    """A server is not installed on this machine; the text is the reason."""


def wait_until(condition, timeout, what):
    """Polls until the answer is true, and returns it."""
    until = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come true within {timeout} s")
        time.sleep(0.05)


def free_port(kept=[]):  # noqa: B006: one list for the process, on purpose
    """Below the range that the system gives to clients: else a client that connects to a server's port
    while it restarts may be given that very port, and connect to itself. As long as this process runs the
    port is given to no other process of a test run, which would choose it while nothing listens there: a
    name among the system's abstract sockets reserves it."""
    while True:
        port = random.randrange(10000, 32000)
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0semel-test-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
        except OSError:
            claim.close()
            continue
        kept.append(claim)
        return port


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    except OSError:
        return False


def identity(user):
    """How a child becomes that user (none: stays as we are); nothing to do when we are not root."""
    if not user or os.getuid() != 0:
        return {}
    try:
        entry = pwd.getpwnam(user)
    except KeyError as unknown:
        raise Missing(f"there is no user {user} here") from unknown
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


# ---- processes --------------------------------------------------------------------------------


def all_processes():
    """{pid: its parent}"""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                found[int(entry.name)] = int(fields[1])
    return found


def process_tree(pid):
    """A process and all its descendants, parents first."""
    parents = all_processes()
    found = [pid] if pid in parents else []
    for member in found:
        found += [child for child, parent in parents.items() if parent == member]
    return found


def alive(pids):
    """Those of them that still run."""
    return [pid for pid in pids if pid in all_processes()]


def state_of(stat):
    try:
        return stat.read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return "X"  # it ended meanwhile


def suspend(pid):
    """SIGSTOP, and back when every thread has stopped: until then each may still take a lock."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: {state_of(stat) for stat in Path(f"/proc/{pid}/task").glob("*/stat")} <= STOPPED, 20,
               f"process {pid} stopped")


def members_of(folder):
    """Processes of a sandbox: at work in its folder, named after it, or marked with it."""
    text, found = str(folder), []
    for pid in all_processes():
        try:
            place = os.readlink(f"/proc/{pid}/cwd")
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
            marks = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        inside = place == text or place.startswith(text + "/")
        named = any(word.startswith(text + "/") for word in command)
        if inside or named or f"{MARK}={text}".encode() in marks:
            found.append(pid)
    return [pid for pid in found if pid != os.getpid()]


def kill_all(pids, number=signal.SIGKILL):
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def clear(folder, spared=()):
    """Ends everything in the sandbox, then the sandbox."""
    for _ in range(100):
        left = [pid for pid in members_of(folder) if pid not in spared]
        if not left:
            break
        kill_all(left)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


# ---- the sandbox ---------------------------------------------------------------------------------


class Sandbox:
    """Use it with `with`. Not for threads: children get their signal when the thread that started them ends."""

    def __init__(self, parent=None):
        self.folder = Path(tempfile.mkdtemp(prefix="semel-sandbox-", dir=parent))
        self.folder.chmod(0o711)
        self.things, self.owner = [], os.getpid()
        self.watcher, self.write_end = self.start_watcher()
        atexit.register(self.close)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def start_watcher(self):
        """It reads the end of the pipe when this process has ended, however it ended."""
        read_end, write_end = os.pipe()
        words = [sys.executable, "-B", __file__, str(self.folder), str(read_end)]
        watcher = subprocess.Popen(words, pass_fds=[read_end], start_new_session=True, cwd="/",
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        os.close(read_end)
        return watcher, write_end

    def keep(self, thing):
        """What is closed with the sandbox, last first."""
        self.things.append(thing)
        return thing

    def make_folder(self, name, user=None):
        """A folder of a server's own."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        who = identity(user)
        if who:
            os.chown(path, who["user"], who["group"])
        return path

    def environment(self, extra=None):
        plain = {key: os.environ[key] for key in ("PATH", "LANG", "TZ") if key in os.environ}
        return {"LC_ALL": "C.UTF-8", **plain, MARK: str(self.folder), **(extra or {})}

    def start(self, words, user, log, environment=None, end=signal.SIGKILL, **options):
        """A server in the background. It gets the signal when this thread ends."""
        def set_death_signal():
            pr_set_pdeathsig = 1
            LIBC.prctl(pr_set_pdeathsig, int(end), 0, 0, 0)
        with open(log, "ab") as output:
            return subprocess.Popen(
                [str(word) for word in words], env=self.environment(environment), stdout=output, stderr=output,
                stdin=options.pop("stdin", subprocess.DEVNULL), start_new_session=True,
                cwd=options.pop("cwd", self.folder), preexec_fn=set_death_signal, **identity(user), **options)

    def run(self, words, user, environment=None, timeout=START_S, **options):
        """A helper to its end; returns what it printed."""
        done = subprocess.run(
            [str(word) for word in words], env=self.environment(environment), timeout=timeout, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            cwd=options.pop("cwd", self.folder), **identity(user), **options)
        if done.returncode != 0:
            raise RuntimeError(f"{words[0]} ended with {done.returncode}\n{done.stdout}")
        return done.stdout

    def close(self):
        if os.getpid() != self.owner or not self.folder.exists():
            return
        while self.things:
            self.things.pop().close()
        clear(self.folder, spared=(self.watcher.pid,))
        os.close(self.write_end)
        self.watcher.wait()
        atexit.unregister(self.close)


def watch():
    folder, read_end = sys.argv[1], int(sys.argv[2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.read(read_end, 1)
    clear(folder)


if __name__ == "__main__":
    watch()
