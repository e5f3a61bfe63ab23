# SPDX-License-Identifier: Apache-2.0
"""`semel doctor`: each test makes one thing wrong, and wants it found, with what to do. How much room the disk of
this machine has is nobody's mistake: a unit test looks at that rule."""
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
    problems = [finding for finding in report["findings"] if finding["gravity"] == "problem"]
    assert report["problems"] == len(problems) and done.returncode == (1 if problems else 0), done.stderr
    assert all((finding["do"] is None) == (finding["gravity"] == "fine") for finding in found)
    return found


def grave(found, check=None, gravity="problem"):
    return [finding for finding in found if finding["gravity"] == gravity and finding["check"] == (check or finding["check"])]


def the(found, check, gravity="problem"):
    (finding,) = grave(found, check, gravity)
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
    assert not grave(found), found
    checks = {finding["check"] for finding in found}
    assert {"store-reached", "store-version", "store-schema", "store-rights", "store-settings", "store-transactions",
            "relay", "retention", "broker-reached", "topology"} <= checks
    text = semel.ok("doctor")
    assert "fine     store-schema" in text and "0 problems" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("fine")][0] == "store-reached"


def test_nobody_at_home_is_a_problem_and_no_password_is_shown(bare):
    env = {"SEMEL_STORE": "postgres://app:geheim@127.0.0.1:1/shop", "SEMEL_BROKER": "amqp://app:geheim@127.0.0.1:1/"}
    done = bare.run("doctor", env=env)
    assert done.returncode == 1 and "geheim" not in done.stdout + done.stderr
    found = doctor(bare, env=env)
    assert "is it running" in the(found, "store-reached")["do"]
    assert "is RabbitMQ running" in the(found, "broker-reached")["do"]
    found = doctor(bare, env={"SEMEL_STORE": "sqlite:nowhere/x.db", "SEMEL_BROKER": "kafka://127.0.0.1:1"})
    assert the(found, "store-reached") and the(found, "broker-reached")
    assert the(doctor(bare, env={"SEMEL_BROKER": "amqpp://h/"}), "broker-reached")["do"].startswith("did you mean amqp")


def test_tables_that_are_missing_or_old_are_a_problem(bare):
    if mix.STORE == "sqlite":
        sqlite3.connect(bare.store).execute("CREATE TABLE mine (x)").connection.close()
    assert "init" in the(doctor(bare), "store-schema")["do"]
    bare.ok("init")
    assert not grave(doctor(bare), "store-schema")
    bare.sql("UPDATE semel_schema SET version = version - 100")
    assert "init" in the(doctor(bare), "store-schema")["do"]
    bare.sql("UPDATE semel_schema SET version = version + 200")
    assert "upgrade" in the(doctor(bare), "store-schema")["do"]


def test_what_waits_and_nobody_carries_is_a_problem(semel):
    semel.publish()
    assert not grave(doctor(semel), "relay")
    semel.sql("INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, payload, committed_at) VALUES"
              " ('01890000-0000-7000-8000-000000000000', 'order', '1', 'x', '{}', '2026-01-01T00:00:00.000Z')")
    assert "start a relay" in the(doctor(semel), "relay")["do"]


def test_an_inbox_that_forgets_too_early_is_a_problem(semel):
    found = doctor(semel, *config(semel, retention={"outbox": "30d", "inbox": "14d"}))
    assert "retention.inbox" in the(found, "retention")["do"]


def test_a_subscription_without_its_queues_is_a_problem(semel):
    one_delivered(semel)
    wanted = config(semel, subscriptions=[{"scope": "billing", "topics": [TOPIC], "exec": "true"},
                                          {"scope": "nobody", "topics": ["no.such.topic"], "exec": "true"}])
    found = grave(doctor(semel, *wanted), "topology")
    assert found and all(finding["text"].startswith("nobody: ") and "topology apply" in finding["do"] for finding in found)
    semel.ok(*wanted, "topology", "apply")
    assert not grave(doctor(semel, *wanted), "topology")


@pytest.mark.skipif(mix.BROKER != "local", reason="of the local broker: others have queues or groups of their own")
def test_a_topic_that_is_there_does_not_hide_a_subscription_that_is_not(semel):
    one_delivered(semel)
    check = ("topology", "check", "--scope", "never", "--topic", TOPIC)
    missing = semel.run(*check)
    assert missing.returncode == 1 and "never" in missing.stdout and TOPIC in missing.stdout
    semel.ok("topology", "apply", *check[2:])
    semel.ok(*check)


def test_every_check_is_on_the_page():
    known = set(re.findall(r'\[SEMEL_CHECK_\w+\] =\s+\{\s*"([a-z-]+)"', (TREE / "src/diagnose/finding.c").read_text()))
    told = set(re.findall(r"^\| `([a-z-]+)` \|", (TREE / "docs/admin.md").read_text(), re.MULTILINE))
    assert len(known) > 15 and known == told


# ---- files ----------------------------------------------------------------------------------------


@pytest.mark.only("sqlite")
def test_a_write_lock_that_is_held_is_a_problem(semel):
    with contextlib.closing(sqlite3.connect(semel.store, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert "open" in the(doctor(semel), "store-transactions")["do"]
    assert not grave(doctor(semel), "store-transactions")


@pytest.mark.only("sqlite")
def test_a_journal_that_is_no_log_is_worth_advice(bare):
    with contextlib.closing(sqlite3.connect(bare.store)) as maker:
        maker.execute("CREATE TABLE mine (x)")
    bare.ok("init")
    assert "WAL" in the(doctor(bare), "store-settings", "advice")["do"]


@pytest.mark.only("local")
@pytest.mark.skipif(os.geteuid() != 0, reason="to become somebody else needs root")
def test_files_that_may_not_be_written_are_a_problem(semel):
    one_delivered(semel)
    for folder in (semel.folder, *semel.folder.parents):  # nobody may look, and no more
        if folder.owner() == "root" and str(folder) not in ("/", "/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    shutil.copy(semel.program, semel.folder / "program")  # wherever it was built, nobody may not go there
    done = subprocess.run(["./program", "doctor"], cwd=semel.folder, env=semel.environment(), user="nobody",
                          stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1
    checks = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("problem")}
    assert "broker-reached" in checks and (mix.STORE != "sqlite" or "store-reached" in checks), done.stdout
    assert "allowed to write" in done.stdout


@pytest.mark.only("local")
def test_a_broker_that_nobody_made_yet_is_not_made_by_looking(bare):
    bare.ok("init")
    assert "does not exist" in the(doctor(bare), "broker-reached", "advice")["text"]
    assert not bare.broker.exists()


@pytest.mark.only("local")
def test_a_broker_in_a_folder_that_is_not_there_is_a_problem(bare):
    bare.ok("init")
    found = the(doctor(bare, "--broker", "local:nowhere/broker.db"), "broker-reached", "problem")
    assert "nor does its folder" in found["text"]


# ---- PostgreSQL -------------------------------------------------------------------------------------


def name_of(semel):
    return semel.store.rpartition("/")[2].split("?")[0]


@pytest.fixture
def role(semel):
    """One that may connect, and know of the tables."""
    name = f"looker_{name_of(semel)}"
    semel.sql(f"CREATE ROLE {name} LOGIN")
    semel.sql(f"GRANT SELECT ON semel_schema TO {name}")
    yield name
    semel.sql(f"DROP OWNED BY {name}")
    semel.sql(f"DROP ROLE {name}")


@pytest.mark.only("postgres")
def test_missing_rights_are_told_as_the_grants_that_mend_them(semel, role):
    env = {"SEMEL_STORE": mix.servers().postgres_url(name_of(semel), role)}
    found = grave(doctor(semel, env=env), "store-rights")
    assert {finding["text"].split(":")[0] for finding in found} == {"this role cannot relay", "this role cannot consume"}
    (found,) = grave(doctor(semel, *config(semel, relay={}), env=env), "store-rights")
    for grant in found["do"].split("; "):
        semel.sql(grant)
    assert not grave(doctor(semel, *config(semel, relay={}), env=env), "store-rights")


@pytest.mark.only("postgres")
@pytest.mark.parametrize("setting, check, gravity, remedy", [
    ("-csynchronous_commit%3Doff", "store-settings", "advice", "set it to on"),
    ("-cdefault_transaction_read_only%3Don", "store-settings", "problem", "primary"),
    ("-csearch_path%3Dpublic,odd,pg_catalog", "store-clock", "problem", "synchronise")], ids=["commits", "read-only", "clock"])
def test_settings_that_do_harm_are_told(semel, setting, check, gravity, remedy):
    semel.sql("CREATE SCHEMA odd")
    semel.sql("CREATE FUNCTION odd.clock_timestamp() RETURNS timestamptz LANGUAGE sql"
              " AS $$ SELECT pg_catalog.clock_timestamp() + interval '1 hour' $$")
    found = doctor(semel, env={"SEMEL_STORE": f"{semel.store}{'&' if '?' in semel.store else '?'}options={setting}"})
    assert remedy in the(found, check, gravity)["do"]


@pytest.mark.only("postgres")
def test_transactions_that_are_open_for_long_are_named(semel):
    def found():
        done = semel.run("doctor", "--open-max", "1s", "--json")
        return [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == "store-transactions"]

    with contextlib.closing(mix.connect(semel.store)) as reader, contextlib.closing(mix.connect(semel.store)) as writer:
        reader.execute("SELECT 1")
        writer.execute("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                       " VALUES ('order', '1', 'x', '{\"secret\": 1}')")
        wait_for(lambda: len(grave(found())) == len(grave(found(), gravity="advice")) == 1, 60, "both are old enough")
        (told,) = grave(found())
        ((pid,),) = writer.execute("SELECT pg_backend_pid()").fetchall()
        assert told["do"] == f"SELECT pg_terminate_backend({pid})" and "secret" not in told["text"]
    wait_for(lambda: not grave(found()), 60, "the server has heard that they are gone")


@pytest.mark.only("postgres")
def test_a_slot_that_is_missing_unread_or_over_its_budget_is_a_problem(semel):
    slot = f"d_{name_of(semel)}"
    relay = {"source": "cdc", "slot": slot}
    assert "init --cdc" in the(doctor(semel, *config(semel, relay=relay)), "slot")["do"]
    semel.ok("init", "--cdc", "--slot", slot)
    try:
        found = doctor(semel, *config(semel, relay=relay))
        assert "has no reader" in the(found, "slot")["text"] and slot in the(found, "slot")["do"]
        assert "max_slot_wal_keep_size" in the(found, "slot-limit", "advice")["do"]
        assert the(doctor(semel, *config(semel, relay={"slot": slot})), "slot", "advice")
        semel.publish()
        assert the(doctor(semel, *config(semel, relay={"slot": slot, "slot-budget": 1})), "slot")
    finally:
        semel.sql("SELECT pg_drop_replication_slot(?)", slot)


@pytest.mark.only("postgres")
def test_a_slot_of_somebody_else_is_no_concern_of_ours_unless_we_want_its_name(semel):
    slot = f"d_{name_of(semel)}"
    semel.sql("SELECT pg_create_physical_replication_slot(?, true)", slot)
    try:
        assert not [one for one in doctor(semel, *config(semel, relay={"slot": slot})) if one["check"].startswith("slot")]
        told = the(doctor(semel, *config(semel, relay={"source": "cdc", "slot": slot})), "slot")
        assert "physical" in told["text"] and "drop" not in told["do"] and "--slot NAME" in told["do"]
    finally:
        semel.sql("SELECT pg_drop_replication_slot(?)", slot)


# ---- RabbitMQ -------------------------------------------------------------------------------------------


@pytest.mark.only("rabbitmq")
@pytest.mark.unless("rabbitmq-stream", reason="there the queue is a stream")
def test_a_queue_of_another_type_or_that_is_lost_with_the_broker_is_a_problem(bare):
    bare.ok("init")
    channel = bare.broker.channel()
    channel.exchange_declare(TOPIC, "topic", durable=True)
    channel.queue_declare(f"billing.{TOPIC}", durable=True, arguments={"x-queue-type": "classic", "x-single-active-consumer": True})
    channel.queue_declare(f"audit.{TOPIC}", durable=False)
    bare.broker.connection.close()
    wanted = config(bare, subscriptions=[{"scope": scope, "topics": [TOPIC], "exec": "true"} for scope in ("billing", "audit")])
    found = [finding["text"] for finding in grave(doctor(bare, *wanted), "topology")]
    assert any("x-queue-type" in text and "classic" in text for text in found), "\n".join(found)
    assert any("durable" in text and "audit" in text for text in found), found


@pytest.mark.only("rabbitmq")
def test_bindings_are_seen_through_the_management_plugin_or_it_is_said_that_they_are_not(semel):
    one_delivered(semel)
    away = semel.run("doctor", "--management", "http://127.0.0.1:1/", "--json")
    assert "enable rabbitmq_management" in the(json.loads(away.stdout)["findings"], "bindings", "advice")["do"]
    with mix.servers().administrator.management() as url:
        look = lambda: json.loads(semel.run("doctor", "--management", url, "--json").stdout)["findings"]  # noqa: E731
        wait_for(lambda: "broker-disk" in {finding["check"] for finding in look()}, 60, "the plugin has looked around")
        found = look()
        assert grave(found, "bindings", "fine") and not grave(found, "bindings") and not grave(found, "bindings", "advice")
        semel.ok("consume", "--scope", "narrow", "--topic", TOPIC, "--bind", "*.eu", "--exec", "true", "--drain")
        channel = semel.broker.channel()
        channel.queue_bind(f"narrow.{TOPIC}", TOPIC, "#")  # as a wider --bind would have left it
        assert f"narrow.{TOPIC} is bound to the exchange {TOPIC} by # too" in the(look(), "bindings", "advice")["text"]
        channel.queue_unbind(f"billing.{TOPIC}", TOPIC, "#")
        semel.broker.connection.close()
        told = the(look(), "bindings")
        assert f"billing.{TOPIC} is not bound to the exchange {TOPIC}" in told["text"] and "topology apply" in told["do"]
        mix.servers().administrator.limit_deliveries(semel.broker.name, r"^billing\.", 20)
        check = ("topology", "check", "--scope", "billing", "--topic", TOPIC, "--management", url)
        wait_for(lambda: "after 20 deliveries: by the policy often" in semel.run(*check).stdout, 60, "the limit is told")
        assert "is not bound" in semel.run(*check).stdout and grave(look(), "limits")


@pytest.mark.only("rabbitmq")
def test_events_that_no_queue_takes_are_told_with_what_heals_them(semel):
    one_delivered(semel)
    mix.servers().administrator.delete_exchange(semel.broker.name, TOPIC)
    semel.publish("--topic", TOPIC)
    semel.run("relay", "--drain", "--timeout", "2s")
    told = the(json.loads(semel.run("doctor", "--json").stdout)["findings"], "refused")
    assert "no queue takes it" in told["text"] and "topology apply" in told["do"]


# ---- Kafka ----------------------------------------------------------------------------------------------


@pytest.mark.only("kafka")
def test_a_topic_that_outlives_the_inbox_is_a_problem(semel):
    one_delivered(semel)
    found = doctor(semel, *config(semel, retention={"outbox": "1h", "inbox": "2h"},
                                  subscriptions=[{"scope": "billing", "topics": [TOPIC], "exec": "true"}]))
    assert any("retention.ms" in finding["text"] for finding in grave(found, "topology")), found
