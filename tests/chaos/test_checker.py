# SPDX-License-Identifier: Apache-2.0
"""The checker finds what it has to find: each kind of problem, made by hand, is reported as what it is."""
import subprocess
import sys
from pathlib import Path

import pytest

CHECKER = Path(__file__).parent / "checker.py"


@pytest.fixture
def finished(shop):
    """Two scopes have processed ten events of two aggregates, without a problem."""
    shop.by_sql("billing")
    shop.by_sql("stock")
    shop.load(aggregates=2, each=5)
    shop.recover()
    shop.check_books()
    return shop


def kinds(shop):
    return {(problem.kind, problem.scope) for problem in shop.problems()}


def test_an_effect_that_is_missing_is_lost(finished):
    finished.sql("DELETE FROM effect_billing WHERE rowid = 4")
    assert kinds(finished) == {("lost", "billing")}


def test_an_effect_that_is_there_twice_is_doubled(finished):
    finished.sql("INSERT INTO effect_stock SELECT * FROM effect_stock WHERE number = 5 AND aggregate = 'o-1'")
    assert kinds(finished) == {("doubled", "stock")}


def test_an_effect_of_a_change_that_was_rolled_back_is_a_ghost(finished):
    finished.sql("INSERT INTO effect_billing VALUES ('unknown', 'o-1', 6)")
    assert kinds(finished) == {("ghost", "billing")}


def test_an_event_without_its_business_row_is_a_ghost_wherever_it_is(finished):
    finished.sql("DELETE FROM orders WHERE aggregate = 'o-1' AND number = 5")
    assert kinds(finished) == {("ghost", where) for where in ("outbox", "broker", "billing", "stock")}


def test_a_business_row_without_its_event_is_lost(finished):
    finished.sql("INSERT INTO orders VALUES ('silent', 'o-1', 6)")
    assert kinds(finished) == {("lost", where) for where in ("outbox", "billing", "stock")}


def test_two_effects_in_the_wrong_order_are_found(finished):
    finished.sql("UPDATE effect_stock SET rowid = rowid + 100 WHERE aggregate = 'o-1' AND number = 3")
    assert kinds(finished) == {("order", "stock")}


def test_an_effect_under_another_id_is_a_changed_one(finished):
    finished.sql("UPDATE effect_billing SET event_id = 'new' WHERE rowid = 2")
    assert kinds(finished) == {("changed", "billing")}


def test_a_mark_without_an_arrival_is_lost(finished):
    finished.sql("DELETE FROM semel_log WHERE rowid = (SELECT min(rowid) FROM semel_log)", database=finished.broker)
    assert kinds(finished) == {("lost", "broker")}


def test_a_dead_letter_is_not_lost_until_it_is_replayed(finished):
    finished.sql("DELETE FROM effect_billing WHERE aggregate = 'o-1' AND number = 5")
    finished.sql("INSERT INTO semel_dead_letter (entry_id, scope, event_id, failed_at) SELECT 'e', 'billing', event_id,"
                 " '2026-01-01' FROM orders WHERE aggregate = 'o-1' AND number = 5")
    assert kinds(finished) == set()
    finished.sql("UPDATE semel_dead_letter SET status = 'REPLAYED'")
    assert kinds(finished) == {("lost", "billing")}


def test_the_inbox_is_not_read(finished):
    finished.sql("DELETE FROM semel_inbox")
    assert kinds(finished) == set()


def command(shop):
    words = [sys.executable, "-B", CHECKER, "--store", shop.store, "--broker", shop.broker,
             "--effects", f"billing={shop.store}:effect_billing", "--calls", f"stock={shop.store}:effect_stock"]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)


def test_as_a_command_it_counts_and_ends_with_0(finished):
    done = command(finished)
    assert (done.returncode, done.stdout) == (0, "lost 0, doubled 0, ghost 0, order 0, changed 0\n")


def test_as_a_command_it_lists_what_it_found_and_ends_with_1(finished):
    finished.sql("DELETE FROM effect_billing WHERE aggregate = 'o-1' AND number = 2")
    done = command(finished)
    assert done.returncode == 1
    assert "lost: billing: o-1 number 2" in done.stdout
    assert done.stdout.endswith("lost 1, doubled 0, ghost 0, order 0, changed 0\n")


def test_as_a_command_it_accepts_repeated_calls(finished):
    finished.sql("INSERT INTO effect_stock SELECT * FROM effect_stock WHERE number = 5")
    assert command(finished).returncode == 0
