#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Proves the promise from outside: from the business rows and the effects, never from Semel's inbox.

What a producer committed is one row of `orders` for each event, written with it in one transaction:
event_id, aggregate, and number, which counts the events of the aggregate in commit order. What a
subscription did is one row of its effects for each run: event id, aggregate, number, in the order
in which they happened. Nothing makes an effect unique, so whatever happened twice is there twice.

    lost      committed, and no effect of it in a scope, nor a dead letter
    doubled   more than one effect of an event in a scope
    ghost     an effect, or an event, whose business change does not exist
    order     an effect before that of an earlier event of its aggregate
    changed   an event that arrived under another id
"""
import argparse
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "support"))

from brokers import log_of  # noqa: E402
from mix import Database, ask, number_of, row_order  # noqa: E402

SHOWN_MAX = 20


@dataclass(frozen=True)
class Problem:
    kind: str
    scope: str
    text: str

    def __str__(self):
        return f"{self.kind}: {self.scope}: {self.text}"


@dataclass(frozen=True)
class Event:
    """What both sides have of one event."""

    id: str
    aggregate: str
    number: int

    def __str__(self):
        return f"{self.aggregate} number {self.number} ({self.id})"


@dataclass(frozen=True)
class Effects:
    """Where a scope's effects are: a table of a database, or lines of `id aggregate number`."""

    scope: str
    path: Path | Database
    table: str = ""
    store: Path | Database = None  # where the scope keeps its dead letters; None: in the producer's database
    repeats: bool = False  # a call may be repeated (handlers outside, at-least-once)
    losses: bool = False  # an effect may be missing (at-most-once)

    def read(self):
        if self.table:
            rows = ask(self.path, f"SELECT event_id, aggregate, number FROM {self.table} ORDER BY {row_order(self.path)}")
        else:
            lines = self.path.read_text().splitlines() if self.path.exists() else []
            rows = [line.split() for line in lines]
        return [Event(id, aggregate, int(number)) for id, aggregate, number in rows]


# ---- the producer's side ----------------------------------------------------------------------


def committed(store):
    return [Event(*row) for row in ask(store, "SELECT event_id, aggregate, number FROM orders")]


def check_outbox(store, orders):
    """Business row and event: both, or neither."""
    rows = {id: (aggregate, number_of(payload)) for id, aggregate, payload in ask(
        store, "SELECT id, aggregate_id, payload FROM semel_outbox")}
    known = {order.id for order in orders}
    for order in orders:
        if order.id not in rows:
            yield Problem("lost", "outbox", f"{order} has a business row and no event")
        elif rows[order.id] != (order.aggregate, order.number):
            yield Problem("changed", "outbox", f"{order} became {rows[order.id]}")
    for id, (aggregate, number) in rows.items():
        if id not in known:
            yield Problem("ghost", "outbox", f"{aggregate} number {number} ({id}) has no business row")


# ---- the broker -------------------------------------------------------------------------------


def check_broker(store, log, orders):
    """What is marked as published is there, and nothing is there that was not committed."""
    there = {Event(id, aggregate, number_of(payload)) for id, aggregate, payload in log}
    ids = {event.id for event in there}
    marked = {id for (id,) in ask(store, "SELECT id FROM semel_outbox WHERE status = 'PUBLISHED'")}
    for order in orders:
        if order.id in marked and order.id not in ids:
            yield Problem("lost", "broker", f"{order} is marked as published and never arrived")
    yield from check_origin("broker", sorted(there - set(orders), key=str), orders)


def check_origin(scope, events, orders):
    """Everything seen was committed, and is what was committed."""
    by_id = {order.id: order for order in orders}
    by_place = {(order.aggregate, order.number): order for order in orders}
    for event in events:
        if by_id.get(event.id) == event:
            continue
        if event.id in by_id:
            yield Problem("changed", scope, f"{by_id[event.id]} became {event}")
        elif (event.aggregate, event.number) in by_place:
            yield Problem("changed", scope, f"{by_place[event.aggregate, event.number]} became {event}")
        else:
            yield Problem("ghost", scope, f"{event} was never committed")


# ---- a subscription ---------------------------------------------------------------------------

WAITING = """SELECT event_id FROM semel_dead_letter
    WHERE scope = ? AND (parked_behind IS NOT NULL OR status IN ('PENDING', 'DISCARDED'))"""
REFUSED = """SELECT id FROM semel_outbox WHERE status = 'FAILED' OR seq IN (
    SELECT later.seq FROM semel_outbox_exception AS later JOIN semel_outbox_exception AS head
    ON head.state = 'failed' AND head.seq < later.seq AND head.aggregate_type = later.aggregate_type
    AND head.aggregate_id = later.aggregate_id)"""


def excused(store, effects):
    """Ids that wait for an operator, at the relay or in this scope, or that were discarded."""
    rows = ask(effects.store or store, WAITING, effects.scope) + ask(store, REFUSED)
    return {id for (id,) in rows}


def check_lost(store, effects, seen, orders):
    ids, waiting = {event.id for event in seen}, excused(store, effects)
    places = {(event.aggregate, event.number) for event in seen}
    for order in orders:
        arrived = order.id in ids or (order.aggregate, order.number) in places
        if not arrived and order.id not in waiting and not effects.losses:
            yield Problem("lost", effects.scope, f"{order} has no effect and is no dead letter")


def check_doubled(effects, seen):
    for event, times in Counter(seen).items():
        if times > 1 and not effects.repeats:
            yield Problem("doubled", effects.scope, f"{event} happened {times} times")


def check_order(effects, seen):
    """Numbers ascend within an aggregate. A repeated call repeats the last one, never an earlier."""
    last = defaultdict(int)
    for event in seen:
        if event.number < last[event.aggregate]:
            yield Problem("order", effects.scope, f"{event} happened after number {last[event.aggregate]}")
        last[event.aggregate] = max(last[event.aggregate], event.number)


def check_scope(store, effects, orders):
    seen = effects.read()
    yield from check_origin(effects.scope, sorted(set(seen), key=str), orders)
    yield from check_lost(store, effects, seen, orders)
    yield from check_doubled(effects, seen)
    yield from check_order(effects, seen)


def check(store, log, scopes):
    """All problems, sorted by nothing but where they were found. log: what the broker ever got, as
    (id, aggregate, payload)."""
    orders = committed(store)
    problems = list(check_outbox(store, orders))
    problems += check_broker(store, log, orders)
    for effects in scopes:
        problems += check_scope(store, effects, orders)
    return problems


# ---- as a command -----------------------------------------------------------------------------


def effects_of(text, repeats):
    scope, _, place = text.partition("=")
    path, _, table = place.partition(":")
    if not scope or not path:
        raise argparse.ArgumentTypeError(f"{text} is not SCOPE=FILE:TABLE")
    return Effects(scope, Path(path), table, repeats=repeats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, required=True, help="the producer's database")
    parser.add_argument("--broker", type=Path, required=True, help="the local broker's file")
    parser.add_argument("--effects", type=lambda text: effects_of(text, False), action="append", default=[],
                        metavar="SCOPE=FILE[:TABLE]", help="effects that happen once")
    parser.add_argument("--calls", type=lambda text: effects_of(text, True), action="append", default=[],
                        metavar="SCOPE=FILE[:TABLE]", help="calls that may be repeated")
    arguments = parser.parse_args()
    log = log_of(arguments.broker)
    problems = check(arguments.store, log, arguments.effects + arguments.calls)
    for problem in problems[:SHOWN_MAX]:
        print(problem)
    if len(problems) > SHOWN_MAX:
        print(f"… and {len(problems) - SHOWN_MAX} more")
    found = Counter(problem.kind for problem in problems)
    kinds = ("lost", "doubled", "ghost", "order", "changed")
    print(", ".join(f"{kind} {found[kind]}" for kind in kinds))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
