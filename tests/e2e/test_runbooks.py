# SPDX-License-Identifier: Apache-2.0
"""The pages under docs/runbooks/: the incident is caused, the commands of the page are run, and the incident is over. (The
page about a broker's alarm needs a broker of its own: tests/chaos/test_broker_trouble.py.)"""
import json
import re
import shutil
import sqlite3
import urllib.request
from contextlib import closing

import guide
import pytest
from sandbox import free_port, listens
from program import wait_for
from runbook import RunbookReader, sql_blocks

SECTIONS = ("## Diagnose", "## Never", "## Verify")
PAGES = sorted((guide.TREE / "docs" / "runbooks").glob("*-*.md"))
INVOICE = "INSERT INTO invoice VALUES (:aggregate_id, json_extract(:payload, '$.total'))"
NO_CURL = "curl is not installed"


def config(**settings):
    return json.dumps({"subscriptions": [{"scope": "billing", "topics": ["order.events"], "sql": INVOICE, **settings}]})


class Shop:
    """Orders that become invoices, as a config file has them."""

    def __init__(self, semel, **settings):
        self.semel = semel
        (semel.folder / "shop.yaml").write_text(config(**settings), encoding="utf-8")
        self.environment = {"SEMEL_CONFIG": "shop.yaml", "SCOPE": "billing", "TOPIC": "order.events"}
        semel.ok("init")
        semel.sql("CREATE TABLE invoice(order_id TEXT, total REAL CHECK (total > 0))")

    def order(self, number, total=5):
        return self.semel.publish("--payload", json.dumps({"total": total}), aggregate=f"order:{number}")

    def ok(self, *words, **more):
        return self.semel.ok(*words, env={**self.environment, **more})

    def deliver(self):
        self.ok("relay", "--drain")
        self.consume()

    def consume(self):
        self.ok("consume", "--scope", "billing", "--drain")

    def spawn_consumer(self, log, *more):
        """A consumer that keeps running and appends to this log file."""
        with open(log, "a", encoding="utf-8") as file:
            return self.semel.spawn("consume", "--scope", "billing", *more, stderr=file,
                                    env={**self.environment, "SEMEL_LOG": "json"})

    def invoices(self):
        return self.semel.sql("SELECT order_id, total FROM invoice ORDER BY rowid")

    def back_up(self, name):
        with closing(sqlite3.connect(self.semel.store)) as store, closing(sqlite3.connect(self.semel.folder / name)) as copy:
            store.backup(copy)

    def accept_all(self):
        """Fixes the cause of the dead letters."""
        self.semel.sql("ALTER TABLE invoice RENAME TO old")
        self.semel.sql("CREATE TABLE invoice(order_id TEXT, total REAL)")
        self.semel.sql("INSERT INTO invoice SELECT * FROM old")

    def reader(self, **names):
        return RunbookReader(self.semel.folder, {**self.environment, **names})

    def follow(self, page, **names):
        return self.reader(**names).follow(page)

    def check_books(self):
        assert "every committed event is accounted for" in self.ok("verify")


@pytest.fixture
def shop(bare):
    return Shop(bare)


def need_curl():
    if not shutil.which("curl"):
        pytest.skip(NO_CURL)


def metrics(address):
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            return answer.read().decode()
    except OSError:
        return ""  # not yet


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_has_all_its_sections_and_is_listed(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# Runbook: ") and "**Symptom.** " in text and "**What it means.** " in text
    assert [section for section in SECTIONS if section not in text] == []
    assert f"]({path.name})" in (path.parent / "README.md").read_text(encoding="utf-8")
    assert list(guide.broken_links(path)) == []


def test_an_alert_names_a_page_that_is_there():
    rules = guide.page("packaging/prometheus/semel-alerts.yaml")
    named = set(re.findall(r"runbook: (\S+)", rules))
    assert named and [name for name in named if not (guide.TREE / name).exists()] == []


# ---- one incident each --------------------------------------------------------------------------


def test_duplicates_are_counted_by_kind_and_no_effect_happened_twice(shop):
    """One event is sent again; then four are delivered again, because their consumer died before its ack."""
    need_curl()
    address, log = f"127.0.0.1:{free_port()}", shop.semel.folder / "billing.log"
    first = shop.spawn_consumer(log)
    shop.order(0)
    shop.ok("relay", "--drain")
    wait_for(lambda: len(shop.invoices()) == 1, 60, "the first invoice")
    shop.ok("replay")
    wait_for(lambda: log.read_text().count("ack_duplicate") == 1, 60, "the one that was sent again")
    assert shop.semel.stop(first) == 0
    for number in range(1, 5):
        shop.order(number)
    shop.ok("relay", "--drain")
    died = shop.semel.run("consume", "--scope", "billing", "--drain",
                          env={**shop.environment, "SEMEL_FAILPOINT": "consume.after-commit:kill@1"})
    assert died.returncode == -9
    again = len(shop.invoices()) - 1
    shop.spawn_consumer(log, "--metrics", address)
    counted = f'semel_duplicates_total{{scope="billing"}} {again}\n'
    wait_for(lambda: counted in metrics(address), 60, "the deliveries that come again")
    wait_for(lambda: len(shop.invoices()) == 5, 60, "the invoices")
    wait_for(lambda: log.read_text().count("ack_duplicate") == again + 1, 60, "their lines in the log")

    reader = shop.follow("duplicate-spike", METRICS=f"http://{address}/metrics", LOG="billing.log")
    kinds = reader.answer("grep -c")
    assert again > 0 and counted in kinds and kinds.endswith(f"\n{again + 1}\n{again}\n")
    assert "processed" in reader.answer("semel trace")
    assert re.search(r"^billing +5 +5 ", reader.answer("semel verify"), re.MULTILINE)
    assert len(shop.invoices()) == 5


def test_a_lost_event_is_found_and_sent_again_and_the_others_stay_single(shop):
    ids = [shop.order(number) for number in range(3)]
    shop.deliver()
    shop.semel.sql("DELETE FROM semel_inbox WHERE event_id = ?", ids[1])
    shop.semel.sql("DELETE FROM invoice WHERE order_id = '1'")

    reader = shop.follow("message-loss", EVENT=ids[1], AGGREGATE="order:1")
    assert "published" in reader.answer("semel trace") and "processed" not in reader.answer("semel trace")
    assert "no differences found" in reader.answer("topology check")
    assert (1, "verify --scope billing") in reader.codes()
    assert reader.answer("--dry-run").startswith("would replay 1 event")
    shop.consume()
    assert sorted(shop.invoices()) == [("0", 5), ("1", 5), ("2", 5)]
    shop.check_books()


def test_an_event_that_was_never_committed_is_reported_as_unknown(shop):
    shop.deliver()
    reader = shop.follow("message-loss", EVENT="01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41", AGGREGATE="order:1")
    assert (65, "trace 01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41") in reader.codes()
    assert reader.answer("--dry-run").startswith("would replay 0 events")


def test_dead_letters_are_grouped_and_after_the_fix_all_are_done_in_order(bare):
    need_curl()
    shop = Shop(bare, attempts="1")
    for number in range(3):
        shop.order(number, total=-5)
        shop.order(number, total=5)
    shop.deliver()
    port = free_port()
    shop.semel.spawn("serve", "--listen", f"127.0.0.1:{port}", env=shop.environment)
    wait_for(lambda: listens(port), 60, "the admin server")

    fix, reader = "\n## Fix the cause", shop.reader(ADMIN=f"http://127.0.0.1:{port}")
    reader.follow("dead-letters-rising", until=fix)
    counts = reader.answer("semel dlq count\n")
    assert counts.startswith("3\n")
    assert re.search(r"3 billing", counts) and re.search(r"3 CHECK constraint failed: total > 0", counts)
    assert "reason         CHECK constraint failed" in reader.answer("semel dlq show")
    assert '"paused":true' in reader.answer("/pause").replace(" ", "")
    shop.accept_all()
    reader.environment["ENTRY"] = shop.semel.json("dlq", "list", env=shop.environment)[0]["dlqEntryId"]
    reader.follow("dead-letters-rising", since=fix)
    assert '"paused":false' in reader.answer("/resume").replace(" ", "")
    shop.consume()
    assert [total for order, total in shop.invoices() if order == "1"] == [-5, 5]
    assert len(shop.invoices()) == 6
    shop.check_books()


def test_events_that_waited_for_a_relay_are_published_by_the_one_of_the_page(shop):
    shop.order(1)
    reader = shop.follow("relay-lag")
    assert re.search(r"relay +events waiting: 1,", reader.answer("semel doctor"))
    assert "published 1 event" in reader.answer("semel relay")
    assert "0 not yet published" in reader.answer("semel verify")


def test_a_relay_that_cannot_reach_its_broker_reports_it_and_counts_no_attempt(shop):
    shop.order(1)
    reader = shop.follow("relay-lag", SEMEL_BROKER="local:nowhere/broker.db")
    assert (69, "relay --drain --timeout 10s") in reader.codes()
    assert "nowhere/broker.db" in reader.answer("semel doctor")
    assert shop.semel.sql("SELECT status, attempts FROM semel_outbox") == [("NEW", 0)]


def test_the_head_of_a_poisoned_key_is_found_and_replayed_with_its_followers(bare):
    shop = Shop(bare, attempts="1")
    shop.order(7, total=-5)
    waiting = shop.order(7, total=5)
    shop.order(8)
    shop.deliver()
    assert shop.invoices() == [("8", 5)]
    shop.accept_all()

    reader = shop.follow("poisoned-key", EVENT=waiting)
    assert "1 parked behind it" in reader.answer("semel dlq list")
    assert "reason         CHECK constraint failed" in reader.answer("semel dlq show")
    assert "dlq replay" in [" ".join(words.split()[:2]) for _, words in reader.codes()]
    shop.consume()
    assert shop.invoices() == [("8", 5), ("7", -5), ("7", 5)]
    assert "parked" not in shop.ok("trace", waiting).splitlines()[-1]
    shop.check_books()


def test_an_effect_in_doubt_is_decided_by_an_operator_and_runs_at_most_once_more(bare):
    """Two calls are cut off. One is found to have happened, the other is run once more."""
    shop = Shop(bare)
    words = ("consume", "--scope", "mail", "--topic", "order.events", "--drain", "--claim", "separate",
             "--exec", "echo $SEMEL_EVENT_ID >> sent")
    ids = [shop.order(number) for number in range(3)]
    shop.ok("relay", "--drain")
    for nth in (1, 2):  # the second time the first claim is the one that was left
        died = shop.semel.run(*words, env={**shop.environment, "SEMEL_FAILPOINT": f"consume.after-claim:kill@{nth}"})
        assert died.returncode == -9
    shop.ok(*words)
    sent = (shop.semel.folder / "sent").read_text().split()

    reader = shop.follow("effect-in-doubt", SCOPE="mail")
    assert "reason         in doubt" in reader.answer("semel dlq show")
    shop.ok(*words)
    again = (shop.semel.folder / "sent").read_text().split()
    assert len(sent) == 1 and len(again) == 2 and set(again) <= set(ids)
    assert shop.semel.sql("SELECT status, count(*) FROM semel_dead_letter GROUP BY 1 ORDER BY 1") == [
        ("DISCARDED", 1), ("REPLAYED", 1)]
    assert "every committed event is accounted for" in shop.ok("verify", "--scope", "mail")


def test_after_a_disaster_everything_that_the_backup_knew_is_done_once(shop):
    """Processed, at the broker, in the outbox; then the backup, more work, and both files are lost."""
    shop.order(1)
    shop.deliver()
    shop.order(2)
    shop.ok("relay", "--drain")
    shop.order(3)
    shop.back_up("backup.db")
    shop.deliver()
    shop.order(4)
    shop.deliver()

    reader = shop.follow("disaster-restore", BACKUP="backup.db", STORE="semel.db", BROKER="semel-broker.db")
    assert (1, "verify") in reader.codes()
    assert "replayed 2 events" in reader.answer("semel replay --dry-run") and "published 1 event" in reader.answer("semel relay")
    shop.consume()
    assert sorted(shop.invoices()) == [("1", 5), ("2", 5), ("3", 5)]
    shop.check_books()


@pytest.mark.anywhere
@pytest.mark.only("postgres")
def test_a_slot_without_a_reader_is_found_and_dropped_without_a_loss(semel):
    slot = str(semel.store).rpartition("/")[2]
    semel.ok("init", "--cdc", "--slot", slot)
    semel.publish()
    query, drop = (block.replace("'semel'", f"'{slot}'") for block in sql_blocks("slot-grows"))
    try:
        (found,) = [row for row in semel.sql(query) if row[0] == slot]
        assert found[1] is False and found[2] == "reserved"  # active, wal_status
    finally:
        semel.sql(drop)
    assert [row for row in semel.sql(query) if row[0] == slot] == []
    assert "published 1 event" in semel.ok("relay", "--drain")
    assert "0 not yet published" in semel.run("verify").stdout
