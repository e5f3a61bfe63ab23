# SPDX-License-Identifier: Apache-2.0
"""What a script does on a machine that lacks something: root installs it, other users get the command."""
import os
import shutil
import subprocess

import pytest

from helper import SCRIPTS

# What every Debian has, to simulate a bare machine.
ESSENTIAL = ("sh", "cat", "dirname", "mktemp", "rm", "ls")
LISTS = '"anything command anything\nstdio file /nowhere/stdio.h\nshell command sh"'


class Machine:
    """A folder that is the whole PATH, with an apt-get that only logs its arguments."""

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


def test_another_user_gets_the_command_and_nothing_is_installed(machine):
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
        "noninteractive install -y --no-install-recommends anything -o DPkg::Lock::Timeout=300",
    ]


def test_nothing_is_asked_of_apt_when_nothing_is_missing(machine):
    machine.user(0)
    machine.apt_get()
    assert machine.need('"shell command sh"').returncode == 0
    assert machine.calls() == []


def test_a_failing_installation_shows_the_output_of_apt(machine):
    machine.user(0)
    machine.apt_get("echo cannot resolve the mirror >&2; exit 100")
    done = machine.need()
    assert done.returncode == 69 and "cannot resolve the mirror" in done.stderr


def test_an_installation_that_does_not_help_is_reported(machine):
    machine.user(0)
    machine.apt_get()
    done = machine.need()
    assert done.returncode == 70 and "still not found: anything stdio" in done.stderr


# ---- servers are installed, never started ------------------------------------------------------


WANT = """set -eu
. {scripts}/lib.sh
packages_servers='postgres command postgres'
want_servers
echo went on
"""


class ServerMachine(Machine):
    """Its system is a folder, and installing starts, enables and creates what it may."""

    def __init__(self, folder):
        super().__init__(folder)
        self.system = folder / "system"
        for name in ("etc/systemd/system/multi-user.target.wants", "etc/rc3.d", "usr/sbin"):
            (self.system / name).mkdir(parents=True)
        (self.system / "etc/systemd/system/multi-user.target.wants/ours.service").symlink_to("/dev/null")
        for name in ("find", "sort", "grep", "cp", "mkdir", "chmod", "rmdir"):
            (self.bin / name).symlink_to(shutil.which(name))

    def package(self, ending="exit 0"):
        """What a server's package does when it is installed."""
        self.apt_get(f"""[ "$1" = install ] || exit 0
{self.system}/usr/sbin/policy-rc.d; echo "policy says $?" >>{self.log}
cat {self.system}/etc/postgresql-common/createcluster.d/* >>{self.log}
: >{self.system}/etc/rc3.d/target; /bin/ln -s target {self.system}/etc/rc3.d/S01rabbitmq
/bin/ln -s /dev/null {self.system}/etc/systemd/system/multi-user.target.wants/postgresql.service
{ending}""")

    def want(self):
        script = self.folder / "scripts" / "script"
        script.write_text(WANT.format(scripts=SCRIPTS))
        environment = {"PATH": str(self.bin), "TMPDIR": os.environ.get("TMPDIR", "/tmp"), "SEMEL_SYSTEM": str(self.system)}
        words = [self.bin / "sh", script]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)

    def links(self):
        return sorted(path.name for path in self.system.rglob("*") if path.is_symlink())


@pytest.fixture
def server_machine(tmp_path):
    machine = ServerMachine(tmp_path)
    machine.user(0)
    machine.package()
    return machine


def test_servers_are_installed_without_being_started_enabled_or_given_a_cluster(server_machine):
    done = server_machine.want()
    assert done.stdout == "went on\n", done.stderr
    calls = server_machine.calls()
    assert "noninteractive install -y --no-install-recommends postgres -o DPkg::Lock::Timeout=300" in calls
    assert "policy says 101" in calls and "create_main_cluster = false" in calls
    assert server_machine.links() == ["ours.service"]
    assert not (server_machine.system / "usr/sbin/policy-rc.d").exists()
    assert not (server_machine.system / "etc/postgresql-common/createcluster.d").exists()


@pytest.mark.parametrize("ending", ["exit 0", "exit 100", "kill -TERM $PPID; exit 1"])
def test_the_policy_that_was_there_is_there_again_however_it_ends(server_machine, ending):
    server_machine.package(ending)
    policy = server_machine.system / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 0\n")
    policy.chmod(0o750)
    mine = server_machine.system / "etc/postgresql-common/createcluster.d/mine.conf"
    mine.parent.mkdir(parents=True)
    mine.write_text("ssl = on\n")
    server_machine.want()
    assert "policy says 101" in server_machine.calls()
    assert policy.read_text() == "#!/bin/sh\nexit 0\n" and policy.stat().st_mode & 0o777 == 0o750
    assert [path.name for path in mine.parent.iterdir()] == ["mine.conf"]
    assert server_machine.links() == ["ours.service"]


def test_a_user_who_may_not_install_servers_gets_the_command_and_the_rest_goes_on(server_machine):
    server_machine.user(1000)
    done = server_machine.want()
    assert done.stdout == "went on\n"
    assert "  apt-get install -y --no-install-recommends postgres\n" in done.stderr
    assert server_machine.calls() == []


def test_a_failing_installation_of_servers_leaves_them_out(server_machine):
    server_machine.package("echo no mirror >&2; exit 100")
    done = server_machine.want()
    assert done.stdout == "went on\n" and "no mirror" in done.stderr and "left out" in done.stderr


def test_without_apt_the_package_names_are_printed(machine):
    machine.user(0)
    done = machine.need()
    assert done.returncode == 69 and "anything stdio" in done.stderr
