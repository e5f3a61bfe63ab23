# SPDX-License-Identifier: Apache-2.0
"""dlq: what was given up can be seen, explained, replayed and discarded."""
import json
import re
import uuid
from pathlib import Path

import pytest

from story import consume, deliver, mend, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

MEMBERS = {
    "dlqEntryId", "originalEventId", "eventType", "topicName", "eventRecord", "failureReason", "failureTimestamp",
    "sourceService", "sagaId", "correlationId", "attempts", "replayCount", "status",
}
RECORD = {"id", "type", "aggregateType", "aggregateId", "topic", "routingKey", "time", "contentType", "headers", "payload"}
UNKNOWN = "01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def entries(semel, *more):
    return semel.json("dlq", "list", *more)


def entry(semel):
    (only,) = entries(semel)
    return only


def count(semel):
    return int(semel.ok("dlq", "count"))


def test_a_new_store_has_no_dead_letters(shop):
    assert entries(shop) == []
    assert count(shop) == 0
    assert shop.json("dlq", "count") == {"count": 0}
    assert "no dead letters" in shop.ok("dlq", "list")
    shop.ok("dlq", "replay", "--all")


@pytest.mark.core
def test_a_dead_letter_has_every_member(shop):
    event_id = shop.publish("--payload", '{"word": "bad"}', "--header", "sagaId=s-1", "--header", "correlationId=c-1")
    relay(shop)
    consume(shop)
    letter = entry(shop)
    assert MEMBERS <= set(letter)
    assert RECORD <= set(letter["eventRecord"])
    assert letter["originalEventId"] == letter["eventRecord"]["id"] == event_id
    assert (letter["eventType"], letter["topicName"]) == ("order.created.v1", "order.events")
    assert (letter["sourceService"], letter["sagaId"], letter["correlationId"]) == ("billing", "s-1", "c-1")
    assert (letter["status"], letter["replayCount"]) == ("PENDING", 0)
    assert letter["attempts"] >= 1
    assert "the word is bad" in letter["failureReason"]
    assert letter["failureTimestamp"].endswith("Z")
    assert letter["eventRecord"]["payload"] == {"word": "bad"}
    assert shop.json("dlq", "show", letter["dlqEntryId"]) == letter
    shown = shop.ok("dlq", "show", letter["dlqEntryId"])
    assert "the word is bad" in shown and event_id in shown
    assert letter["dlqEntryId"] in shop.ok("dlq", "list")


def test_unknown_members_are_null_and_never_absent(shop):
    deliver(shop, ("bad", "1"))
    letter = entry(shop)
    assert letter["sagaId"] is None and letter["correlationId"] is None


@pytest.mark.core
def test_a_replayed_head_runs_at_once_and_its_followers_in_order(shop):
    deliver(shop, ("bad", "1"), ("second", "1"), ("other", "2"), ("third", "1"))
    assert words(shop) == ["other"]
    letter = entry(shop)
    assert letter["parked"] == 2
    assert count(shop) == 1
    mend(shop)
    assert shop.ok("dlq", "replay", letter["dlqEntryId"]) == f"replayed {letter['dlqEntryId']}\n"
    consume(shop)
    assert words(shop) == ["other", "bad", "second", "third"]
    assert entry(shop)["status"] == "REPLAYED"
    assert count(shop) == 0
    shop.ok("verify")


def test_a_replay_that_fails_again_returns_to_its_entry_and_three_are_the_limit(shop):
    deliver(shop, ("bad", "1"))
    entry_id = entry(shop)["dlqEntryId"]
    for number in (1, 2, 3):
        shop.ok("dlq", "replay", entry_id)
        consume(shop)
        letter = entry(shop)
        assert (letter["dlqEntryId"], letter["replayCount"], letter["status"]) == (entry_id, number, "PENDING")
    complaint = shop.fails(65, "dlq", "replay", entry_id)
    assert "limit" in complaint and "discard" in complaint
    assert shop.ok("dlq", "discard", entry_id) == f"discarded {entry_id}\n"
    assert entry(shop)["status"] == "DISCARDED"


@pytest.mark.core
@pytest.mark.parametrize("settings", [
    ("--claim", "same-tx"), ("--claim", "separate"), ("--guarantee", "at-most-once"), ("--guarantee", "at-least-once"),
    ("--poison", "skip"), ("--poison", "block")])
def test_no_claim_prevents_a_replay(shop, settings):
    publish(shop, "bad")
    relay(shop)
    consume(shop, "billing", *settings)
    for number in (1, 2):
        shop.ok("dlq", "replay", entry(shop)["dlqEntryId"])
        consume(shop, "billing", *settings)
        assert (entry(shop)["status"], entry(shop)["replayCount"]) == ("PENDING", number)
    mend(shop)
    shop.ok("dlq", "replay", entry(shop)["dlqEntryId"])
    consume(shop, "billing", *settings)
    assert words(shop) == ["bad"]
    assert entry(shop)["status"] == "REPLAYED"


@pytest.mark.parametrize("claim", ["same-tx", "separate"])
def test_a_program_is_replayed_at_once_too(shop, claim):
    publish(shop, "good")
    relay(shop)
    run = lambda command: shop.ok("consume", "--scope", "x", "--topic", "order.events", "--claim", claim, "--drain",
                                  "--exec", command)
    run("echo it is not ready >&2; exit 65")
    assert "not ready" in entry(shop)["failureReason"]
    for _ in range(2):
        shop.ok("dlq", "replay", "--all")
        run("exit 65")
    shop.ok("dlq", "replay", "--all")
    run("cat >> ran")
    assert (shop.folder / "ran").read_text() == '{"word": "good"}'
    assert entry(shop)["status"] == "REPLAYED"


def test_a_replay_from_the_outbox_leaves_a_dead_letter_to_an_operator(shop):
    deliver(shop, ("bad", "1"), ("second", "1"), ("third", "1"))
    mend(shop)
    shop.ok("replay")
    consume(shop)
    assert words(shop) == []
    assert entry(shop)["status"] == "PENDING"
    shop.ok("verify")
    shop.ok("dlq", "replay", entry(shop)["dlqEntryId"])
    consume(shop)
    assert words(shop) == ["bad", "second", "third"]
    shop.ok("verify")


def test_two_operators_at_once_do_not_duplicate(shop):
    deliver(shop, ("bad", "1"))
    mend(shop)
    entry_id = entry(shop)["dlqEntryId"]
    children = [shop.spawn("dlq", "replay", entry_id, env={"SEMEL_FAILPOINT": "dlq.after-publish:pause=300"})
                for _ in range(2)]
    assert sorted(child.wait(60) for child in children) == [0, 65]  # 65: the other one was first
    consume(shop)
    assert words(shop) == ["bad"]
    assert (entry(shop)["status"], entry(shop)["replayCount"]) == ("REPLAYED", 1)


def test_only_pending_dead_letters_are_replayed_or_discarded(shop):
    deliver(shop, ("bad", "1"))
    entry_id = entry(shop)["dlqEntryId"]
    shop.ok("dlq", "discard", entry_id, "--reason", "a test order")
    assert shop.json("dlq", "show", entry_id)["discardReason"] == "a test order"
    assert "DISCARDED" in shop.fails(65, "dlq", "replay", entry_id)
    assert "DISCARDED" in shop.fails(65, "dlq", "discard", entry_id)


@pytest.mark.core
def test_a_discarded_head_releases_its_followers(shop):
    deliver(shop, ("bad", "1"), ("second", "1"), ("third", "1"))
    shop.ok("dlq", "discard", entry(shop)["dlqEntryId"])
    consume(shop)
    assert words(shop) == ["second", "third"]
    shop.ok("verify")


def test_all_pending_dead_letters_are_replayed_together(shop):
    deliver(shop, ("bad", "1"), ("bad", "2"), ("bad", "3"))
    assert count(shop) == 3
    mend(shop)
    answers = shop.json("dlq", "replay", "--all")
    assert [answer["status"] for answer in answers] == ["replayed"] * 3
    consume(shop)
    assert words(shop) == ["bad"] * 3
    assert shop.ok("dlq", "replay", "--all") == "no dead letter is pending\n"


@pytest.mark.only("sqlite")
def test_replaying_all_skips_what_another_process_has_settled_meanwhile(shop):
    for number in range(3):
        publish(shop, "bad", str(number))
    relay(shop)
    consume(shop)
    shop.sql("CREATE TRIGGER other_process AFTER UPDATE ON semel_dead_letter WHEN NEW.status = 'REPLAYED'"
             " BEGIN UPDATE semel_dead_letter SET status = 'DISCARDED' WHERE status = 'PENDING'; END")
    assert len(shop.json("dlq", "replay", "--all")) == 1
    assert shop.ok("dlq", "replay", "--all") == "no dead letter is pending\n"


def test_all_of_one_scope_leaves_the_others(shop):
    deliver(shop, ("bad", "1"))
    consume(shop, "audit")
    assert len(shop.json("dlq", "replay", "--all", "--scope", "audit")) == 1
    assert {letter["sourceService"]: letter["status"] for letter in entries(shop)} == {
        "billing": "PENDING", "audit": "REPLAYED"}


def test_each_id_has_its_own_answer(shop):
    deliver(shop, ("bad", "1"), ("bad", "2"))
    first, second = (letter["dlqEntryId"] for letter in entries(shop))
    done = shop.run("dlq", "replay", first, UNKNOWN, second, "--json")
    assert done.returncode == 65
    assert [(answer["dlqEntryId"], answer["status"]) for answer in json.loads(done.stdout)] == [
        (first, "replayed"), (UNKNOWN, "not-found"), (second, "replayed")]
    assert UNKNOWN in done.stderr


def test_lists_are_filtered_and_bounded(shop):
    deliver(shop, ("bad", "1"), ("bad", "2"), ("bad", "3"))
    ids = [letter["dlqEntryId"] for letter in entries(shop)]
    shop.ok("dlq", "discard", ids[0])
    assert [letter["dlqEntryId"] for letter in entries(shop, "--limit", "2")] == ids[:2]
    assert [letter["dlqEntryId"] for letter in entries(shop, "--status", "PENDING")] == ids[1:]
    assert [letter["dlqEntryId"] for letter in entries(shop, "--status", "discarded")] == ids[:1]
    assert entries(shop, "--scope", "audit") == []
    assert int(shop.ok("dlq", "count", "--scope", "billing")) == 2


@pytest.mark.parametrize("arguments", [
    ("dlq", "replay"), ("dlq", "replay", "--all", UNKNOWN), ("dlq", "show"), ("dlq", "discard"),
    ("dlq", "list", "--limit", "0"), ("dlq", "list", "--limit", "1001"), ("dlq", "list", "--status", "PENDNG"),
    ("dlq", "replay", UNKNOWN, "--scope", "billing"), ("dlq",), ("dlq", "lst"),
])
def test_an_invalid_command_line_is_a_usage_error(shop, arguments):
    shop.fails(64, *arguments)


@pytest.mark.parametrize("command", ["show", "replay", "discard"])
def test_an_unknown_entry_is_reported(shop, command):
    assert UNKNOWN in shop.fails(65, "dlq", command, UNKNOWN)
    assert "no-such-id" in shop.fails(65, "dlq", command, "no-such-id")


def test_a_store_without_tables_is_reported_with_the_remedy(bare):
    if isinstance(bare.store, Path):
        assert "run: semel --store sqlite:semel.db init" in bare.fails(69, "dlq", "list")
        bare.store.touch()
    assert re.search("semel .*init", bare.fails(78, "dlq", "list"))


@pytest.mark.only("local")
def test_an_event_without_an_id_is_kept_and_cannot_be_replayed(shop):
    publish(shop, "good")
    relay(shop)
    shop.sql("UPDATE semel_log SET id = NULL", database=shop.broker)
    consume(shop)
    letter = entry(shop)
    assert letter["originalEventId"] is None
    assert letter["eventRecord"]["payload"] == {"word": "good"}
    assert "event id" in shop.fails(65, "dlq", "replay", letter["dlqEntryId"])
    shop.ok("dlq", "discard", letter["dlqEntryId"])


def test_a_reason_with_control_characters_does_not_reach_the_terminal(shop):
    publish(shop, "good")
    relay(shop)
    shop.ok("consume", "--scope", "x", "--topic", "order.events", "--drain", "--exec",
            r"printf 'evil \033[2J bell \007' >&2; exit 65")
    listed = shop.ok("dlq", "list")
    assert "evil" in listed and "\x1b" not in listed and "\x07" not in listed


@pytest.mark.core
@pytest.mark.parametrize("point", ["dlq.after-publish", "dlq.after-mark"])
def test_a_replayer_that_is_killed_neither_loses_nor_duplicates(shop, point):
    deliver(shop, ("bad", "1"), ("second", "1"))
    mend(shop)
    entry_id = entry(shop)["dlqEntryId"]
    assert shop.run("dlq", "replay", entry_id, env={"SEMEL_FAILPOINT": f"{point}:kill"}).returncode == -9
    consume(shop)
    assert words(shop) == ["bad", "second"]
    assert entry(shop)["status"] == "REPLAYED"
    assert entry(shop)["replayCount"] == 1
    shop.ok("verify")


def test_a_replayer_killed_before_its_mark_may_try_again(shop):
    deliver(shop, ("bad", "1"))
    mend(shop)
    entry_id = entry(shop)["dlqEntryId"]
    shop.run("dlq", "replay", entry_id, env={"SEMEL_FAILPOINT": "dlq.after-publish:kill"})
    shop.ok("dlq", "replay", entry_id)
    consume(shop)
    assert words(shop) == ["bad"]


def test_ids_of_entries_are_uuids(shop):
    deliver(shop, ("bad", "1"))
    assert uuid.UUID(entry(shop)["dlqEntryId"])


@pytest.mark.core
def test_a_second_copy_of_a_discarded_event_is_skipped(shop):
    """The relay died after the broker's confirm, and sends the events again after an operator has discarded one."""
    bad, second = publish(shop, "bad"), publish(shop, "second")
    assert shop.run("relay", "--drain", env={"SEMEL_FAILPOINT": "relay.after-confirm:kill@2"}).returncode == -9
    consume(shop)
    shop.ok("dlq", "discard", entry(shop)["dlqEntryId"])
    mend(shop)
    relay(shop)
    consume(shop)
    assert words(shop) == ["second"]
    assert entry(shop)["status"] == "DISCARDED"
    shop.ok("verify")
    assert [fact["what"] for fact in shop.json("trace", bad)["facts"] if fact["scope"]] == ["dead-lettered", "discarded"]
    assert second not in shop.ok("dlq", "list")


def test_a_replay_that_was_sent_but_not_marked_is_skipped_once_it_is_discarded(shop):
    deliver(shop, ("bad", "1"), ("second", "1"))
    mend(shop)
    entry_id = entry(shop)["dlqEntryId"]
    shop.run("dlq", "replay", entry_id, env={"SEMEL_FAILPOINT": "dlq.after-publish:kill"})
    shop.ok("dlq", "discard", entry_id)
    consume(shop)
    assert words(shop) == ["second"]
    assert entry(shop)["status"] == "DISCARDED"


def test_a_discarded_event_can_be_processed_by_name(shop):
    deliver(shop, ("bad", "1"))
    shop.ok("dlq", "discard", entry(shop)["dlqEntryId"])
    mend(shop)
    shop.ok("replay", "--aggregate", "order:1", "--scope", "billing", "--reprocess")
    consume(shop)
    assert words(shop) == ["bad"]
