# SPDX-License-Identifier: Apache-2.0
"""`semel drill` runs on the user's own store and broker, reports what it found, and leaves nothing there: neither at its
end, nor when it is killed, nor when the process that cleans up after it is killed too."""
import json
import os
import signal
from pathlib import Path

import mix
import pytest
from program import is_free, wait_for
from sandbox import suspend

PASSED = "of 2 rows passed: nothing lost, nothing processed twice, nothing out of order"
# A crash between two steps, and the final check.
ROWS = ("--row", "relay.after-confirm", "--row", "verify")


def leftovers_of_drills(semel):
    """What a drill has created and not removed."""
    folders = [str(path) for path in semel.folder.iterdir() if path.name.startswith("semel-drill")]
    folders += map(str, (semel.folder / "tmp").glob("semel-drill*"))
    things = [name for name in semel.backend.broker.things() if "semel-drill" in name]
    schemas = []
    if mix.STORE == "postgres":
        schemas = semel.sql("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'semel%drill%'")
    return folders + things + schemas


def lock_holders(semel):
    """Processes that hold the lock of a drill's folder: the drill, and the one that cleans up after it."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            held = [os.readlink(link) for link in (entry / "fd").iterdir()] if entry.name.isdigit() else []
        except OSError:
            continue
        if any(name.startswith(str(semel.folder)) and name.endswith("/lock") for name in held):
            found.append(int(entry.name))
    return found


def start_drill(semel, *words):
    """A drill that has created what it needs, and runs; all rows, so that it does not end soon."""
    child = semel.spawn("drill", *words, env=temporary(semel))
    for line in child.stdout:
        if line.startswith("under the name semel-drill-"):
            child.drill = line.split()[-1]
            return child
    raise AssertionError(child.stderr.read())


def temporary(semel):
    return {"TMPDIR": str(semel.folder / "tmp")}


def is_stopped_without_lock(child, database):
    """Stopped where it has no transaction of its own; a child of it may have one, which ends."""
    suspend(child.pid)
    if is_free(database):
        return True
    child.send_signal(signal.SIGCONT)
    return False


def nothing_is_left(semel):
    """Kafka's brokers apply a deletion a moment after it was confirmed."""
    wait_for(lambda: leftovers_of_drills(semel) == [], timeout=120, what="the removal of what the drill had created")


@pytest.fixture
def user(semel):
    """A user with events of their own: one waits in the outbox, one is at the broker."""
    semel.subscribe("billing")
    semel.publish(aggregate="order:1")
    semel.ok("relay", "--drain")
    semel.publish(aggregate="order:2")
    (semel.folder / "tmp").mkdir()
    return semel


def state(semel):
    """What a drill must not change."""
    tables = ("semel_outbox", "semel_inbox", "semel_subscription", "semel_lease", "semel_dead_letter")
    rows = {table: semel.sql(f"SELECT count(*) FROM {table}") for table in tables}
    return rows, semel.sql("SELECT id, status, attempts FROM semel_outbox ORDER BY seq"), semel.backend.broker.things()


@pytest.mark.anywhere
@pytest.mark.core
def test_a_drill_succeeds_and_leaves_what_the_user_has_unchanged(user):
    before = state(user)
    output = user.ok("drill", *ROWS, env=temporary(user), timeout=120)
    assert PASSED in output
    nothing_is_left(user)
    assert state(user) == before


@pytest.mark.anywhere
@pytest.mark.core
def test_a_killed_drill_is_cleaned_up(user):
    before = state(user)
    child = start_drill(user)
    child.send_signal(signal.SIGSTOP)
    assert leftovers_of_drills(user) != []
    child.kill()
    child.wait(30)
    nothing_is_left(user)
    assert state(user) == before


@pytest.mark.anywhere
def test_what_no_process_could_clean_up_is_removed_by_the_next_drill(user):
    child = start_drill(user)
    child.send_signal(signal.SIGSTOP)
    for process in {child.pid, *lock_holders(user)}:
        os.kill(process, signal.SIGKILL)
    child.wait(30)
    wait_for(lambda: lock_holders(user) == [], timeout=60, what="the end of both processes")
    assert leftovers_of_drills(user) != []
    assert f"{child.drill} was left by an earlier drill: removed" in user.ok("drill", "--clean", env=temporary(user), timeout=120)
    nothing_is_left(user)
    assert user.ok("drill", "--clean", env=temporary(user), timeout=120) == ""


@pytest.mark.slow
def test_every_row_of_the_matrix_and_the_seven_what_ifs_are_run(bare):
    points = [row["name"] for row in json.loads(bare.ok("failpoints", "--json"))]
    report = json.loads(bare.ok("drill", "--json", timeout=300))
    assert report["ok"] and report["failed"] == 0
    assert [row["name"] for row in report["rows"] if row["kind"] == "crash"] == points
    assert len([row for row in report["rows"] if row["kind"] == "what-if"]) == 7
    assert all(row["ok"] and row["found"] is None for row in report["rows"])
    assert list(bare.folder.iterdir()) == []


def test_the_listed_names_are_those_that_the_option_row_takes(bare):
    names = [line.split()[0] for line in bare.ok("drill", "--list").splitlines()]
    assert "relay.after-confirm" in names and "order-is-poisoned" in names and "verify" in names
    assert "did you mean relay.after-confirm" in bare.fails(64, "drill", "--row", "relay.after-confrm")


def test_the_list_as_json_has_the_rows_of_the_table(bare):
    table = [line.split(maxsplit=2) for line in bare.ok("drill", "--list").splitlines()]
    rows = json.loads(bare.ok("drill", "--list", "--json"))
    assert [[row["name"], row["kind"], row["outcome"]] for row in rows] == table


@pytest.mark.slow
def test_a_row_that_fails_is_reported_and_the_exit_code_is_1(bare):
    """While the drill is stopped, a trigger is created that deletes the rows of its audit table."""
    child = start_drill(bare)
    (folder,) = bare.folder.iterdir()
    wait_for(lambda: is_stopped_without_lock(child, folder / "semel.db"), what="a moment without a lock")
    bare.sql("CREATE TRIGGER forget AFTER INSERT ON audit BEGIN DELETE FROM audit WHERE order_id = NEW.order_id; END",
             database=folder / "semel.db")
    child.send_signal(signal.SIGCONT)
    output = child.stdout.read()
    assert child.wait(60) == 1
    assert 'found: orders with the trail "placed, paid": 0, expected 6' in output
    assert "of 24 rows failed" in output
    assert list(bare.folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_drill_cleans_up_itself(bare, number):
    child = start_drill(bare)
    child.send_signal(number)
    child.stdout.read()
    assert child.wait(30) == 75
    assert list(bare.folder.iterdir()) == []


def test_a_drill_that_is_alive_is_not_removed(bare):
    child = start_drill(bare, *ROWS)
    child.send_signal(signal.SIGSTOP)
    assert bare.ok("drill", "--clean") == ""
    child.send_signal(signal.SIGCONT)
    assert PASSED in child.stdout.read()
    assert child.wait(30) == 0


def test_an_unreachable_broker_is_reported_and_nothing_is_created(bare):
    assert "127.0.0.1" in bare.fails(69, "--broker", "amqp://127.0.0.1:9/", "drill")
    assert list(bare.folder.iterdir()) == []


def test_a_drill_of_another_broker_is_left_for_it(bare):
    folder = bare.folder / "semel-drill-0000000100000001"
    folder.mkdir()
    (folder / "lock").touch()
    (folder / "semel.db").touch()
    assert "with another broker" in bare.ok("drill", "--clean")
    assert folder.exists()


def test_a_folder_of_another_user_and_a_link_are_left_alone(bare):
    inside = bare.folder / "mine"
    inside.mkdir()
    (inside / "lock").touch()
    link, foreign, old = (bare.folder / f"semel-drill-0000000{n}00000000" for n in (1, 2, 3))
    link.symlink_to(inside)
    for folder in (foreign, old):
        folder.mkdir(mode=0o700)
        (folder / "lock").touch()
    if os.geteuid() == 0:
        os.chown(foreign, 65534, 65534)
    else:
        foreign.chmod(0o777)
    assert bare.ok("drill", "--clean").splitlines() == [f"{old.name} was left by an earlier drill: removed"]
    assert link.is_symlink() and (inside / "lock").exists() and (foreign / "lock").exists() and not old.exists()


@pytest.mark.parametrize("name", ["semel-drill-", "semel-drill-12", "semel-drill-000000010000000g", "semel-drills"])
def test_a_folder_with_a_similar_name_is_left_alone(bare, name):
    (bare.folder / name).mkdir()
    (bare.folder / name / "lock").touch()
    assert bare.ok("drill", "--clean") == ""
    assert (bare.folder / name).exists()


@pytest.mark.anywhere
@pytest.mark.only("rabbitmq")
def test_the_users_alternate_exchange_is_not_used(bare):
    url = bare.backend.environment()["SEMEL_BROKER"]
    joint = "&" if "?" in url else "?"
    broker = f"{url}{joint}alternate-exchange=leftovers&heartbeat=20"
    assert "1 of 1 rows passed" in bare.ok("--broker", broker, "drill", "--row", "publish.before-commit", timeout=120)
    assert "leftovers" not in bare.backend.broker.things()


@pytest.mark.anywhere
@pytest.mark.only("postgres")
def test_a_missing_right_to_create_a_schema_is_reported(bare):
    role = f"drill_{os.getpid()}"
    bare.sql(f"CREATE ROLE {role} LOGIN")
    try:
        url = str(bare.store).replace("://semel@", f"://{role}@")
        assert role in url
        complaint = bare.fails(78, "--store", url, "--broker", "local:semel-broker.db", "drill")
        assert "permission denied" in complaint and "CREATE on the database" in complaint
        assert leftovers_of_drills(bare) == []
    finally:
        bare.sql(f"DROP ROLE {role}")
