# SPDX-License-Identifier: Apache-2.0
"""The examples of the guides to dead letters, replay and retention, run as a reader would."""
import pytest
from guide import TREE, Reader


def read(name, tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("guide"))
    reader.read((TREE / "docs" / name).read_text())
    return reader


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    return read("dead-letters.md", tmp_path_factory)


@pytest.fixture(scope="module")
def replays(tmp_path_factory):
    return read("replay-and-retention.md", tmp_path_factory)


def test_dead_letters_are_counted_and_shown_as_the_guide_says(letters):
    (shown,) = [printed for printed in letters.printed if "failed at" in printed]
    assert shown.startswith("1\n")
    assert "1 parked behind it" in shown
    assert "dead-lettered" in shown


def test_the_replayed_head_comes_before_its_followers(letters):
    assert any(printed.endswith("9.0\n-5.0\n5.0\n") for printed in letters.printed)


def test_a_discarded_dead_letter_releases_the_next_event(letters):
    assert letters.rows("SELECT total FROM invoice ORDER BY rowid DESC LIMIT 1") == [(3.0,)]
    assert letters.rows("SELECT status, discard_reason FROM semel_dead_letter ORDER BY position") == [
        ("REPLAYED", None), ("DISCARDED", "typed by hand, order cancelled")]
    assert "every committed event is accounted for" in letters.printed[-1]


def test_a_replay_to_all_scopes_changes_nothing(replays):
    (shown,) = [printed for printed in replays.printed if printed.startswith("would replay 3 events\nreplayed 1 event\n")]
    assert "duplicate 2" in shown


def test_reprocessing_ran_reports_once_more_and_billing_not(replays):
    assert any(printed.endswith("3\n3\n") for printed in replays.printed)


def test_what_the_guide_says_is_refused_is_refused(replays):
    assert replays.rows("SELECT count(*) FROM invoice") == [(4,)]
    assert any(printed.endswith("replayed 3 events\n") for printed in replays.printed)


def test_in_the_end_everything_is_accounted_for(replays):
    assert "every committed event is accounted for" in replays.printed[-1]
    assert "committed" in replays.printed[-1] and "processed" in replays.printed[-1]
