# SPDX-License-Identifier: Apache-2.0
"""What a script does on a machine that lacks something: root installs it, others are told the line."""
import os
import shutil
import subprocess

import pytest

from helper import SCRIPTS

# What every Debian has, so that a bare machine can be played.
ESSENTIAL = ("sh", "cat", "dirname", "mktemp", "rm", "ls")
LISTS = '"anything command anything\nstdio file /nowhere/stdio.h\nshell command sh"'


class Machine:
    """A folder that is the whole PATH, with an apt-get that only writes down how it was called."""

    def __init__(self, folder):
        self.folder, self.bin, self.log = folder, folder / "bin", folder / "apt.log"
        self.bin.mkdir()
        (folder / "scripts").mkdir()
        for name in ESSENTIAL:
            (self.bin / name).symlink_to(shutil.which(name))

    def program(self, name, text):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def user(self, number):
        self.program("id", f"echo {number}")

    def apt_get(self, text="exit 0"):
        self.program("apt-get", f'echo "$DEBIAN_FRONTEND $*" >>{self.log}\n{text}')

    def need(self, lists=LISTS):
        script = self.folder / "scripts" / "script"
        script.write_text(f'set -eu\n. {SCRIPTS}/lib.sh\nneed {lists}\necho "went on in $root"\n')
        environment = {"PATH": str(self.bin), "TMPDIR": os.environ.get("TMPDIR", "/tmp")}
        words = [self.bin / "sh", script]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)

    def calls(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_somebody_else_is_told_one_line_and_nothing_is_installed(machine):
    machine.user(1000)
    machine.apt_get()
    done = machine.need()
    assert done.returncode == 69 and done.stdout == ""
    assert "  apt-get install -y --no-install-recommends anything stdio\n" in done.stderr
    assert machine.calls() == []


def test_root_installs_what_is_missing_and_the_script_goes_on(machine):
    machine.user(0)
    machine.apt_get(f'[ "$1" = update ] || {{ : >{machine.bin}/anything; /bin/chmod +x {machine.bin}/anything; }}')
    done = machine.need('"anything command anything"')
    assert done.stdout == f"went on in {machine.folder}\n", done.stderr
    assert machine.calls() == [
        "noninteractive update",
        "noninteractive install -y --no-install-recommends anything",
    ]


def test_nothing_is_asked_of_apt_when_nothing_is_missing(machine):
    machine.user(0)
    machine.apt_get()
    assert machine.need('"shell command sh"').returncode == 0
    assert machine.calls() == []


def test_a_failing_installation_shows_what_apt_said(machine):
    machine.user(0)
    machine.apt_get("echo cannot resolve the mirror >&2; exit 100")
    done = machine.need()
    assert done.returncode == 69 and "cannot resolve the mirror" in done.stderr


def test_an_installation_that_does_not_help_is_told(machine):
    machine.user(0)
    machine.apt_get()
    done = machine.need()
    assert done.returncode == 70 and "still not found: anything stdio" in done.stderr


def test_a_machine_without_apt_is_told_the_names(machine):
    machine.user(0)
    done = machine.need()
    assert done.returncode == 69 and "anything stdio" in done.stderr
