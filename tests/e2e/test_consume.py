# SPDX-License-Identifier: Apache-2.0
"""Consuming: guarantees, claims, every kind of handler, broken deliveries, outages, several consumers."""
import json
import signal
import sqlite3

import pytest

from endpoint import Endpoint
from mix import NUMBER_OF_WORD, PAYLOAD_BYTES
from sandbox import free_port
from program import wait_for
from story import HANDLER, prepare, publish, relay, words

pytestmark = [pytest.mark.sanitize, pytest.mark.anywhere]

SQL = ("--sql", HANDLER.format(scope="billing"))
QUICK = ("--immediate", "1", "--first-delay", "20ms", "--delay-max", "50ms")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def scope_words(*more, scope="billing"):
    return ("consume", "--scope", scope, "--topic", "order.events", *more)


def consume(semel, *more, scope="billing", **options):
    return semel.json(*scope_words(*more, "--drain", scope=scope), **options)


def publish_twice(semel, *names):
    """The relay dies between confirm and mark: the broker gets every event a second time."""
    for word in names:
        publish(semel, word)
    assert semel.run("relay", "--drain", env={"SEMEL_FAILPOINT": f"relay.after-confirm:kill@{len(names)}"}).returncode == -signal.SIGKILL
    relay(semel)


def letters(semel):
    return semel.json("dlq", "list")


def counts(**some):
    return {"done": 0, "duplicate": 0, "retried": 0, "dead": 0, "parked": 0, **some}


# ---- guarantees and claims ----------------------------------------------------------------------


@pytest.mark.core
def test_a_duplicate_is_skipped_and_counted(shop):
    publish_twice(shop, "one", "two")
    assert consume(shop, *SQL) == counts(done=2, duplicate=2)
    assert words(shop) == ["one", "two"]


@pytest.mark.core
def test_a_duplicate_of_a_call_is_skipped_too(shop):
    publish_twice(shop, "one", "two")
    assert consume(shop, "--exec", "echo $SEMEL_EVENT_ID >> calls") == counts(done=2, duplicate=2)
    calls = (shop.folder / "calls").read_text().split()
    assert len(calls) == len(set(calls)) == 2


def test_at_least_once_keeps_no_record_and_repeats(shop):
    publish_twice(shop, "one", "two")
    assert consume(shop, *SQL, "--guarantee", "at-least-once") == counts(done=4)
    assert words(shop) == ["one", "two", "one", "two"]
    assert shop.sql("SELECT * FROM semel_inbox") == []


@pytest.mark.core
@pytest.mark.parametrize("handler", [SQL, ("--exec", "cat >> calls; exit 75")], ids=["sql", "exec"])
@pytest.mark.parametrize("setting", [("--guarantee", "at-most-once"), ("--claim", "separate")], ids=["once", "separate"])
def test_an_event_that_is_claimed_first_is_never_run_again(shop, handler, setting):
    publish_twice(shop, "bad")
    seen = consume(shop, *handler, *setting, *QUICK)
    assert (seen["done"], seen["retried"], seen["dead"]) == (0, 0, 1)
    (letter,) = letters(shop)
    assert letter["attempts"] == 1
    if handler != SQL:
        assert (shop.folder / "calls").read_text() == '{"word": "bad"}'
    shop.ok("verify")


@pytest.mark.core
def test_every_scope_gets_every_event(shop):
    publish(shop, "one")
    relay(shop)
    for scope in ("billing", "audit", "stock"):
        assert consume(shop, "--exec", "cat >> calls", scope=scope) == counts(done=1)
    assert (shop.folder / "calls").read_text() == '{"word": "one"}' * 3


def test_the_inbox_records_topic_week_and_version(shop):
    event_id = publish(shop, "one", "1", "--time", "2026-11-15T23:59:59Z")  # a Sunday
    relay(shop)
    consume(shop, *SQL, "--handler-version", "v7")
    ((scope, seen, week, status, topic, version),) = shop.sql(
        "SELECT scope, event_id, week_start, status, topic, handler_version FROM semel_inbox")
    assert (scope, seen, status, topic, version) == ("billing", event_id, "PROCESSED", "order.events", "v7")
    assert week.startswith("2026-11-09")


@pytest.mark.core
def test_a_business_key_counts_over_all_weeks(shop):
    for word, time in (("one", "2026-10-05T12:00:00Z"), ("two", "2026-11-02T12:00:00Z"), ("one", "2026-11-03T12:00:00Z")):
        publish(shop, word, word, "--time", time, "--header", f"idempotencyKey=key-{word}")
    relay(shop)
    by_key = ("--dedup-by", "header:idempotencyKey")
    assert consume(shop, *SQL, *by_key) == counts(done=2, duplicate=1)
    assert sorted(words(shop)) == ["one", "two"]
    publish(shop, "two", "other", "--header", "idempotencyKey=key-two")
    relay(shop)
    assert consume(shop, *SQL, *by_key) == counts(duplicate=1)


def test_a_missing_business_key_is_a_broken_contract(shop):
    publish(shop, "one")
    relay(shop)
    assert consume(shop, *SQL, "--dedup-by", "header:idempotencyKey") == counts(dead=1)
    assert "idempotencyKey" in letters(shop)[0]["failureReason"]


def test_a_rejected_event_leaves_its_business_key_free(shop):
    publish(shop, "bad", "1", "--header", "idempotencyKey=k")
    relay(shop)
    by_key = ("--dedup-by", "header:idempotencyKey")
    consume(shop, *SQL, *by_key)
    publish(shop, "good", "2", "--header", "idempotencyKey=k")
    relay(shop)
    assert consume(shop, *SQL, *by_key) == counts(done=1)


@pytest.mark.core
def test_one_bad_event_in_a_batch_fails_alone(shop):
    for word, aggregate in (("one", "1"), ("bad", "2"), ("three", "3")):
        publish(shop, word, aggregate)
    relay(shop)
    assert consume(shop, *SQL) == counts(done=2, dead=1)
    assert sorted(words(shop)) == ["one", "three"]


# ---- handlers -----------------------------------------------------------------------------------


@pytest.mark.core
def test_statements_get_everything_about_the_event_and_run_together(shop):
    shop.sql("CREATE TABLE seen (id TEXT, type TEXT, aggregate_type TEXT, aggregate_id TEXT, topic TEXT, payload TEXT,"
             " headers TEXT, time TEXT, attempt INTEGER)")
    event_id = publish(shop, "one", "7", "--header", "tenantId=t", "--time", "2026-11-15T12:00:00Z")
    relay(shop)
    everything = ":id, :type, :aggregate_type, :aggregate_id, :topic, :payload, :headers, :time, :attempt"
    consume(shop, "--sql", f"INSERT INTO seen VALUES ({everything})", *SQL)
    ((*seen, time, attempt),) = shop.sql("SELECT * FROM seen")
    assert seen[:5] == [event_id, "order.created.v1", "order", "7", "order.events"]
    assert json.loads(seen[5]) == {"word": "one"}
    assert json.loads(seen[6])["tenantId"] == "t"
    assert (time, attempt) == ("2026-11-15T12:00:00.000Z", 1)
    assert words(shop) == ["one"]


def test_a_statement_with_a_wrong_parameter_is_refused_before_anything_runs(shop):
    assert ":payload" in shop.fails(65, *scope_words("--sql", "INSERT INTO effect (word) VALUES (:payloat)", "--drain"))


def test_a_program_gets_the_event_in_its_environment(shop):
    event_id = publish(shop, "one", "7", "--header", "tenantId=t")
    relay(shop)
    consume(shop, "--exec", "env > environment; cat > payload")
    environment = dict(line.split("=", 1) for line in (shop.folder / "environment").read_text().splitlines() if "=" in line)
    assert environment["SEMEL_EVENT_ID"] == event_id
    assert (environment["SEMEL_EVENT_TYPE"], environment["SEMEL_TOPIC"]) == ("order.created.v1", "order.events")
    assert (environment["SEMEL_AGGREGATE_TYPE"], environment["SEMEL_AGGREGATE_ID"]) == ("order", "7")
    assert environment["SEMEL_ATTEMPT"] == "1"
    assert json.loads(environment["SEMEL_HEADERS"])["tenantId"] == "t"
    assert (shop.folder / "payload").read_text() == '{"word": "one"}'


@pytest.mark.parametrize("code, outcome", [(0, counts(done=1)), (65, counts(dead=1)), (75, counts(retried=1, dead=1)),
                                           (1, counts(retried=1, dead=1))])
def test_the_exit_code_of_a_program_is_its_verdict(shop, code, outcome):
    publish(shop, "one")
    relay(shop)
    assert consume(shop, "--exec", f"echo I say {code} >&2; exit {code}", "--attempts", "2", *QUICK) == outcome
    assert all(f"I say {code}" in letter["failureReason"] for letter in letters(shop))


PIPE = """
import json, sys
for line in sys.stdin:
    event = json.loads(line)
    word = event["payload"]["word"]
    open("seen", "a").write(f"{event['id']} {word} {event['attempt']}\\n")
    verdict = {"never": "reject", "later": "retry" if event["attempt"] < 3 else "done"}.get(word, "done")
    print(json.dumps({"id": event["id"], "verdict": verdict, "reason": f"it was {word}"}), flush=True)
"""


@pytest.mark.core
def test_a_pipe_answers_line_by_line(shop):
    (shop.folder / "pipe.py").write_text(PIPE)
    ids = [publish(shop, word, word) for word in ("now", "later", "never")]
    relay(shop)
    assert consume(shop, "--pipe", "/usr/bin/python3 -B pipe.py", *QUICK) == counts(done=2, retried=2, dead=1)
    assert letters(shop)[0]["failureReason"] == "it was never"
    seen = [line.split() for line in (shop.folder / "seen").read_text().splitlines()]
    assert sorted(seen) == sorted([[ids[0], "now", "1"], *([ids[1], "later", str(n)] for n in (1, 2, 3)), [ids[2], "never", "1"]])


def test_a_closed_standard_output_ends_print(shop):
    publish(shop, "seen", "1")
    relay(shop)
    with shop.spawn(*scope_words("--print")) as consumer:
        assert json.loads(consumer.stdout.readline())["aggregateId"] == "1"
        consumer.stdout.close()
        publish(shop, "unseen", "2")
        relay(shop)
        assert consumer.wait(60) == 0
    assert consume(shop, *SQL) == counts(done=1)


def test_print_writes_an_envelope_per_line(shop):
    event_id = publish(shop, "one", "7")
    relay(shop)
    (line,) = shop.ok(*scope_words("--print", "--drain")).splitlines()
    event = json.loads(line)
    assert (event["id"], event["aggregateId"], event["payload"]) == (event_id, "7", {"word": "one"})


@pytest.mark.core
def test_an_endpoint_gets_the_payload_and_the_idempotency_key(shop):
    event_id = publish(shop, "one", "7", "--header", "correlationId=c-1")
    relay(shop)
    with Endpoint() as endpoint:
        assert consume(shop, "--http", endpoint.url) == counts(done=1)
    ((path, headers, body),) = endpoint.requests
    headers = {name.lower(): value for name, value in headers.items()}
    assert (path, body) == ("/events", b'{"word": "one"}')
    assert headers["idempotency-key"] == headers["ce-id"] == event_id
    assert (headers["ce-type"], headers["semel-aggregate-id"], headers["content-type"]) == (
        "order.created.v1", "7", "application/json")
    assert headers["correlationid"] == "c-1"


@pytest.mark.parametrize("answers, outcome", [
    ([200], counts(done=1)), ([503, 429, 204], counts(done=1, retried=2)), ([400], counts(dead=1)),
    ([302], counts(dead=1)), ([500], counts(retried=2, dead=1))])
def test_the_status_of_an_endpoint_is_its_verdict(shop, answers, outcome):
    publish(shop, "one")
    relay(shop)
    with Endpoint(*((status, {}) for status in answers)) as endpoint:
        assert consume(shop, "--http", endpoint.url, "--attempts", "3", *QUICK) == outcome
    attempts = [int({name.lower(): value for name, value in headers.items()}["semel-attempt"])
                for _, headers, _ in endpoint.requests]
    assert attempts == list(range(1, len(attempts) + 1))


@pytest.mark.slow
def test_an_endpoint_may_set_the_time_of_the_next_attempt(shop):
    publish(shop, "one")
    relay(shop)
    with Endpoint((503, {"Retry-After": "3600"}), (204, {})) as endpoint:
        shop.drain_times_out(*scope_words("--http", endpoint.url), expected=["1 waiting (1 delayed)"])
    assert len(endpoint.requests) == 1


# ---- upcasters ----------------------------------------------------------------------------------

FIRST = "order.created.v1=order.created.v2:sql:json_set(:payload, '$.word', json_extract(:payload, '$.word') || '!')"
SECOND = "order.created.v2=order.created.v3:exec:sed 's/!/?/'"


@pytest.mark.core
def test_upcasters_are_chained_to_the_newest_version(shop):
    shop.sql("CREATE TABLE seen (type TEXT, word TEXT)")
    publish(shop, "one")
    relay(shop)
    see = ("--sql", "INSERT INTO seen VALUES (:type, json_extract(:payload, '$.word'))")
    assert consume(shop, *see, "--upcast", FIRST, "--upcast", SECOND) == counts(done=1)
    assert shop.sql("SELECT * FROM seen") == [("order.created.v3", "one?")]


def test_a_program_sees_the_newest_version_too(shop):
    publish(shop, "one")
    relay(shop)
    consume(shop, "--exec", 'echo $SEMEL_EVENT_TYPE > type; cat > payload', "--upcast", FIRST)
    assert (shop.folder / "type").read_text() == "order.created.v2\n"
    assert json.loads((shop.folder / "payload").read_text()) == {"word": "one!"}


def test_an_event_that_cannot_be_upcast_is_a_dead_letter_in_its_old_version(shop):
    publish(shop, "one")
    publish(shop, "two", "2")
    relay(shop)
    fails = "order.created.v1=order.created.v2:exec:grep two || { echo cannot >&2; exit 65; }"
    assert consume(shop, *SQL, "--upcast", fails) == counts(done=1, dead=1)
    (letter,) = letters(shop)
    assert letter["eventType"] == "order.created.v1"
    assert letter["eventRecord"]["payload"] == {"word": "one"}
    assert "cannot" in letter["failureReason"]


@pytest.mark.core
@pytest.mark.parametrize("handler", [SQL, ("--exec", "cat >> calls")], ids=["sql", "exec"])
def test_an_expression_that_fails_affects_its_event_alone(shop, handler):
    """Where an error aborts the transaction, the claims and effects of the other events must not be lost."""
    for word, aggregate in (("1", "a"), ("none", "b"), ("3", "c")):
        publish(shop, word, aggregate)
    relay(shop)
    wrong = f"order.created.v1=order.created.v2:sql:{NUMBER_OF_WORD}"
    assert consume(shop, *handler, "--upcast", wrong, "--attempts", "1") == counts(done=2, dead=1)
    (letter,) = letters(shop)
    assert letter["eventRecord"]["payload"] == {"word": "none"}
    shop.ok("verify")


# ---- broken contracts ---------------------------------------------------------------------------


@pytest.mark.only("local")
@pytest.mark.parametrize("change, complaint", [
    ("id = NULL", "id"), ("id = '  '", "id"), ("payload = '{\"word\": '", "application/json"), ("payload = x'ff00fe'", "application/json"),
    ("type = NULL", "type"), ("headers = '[1]'", "headers")])
@pytest.mark.parametrize("handler", [SQL, ("--exec", "cat >> calls")], ids=["sql", "exec"])
def test_a_delivery_that_breaks_the_contract_is_kept_complete_and_blocks_no_other(shop, change, complaint, handler):
    publish(shop, "broken", "1")
    publish(shop, "good", "2")
    relay(shop)
    shop.sql(f"UPDATE semel_log SET {change} WHERE aggregate_id = '1'", database=shop.broker)
    ((payload,),) = shop.sql("SELECT CAST(payload AS BLOB) FROM semel_log WHERE aggregate_id = '1'", database=shop.broker)
    assert consume(shop, *handler) == counts(done=1, dead=1)
    (letter,) = letters(shop)
    assert complaint.lower() in letter["failureReason"].lower()
    assert letter["attempts"] == 0
    ((kept,),) = shop.sql(f"SELECT {PAYLOAD_BYTES} FROM semel_dead_letter")
    assert bytes(kept) == payload


@pytest.mark.only("local")
def test_several_broken_deliveries_without_an_id_are_all_kept(shop):
    for number in range(3):
        publish(shop, f"broken {number}", str(number))
    relay(shop)
    shop.sql("UPDATE semel_log SET id = NULL", database=shop.broker)
    assert consume(shop, *SQL) == counts(dead=3)
    assert {letter["eventRecord"]["payload"]["word"] for letter in letters(shop)} == {f"broken {n}" for n in range(3)}


# ---- where to begin and where to end --------------------------------------------------------------


@pytest.mark.unless("rabbitmq", reason="a queue holds nothing from before it was declared")
def test_a_later_subscription_starts_at_the_beginning(shop):
    publish(shop, "one")
    relay(shop)
    consume(shop, *SQL)
    publish(shop, "two")
    relay(shop)
    assert consume(shop, "--exec", "cat >> calls", scope="late") == counts(done=2)


@pytest.mark.core
def test_a_subscription_may_start_at_the_end(shop):
    publish(shop, "one")
    relay(shop)
    late = ("--sql", HANDLER.format(scope="late"), "--from", "latest")
    assert consume(shop, *late, scope="late") == counts()
    publish(shop, "two")
    relay(shop)
    assert consume(shop, *late, scope="late") == counts(done=1)
    assert words(shop, "late") == ["two"]
    shop.ok("verify")


@pytest.mark.core
@pytest.mark.parametrize("handler", [SQL, ("--exec", "cat >> calls", "--concurrency", "2")], ids=["sql", "exec"])
def test_a_maximum_ends_the_run_and_the_next_one_continues(shop, handler):
    for number in range(5):
        publish(shop, f"w{number}", str(number))
    relay(shop)
    assert shop.json(*scope_words(*handler, "--max", "3"))["done"] == 3
    assert shop.json(*scope_words(*handler, "--max", "2"))["done"] == 2
    assert consume(shop, *handler) == counts()


@pytest.mark.core
def test_a_signal_ends_a_busy_consumer_between_two_transactions(shop):
    lines = [{"type": "t.v1", "aggregateType": "order", "aggregateId": str(n % 7), "payload": {"word": f"w{n}"}}
             for n in range(300)]
    shop.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    relay(shop)
    child = shop.spawn(*scope_words(*SQL, "--batch", "5", "--json"))
    wait_for(lambda: len(words(shop)) > 0, what="the first effects")
    assert shop.stop(child) == 0
    done = json.loads(child.stdout.read())["done"]
    assert done == len(words(shop))
    assert consume(shop, *SQL) == counts(done=300 - done)
    assert len(set(words(shop))) == 300


# ---- outages ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_outage_costs_no_attempts_and_ends_when_the_dependency_is_back(shop):
    for word in ("one", "two"):
        publish(shop, word)
    relay(shop)
    port = free_port()
    url = f"http://127.0.0.1:{port}/events"
    shop.drain_times_out(*scope_words("--http", url, "--attempts", "2"), expected=["breaker is open"])
    with (shop.folder / "log").open("w") as log:
        child = shop.spawn(*scope_words("--http", url, "--attempts", "2", "--json"), stderr=log)
        wait_for(lambda: (shop.folder / "log").read_text().count("breaker open, fetching paused") > 1, what="an open breaker")
        opening = next(line for line in (shop.folder / "log").read_text().splitlines() if "breaker open, fetching paused" in line)
        assert (json.loads(opening)["consumer"], "no answer from" in json.loads(opening)["error"]) == ("billing", True)
        with Endpoint(port=port) as endpoint:
            wait_for(lambda: len(endpoint.requests) == 2, what="both requests")
            wait_for(lambda: shop.sql("SELECT count(*) FROM semel_inbox WHERE status = 'PROCESSED'") == [(2,)])
        assert shop.stop(child) == 0
    assert json.loads(child.stdout.read()) == counts(done=2)
    assert letters(shop) == []
    assert {headers.get("semel-attempt") for _, headers, _ in endpoint.requests} == {"1"}


@pytest.mark.slow
def test_many_failures_in_a_row_open_the_breaker(shop):
    lines = [{"type": "t.v1", "aggregateType": "order", "aggregateId": f"o{n}", "payload": {}} for n in range(100)]
    shop.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    relay(shop)
    program = "echo >> calls; test -e up || exit 75"
    with (shop.folder / "log").open("w") as log:
        child = shop.spawn(*scope_words("--exec", program, "--attempts", "50", *QUICK, "--json"), stderr=log)
        wait_for(lambda: (shop.folder / "log").read_text().count("breaker open, fetching paused") > 1, what="an open breaker")
        assert len((shop.folder / "calls").read_text()) < 40
        (shop.folder / "up").touch()
        wait_for(lambda: shop.sql("SELECT count(*) FROM semel_inbox WHERE status = 'PROCESSED'") == [(100,)], timeout=60)
        assert shop.stop(child) == 0
    assert letters(shop) == []


@pytest.mark.only("sqlite")
@pytest.mark.slow
def test_a_store_that_is_locked_for_long_is_waited_for(shop):
    own = shop.folder / "own.db"
    shop.ok("--store", f"sqlite:{own}", "init")
    prepare(shop, own)
    with (shop.folder / "log").open("w") as log:
        child = shop.spawn("--store", f"sqlite:{own}?busy-timeout=50", *scope_words(*SQL), stderr=log)
        wait_for(lambda: shop.sql("SELECT scope FROM semel_subscription", database=own), what="the subscription")
        lock = sqlite3.connect(own, isolation_level=None, timeout=30)
        lock.execute("BEGIN IMMEDIATE")
        publish(shop, "one")
        relay(shop)
        wait_for(lambda: "consuming failed, retrying" in (shop.folder / "log").read_text(), what="a consumer that waits")
        lock.execute("ROLLBACK")
        wait_for(lambda: words(shop, database=own) == ["one"], what="the effect")
        assert shop.stop(child) == 0


# ---- several consumers --------------------------------------------------------------------------


def owners(semel):
    rows = semel.sql("SELECT owner, count(*) FROM semel_share WHERE owner IS NOT NULL GROUP BY owner", database=semel.broker)
    return sorted(count for _, count in rows)


@pytest.mark.only("local")
@pytest.mark.slow
def test_consumers_of_one_scope_share_the_work(shop):
    publish(shop, "first")
    relay(shop)
    children = [shop.spawn(*scope_words(*SQL, "--json")) for _ in range(2)]
    wait_for(lambda: len(owners(shop)) == 2 and owners(shop)[0] == owners(shop)[1], what="even shares")
    lines = [{"type": "t.v1", "aggregateType": "order", "aggregateId": f"o{n}", "payload": {"word": f"w{n}"}}
             for n in range(64)]
    shop.ok("publish", "--batch", input="".join(json.dumps(line) + "\n" for line in lines))
    relay(shop)
    wait_for(lambda: len(words(shop)) >= 65, what="all effects")
    assert [shop.stop(child) for child in children] == [0, 0]
    done = [json.loads(child.stdout.read())["done"] for child in children]
    assert sum(done) == 65 and min(done) > 10
    assert len(words(shop)) == 65


@pytest.mark.core
@pytest.mark.slow
def test_the_share_of_a_killed_consumer_passes_to_another(shop):
    publish(shop, "first")
    relay(shop)
    children = [shop.spawn(*scope_words(*SQL)) for _ in range(2)]
    wait_for(lambda: shop.backend.broker.consumers("billing", "order.events") == 2, what="both of them")
    children[0].kill()
    for number in range(16):
        publish(shop, f"w{number}", f"o{number}")
    relay(shop)
    wait_for(lambda: len(words(shop)) == 17, what="all effects")
    assert shop.stop(children[1]) == 0


@pytest.mark.unless("rabbitmq", reason="a client cannot see what another one has in flight")
@pytest.mark.slow
def test_an_event_that_another_consumer_runs_is_neither_run_nor_skipped(shop):
    """A consumer that is stopped for longer than its lease still has its call under way."""
    publish(shop, "one")
    relay(shop)
    slow = scope_words("--exec", "echo >> calls; touch started; while ! test -e go; do sleep 0.05; done", "--lease", "200ms")
    first = shop.spawn(*slow, "--json")
    wait_for((shop.folder / "started").exists, what="the call")
    shop.freeze(first)
    done = shop.run(*slow, "--drain", "--timeout", "2s")
    assert done.returncode == 75, done.stderr
    assert shop.sql("SELECT status FROM semel_inbox") == [("CLAIMED",)]
    first.send_signal(signal.SIGCONT)
    (shop.folder / "go").touch()
    wait_for(lambda: shop.sql("SELECT status FROM semel_inbox") == [("PROCESSED",)])
    assert shop.stop(first) == 0
    assert consume(shop, *slow[5:])["done"] == 0
    assert (shop.folder / "calls").read_text() == "\n"
