# SPDX-License-Identifier: Apache-2.0
"""Handlers that end the transaction they run in: only their own event is a dead letter."""
import json

import pytest


pytestmark = [pytest.mark.anywhere, pytest.mark.only("sqlite")]  # elsewhere a trigger cannot end a transaction


def publish(semel, *numbers, aggregate=None):
    lines = [{"type": "order.created.v1", "aggregateType": "order",
              "aggregateId": aggregate or str(n), "payload": {"n": n}} for n in numbers]
    semel.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    semel.ok("relay", "--drain")


@pytest.fixture
def shop(semel):
    """Number 3 makes the trigger roll everything back."""
    semel.sql("CREATE TABLE effect(n)")
    semel.sql("CREATE TRIGGER runaway BEFORE INSERT ON effect WHEN NEW.n = 3 "
              "BEGIN SELECT RAISE(ROLLBACK, 'three is too many'); END")
    return semel


def consume(semel, *more):
    return semel.ok("consume", "--scope", "billing", "--topic", "order.events", "--drain",
                    "--sql", "INSERT INTO effect VALUES (json_extract(:payload, '$.n'))", *more)


@pytest.mark.parametrize("claim", ["same-tx", "separate"])
def test_a_handler_that_rolls_everything_back_is_a_dead_letter_and_the_others_are_done(shop, claim):
    publish(shop, 1, 2, 3, 4, 5)
    consume(shop, "--claim", claim)
    assert sorted(shop.sql("SELECT n FROM effect")) == [(1,), (2,), (4,), (5,)]
    entries = shop.json("dlq", "list")
    assert len(entries) == 1
    assert "three is too many" in entries[0]["failureReason"]
    assert entries[0]["attempts"] == 1


def test_a_follower_that_rolls_everything_back_becomes_the_next_dead_letter(shop):
    publish(shop, 1, 2, 3, 4, aggregate="same")
    shop.sql("CREATE TRIGGER one BEFORE INSERT ON effect WHEN NEW.n = 1 "
             "BEGIN SELECT RAISE(ABORT, 'not yet'); END")
    consume(shop)
    entries = shop.json("dlq", "list")
    assert [e["failureReason"] for e in entries] == ["not yet"]
    shop.sql("DROP TRIGGER one")
    shop.ok("dlq", "replay", entries[0]["dlqEntryId"])
    consume(shop)
    assert shop.sql("SELECT n FROM effect ORDER BY rowid") == [(1,), (2,)]
    shop.sql("DROP TRIGGER runaway")
    third = shop.json("dlq", "list", "--status", "PENDING")
    shop.ok("dlq", "replay", third[0]["dlqEntryId"])
    consume(shop)
    assert shop.sql("SELECT n FROM effect ORDER BY rowid") == [(1,), (2,), (3,), (4,)]
    shop.ok("verify")
