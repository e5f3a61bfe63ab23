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
    (looked,) = [said for said in letters.said if "failed at" in said]
    assert looked.startswith("1\n")
    assert "1 parked behind it" in looked
    assert "dead-lettered" in looked


def test_the_replayed_head_comes_before_its_followers(letters):
    assert any(said.endswith("9.0\n-5.0\n5.0\n") for said in letters.said)


def test_a_discarded_letter_lets_the_next_event_go(letters):
    assert letters.rows("SELECT total FROM invoice ORDER BY rowid DESC LIMIT 1") == [(3.0,)]
    assert letters.rows("SELECT status, discard_reason FROM semel_dead_letter ORDER BY position") == [
        ("REPLAYED", None), ("DISCARDED", "typed by hand, order cancelled")]
    assert "every committed event is accounted for" in letters.said[-1]


def test_a_replay_to_everybody_changes_nothing(replays):
    (said,) = [said for said in replays.said if said.startswith("would replay 3 events\nreplayed 1 event\n")]
    assert "duplicate 2" in said


def test_reprocessing_ran_reports_once_more_and_billing_not(replays):
    assert any(said.endswith("3\n3\n") for said in replays.said)


def test_what_the_guide_says_is_refused_is_refused(replays):
    assert replays.rows("SELECT count(*) FROM invoice") == [(4,)]
    assert any(said.endswith("replayed 3 events\n") for said in replays.said)


def test_in_the_end_everything_is_accounted_for(replays):
    assert "every committed event is accounted for" in replays.said[-1]
    assert "committed" in replays.said[-1] and "processed" in replays.said[-1]
