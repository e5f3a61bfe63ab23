# SPDX-License-Identifier: Apache-2.0
"""A constraint that is checked at the end only: the commit fails because of one event, which becomes a dead letter."""
import pytest

from story import publish, relay

pytestmark = pytest.mark.anywhere

INVOICE = "INSERT INTO invoice VALUES (:aggregate_id)"


@pytest.fixture
def shop(semel):
    semel.sql("CREATE TABLE orders (id TEXT PRIMARY KEY)")
    semel.sql("CREATE TABLE invoice (id TEXT REFERENCES orders DEFERRABLE INITIALLY DEFERRED)")
    for number in range(6):
        if number != 3:
            semel.sql("INSERT INTO orders VALUES (?)", str(number))
    semel.subscribe("billing")
    return semel


@pytest.mark.core
@pytest.mark.parametrize("options", [("--claim", "same-tx"), ("--claim", "separate"), ("--guarantee", "at-most-once")])
def test_only_the_event_that_violates_the_constraint_is_given_up(shop, options):
    ids = [publish(shop, "word", str(number)) for number in range(6)]
    relay(shop)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--sql", INVOICE, "--drain", *options)
    (letter,) = shop.json("dlq", "list")
    assert (letter["originalEventId"], letter["attempts"]) == (ids[3], 1)
    assert "constraint" in letter["failureReason"]
    assert sorted(shop.sql("SELECT id FROM invoice")) == [(str(number),) for number in range(6) if number != 3]


@pytest.mark.only("postgres")
def test_a_trigger_that_fails_at_the_end_costs_attempts(shop):
    shop.sql("""CREATE FUNCTION complain() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN IF NEW.id = '2' THEN RAISE EXCEPTION 'two is refused'; END IF; RETURN NULL; END $$""")
    shop.sql("""CREATE CONSTRAINT TRIGGER late AFTER INSERT ON invoice DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION complain()""")
    ids = [publish(shop, "word", str(number)) for number in range(3)]
    relay(shop)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--sql", INVOICE, "--drain", "--attempts", "3",
            "--first-delay", "20ms")
    (letter,) = shop.json("dlq", "list")
    assert (letter["originalEventId"], letter["attempts"]) == (ids[2], 3)
    assert "two is refused" in letter["failureReason"]
    assert sorted(shop.sql("SELECT id FROM invoice")) == [("0",), ("1",)]
