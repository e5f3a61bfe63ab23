# SPDX-License-Identifier: Apache-2.0
"""The pages under docs/runbooks/: the trouble is made, the page's own commands are run, and the trouble is over. (The
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

    def watched(self, log, *more):
        """A consumer that stays, and whose log is kept."""
        with open(log, "a", encoding="utf-8") as kept:
            return self.semel.spawn("consume", "--scope", "billing", *more, stderr=kept,
                                    env={**self.environment, "SEMEL_LOG": "json"})

    def invoices(self):
        return self.semel.sql("SELECT order_id, total FROM invoice ORDER BY rowid")

    def back_up(self, name):
        with closing(sqlite3.connect(self.semel.store)) as store, closing(sqlite3.connect(self.semel.folder / name)) as copy:
            store.backup(copy)

    def accept_all(self):
        """The cause of the dead letters is mended."""
        self.semel.sql("ALTER TABLE invoice RENAME TO old")
        self.semel.sql("CREATE TABLE invoice(order_id TEXT, total REAL)")
        self.semel.sql("INSERT INTO invoice SELECT * FROM old")

    def on_call(self, **names):
        return RunbookReader(self.semel.folder, {**self.environment, **names})

    def night(self, page, **names):
        return self.on_call(**names).follow(page)

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
def test_a_page_says_what_is_seen_what_it_means_what_to_look_at_and_what_never_to_do(path):
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


def test_duplicates_are_told_by_kind_and_nothing_was_doubled(shop):
    """One event is sent again; then four are delivered again, because their consumer died before its ack."""
    need_curl()
    address, log = f"127.0.0.1:{free_port()}", shop.semel.folder / "billing.log"
    first = shop.watched(log)
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
    shop.watched(log, "--metrics", address)
    told = f'semel_duplicates_total{{scope="billing"}} {again}\n'
    wait_for(lambda: told in metrics(address), 60, "the deliveries that come again")
    wait_for(lambda: len(shop.invoices()) == 5, 60, "the invoices")
    wait_for(lambda: log.read_text().count("ack_duplicate") == again + 1, 60, "their lines in the log")

    night = shop.night("duplicate-spike", METRICS=f"http://{address}/metrics", LOG="billing.log")
    kinds = night.answer("grep -c")
    assert again > 0 and told in kinds and kinds.endswith(f"\n{again + 1}\n{again}\n")
    assert "processed" in night.answer("semel trace")
    assert re.search(r"^billing +5 +5 ", night.answer("semel verify"), re.MULTILINE)
    assert len(shop.invoices()) == 5


def test_a_lost_event_is_found_and_sent_again_and_the_others_stay_single(shop):
    ids = [shop.order(number) for number in range(3)]
    shop.deliver()
    shop.semel.sql("DELETE FROM semel_inbox WHERE event_id = ?", ids[1])
    shop.semel.sql("DELETE FROM invoice WHERE order_id = '1'")

    night = shop.night("message-loss", EVENT=ids[1], AGGREGATE="order:1")
    assert "published" in night.answer("semel trace") and "processed" not in night.answer("semel trace")
    assert re.search("everything that (is needed|could be checked) exists", night.answer("topology check"))
    assert (1, "verify --scope billing") in night.codes()
    assert night.answer("--dry-run").startswith("would replay 1 event")
    shop.consume()
    assert sorted(shop.invoices()) == [("0", 5), ("1", 5), ("2", 5)]
    shop.check_books()


def test_an_event_that_was_never_committed_is_told_so(shop):
    shop.deliver()
    night = shop.night("message-loss", EVENT="01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41", AGGREGATE="order:1")
    assert (65, "trace 01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41") in night.codes()
    assert night.answer("--dry-run").startswith("would replay 0 events")


def test_dead_letters_are_grouped_and_after_the_mend_all_are_done_in_order(bare):
    need_curl()
    shop = Shop(bare, attempts="1")
    for number in range(3):
        shop.order(number, total=-5)
        shop.order(number, total=5)
    shop.deliver()
    port = free_port()
    shop.semel.spawn("serve", "--listen", f"127.0.0.1:{port}", env=shop.environment)
    wait_for(lambda: listens(port), 60, "the admin server")

    mend, night = "\n## Fix the cause", shop.on_call(ADMIN=f"http://127.0.0.1:{port}")
    night.follow("dead-letters-rising", until=mend)
    looked = night.answer("semel dlq count\n")
    assert looked.startswith("3\n")
    assert re.search(r"3 billing", looked) and re.search(r"3 CHECK constraint failed: total > 0", looked)
    assert "reason       CHECK constraint failed" in night.answer("semel dlq show")
    assert '"paused":true' in night.answer("/pause").replace(" ", "")
    shop.accept_all()
    night.environment["ENTRY"] = shop.semel.json("dlq", "list", env=shop.environment)[0]["dlqEntryId"]
    night.follow("dead-letters-rising", since=mend)
    assert '"paused":false' in night.answer("/resume").replace(" ", "")
    shop.consume()
    assert [total for order, total in shop.invoices() if order == "1"] == [-5, 5]
    assert len(shop.invoices()) == 6
    shop.check_books()


def test_what_waited_for_a_relay_is_carried_by_the_pages_own(shop):
    shop.order(1)
    night = shop.night("relay-lag")
    assert re.search(r"relay +events waiting: 1,", night.answer("semel doctor"))
    assert "published 1 event" in night.answer("semel relay")
    assert "0 not yet published" in night.answer("semel verify")


def test_a_relay_that_cannot_reach_its_broker_says_so_and_spends_no_attempt(shop):
    shop.order(1)
    night = shop.night("relay-lag", SEMEL_BROKER="local:nowhere/broker.db")
    assert (69, "relay --drain --timeout 10s") in night.codes()
    assert "nowhere/broker.db" in night.answer("semel doctor")
    assert shop.semel.sql("SELECT status, attempts FROM semel_outbox") == [("NEW", 0)]


def test_the_head_of_a_key_that_stands_still_is_found_and_replayed_with_its_followers(bare):
    shop = Shop(bare, attempts="1")
    shop.order(7, total=-5)
    waiting = shop.order(7, total=5)
    shop.order(8)
    shop.deliver()
    assert shop.invoices() == [("8", 5)]
    shop.accept_all()

    night = shop.night("poisoned-key", EVENT=waiting)
    assert "1 parked behind it" in night.answer("semel dlq list")
    assert "reason       CHECK constraint failed" in night.answer("semel dlq show")
    assert "dlq replay" in [" ".join(words.split()[:2]) for _, words in night.codes()]
    shop.consume()
    assert shop.invoices() == [("8", 5), ("7", -5), ("7", 5)]
    assert "parked" not in shop.ok("trace", waiting).splitlines()[-1]
    shop.check_books()


def test_an_effect_in_doubt_is_decided_by_a_person_and_runs_at_most_once_more(bare):
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

    night = shop.night("effect-in-doubt", SCOPE="mail")
    assert "reason       in doubt" in night.answer("semel dlq show")
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

    night = shop.night("disaster-restore", BACKUP="backup.db", STORE="semel.db", BROKER="semel-broker.db")
    assert (1, "verify") in night.codes()
    assert "replayed 2 events" in night.answer("semel replay --dry-run") and "published 1 event" in night.answer("semel relay")
    shop.consume()
    assert sorted(shop.invoices()) == [("1", 5), ("2", 5), ("3", 5)]
    shop.check_books()


@pytest.mark.anywhere
@pytest.mark.only("postgres")
def test_a_slot_that_nobody_reads_is_found_and_dropped_without_a_loss(semel):
    slot = str(semel.store).rpartition("/")[2]
    semel.ok("init", "--cdc", "--slot", slot)
    semel.publish()
    look, drop = (block.replace("'semel'", f"'{slot}'") for block in sql_blocks("slot-grows"))
    try:
        (found,) = [row for row in semel.sql(look) if row[0] == slot]
        assert found[1] is False and found[2] == "reserved"  # active, wal_status
    finally:
        semel.sql(drop)
    assert [row for row in semel.sql(look) if row[0] == slot] == []
    assert "published 1 event" in semel.ok("relay", "--drain")
    assert "0 not yet published" in semel.run("verify").stdout
