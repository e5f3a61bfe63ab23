# SPDX-License-Identifier: Apache-2.0
"""A test run leaves nothing running and no files, however it ends: interrupted, terminated, or killed."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helper import SCRIPTS

# A run of the test command with one stage. It leaves behind what is hard to find again: a process that sits
# elsewhere, in a session of its own, and one that forgot its environment.
RUN = """
import subprocess, sys
sys.path.insert(0, {scripts!r})
import run_tests

HIDE = "(cd / && exec setsid sleep 1000) & (cd $TMPDIR && mkdir hole && cd hole && exec env -i setsid sleep 1000) &"

def probe(stage):
    stage.command(["sh", "-c", HIDE + " sleep 0.2; echo there > {told}; {ending}"], 600)
    stage.run.processes.kill_all()

run_tests.STAGES = (("probe", probe, True, False, ""),)
sys.argv[1:] = []
sys.exit(run_tests.main())
"""


def family(mark):
    """Whoever works in the folder, or was told of it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            place, told = os.readlink(entry / "cwd"), (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and (place.startswith(str(mark)) or str(mark).encode() in told + command):
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition, what, timeout=60):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true"
        time.sleep(0.05)


@pytest.fixture
def home():
    """A temporary folder of the run's own, in which to look for what is left. Servers are other users and must
    come in, which they may not below pytest's."""
    path = Path(tempfile.mkdtemp(prefix="home-"))
    path.chmod(0o711)
    yield path
    for pid in family(path):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


def start(home, folder, words):
    return subprocess.Popen([str(word) for word in words], env={**os.environ, "TMPDIR": str(home)}, cwd=folder,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def is_gone_without_a_trace(home, child):
    child.wait(60)
    wait_until(lambda: not family(home), "the end of all its processes")
    wait_until(lambda: list(home.iterdir()) == [], "an empty folder")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(home, tmp_path, number):
    text = RUN.format(scripts=str(SCRIPTS), told=tmp_path / "told", ending="sleep 1000")
    child = start(home, tmp_path, [sys.executable, "-B", "-c", text])
    wait_until((tmp_path / "told").exists, "the stage at work")
    assert len(family(home)) > 3
    child.send_signal(number)
    is_gone_without_a_trace(home, child)


def test_a_run_that_ends_leaves_nothing(home, tmp_path):
    text = RUN.format(scripts=str(SCRIPTS), told=tmp_path / "told", ending="true")
    child = start(home, tmp_path, [sys.executable, "-B", "-c", text])
    is_gone_without_a_trace(home, child)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_who_started_them(home, tmp_path, number):
    servers = SCRIPTS.parent / "tests" / "support" / "servers.py"
    sys.path.insert(0, str(servers.parent))
    from servers import what_is_missing

    lacking = what_is_missing()
    if lacking:
        pytest.skip(lacking)
    words = [sys.executable, "-B", servers, "run", "--", "sh", "-c", f"touch {tmp_path / 'told'}; exec sleep 1000"]
    child = start(home, tmp_path, words)
    wait_until((tmp_path / "told").exists, "servers that answer", 300)
    assert len(family(home)) > 5
    child.send_signal(number)
    is_gone_without_a_trace(home, child)
