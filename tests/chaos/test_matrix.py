# SPDX-License-Identifier: Apache-2.0
"""The failure matrix: at every failpoint the program is killed, at its first hit and at a later
one, then everything is run to its end, and the checker finds nothing. Each row of the program's own
table needs a scenario here; each scenario is a test of its own."""
import json
import subprocess
import uuid

import pytest
from program import PROGRAM
from shop import FAIL_FIRST, REFUSE_POISON

pytestmark = pytest.mark.anywhere

WINDOW = 5
RELAY = ("relay", "--drain", "--window", str(WINDOW), "--first-delay", "10ms", "--lease", "500ms")
# A small batch, so that every point is hit often; a short delay, so that a retry is soon.
SMALL = ("--batch", "4", "--first-delay", "20ms", "--immediate", "1")
KILLS = ((1,), (3,))
AGAIN_AND_AGAIN = (1, 1, 2)  # three deaths, one after the other


def rows_of_the_program():
    try:
        done = subprocess.run([PROGRAM, "failpoints", "--json"], capture_output=True, check=True, timeout=60)
        return [row["name"] for row in json.loads(done.stdout)]
    except (OSError, subprocess.CalledProcessError):
        return []  # the first test reports it


# ---- scenarios: each brings the shop to the point, lets the program die there, and recovers ----


def publish_one(shop, point, kills):
    """Business row and event: both or neither, by the exit of one `semel publish`."""
    event_id = str(uuid.uuid4())
    words = ("publish", "--id", event_id, "--type", "order.changed.v1", "--aggregate", "order:p-1", "--payload",
             '{"number": 1}', "--sql", f"INSERT INTO orders VALUES ('{event_id}', 'p-1', 1)")
    for nth in kills:
        shop.dies(point, nth, *words)
    committed = point == "publish.after-commit"
    assert shop.sql("SELECT count(*) FROM orders") == shop.sql("SELECT count(*) FROM semel_outbox") == [(committed,)]


def publish_batch(shop, point, kills):
    lines = "".join(json.dumps({"type": "t.v1", "aggregateType": "order", "aggregateId": "p-1", "payload": {"number": n}})
                    + "\n" for n in range(1, 6))
    done = shop.run("publish", "--batch", input=lines, env={"SEMEL_FAILPOINT": f"{point}:kill@1"})
    assert done.returncode == -9
    (written,) = shop.sql("SELECT count(*) FROM semel_outbox")[0]
    assert written == (5 if point == "publish.after-commit" else 0)
    shop.sql("INSERT INTO orders SELECT id, aggregate_id, CAST(json_extract(payload, '$.number') AS INTEGER) FROM semel_outbox")


def relay_dies(shop, point, kills):
    shop.load()
    for nth in kills:
        shop.dies(point, nth, *RELAY)
    shop.recover()
    # A death repeats what was in flight, sent and not marked yet: the window at most. Where nothing is sent
    # before the last lot is confirmed and marked, there are moments when nothing is.
    nothing = not shop.backend.broker.overlaps and point in ("relay.after-claim", "relay.before-publish", "relay.after-mark")
    assert shop.repeats_at_the_broker() <= (0 if nothing else WINDOW * len(kills))


def consumer_dies(shop, point, kills):
    shop.load()
    shop.relay()
    for nth in kills:
        shop.dies(point, nth, *shop.subscriptions[0].words, "--drain", *SMALL)
    shop.recover()


def consumer_dies_over_a_retry(shop, point, kills):
    """Every event fails once. With a budget of two runs a death must not be counted as one."""
    shop.load(flaky=True)
    shop.relay()
    tight = (*SMALL, "--attempts", "2")
    for nth in kills:
        shop.dies(point, nth, *shop.subscriptions[0].words, "--drain", *tight)
    shop.consume(shop.subscriptions[0], *tight)
    assert shop.dead_letters() == 0


def poisoned(shop):
    """Three aggregates have a dead letter with followers behind it; then the cause is repaired."""
    for number in range(4):
        for aggregate in ("o-1", "o-2", "o-3", "o-4"):
            shop.order(aggregate, poison=number == 1 and aggregate != "o-4")
    shop.recover()
    assert shop.dead_letters() == 3
    shop.accept_poison()


def replayer_dies(shop, point, kills):
    poisoned(shop)
    for nth in kills:
        shop.dies(point, nth, "dlq", "replay", "--all")
    shop.ok("dlq", "replay", "--all")
    shop.recover()
    assert shop.dead_letters() == 0


def replayer_dies_and_the_consumer_settles(shop, point, kills):
    """There is no second replay: what was sent is processed, and its entry settled."""
    poisoned(shop)
    for nth in kills[:1]:
        shop.dies(point, nth, "dlq", "replay", "--all")
    shop.recover()
    assert shop.dead_letters() == 3 - kills[0]
    shop.ok("dlq", "replay", "--all")
    shop.recover()
    assert shop.dead_letters() == 0


def outbox_replay_dies(shop, point, kills):
    """Old events come again, to all scopes or to one: they are duplicates there."""
    shop.load()
    shop.recover()
    for nth in kills:
        shop.dies(point, nth, "replay", "--rate", "200", "--scope", shop.subscriptions[0].scope)
        shop.dies(point, nth, "replay", "--rate", "200")
    shop.ok("replay")
    shop.recover()


# ---- subscriptions that the kills must not harm -------------------------------------------------------


def sql(shop):
    shop.by_sql("billing", before=(REFUSE_POISON,))


def sql_flaky(shop):
    shop.by_sql("billing", before=(FAIL_FIRST,))


def sql_strict(shop):
    """The one that also waits for predecessors; its events may fail first."""
    shop.by_sql("billing", "--order", "strict", before=(FAIL_FIRST,))


def sql_separate(shop):
    """A claim in doubt is a dead letter; nothing runs twice."""
    shop.by_sql("billing", "--claim", "separate")


def sql_at_most_once(shop):
    shop.by_sql("billing", "--guarantee", "at-most-once", losses=True)


def program(shop):
    """The finished claim is one, the call may be repeated."""
    shop.by_exec("mail", "--concurrency", "3", repeats=True)


def program_separate(shop):
    shop.by_exec("mail", "--concurrency", "3", "--claim", "separate")


def program_at_most_once(shop):
    shop.by_exec("mail", "--concurrency", "3", "--guarantee", "at-most-once", losses=True)


def two_scopes(shop):
    shop.by_sql("billing")
    shop.by_sql("stock")


EVERY_KIND = (sql, sql_separate, sql_at_most_once, program, program_separate, program_at_most_once)
PRODUCER = [(publish_one, two_scopes, (1,)), (publish_batch, two_scopes, (1,))]
RELAYING = [(relay_dies, two_scopes, kills) for kills in (*KILLS, AGAIN_AND_AGAIN)]
CONSUMING = [(consumer_dies, kind, kills) for kind in EVERY_KIND for kills in KILLS]
CONSUMING += [(consumer_dies, kind, AGAIN_AND_AGAIN) for kind in (sql, sql_strict, program)]
REPLAYING = [(replayer_dies, sql, (1,)), (replayer_dies, sql, (3,)), (replayer_dies, sql, (1, 1)),
             (replayer_dies_and_the_consumer_settles, sql, (1,)), (replayer_dies_and_the_consumer_settles, sql, (2,))]

MATRIX = {
    "publish.before-commit": PRODUCER,
    "publish.after-commit": PRODUCER,
    "relay.after-claim": RELAYING,
    "relay.before-publish": RELAYING,
    "relay.after-publish": RELAYING,
    "relay.after-confirm": RELAYING,
    "relay.after-mark": RELAYING,
    "consume.after-receive": CONSUMING,
    "consume.after-claim": CONSUMING,
    "consume.after-effect": CONSUMING,
    "consume.after-commit": CONSUMING,
    "consume.after-ack": CONSUMING,
    "consume.after-requeue": [(consumer_dies_over_a_retry, kind, kills)
                              for kind in (sql_flaky, sql_strict, program) for kills in (*KILLS, AGAIN_AND_AGAIN)],
    "dlq.after-publish": REPLAYING,
    "dlq.after-mark": REPLAYING,
    "replay.after-publish": [(outbox_replay_dies, two_scopes, kills) for kills in ((1,), (2,))],
}

# Every row of the table once or twice.
CORE = ("publish_one-two_scopes-1", "relay_dies-two_scopes-3", "consumer_dies-sql-3", "consumer_dies-program-1",
        "consumer_dies_over_a_retry-sql_flaky-1", "replayer_dies-sql-1", "replayer_dies_and_the_consumer_settles-sql-2",
        "outbox_replay_dies-two_scopes-1")


def cases():
    for point in rows_of_the_program():
        for scenario, kind, kills in MATRIX.get(point, ()):
            times = "+".join(map(str, kills))
            name = f"{scenario.__name__}-{kind.__name__}-{times}"
            marks = [pytest.mark.core] if name in CORE else []
            yield pytest.param(point, scenario, kind, kills, id=f"{point}-{name}", marks=marks)


@pytest.mark.core
def test_every_row_of_the_matrix_has_a_scenario():
    assert sorted(rows_of_the_program()) == sorted(MATRIX)


@pytest.mark.parametrize("point, scenario, kind, kills", cases())
def test_after_a_death_nothing_is_lost_and_nothing_doubled(shop, point, scenario, kind, kills):
    kind(shop)
    scenario(shop, point, kills)
    shop.recover()
    shop.check_books()
    give_up_what_is_in_doubt(shop)


def give_up_what_is_in_doubt(shop):
    """An operator discards the dead letters; their followers come, in order, and still once."""
    for _ in range(50):
        waiting = shop.json("dlq", "list", "--status", "PENDING", "--limit", "1000")
        if not waiting:
            break
        shop.ok("dlq", "discard", *(entry["dlqEntryId"] for entry in waiting))
        shop.recover()
    assert shop.dead_letters() == 0
    assert shop.sql("SELECT count(*) FROM semel_dead_letter WHERE parked_behind IS NOT NULL") == [(0,)]
    shop.check_books()


# ---- the other actions -------------------------------------------------------------------------

ERRING = {"publish": publish_one, "relay": relay_dies, "consume": consumer_dies, "dlq": replayer_dies,
          "replay": outbox_replay_dies}


class ErrsInstead:
    """A shop whose program meets an error, or a pause, where the scenario has it killed."""

    def __init__(self, shop, action):
        self.shop, self.action = shop, action

    def __getattr__(self, name):
        return getattr(self.shop, name)

    def dies(self, failpoint, nth, *words):
        done = self.shop.run(*words, env={"SEMEL_FAILPOINT": f"{failpoint}:{self.action}@{nth}"})
        assert done.returncode >= 0, f"{words[0]} died by signal {-done.returncode}\n{done.stderr}"


@pytest.mark.core
@pytest.mark.parametrize("point", [row for row in rows_of_the_program() if row.startswith(("relay.", "consume."))])
def test_an_error_at_the_point_is_survived(shop, point):
    """Relay and consumer start over by themselves, and end well."""
    shop.by_sql("billing", before=(FAIL_FIRST,))
    shop.load(flaky=point == "consume.after-requeue")
    env = {"SEMEL_FAILPOINT": f"{point}:error@2"}
    shop.ok(*RELAY, env=env)
    shop.ok(*shop.subscriptions[0].words, "--drain", *SMALL, env=env)
    shop.check_books()
    assert shop.dead_letters() == 0


@pytest.mark.parametrize("point", rows_of_the_program())
@pytest.mark.parametrize("action", ("error", "pause=30"))
def test_an_error_or_a_pause_leaves_nothing_half_done(shop, point, action):
    party = point.split(".", maxsplit=1)[0]
    sql(shop)
    if party == "publish":
        shop.by_sql("stock")
        done = shop.run("publish", "--id", "e-1", "--type", "t.v1", "--aggregate", "order:p-1", "--payload",
                        '{"number": 1}', "--sql", "INSERT INTO orders VALUES ('e-1', 'p-1', 1)",
                        env={"SEMEL_FAILPOINT": f"{point}:{action}@1"})
        assert (done.returncode == 0) == (action != "error"), done.stderr
    elif point == "consume.after-requeue":
        shop.subscriptions.clear()
        program(shop)
        shop.load(flaky=True)
        shop.relay()
        ErrsInstead(shop, action).dies(point, 1, *shop.subscriptions[0].words, "--drain", *SMALL)
    else:
        ERRING[party](ErrsInstead(shop, action), point, (1,))
    shop.recover()
    shop.check_books()
