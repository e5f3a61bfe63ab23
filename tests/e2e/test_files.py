# SPDX-License-Identifier: Apache-2.0
"""What other users of the machine can do with the files of SQLite and the local broker: nothing, unless the URL shares
them with a group. The other user is `nobody`, so most of these tests need root."""
import contextlib
import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from program import Semel, wait_for

pytestmark = [pytest.mark.only("sqlite"), pytest.mark.only("local")]
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="files: only root can run processes as another user")
SQL = ("--sql", "SELECT 1")


@contextlib.contextmanager
def folder_of_mode(mode):
    """A folder that other users can reach, which those of pytest are not."""
    path = Path(tempfile.mkdtemp(prefix="semel-files-", dir="/tmp"))
    path.chmod(mode)
    semel = Semel(path)
    try:
        yield semel
    finally:
        semel.close()
        shutil.rmtree(path)


def deliver(semel, *more, env=None, **options):
    semel.publish(env=env, **options)
    semel.ok("relay", "--drain", env=env, **options)
    semel.ok("consume", "--scope", "billing", "--topic", "order.events", *SQL, "--drain", *more, env=env, **options)


def modes(folder):
    return {path.name: stat.S_IMODE(path.lstat().st_mode) for path in folder.iterdir() if ".db" in path.name}


def findings(semel, check, env=None):
    report = json.loads(semel.run("doctor", "--json", env=env).stdout)
    return [finding for finding in report["findings"] if finding["check"] == check]


def checkpoint(path):
    """Moves the log into the database, and removes the files beside it."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
    connection.close()
    for beside in path.parent.glob(f"{path.name}-*"):
        beside.unlink()


def chown_to_nobody(path):
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)


def run_as_nobody(code, *words):
    """The output of a program of another user."""
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], user=NOBODY, group=NOBODY, extra_groups=[],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_every_file_that_is_made_is_its_owners_alone(bare, umask):
    bare.ok("init", umask=umask)
    deliver(bare, umask=umask)
    bare.ok("prune", umask=umask)
    made = modes(bare.folder)
    assert {name.partition(".db")[2] for name in made} == {"", "-wal", "-shm", "-turn"}
    assert set(made.values()) == {0o600}, made


@pytest.mark.parametrize("umask", [0o000, 0o077], ids=oct)
def test_the_url_shares_every_file_with_the_group(bare, umask):
    env = {"SEMEL_STORE": "sqlite:semel.db?mode=0660", "SEMEL_BROKER": "local:broker.db?mode=0660"}
    bare.ok("init", env=env, umask=umask)
    deliver(bare, env=env, umask=umask)
    assert set(modes(bare.folder).values()) == {0o660}
    for wrong in ("0666", "660", "rw", ""):
        assert "0660" in bare.fails(78, "--store", f"sqlite:other.db?mode={wrong}", "init")
    assert not (bare.folder / "other.db").exists()


def test_the_applications_file_keeps_its_mode_and_doctor_reports_who_may_read_it():
    with folder_of_mode(0o755) as semel:
        semel.store.touch()
        semel.store.chmod(0o644)
        semel.ok("init")
        deliver(semel)
        made = modes(semel.folder)
        assert {made[name] for name in made if name.startswith(semel.store.name)} == {0o644}
        assert {made[name] for name in made if name.startswith(semel.broker.name)} == {0o600}
        (found,) = findings(semel, "store-files")
        assert found["gravity"] == "advice" and f"chmod o-rwx {semel.store}" in found["do"]
        semel.store.chmod(0o666)
        assert findings(semel, "store-files")[0]["gravity"] == "problem"
        semel.store.chmod(0o644)
        subprocess.run(found["do"], shell=True, check=True)
        assert findings(semel, "store-files")[0]["gravity"] == "fine"
        shared = {"SEMEL_STORE": f"sqlite:{semel.store}?mode=0660"}
        (found,) = findings(semel, "store-files", env=shared)
        assert found["gravity"] == "advice" and "0640" in found["text"]
        subprocess.run(found["do"], shell=True, check=True)
        assert findings(semel, "store-files", env=shared)[0]["gravity"] == "fine"


OPEN_ALL = """
import fcntl, sys
for name in sys.argv[1:]:
    try:
        fcntl.flock(open(name), fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("held", name)
    except PermissionError:
        pass
"""


@as_root
def test_another_user_can_open_none_of_the_files_and_an_older_lock_file_is_repaired():
    with folder_of_mode(0o755) as semel:
        semel.ok("init")
        turn = semel.folder / f"{semel.broker.name}-turn"
        turn.touch()
        turn.chmod(0o644)
        deliver(semel)
        files = [path for path in semel.folder.iterdir() if ".db" in path.name]
        assert turn in files and run_as_nobody(OPEN_ALL, *files) == ("", "")


@as_root
def test_two_users_of_one_group_share_the_files():
    with folder_of_mode(0o2770) as semel:
        os.chown(semel.folder, 0, NOBODY)
        semel.program = shutil.copy(semel.program, semel.folder / "program")
        env = {"SEMEL_STORE": f"sqlite:{semel.store}?mode=0660", "SEMEL_BROKER": f"local:{semel.broker}?mode=0660"}
        application = {"user": 65001, "group": 65001, "extra_groups": [NOBODY]}
        semel.ok("init", env=env, **application)
        deliver(semel, env=env, user=65002, group=65002, extra_groups=[NOBODY])
        deliver(semel, env=env, **application)
        deliver(semel, env=env)
        assert set(modes(semel.folder).values()) == {0o660}


@as_root
def test_what_root_makes_beside_a_file_belongs_to_the_files_owner():
    with folder_of_mode(0o755) as semel:
        semel.program = shutil.copy(semel.program, semel.folder / "program")
        chown_to_nobody(semel.folder)
        other = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        semel.ok("init", **other)
        deliver(semel, **other)
        checkpoint(semel.store)
        checkpoint(semel.broker)
        deliver(semel)
        assert {path.stat().st_uid for path in semel.folder.iterdir() if ".db" in path.name} == {NOBODY}
        deliver(semel, **other)


# ---- files that another user has put there -----------------------------------------------------


@as_root
def test_a_planted_lock_file_is_not_used_and_delivery_goes_on():
    with folder_of_mode(0o1777) as semel:
        semel.ok("init")
        turn, mine = semel.folder / f"{semel.broker.name}-turn", semel.folder / "mine"
        mine.write_text("mine")
        mine.chmod(0o644)
        turn.symlink_to(mine)
        deliver(semel)
        texts = [found["text"] for found in findings(semel, "broker-files") if found["gravity"] == "problem"]
        assert any(f"{turn}" in text for text in texts), texts
        turn.unlink()
        turn.symlink_to(semel.folder / "elsewhere")
        deliver(semel)
        assert not (semel.folder / "elsewhere").exists()
        turn.unlink()
        turn.hardlink_to(mine)
        deliver(semel)
        assert (stat.S_IMODE(mine.stat().st_mode), mine.read_text()) == (0o644, "mine")
        turn.unlink()
        os.mkfifo(turn)
        deliver(semel)
        turn.unlink()
        turn.touch()
        chown_to_nobody(turn)
        with open(turn) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            deliver(semel)
        foreign = [found for found in findings(semel, "broker-files") if "another user" in found["text"]]
        assert foreign and foreign[0]["gravity"] == "problem" and "remove it" in foreign[0]["do"]


@as_root
@pytest.mark.parametrize("side", ["-wal", "-shm", "-journal"])
def test_a_planted_log_is_not_read(side):
    with folder_of_mode(0o1777) as semel:
        semel.ok("init")
        deliver(semel)
        for file, scheme in ((semel.store, "store"), (semel.broker, "broker")):
            planted = file.with_name(file.name + side)
            checkpoint(file)
            planted.touch()
            chown_to_nobody(planted)
            complaint = semel.fails(69, "relay", "--drain")
            assert str(planted) in complaint and scheme in complaint and "remove it" in complaint
            planted.unlink()
            planted.symlink_to("/dev/null")
            assert "symbolic link" in semel.fails(69, "relay", "--drain")
            planted.unlink()
        semel.folder.chmod(0o755)
        planted.touch()
        chown_to_nobody(planted)  # here no other user could have put it
        semel.ok("relay", "--drain")


@as_root
def test_a_link_at_the_path_is_followed_unless_another_user_made_it():
    with folder_of_mode(0o1777) as semel:
        inner = semel.folder / "inner"
        inner.mkdir(0o700)
        real = inner / "real.db"
        semel.ok("--store", f"sqlite:{real}", "init")
        semel.store.symlink_to(real)
        semel.publish()
        chown_to_nobody(semel.store)
        assert "symbolic link of another user" in semel.fails(69, "publish", "--type", "x", "--aggregate", "order:1")
        semel.store.unlink()
        semel.store.symlink_to(inner / "nothing.db")
        assert "symbolic link" in semel.fails(69, "init")
        assert not (inner / "nothing.db").exists()
        broker, second = inner / "broker.db", semel.folder / "second.db"
        semel.store.unlink()
        env = {"SEMEL_STORE": f"sqlite:{real}", "SEMEL_BROKER": f"local:{broker}"}
        deliver(semel, env=env)
        second.symlink_to(broker)
        deliver(semel, env={**env, "SEMEL_BROKER": f"local:{second}"})
        assert (inner / "broker.db-turn").exists() and not (semel.folder / "second.db-turn").exists()


# ---- a lock that is held -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_process_that_keeps_the_lock_file_is_named_and_waited_for_once_per_interval(bare):
    bare.ok("init")
    deliver(bare)
    with open(f"{bare.broker}-turn") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        problems = [found for found in findings(bare, "broker-files") if found["gravity"] == "problem"]
        assert problems and f"process {os.getpid()} " in problems[0]["text"] and "fuser" in problems[0]["do"]
        for _ in range(20):
            bare.publish()
        log = bare.folder / "log"
        with open(log, "w") as out:
            relay = bare.spawn("relay", "--window", "1", env={"SEMEL_LOG": "json"}, stderr=out)
            wait_for(lambda: bare.sql("SELECT count(*) FROM semel_outbox WHERE published_at IS NULL") == [(0,)],
                     timeout=120, what="all published")
            assert bare.stop(relay) == 0
        lines = [line for line in log.read_text().splitlines() if "held too long" in line]
        assert len(lines) == 1 and f"process {os.getpid()} " in lines[0], log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("journal", ["WAL", "DELETE"])
def test_a_process_that_keeps_the_write_lock_is_named(bare, journal):
    for path, scheme in ((bare.store, "sqlite"), (bare.broker, "local")):
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute(f"PRAGMA journal_mode={journal}")
        if scheme == "sqlite":
            bare.ok("init")
            bare.publish()
        else:
            bare.ok("relay", "--drain", "--timeout", "60s")
            bare.publish()
        connection.execute("BEGIN IMMEDIATE")
        publish, relay = ("publish", "--type", "x", "--aggregate", "order:1"), ("relay", "--drain", "--timeout", "1s")
        words = publish if scheme == "sqlite" else relay
        env = {f"SEMEL_{'STORE' if scheme == 'sqlite' else 'BROKER'}": f"{scheme}:{path}?busy-timeout=200"}
        done = bare.run(*words, env=env)
        assert done.returncode == 75 and f"process {os.getpid()} holds the lock on " in done.stderr, done.stderr
        check = "store-transactions" if scheme == "sqlite" else "broker-alarm"
        (found,) = findings(bare, check)
        assert found["gravity"] == "problem" and f"process {os.getpid()} holds" in found["text"]
        connection.execute("ROLLBACK")
        connection.close()
