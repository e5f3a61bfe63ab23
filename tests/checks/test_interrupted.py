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

# A run of the test command with one stage. It leaves behind what is hard to find again: a process in
# another folder, in a session of its own, and one with an empty environment.
RUN = """
import subprocess, sys
sys.path.insert(0, {scripts!r})
import run_tests

HIDE = "(cd / && exec setsid sleep 1000) & (cd $TMPDIR && mkdir hole && cd hole && exec env -i setsid sleep 1000) &"

def probe(stage):
    stage.command(["sh", "-c", HIDE + " sleep 0.2; echo there > {started}; {ending}"], 600)
    stage.run.processes.kill_all()

run_tests.STAGES = (("probe", probe, True, False, ""),)
sys.argv[1:] = []
sys.exit(run_tests.main())
"""


def processes_of(folder):
    """Processes that work in the folder, or have it in their environment or command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            directory, environment = os.readlink(entry / "cwd"), (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and (directory.startswith(str(folder)) or str(folder).encode() in environment + command):
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def wait_until(condition, what, timeout=60):
    until = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < until, f"{what} did not come true"
        time.sleep(0.05)


@pytest.fixture
def run_folder():
    """A temporary folder of the run's own, which must be empty afterwards. Servers run as other users and need
    access, which they do not have below pytest's."""
    path = Path(tempfile.mkdtemp(prefix="run-"))
    path.chmod(0o711)
    yield path
    for pid in processes_of(path):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


def start(run_folder, folder, words):
    return subprocess.Popen([str(word) for word in words], env={**os.environ, "TMPDIR": str(run_folder)}, cwd=folder,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def check_nothing_is_left(run_folder, child):
    child.wait(60)
    wait_until(lambda: not processes_of(run_folder), "the end of all its processes")
    wait_until(lambda: list(run_folder.iterdir()) == [], "an empty folder")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_run_leaves_nothing(run_folder, tmp_path, number):
    text = RUN.format(scripts=str(SCRIPTS), started=tmp_path / "started", ending="sleep 1000")
    child = start(run_folder, tmp_path, [sys.executable, "-B", "-c", text])
    wait_until((tmp_path / "started").exists, "the stage at work")
    assert len(processes_of(run_folder)) > 3
    child.send_signal(number)
    check_nothing_is_left(run_folder, child)


def test_a_run_that_ends_leaves_nothing(run_folder, tmp_path):
    text = RUN.format(scripts=str(SCRIPTS), started=tmp_path / "started", ending="true")
    child = start(run_folder, tmp_path, [sys.executable, "-B", "-c", text])
    check_nothing_is_left(run_folder, child)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_process_that_started_them(run_folder, tmp_path, number):
    servers = SCRIPTS.parent / "tests" / "support" / "servers.py"
    sys.path.insert(0, str(servers.parent))
    from servers import what_is_missing

    lacking = what_is_missing()
    if lacking:
        pytest.skip(lacking)
    words = [sys.executable, "-B", servers, "run", "--", "sh", "-c", f"touch {tmp_path / 'started'}; exec sleep 1000"]
    child = start(run_folder, tmp_path, words)
    wait_until((tmp_path / "started").exists, "servers that answer", 300)
    assert len(processes_of(run_folder)) > 5
    child.send_signal(number)
    check_nothing_is_left(run_folder, child)
