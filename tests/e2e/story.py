# SPDX-License-Identifier: Apache-2.0
"""Steps that the tests of dead letters, replay and verify share: orders with a word each, and a
handler that stores the words and rejects the word "bad" until `mend` is called."""
import json

from mix import SERIAL, refuse_when, stop_refusing

HANDLER = "INSERT INTO effect (scope, id, word) VALUES ('{scope}', :id, json_extract(:payload, '$.word'))"


def prepare(semel, database=None):
    semel.sql(f"CREATE TABLE effect (number {SERIAL}, scope TEXT, id TEXT, word TEXT)", database=database)
    semel.sql(refuse_when("NEW.word = 'bad'", "the word is bad"), database=database)


def mend(semel):
    semel.sql(stop_refusing())


def publish(semel, word, aggregate="1", *more):
    return semel.publish("--payload", json.dumps({"word": word}), *more, aggregate=f"order:{aggregate}")


def relay(semel, *more):
    return semel.ok("relay", "--drain", *more)


def consume(semel, scope="billing", *more, before=(), **options):
    return semel.ok(
        *before, "consume", "--scope", scope, "--topic", "order.events", "--sql", HANDLER.format(scope=scope), "--drain", *more,
        **options,
    )


def words(semel, scope="billing", database=None):
    rows = semel.sql("SELECT word FROM effect WHERE scope = ? ORDER BY number", scope, database=database)
    return [row[0] for row in rows]


def deliver(semel, *pairs, scope="billing", more=()):
    """Publishes (word, aggregate) pairs, relays and consumes them; returns their ids."""
    ids = [publish(semel, word, aggregate) for word, aggregate in pairs]
    relay(semel)
    consume(semel, scope, *more)
    return ids
