# SPDX-License-Identifier: Apache-2.0
"""A broken event behind a dead letter waits for it; it does not become the head of its aggregate."""
import pytest
import story

pytestmark = pytest.mark.anywhere


@pytest.mark.core
def test_a_broken_event_waits_behind_the_dead_letter_of_its_aggregate(semel):
    story.prepare(semel)
    story.publish(semel, "bad")
    semel.sql("INSERT INTO semel_outbox(aggregate_type, aggregate_id, event_type, payload)"
              " VALUES ('order', '1', 'order.created.v1', '{broken')")
    story.publish(semel, "last")
    story.relay(semel)
    story.consume(semel)
    (bad,) = semel.json("dlq", "list")
    assert "the word is bad" in bad["failureReason"]

    story.mend(semel)
    semel.ok("dlq", "replay", bad["dlqEntryId"])
    story.consume(semel)
    assert story.words(semel) == ["bad"]
    (broken,) = semel.json("dlq", "list", "--status", "PENDING")
    assert "payload does not match its content type" in broken["failureReason"]

    semel.ok("dlq", "discard", broken["dlqEntryId"])
    story.consume(semel)
    assert story.words(semel) == ["bad", "last"]
    semel.ok("verify")
