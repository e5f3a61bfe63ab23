# SPDX-License-Identifier: Apache-2.0
"""A shop whose every order and every effect can be counted: the application of the chaos tests.

Its orders are written as a foreign program would write them, by Python's sqlite3 or psycopg2 and a hand-written
INSERT, so that the outbox's contract is under test too."""
import json
import signal
from dataclasses import dataclass

from checker import Effects, check
from mix import FAIL_FIRST, PLACE, connect, url_of  # noqa: F401: the tests import it from here
from program import PROGRAM, Semel

TOPIC = "order.events"
TABLES = """
CREATE TABLE orders (event_id TEXT, aggregate TEXT, number INTEGER);
CREATE INDEX orders_place ON orders (aggregate, number);
CREATE TABLE accepted (event_id TEXT);
CREATE TABLE healthy (yes INTEGER CONSTRAINT "the order is poison" CHECK (yes <> 0));
"""
# No constraint: what happens twice must show.
EFFECT_TABLE = f"CREATE TABLE effect_{{scope}} (event_id TEXT, aggregate TEXT, number INTEGER{PLACE})"
EFFECT = """INSERT INTO effect_{scope} (event_id, aggregate, number)
    VALUES (:id, :aggregate_id, CAST(json_extract(:payload, '$.number') AS INTEGER))"""
# Breaks the constraint, which is a reject, until the event is in `accepted`.
REFUSE_POISON = """INSERT INTO healthy SELECT 0 WHERE CAST(json_extract(:payload, '$.poison') AS TEXT) IN ('1', 'true')
    AND NOT EXISTS (SELECT 1 FROM accepted WHERE event_id = :id)"""
# One line for each call, in a file of its own.
CALL = """read -r body
    {before}
    case "$body" in *'"flaky": true'*) [ "$SEMEL_ATTEMPT" = 1 ] && exit 75 ;; esac
    number=${{body##*: }}
    echo "$SEMEL_EVENT_ID $SEMEL_AGGREGATE_ID ${{number%\\}}}}" >> calls.{scope}"""


def write_order(database, aggregate, **more):
    """One order and its event, in the transaction that is open; returns the event's id."""
    database.lock(aggregate)
    (number,) = database.execute(
        "SELECT 1 + coalesce(max(number), 0) FROM orders WHERE aggregate = ?", (aggregate,)).fetchone()
    ((event_id,),) = database.execute(
        "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
        " VALUES ('order', ?, 'order.changed.v1', ?) RETURNING id",
        (aggregate, json.dumps({**more, "number": number}))).fetchall()
    database.execute("INSERT INTO orders VALUES (?, ?, ?)", (event_id, aggregate, number))
    return event_id


@dataclass(frozen=True)
class Subscription:
    scope: str
    words: tuple  # how it is run
    effects: Effects


class Shop(Semel):
    def __init__(self, folder, program=PROGRAM):
        super().__init__(folder, program, tables=True)
        self.subscriptions = []
        self.backend.witness(TOPIC)
        self.script(TABLES)

    def script(self, text, database=None):
        connection = connect(database or self.store)
        connection.script(text)
        connection.close()

    # ---- the producer ------------------------------------------------------------------------

    def load(self, aggregates=8, each=5, **more):
        """So many events, those of the aggregates taking turns."""
        connection = connect(self.store)
        for _ in range(each):
            for name in range(aggregates):
                write_order(connection, f"o-{name}", **more)
            connection.commit()
        connection.close()

    def order(self, aggregate, **more):
        connection = connect(self.store)
        event_id = write_order(connection, aggregate, **more)
        connection.commit()
        connection.close()
        return event_id

    # ---- the subscriptions -------------------------------------------------------------------

    def add(self, scope, handler, effects, options):
        store = ("--store", url_of(effects.store)) if effects.store else ()
        words = (*store, "consume", "--scope", scope, "--topic", TOPIC, *handler, *options)
        subscription = Subscription(scope, words, effects)
        self.subscriptions.append(subscription)
        self.subscribe(scope, topic=TOPIC)
        return subscription

    def by_sql(self, scope, *options, before=(), store=None, **allowed):
        """A subscription whose effect is a row, in the claim's transaction; store: in a database of
        its own, which has Semel's tables already."""
        self.script(EFFECT_TABLE.format(scope=scope), store)
        handler = [word for text in (*before, EFFECT.format(scope=scope)) for word in ("--sql", text)]
        effects = Effects(scope, store or self.store, f"effect_{scope}", store=store, **allowed)
        return self.add(scope, handler, effects, options)

    def by_exec(self, scope, *options, before="", **allowed):
        """One whose effect is a line in a file, written by a program for each event."""
        handler = ("--exec", CALL.format(scope=scope, before=before))
        return self.add(scope, handler, Effects(scope, self.folder / f"calls.{scope}", **allowed), options)

    # ---- work --------------------------------------------------------------------------------

    def relay(self, *more, **options):
        return self.json("relay", "--drain", *more, **options)["published"]

    def consume(self, subscription, *more, **options):
        return self.json(*subscription.words, "--drain", *more, **options)

    def dies(self, failpoint, nth, *words):
        """The program must be killed at the nth hit of the failpoint."""
        done = self.run(*words, env={"SEMEL_FAILPOINT": f"{failpoint}:kill@{nth}"})
        assert done.returncode == -signal.SIGKILL, (
            f"{words[0]} was not killed at hit {nth} of {failpoint}: it ended with"
            f" {done.returncode}\n{done.stdout}{done.stderr}")

    def recover(self):
        self.relay()
        for subscription in self.subscriptions:
            self.consume(subscription)

    def accept_poison(self):
        """From now on no event is poison."""
        self.sql("INSERT INTO accepted SELECT event_id FROM orders")

    # ---- proof -------------------------------------------------------------------------------

    def problems(self):
        return check(self.store, self.backend.log(), [s.effects for s in self.subscriptions])

    def check_books(self):
        problems = self.problems()
        assert not problems, "\n".join(map(str, problems))
        done = self.run("verify")
        assert done.returncode == 0, f"verify ended with {done.returncode}\n{done.stdout}{done.stderr}"

    def dead_letters(self, scope=None):
        words = ("--scope", scope) if scope else ()
        return int(self.ok("dlq", "count", *words))

    def repeats_at_the_broker(self):
        """How many events arrived again."""
        arrived = [id for id, _, _ in self.backend.log()]
        return len(arrived) - len(set(arrived))
