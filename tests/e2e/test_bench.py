# SPDX-License-Identifier: Apache-2.0
"""`semel bench` measures and reports; no test depends on the speed of this machine."""
import json

import pytest

pytestmark = pytest.mark.slow

TINY = ("bench", "--rounds", "1", "--turns", "1", "--transactions", "5", "--events", "500", "--backlog", "2000", "--dir", ".")
RATES = ["publish, one event in a transaction", "publish, 1,000 in a transaction", "relay to the local broker",
         "consume effectively once, SQL handler"]
GROWTH = ["relay, time per event", "relay, resident memory", "consume, time per event", "consume, resident memory"]


def test_a_tiny_run_prints_every_row_and_leaves_nothing_behind(bare):
    printed = bare.ok(*TINY)
    for name in RATES + GROWTH:
        assert sum(line.startswith(name) for line in printed.splitlines()) == 1, printed
    assert "met" in printed or "MISSED" in printed
    assert list(bare.folder.iterdir()) == []


def check_rows(report):
    assert [row["name"] for row in report["rates"]] == RATES
    assert [row["name"] for row in report["growth"]] == GROWTH
    assert (report["smallBacklog"], report["bigBacklog"], report["rounds"]) == (1000, 2000, 1)
    for row in report["rates"]:
        assert row["semel"] > 0 and row["bare"] > 0 and row["ratio"] > 0, row
    for row in report["growth"]:
        assert row["small"] > 0 and row["big"] > 0, row
        assert row["goal"] > 0 and isinstance(row["met"], bool), row
    assert report["rates"][1]["goal"] is None and report["rates"][1]["met"] is None


def check_work(semel, folder):
    """Both sides did the same: a round to warm up and one that counts, for the relay and for the consumer."""
    for side in ("semel", "bare"):
        rows = semel.sql("SELECT count(*), count(DISTINCT event_id) FROM bench_invoice", database=folder / f"{side}.db")
        assert rows == [(4 * 500, 4 * 500)]
        assert semel.sql("SELECT DISTINCT status FROM semel_outbox", database=folder / f"{side}.db") == [("PUBLISHED",)]


def test_its_json_has_both_sides_and_check_exits_with_1_exactly_when_a_goal_is_missed(bare):
    done = bare.run(*TINY, "--json", "--check", "--keep")
    report = json.loads(done.stdout)
    check_rows(report)
    missed = any(row["met"] is False for row in report["rates"] + report["growth"])
    assert done.returncode == (1 if missed else 0), done.stdout + done.stderr
    (folder,) = bare.folder.iterdir()
    check_work(bare, folder)


def test_a_folder_that_cannot_be_made_is_named(bare):
    assert "/nowhere" in bare.fails(69, "bench", "--dir", "/nowhere")
