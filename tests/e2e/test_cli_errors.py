# SPDX-License-Identifier: Apache-2.0
"""Invalid input gets one line that says what to do and the correct exit code; nothing is half-written."""
import json
import os
import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from program import wait_for

pytestmark = pytest.mark.sanitize

PUBLISH = ("publish", "--type", "order.created.v1", "--aggregate", "order:1")
MIB = 1024 * 1024


def outbox(semel):
    return semel.sql("SELECT count(*) FROM semel_outbox")[0][0]


# ---- the command line ---------------------------------------------------------------------------


@pytest.mark.parametrize("words, complaint", [
    (["publish", "--payloda", "{}"], "unknown option --payloda for publish (did you mean --payload?)"),
    (["publish", "--p", "{}"], "unknown option --p for publish (run: semel publish --help)"),
    (["pubish"], 'unknown command "pubish" (did you mean publish?)'),
    (["xyzzy"], 'unknown command "xyzzy" (run: semel --help)'),
    ([], "no command given (run: semel --help)"),
    (["--drain", "relay"], "unknown option --drain before the command"),
    (["init", "now"], 'unexpected argument "now" for init'),
    (["relay", "--attempts", "many"], 'invalid value "many" for --attempts (expected a number from 1'),
    (["relay", "--window=0"], 'invalid value "0" for --window'),
    (["relay", "--timeout", "soon"], 'invalid value "soon" for --timeout (expected a duration'),
    (["relay", "--poison", "parkkey"], "did you mean park-key?"),
    (["relay", "--drain=yes"], "--drain takes no value"),
    (["relay", "--timeout"], "--timeout needs a value"),
    (["relay", "--lease", "1s", "--lease", "2s"], "--lease was given twice"),
    (["publish", "--type", "t"], "publish needs --aggregate TYPE:ID"),
    (["publish", "--aggregate", "a:b"], "publish needs --type TYPE"),
    (["publish", "--type", "t", "--aggregate", "order"], 'invalid value "order" for --aggregate (expected TYPE:ID'),
    ([*PUBLISH, "--header", "novalue"], 'invalid value "novalue" for --header (expected NAME=VALUE)'),
    ([*PUBLISH, "--time", "yesterday"], 'invalid value "yesterday" for --time'),
    (["consume", "--topic", "t", "--print"], "consume needs --scope NAME"),
    (["consume", "--scope", "s", "--print"], "consume needs --topic TOPIC"),
    (["consume", "--scope", "s", "--topic", "t"], "consume needs a handler"),
    (["consume", "--scope", "s", "--topic", "t", "--print", "--exec", "x"], "are mutually exclusive"),
    (["consume", "--scope", "s", "--topic", "t", "--print", "--dedup-by", "name"], "id or header:NAME"),
    (["--store", "shop.db", "init"], '--store "shop.db" has no scheme (for a file: sqlite:shop.db)'),
    (["--broker", "", "relay"], "--broker is empty"),
    (["help", "pubish"], "did you mean publish?"),
    (["completion", "fish"], "only for bash"),
])
def test_an_invalid_command_line_is_explained(bare, words, complaint):
    assert complaint in bare.fails(64, *words)
    assert list(bare.folder.iterdir()) == []


def test_an_invalid_upcaster_is_explained(semel):
    assert "FROM=TO:" in semel.fails(64, "consume", "--scope", "s", "--topic", "t", "--print", "--upcast", "a")


def test_a_complaint_is_one_line_whatever_it_quotes(bare):
    assert "two lines" in bare.fails(64, "two\nlines")
    done = bare.run(b"\xff\xfe\x1b[31m", text=False)
    assert done.returncode == 64 and done.stderr.count(b"\n") == 1 and b"\x1b" not in done.stderr


# ---- settings -----------------------------------------------------------------------------------


def tables_in(semel, name):
    return semel.sql("SELECT count(*) FROM sqlite_master", database=semel.folder / name)[0][0] > 0


COMMANDS = [("dlq", "list"), ("dlq", "list", "--json"), ("verify",), ("verify", "--json"), ("doctor",), ("doctor", "--json"), ("top",),
            ("subscriptions", "list"), ("trace", "id-topic"), ("trace", "id-aggregate_id"), ("trace", "id\x1b[2J")]


def test_control_characters_of_an_event_do_not_reach_the_terminal(semel):
    """Every user who may insert a row chooses its names; an operator reads them in a terminal."""
    evil = "\x1b[2J\x9b31m\u202e"
    for name in ("topic", "aggregate_id", "aggregate_type", "event_type", "id"):
        row = {"id": f"id-{name}", "aggregate_type": "order", "aggregate_id": "1", "event_type": "t.v1", "payload": "{}",
               "topic": "order.events"}
        row[name] += evil
        semel.sql(f"INSERT INTO semel_outbox ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", *row.values())
    semel.ok("relay", "--drain", "--attempts", "1")
    semel.ok("consume", "--scope", "x", "--topic", "order.events", "--exec", f"echo '{evil}' >&2; exit 65", "--drain")
    printed = ""
    for words in COMMANDS:
        done = semel.run(*words)
        assert done.returncode in (0, 1, 65), (words, done.stderr)
        if words[-1] == "--json":
            json.loads(done.stdout)
        printed += done.stdout + done.stderr
    assert r"\u001b[2J" in printed
    assert [sign for sign in printed if sign != "\n" and (sign < " " or "\x7f" <= sign <= "\x9f" or sign == "\u202e")] == []


def test_an_option_overrides_the_environment_and_that_overrides_the_config(bare):
    (bare.folder / "semel.yaml").write_text("store: sqlite:config.db\n")
    (bare.folder / "url").write_text("sqlite:file.db\n")
    environment = {"SEMEL_CONFIG": "semel.yaml"}
    bare.ok("init", env=environment)
    bare.ok("init", env={**environment, "SEMEL_STORE_FILE": "url"})
    bare.ok("init", env={**environment, "SEMEL_STORE_FILE": "url", "SEMEL_STORE": "sqlite:environment.db"})
    bare.ok("init", "--store", "sqlite:option.db", env={**environment, "SEMEL_STORE": "sqlite:environment.db"})
    bare.ok("init")
    for name in ("config.db", "file.db", "environment.db", "option.db", "semel.db"):
        assert tables_in(bare, name), name


@pytest.mark.parametrize("environment, complaint", [
    ({"SEMEL_STORE": "shop.db"}, "SEMEL_STORE"),
    ({"SEMEL_STORE_FILE": "missing"}, "missing"),
    ({"SEMEL_CONFIG": "missing.yaml"}, "missing.yaml"),
    ({"SEMEL_STORE": "oracle:shop"}, "no store driver for oracle: URLs (try: sqlite:PATH or postgres://"),
    ({"SEMEL_STORE": "postgers://shop"}, "did you mean postgres?"),
    ({"SEMEL_BROKER": "pigeon:loft"}, "no broker driver for pigeon: URLs (try: local:PATH"),
    ({"SEMEL_BROKER": "amqq://loft"}, "did you mean amqp?"),
    ({"SEMEL_BROKER": "amqp://mq/?hartbeat=3"}, 'did you mean "heartbeat"?'),
    ({"SEMEL_BROKER": "amqp://mq/?colour=3"}, "use one of: queue-type, "),
    ({"SEMEL_LOG": "loud"}, "SEMEL_LOG"),
    ({"SEMEL_LOG_LEVEL": "loud"}, "SEMEL_LOG_LEVEL"),
    ({"SEMEL_FAILPOINT": "relay.after-confrm:kill"}, "relay.after-confirm"),
])
def test_an_invalid_environment_is_a_configuration_error(semel, environment, complaint):
    assert complaint in semel.fails(78, "relay", "--drain", env=environment)


@pytest.mark.parametrize("text, location, complaint", [
    ("relay:\n  windwo: 5\n", ":2:", "did you mean window?"),
    ("relay:\n  window: lots\n", ":2:", "a number from 1"),
    ("subscriptions:\n- scope: a\n  topics: [t]\n  exce: x\n", ":4:", "did you mean exec?"),
    ("retention: { inbox: never }\n", ":1:", "duration"),
    ("retention:\n  outbox: 14\n", ":2:", "expected a duration like"),
    ("a: [\n", ":2:", "invalid YAML"),
    ("- a\n", ":1:", "expected a mapping"),
])
def test_an_invalid_config_file_is_reported_with_its_line(bare, text, location, complaint):
    (bare.folder / "semel.yaml").write_text(text)
    printed = bare.fails(78, "--config", "semel.yaml", "relay", "--drain")
    assert printed.startswith("semel.yaml" + location) and complaint in printed


def test_change_data_capture_needs_a_store_that_has_it(bare):
    assert "postgres" in bare.fails(78, "relay", "--source", "cdc", "--drain")


def test_the_error_about_metrics_beyond_loopback_names_an_option_that_exists(semel):
    complaint = semel.fails(78, "relay", "--drain", "--metrics", "0.0.0.0:0")
    assert "semel run" in complaint and "--token-file" not in complaint


# ---- data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("payload", ["{", "", "{} {}", "nul", "{'a': 1}", '{"a": 01}', "[1,]"])
def test_a_payload_that_is_no_json_is_refused(semel, payload):
    assert "payload" in semel.fails(65, *PUBLISH, "--payload", payload).lower()
    assert outbox(semel) == 0


@pytest.mark.parametrize("data", [b"\x00", b'{"a": "\x00"}', b'"\xff\xfe"', b'"\xc3"', b'"\xed\xa0\x80"', b'"\xc0\x80"'])
def test_zero_bytes_and_broken_utf8_in_json_are_refused(semel, data):
    (semel.folder / "payload").write_bytes(data)
    assert "payload" in semel.fails(65, *PUBLISH, "--payload", "@payload").lower()
    assert outbox(semel) == 0


def test_other_content_may_hold_any_bytes(semel):
    data = bytes(range(256))
    (semel.folder / "payload").write_bytes(data)
    semel.ok(*PUBLISH, "--payload", "@payload", "--content-type", "application/octet-stream")
    (stored,) = semel.sql("SELECT CAST(payload AS BLOB) FROM semel_outbox")[0]
    assert stored == data


@pytest.mark.parametrize("option", ["--type", "--topic", "--routing-key", "--header", "--id"])
def test_broken_utf8_in_names_is_refused(semel, option):
    words = {"--type": "order.created.v1", "--aggregate": "order:1"}
    words[option] = b"x=\xff\xfe" if option == "--header" else b"\xff\xfe"
    done = semel.run("publish", *(word for pair in words.items() for word in pair), text=False)
    assert done.returncode == 65 and done.stderr.startswith(b"semel: ")
    assert outbox(semel) == 0


@pytest.mark.parametrize("words", [
    ["--type", " ", "--aggregate", "order:1"],
    ["--type", "t" * 300, "--aggregate", "order:1"],
    [*PUBLISH[1:], "--id", "not-an-id\n"],
    [*PUBLISH[1:], "--header", "bad name=1"],
    [*PUBLISH[1:], "--header", "name=a\nb"],
    [*PUBLISH[1:], "--topic", "a\tb"],
])
def test_names_that_a_message_cannot_carry_are_refused(semel, words):
    semel.fails(65, "publish", *words)
    assert outbox(semel) == 0


def test_a_payload_of_100_mb_is_refused_without_reading_it_all(semel):
    with open(semel.folder / "huge", "wb") as file:
        file.truncate(100 * MIB)
    began = time.monotonic()
    assert "16 MiB" in semel.fails(65, *PUBLISH, "--payload", "@huge")
    with open(semel.folder / "huge", "rb") as file:
        assert "16 MiB" in semel.fails(65, *PUBLISH, "--payload", "-", stdin=file)
        assert file.seek(0, os.SEEK_CUR) <= 17 * MIB
    assert time.monotonic() - began < 20
    assert outbox(semel) == 0


def test_a_batch_line_of_100_mb_is_refused_with_its_number(semel):
    with open(semel.folder / "lines", "wb") as file:
        file.write(b'{"type": "t", "aggregateType": "a", "aggregateId": "b", "payload": 1}\n{"payload": "')
        file.truncate(100 * MIB)
    with open(semel.folder / "lines", "rb") as file:
        assert "line 2:" in semel.fails(65, "publish", "--batch", stdin=file)
    assert outbox(semel) == 0


@pytest.mark.slow
def test_the_largest_payload_is_accepted(semel):
    (semel.folder / "large").write_bytes(b'"' + b"x" * (16 * MIB - 2) + b'"')
    semel.ok(*PUBLISH, "--payload", "@large")
    assert semel.sql("SELECT length(payload) FROM semel_outbox") == [(16 * MIB,)]


@pytest.mark.parametrize("path", ["missing.json", "."])
def test_a_payload_file_that_cannot_be_read_is_named(semel, path):
    assert path in semel.fails(65, *PUBLISH, "--payload", "@" + path)


# ---- the store ----------------------------------------------------------------------------------


def test_init_prints_what_it_did(bare):
    assert "created" in bare.ok("init")
    assert "up to date" in bare.ok("init")


def test_two_inits_at_once_both_succeed(bare):
    children = [bare.spawn("init") for _ in range(6)]
    for child in children:
        _, complaint = child.communicate(timeout=60)
        assert child.returncode == 0, complaint


@pytest.mark.parametrize("words", [PUBLISH, ["relay", "--drain"], ["consume", "--scope", "s", "--topic", "t", "--print", "--drain"]])
def test_a_missing_store_is_reported_and_not_created(bare, words):
    assert "semel.db" in bare.fails(69, *words)
    assert not bare.store.exists()


def test_the_error_about_a_store_without_tables_names_init(bare):
    bare.sql("CREATE TABLE mine (a)")
    assert "init" in bare.fails(78, *PUBLISH)
    assert bare.sql("SELECT name FROM sqlite_master") == [("mine",)]


def test_a_schema_of_a_newer_version_is_left_alone(semel):
    semel.sql("INSERT INTO semel_schema (version, applied_at) VALUES (999, '2030-01-01T00:00:00.000Z')")
    for words in (PUBLISH, ["init"], ["relay", "--drain"]):
        assert "999" in semel.fails(78, *words)
    assert outbox(semel) == 0


def test_a_file_that_is_no_database_is_left_as_it_is(bare):
    text = "these are my notes, " * 1000
    bare.store.write_text(text)
    for words in (PUBLISH, ["init"], ["relay", "--drain"]):
        assert "semel.db" in bare.fails(65, *words)
    assert bare.store.read_text() == text
    assert sorted(path.name for path in bare.folder.iterdir()) == ["semel.db"]


def test_a_broker_file_that_is_no_database_is_left_as_it_is(semel):
    semel.publish()
    semel.broker.write_text("notes " * 1000)
    assert "semel-broker.db" in semel.fails(65, "relay", "--drain")
    assert semel.broker.read_text() == "notes " * 1000
    assert semel.sql("SELECT status FROM semel_outbox") == [("NEW",)]


def test_a_store_locked_for_long_is_reported_and_nothing_is_written(semel):
    holder = sqlite3.connect(semel.store, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        complaint = semel.fails(75, "--store", "sqlite:semel.db?busy-timeout=200", *PUBLISH)
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert "lock" in complaint
    assert outbox(semel) == 0


def has_open(child, path):
    descriptors = Path(f"/proc/{child.pid}/fd")
    return any(os.path.realpath(entry) == str(path.resolve()) for entry in descriptors.iterdir())


def test_a_short_lock_is_waited_out(semel):
    holder = sqlite3.connect(semel.store, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    child = semel.spawn(*PUBLISH)
    wait_for(lambda: has_open(child, semel.store), what="the store opened by the child")
    holder.execute("ROLLBACK")
    holder.close()
    assert child.wait(30) == 0
    assert outbox(semel) == 1


def drop_privileges(folder):
    """Root may write anywhere: read-only restricts only other users."""
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
        for path in folder.iterdir():
            os.chown(path, 65534, 65534)
        return {"user": 65534, "group": 65534}
    return {}


def reachable(folder):
    return all(parent.stat().st_mode & 0o001 for parent in [folder, *folder.parents][1:])


def test_a_read_only_folder_is_reported_and_left_unchanged(bare):
    if os.geteuid() == 0 and not reachable(bare.folder):
        for parent in [bare.folder, *bare.folder.parents]:
            if parent.stat().st_uid == 0 and "pytest" in str(parent):
                parent.chmod(0o755)
        if not reachable(bare.folder):
            pytest.skip("another user cannot reach the temporary folder")
    bare.program = shutil.copy(bare.program, bare.folder / "program")  # wherever it was built, another user may not go there
    other = drop_privileges(bare.folder)
    bare.folder.chmod(0o555)
    try:
        complaint = bare.fails(69, "init", **other)
    finally:
        bare.folder.chmod(0o755)
    assert "semel.db" in complaint
    assert [path.name for path in bare.folder.iterdir()] == ["program"]


@pytest.fixture
def small_disk(disk_of):
    return disk_of(1)


def test_a_full_disk_is_reported_and_nothing_is_half_written(bare, small_disk):
    store = "sqlite:disk/semel.db"
    bare.ok("init", "--store", store)
    (bare.folder / "large").write_bytes(b'"' + b"x" * MIB + b'"')
    complaint = bare.fails(75, "--store", store, *PUBLISH, "--payload", "@large", "--sql", "CREATE TABLE orders (id)")
    assert "space" in complaint or "full" in complaint
    database = small_disk / "semel.db"
    assert bare.sql("SELECT count(*) FROM semel_outbox", database=database) == [(0,)]
    assert bare.sql("SELECT count(*) FROM sqlite_master WHERE name = 'orders'", database=database) == [(0,)]
    assert bare.sql("PRAGMA integrity_check", database=database) == [("ok",)]
    bare.ok("--store", store, *PUBLISH)


def test_a_full_disk_during_init_leaves_no_partial_schema(bare, small_disk):
    (small_disk / "filler").write_bytes(b"x" * (MIB - 24 * 1024))
    assert bare.fails(75, "init", "--store", "sqlite:disk/semel.db")
    (small_disk / "filler").unlink()
    bare.ok("init", "--store", "sqlite:disk/semel.db")
    bare.ok("--store", "sqlite:disk/semel.db", *PUBLISH)


@pytest.mark.parametrize("name", ["", "A=B"])
def test_an_invalid_name_of_a_variable_is_refused(semel, name):
    complaint = semel.fails(64, "consume", "--scope", "x", "--topic", "t", "--exec", "true", "--pass-env", name, "--drain")
    assert "--pass-env" in complaint and "name of a variable" in complaint
