# SPDX-License-Identifier: Apache-2.0
"""`semel doctor`: each test makes one thing wrong, and expects a finding with its remedy. How much space is free on the
disk depends on the machine: a unit test checks that rule."""
import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess

import mix
import pytest
from program import TREE, wait_for

pytestmark = pytest.mark.anywhere
TOPIC = "order.events"
DISKS = ("store-disk", "broker-disk")


def doctor(semel, *words, env=None):
    """Every finding, by its check."""
    done = semel.run(*words, "doctor", "--json", env=env)
    report = json.loads(done.stdout)
    found = [finding for finding in report["findings"] if finding["check"] not in DISKS]
    number = len(problems(report["findings"]))
    assert report["problems"] == number and done.returncode == (1 if number else 0), done.stderr
    assert all((finding["do"] is None) == (finding["gravity"] == "fine") for finding in found)
    return found


def with_severity(found, severity, check=None):
    return [finding for finding in found if finding["gravity"] == severity and finding["check"] == (check or finding["check"])]


def problems(found, check=None):
    return with_severity(found, "problem", check)


def finding_of(found, check, severity="problem"):
    (finding,) = with_severity(found, severity, check)
    return finding


def config(semel, **sections):
    path = semel.folder / "doctor.yaml"
    path.write_text(json.dumps(sections))
    return ("--config", str(path))


def one_delivered(semel):
    semel.publish()
    semel.ok("relay", "--drain")
    semel.ok("consume", "--scope", "billing", "--topic", TOPIC, "--exec", "true", "--drain")


def test_a_system_that_works_has_no_problem(semel):
    one_delivered(semel)
    found = doctor(semel)
    assert not problems(found), found
    checks = {finding["check"] for finding in found}
    assert {"store-reached", "store-version", "store-schema", "store-rights", "store-settings", "store-transactions",
            "relay", "retention", "broker-reached", "topology"} <= checks
    text = semel.ok("doctor")
    assert "fine     store-schema" in text and "0 problems" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("fine")][0] == "store-reached"


def test_an_unreachable_server_is_a_problem_and_no_password_is_shown(bare):
    env = {"SEMEL_STORE": "postgres://app:geheim@127.0.0.1:1/shop", "SEMEL_BROKER": "amqp://app:geheim@127.0.0.1:1/"}
    done = bare.run("doctor", env=env)
    assert done.returncode == 1 and "geheim" not in done.stdout + done.stderr
    found = doctor(bare, env=env)
    assert "is it running" in finding_of(found, "store-reached")["do"]
    assert "is RabbitMQ running" in finding_of(found, "broker-reached")["do"]
    found = doctor(bare, env={"SEMEL_STORE": "sqlite:nowhere/x.db", "SEMEL_BROKER": "kafka://127.0.0.1:1"})
    assert finding_of(found, "store-reached") and finding_of(found, "broker-reached")
    assert finding_of(doctor(bare, env={"SEMEL_BROKER": "amqpp://h/"}), "broker-reached")["do"].startswith("did you mean amqp")


def test_tables_that_are_missing_or_old_are_a_problem(bare):
    if mix.STORE == "sqlite":
        sqlite3.connect(bare.store).execute("CREATE TABLE mine (x)").connection.close()
    assert "init" in finding_of(doctor(bare), "store-schema")["do"]
    bare.ok("init")
    assert not problems(doctor(bare), "store-schema")
    bare.sql("UPDATE semel_schema SET version = version - 100")
    assert "init" in finding_of(doctor(bare), "store-schema")["do"]
    bare.sql("UPDATE semel_schema SET version = version + 200")
    assert "upgrade" in finding_of(doctor(bare), "store-schema")["do"]


def test_events_that_wait_without_a_relay_are_a_problem(semel):
    semel.publish()
    assert not problems(doctor(semel), "relay")
    semel.sql("INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, committed_at) VALUES"
              " ('01890000-0000-7000-8000-000000000000', 'order', '1', 'x', '{}', '2026-01-01T00:00:00.000Z')")
    assert "start a relay" in finding_of(doctor(semel), "relay")["do"]


def test_a_shorter_retention_of_the_inbox_than_of_the_outbox_is_a_problem(semel):
    found = doctor(semel, *config(semel, retention={"outbox": "30d", "inbox": "14d"}))
    assert "retention.inbox" in finding_of(found, "retention")["do"]


def test_a_subscription_without_its_queues_is_a_problem(semel):
    one_delivered(semel)
    options = config(semel, subscriptions=[{"scope": "billing", "topics": [TOPIC], "exec": "true"},
                                           {"scope": "absent", "topics": ["no.such.topic"], "exec": "true"}])
    found = problems(doctor(semel, *options), "topology")
    assert found and all(finding["text"].startswith("absent: ") and "topology apply" in finding["do"] for finding in found)
    semel.ok(*options, "topology", "apply")
    assert not problems(doctor(semel, *options), "topology")


@pytest.mark.skipif(mix.BROKER != "local", reason="of the local broker: others have queues or groups of their own")
def test_a_topic_that_exists_does_not_hide_a_missing_subscription(semel):
    one_delivered(semel)
    check = ("topology", "check", "--scope", "never", "--topic", TOPIC)
    missing = semel.run(*check)
    assert missing.returncode == 1 and "never" in missing.stdout and TOPIC in missing.stdout
    semel.ok("topology", "apply", *check[2:])
    semel.ok(*check)


def test_every_check_is_on_the_page():
    checks = set(re.findall(r'\[SEMEL_CHECK_\w+\] =\s+\{\s*"([a-z-]+)"', (TREE / "src/diagnose/finding.c").read_text()))
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", (TREE / "docs/admin.md").read_text(), re.MULTILINE))
    assert len(checks) > 15 and checks == documented


# ---- files ----------------------------------------------------------------------------------------


@pytest.mark.only("sqlite")
def test_a_write_lock_that_is_held_is_a_problem(semel):
    with contextlib.closing(sqlite3.connect(semel.store, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert "open" in finding_of(doctor(semel), "store-transactions")["do"]
    assert not problems(doctor(semel), "store-transactions")


@pytest.mark.only("sqlite")
def test_a_journal_mode_other_than_wal_is_worth_advice(bare):
    with contextlib.closing(sqlite3.connect(bare.store)) as connection:
        connection.execute("CREATE TABLE mine (x)")
    bare.ok("init")
    assert "WAL" in finding_of(doctor(bare), "store-settings", "advice")["do"]


@pytest.mark.only("local")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as another user")
def test_files_that_may_not_be_written_are_a_problem(semel):
    one_delivered(semel)
    for folder in (semel.folder, *semel.folder.parents):  # the user nobody can read it, but not write
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    shutil.copy(semel.program, semel.folder / "program")  # the user nobody may have no access to where it was built
    done = subprocess.run(["./program", "doctor"], cwd=semel.folder, env=semel.environment(), user="nobody",
                          stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    checks = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("problem")}
    assert "broker-reached" in checks and (mix.STORE != "sqlite" or "store-reached" in checks), done.stdout
    assert "allowed to write" in done.stdout


@pytest.mark.only("local")
def test_a_broker_that_does_not_exist_is_not_created_by_the_checks(bare):
    bare.ok("init")
    assert "does not exist" in finding_of(doctor(bare), "broker-reached", "advice")["text"]
    assert not bare.broker.exists()


@pytest.mark.only("local")
def test_a_broker_in_a_folder_that_does_not_exist_is_a_problem(bare):
    bare.ok("init")
    found = finding_of(doctor(bare, "--broker", "local:nowhere/broker.db"), "broker-reached", "problem")
    assert "nor does its folder" in found["text"]


# ---- PostgreSQL -------------------------------------------------------------------------------------


def name_of(semel):
    return semel.store.rpartition("/")[2].split("?")[0]


@pytest.fixture
def role(semel):
    """A role that may connect, and read the version of the tables."""
    name = f"doctor_{name_of(semel)}"
    semel.sql(f"CREATE ROLE {name} LOGIN")
    semel.sql(f"GRANT SELECT ON semel_schema TO {name}")
    yield name
    semel.sql(f"DROP OWNED BY {name}")
    semel.sql(f"DROP ROLE {name}")


@pytest.mark.only("postgres")
def test_missing_rights_are_reported_with_the_grants_that_add_them(semel, role):
    env = {"SEMEL_STORE": mix.servers().postgres_url(name_of(semel), role)}
    found = problems(doctor(semel, env=env), "store-rights")
    assert {finding["text"].split(":")[0] for finding in found} == {"this role cannot relay", "this role cannot consume"}
    (found,) = problems(doctor(semel, *config(semel, relay={}), env=env), "store-rights")
    for grant in found["do"].split("; "):
        semel.sql(grant)
    assert not problems(doctor(semel, *config(semel, relay={}), env=env), "store-rights")


@pytest.mark.only("postgres")
@pytest.mark.parametrize("setting, check, severity, remedy", [
    ("-csynchronous_commit%3Doff", "store-settings", "advice", "set it to on"),
    ("-cdefault_transaction_read_only%3Don", "store-settings", "problem", "primary"),
    ("-csearch_path%3Dpublic,odd,pg_catalog", "store-clock", "problem", "synchronise")], ids=["commits", "read-only", "clock"])
def test_harmful_settings_are_reported(semel, setting, check, severity, remedy):
    semel.sql("CREATE SCHEMA odd")
    semel.sql("CREATE FUNCTION odd.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
              " AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$")
    found = doctor(semel, env={"SEMEL_STORE": f"{semel.store}{'&' if '?' in semel.store else '?'}options={setting}"})
    assert remedy in finding_of(found, check, severity)["do"]


@pytest.mark.only("postgres")
def test_transactions_that_are_open_for_long_are_named(semel):
    def found():
        done = semel.run("doctor", "--open-max", "1s", "--json")
        return [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "store-transactions"]

    with contextlib.closing(mix.connect(semel.store)) as reader, contextlib.closing(mix.connect(semel.store)) as writer:
        reader.execute("SELECT 1")
        writer.execute("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                       " VALUES ('order', '1', 'x', '{\"secret\": 1}')")
        wait_for(lambda: len(problems(found())) == len(with_severity(found(), "advice")) == 1, 60, "both are old enough")
        (finding,) = problems(found())
        ((pid,),) = writer.execute("SELECT pg_backend_pid()").fetchall()
        assert finding["do"] == f"SELECT pg_terminate_backend({pid})" and "secret" not in finding["text"]
    wait_for(lambda: not problems(found()), 60, "the server has closed both transactions")


@pytest.mark.only("postgres")
def test_a_slot_that_is_missing_unread_or_over_its_budget_is_a_problem(semel):
    slot = f"d_{name_of(semel)}"
    relay = {"source": "cdc", "slot": slot}
    assert "init --cdc" in finding_of(doctor(semel, *config(semel, relay=relay)), "slot")["do"]
    semel.ok("init", "--cdc", "--slot", slot)
    try:
        found = doctor(semel, *config(semel, relay=relay))
        assert "has no reader" in finding_of(found, "slot")["text"] and slot in finding_of(found, "slot")["do"]
        assert "max_slot_wal_keep_size" in finding_of(found, "slot-limit", "advice")["do"]
        assert finding_of(doctor(semel, *config(semel, relay={"slot": slot})), "slot", "advice")
        semel.publish()
        assert finding_of(doctor(semel, *config(semel, relay={"slot": slot, "slot-budget": 1})), "slot")
    finally:
        semel.sql("SELECT pg_drop_replication_slot(?)", slot)


@pytest.mark.only("postgres")
def test_a_foreign_slot_is_ignored_unless_the_relay_needs_its_name(semel):
    slot = f"d_{name_of(semel)}"
    semel.sql("SELECT pg_create_physical_replication_slot(?, true)", slot)
    try:
        checks = [finding["check"] for finding in doctor(semel, *config(semel, relay={"slot": slot}))]
        assert not [check for check in checks if check.startswith("slot")]
        finding = finding_of(doctor(semel, *config(semel, relay={"source": "cdc", "slot": slot})), "slot")
        assert "physical" in finding["text"] and "drop" not in finding["do"] and "--slot NAME" in finding["do"]
    finally:
        semel.sql("SELECT pg_drop_replication_slot(?)", slot)


@pytest.mark.only("sqlite")
@pytest.mark.parametrize("reason, remedy", [
    ("312 NO_ROUTE", "topology apply"),
    ("no exchange 'order.events' in vhost '/'", "topology apply"),
    ("no queue receives it from exchange order.events with routing key a", "topology apply"),
    ("no queue takes it", "topology apply"),  # as earlier versions wrote it
    ("the payload is too large", "fix what the broker reports"),
])
def test_an_event_that_the_broker_refused_has_the_remedy_for_its_reason(semel, reason, remedy):
    with contextlib.closing(sqlite3.connect(semel.store, isolation_level=None)) as connection:
        connection.execute("INSERT INTO semel_dead_letter (entry_id, scope, failure_reason, failed_at)"
                           " VALUES ('e', 'relay', ?, '2026-01-01T00:00:00.000Z')", (reason,))
    finding = finding_of(doctor(semel), "refused")
    assert reason in finding["text"] and remedy in finding["do"]


# ---- RabbitMQ -------------------------------------------------------------------------------------------


@pytest.mark.only("rabbitmq")
@pytest.mark.unless("rabbitmq-stream", reason="there the queue is a stream")
def test_a_queue_of_another_type_or_that_is_lost_with_the_broker_is_a_problem(bare):
    bare.ok("init")
    channel = bare.broker.channel()
    channel.exchange_declare(TOPIC, "topic", durable=True)
    channel.queue_declare(f"billing.{TOPIC}", durable=True,
                          arguments={"x-queue-type": "classic", "x-single-active-consumer": True})
    channel.queue_declare(f"audit.{TOPIC}", durable=False)
    bare.broker.connection.close()
    options = config(bare, subscriptions=[{"scope": scope, "topics": [TOPIC], "exec": "true"}
                                          for scope in ("billing", "audit")])
    found = [finding["text"] for finding in problems(doctor(bare, *options), "topology")]
    assert any("x-queue-type" in text and "classic" in text for text in found), "\n".join(found)
    assert any("durable" in text and "audit" in text for text in found), found


@pytest.mark.only("rabbitmq")
def test_bindings_are_checked_with_the_management_plugin_or_reported_as_unchecked(semel):
    one_delivered(semel)
    unreachable = semel.run("doctor", "--management", "http://127.0.0.1:1/", "--json")
    assert "enable rabbitmq_management" in finding_of(json.loads(unreachable.stdout)["findings"], "bindings", "advice")["do"]
    with mix.servers().administrator.management() as url:
        read_findings = lambda: json.loads(semel.run("doctor", "--management", url, "--json").stdout)["findings"]  # noqa: E731
        wait_for(lambda: "broker-disk" in {finding["check"] for finding in read_findings()}, 60, "the plugin has read the nodes")
        found = read_findings()
        assert with_severity(found, "fine", "bindings")
        assert not problems(found, "bindings") and not with_severity(found, "advice", "bindings")
        semel.ok("consume", "--scope", "narrow", "--topic", TOPIC, "--bind", "*.eu", "--exec", "true", "--drain")
        channel = semel.broker.channel()
        channel.queue_bind(f"narrow.{TOPIC}", TOPIC, "#")  # as a wider --bind would have left it
        finding = finding_of(read_findings(), "bindings", "advice")
        assert f"narrow.{TOPIC} is also bound to the exchange {TOPIC} with the key #" in finding["text"]
        channel.queue_unbind(f"billing.{TOPIC}", TOPIC, "#")
        semel.broker.connection.close()
        finding = finding_of(read_findings(), "bindings")
        assert f"billing.{TOPIC} is not bound to the exchange {TOPIC}" in finding["text"] and "topology apply" in finding["do"]
        mix.servers().administrator.limit_deliveries(semel.broker.name, r"^billing\.", 20)
        check = ("topology", "check", "--scope", "billing", "--topic", TOPIC, "--management", url)
        wait_for(lambda: "after 20 deliveries: by the policy often" in semel.run(*check).stdout, 60, "the limit is reported")
        assert "is not bound" in semel.run(*check).stdout and problems(read_findings(), "limits")


@pytest.mark.only("rabbitmq")
def test_unroutable_events_are_reported_with_the_remedy(semel):
    one_delivered(semel)
    mix.servers().administrator.delete_exchange(semel.broker.name, TOPIC)
    semel.publish("--topic", TOPIC)
    semel.run("relay", "--drain", "--timeout", "2s")
    finding = finding_of(json.loads(semel.run("doctor", "--json").stdout)["findings"], "refused")
    assert "no queue receives it" in finding["text"] and "topology apply" in finding["do"]


# ---- Kafka ----------------------------------------------------------------------------------------------


@pytest.mark.only("kafka")
def test_a_topic_that_outlives_the_inbox_is_a_problem(semel):
    one_delivered(semel)
    found = doctor(semel, *config(semel, retention={"outbox": "1h", "inbox": "2h"},
                                  subscriptions=[{"scope": "billing", "topics": [TOPIC], "exec": "true"}]))
    assert any("retention.ms" in finding["text"] for finding in problems(found, "topology")), found
