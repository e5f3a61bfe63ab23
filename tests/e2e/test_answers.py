# SPDX-License-Identifier: Apache-2.0
"""What a response of the admin server may cost, and what each client may read."""
import json
import re
import socket
import threading

import pytest
from program import TREE, wait_for
from server import Server
from story import deliver, prepare, publish
from test_serve import spawn_with_metrics

READER = "reader-that-is-long-enough-for-us"
MIB = 1024 * 1024


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def token_file(semel, *lines):
    path = semel.folder / "tokens"
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)
    return str(path)


# ---- health ---------------------------------------------------------------------------------------


def test_probes_do_not_query_the_store_and_show_no_names_to_unknown_clients(bare):
    """Only the health monitor connects: a store that never answers delays no probe."""
    connections = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:

        def accept():
            with pytest.raises(OSError):
                while True:
                    connections.append(silent.accept()[0])

        listener = threading.Thread(target=accept)
        listener.start()
        store = f"postgres://user@127.0.0.1:{silent.getsockname()[1]}/name"
        server = Server(bare, "--token-file", token_file(bare, f"read {READER}"), env={"SEMEL_STORE": store})
        responses = []
        clients = [threading.Thread(target=lambda: responses.append(server.ask("/readyz"))) for _ in range(40)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        assert [(code, json.loads(text)) for code, _, text in responses] == [(503, {"reasons": ["store"]})] * 40
        assert "store" in json.loads(server.ask("/readyz", headers=bearer(READER))[2])["reasons"][0]
        assert len(connections) <= 2
        server.child.kill()  # it would wait for the store
        silent.shutdown(socket.SHUT_RDWR)
    listener.join()


def test_the_full_reason_of_a_failed_probe_is_shown_only_with_a_token(shop):
    server = Server(shop, "--ready-stall", "300ms", "--token-file", token_file(shop, f"read {READER}"))
    publish(shop, "waiting")
    wait_for(lambda: server.ask("/readyz")[0] == 503, what="a failed probe")
    assert server.json("/readyz", status=503) == {"reasons": ["stalled"]}
    assert server.json("/readyz", status=503, headers=bearer("unknown")) == {"reasons": ["stalled"]}
    (reason,) = server.json("/readyz", status=503, headers=bearer(READER))["reasons"]
    assert reason.startswith("1 event waiting")
    consumer = spawn_with_metrics(shop, "consume", "--scope", "billing", "--topic", "order.events", "--print")  # without tokens
    shop.sql("UPDATE semel_schema SET version = version - 100")
    for one in (server, consumer):
        wait_for(lambda one=one: json.loads(one.ask("/readyz")[2]) == {"reasons": ["store"]}, what="the reason store")


def test_concurrent_scrapes_share_one_query(bare):
    """While one scrape waits for a broker that never answers, others get the last text, and no worker is blocked."""
    bare.ok("init")
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        server = Server(bare, env={"SEMEL_BROKER": f"amqp://127.0.0.1:{silent.getsockname()[1]}/"})
        assert "semel_dlq_pending 0" in server.ask("/metrics")[2]
        bare.sql("INSERT INTO semel_subscription (scope, topics, since) VALUES ('billing', '[\"order.events\"]', '2026-01-01T00:00:00.000Z')")
        waits = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        waits.sendall(f"GET /metrics HTTP/1.1\r\nHost: localhost:{server.port}\r\n\r\n".encode())
        held = silent.accept()[0]  # from now on that scrape is in progress
        for code, _, text in all_at_once(8, lambda: server.ask("/metrics")):
            assert code == 200 and "semel_dlq_pending 0" in text
        assert server.json("/api/admin/replays") == []
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()  # no other scrape has queried the broker
        server.child.kill()  # it would wait for the broker
        held.close(), waits.close()


def test_bodies_that_never_end_are_bounded_in_total(shop):
    server = Server(shop)
    head = f"POST /api/admin/replays HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Length: {MIB}\r\n\r\n".encode()
    unfinished = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(16)]
    for connection in unfinished:
        connection.sendall(head + b"x" * (MIB - 1))
    wait_for(lambda: server.ask("/api/admin/replays", "POST", body=b"x" * MIB)[0] == 503, what="the refusal of one more body")
    for connection in unfinished:
        connection.close()
    wait_for(lambda: server.ask("/api/admin/replays", "POST", body=b"x" * MIB)[0] == 400, what="the end of that refusal")


CONSTANTS = {  # rows of the page: their constants, with the units
    "requests over one connection": [("http.c", "REQUESTS_MAX", 1)],
    "requests that wait for a worker": [("http.c", "WAITING_MAX", 1)],
    "streams": [("streams.h", "SEMEL_STREAMS_MAX", 1)],
    "head of a request": [("http.c", "HEAD_MAX", 1024)],
    "body of a request": [("http.h", "SEMEL_HTTP_BODY_MAX", 1024 * 1024)],
    "time of a request": [("admin.c", "REQUEST_MS", 1000)],
    "time between two requests": [("http.c", "IDLE_MS", 1000)],
    "a response or a stream that the client does not read": [("http.c", "STALL_MS", 1000), ("http.c", "RESPONSE_MS", 1000)],
    "responses in memory while they are sent": [("http.c", "RESPONSE_BYTES_MAX", 1024 * 1024)],
    "entries of a list": [("dead_letters.c", "LIMIT_MAX", 1)],
    "bytes of a list": [("context.h", "SEMEL_RESPONSE_MAX", 1024 * 1024)],
    "reads of the store by `/readyz`": [("health.c", "CHECK_OLD_MS", 1000)],
    "concurrent scrapes of `/metrics`": [("metrics.c", "LAST_TEXT_MS", 1000)],
    "replay jobs": [("replays.h", "SEMEL_REPLAY_RUNS_AT_ONCE", 1), ("replays.h", "SEMEL_REPLAY_RUNS_MAX", 1)],
    "request of a replay": [("replays.h", "SEMEL_REPLAY_REQUEST_MAX", 1024)],
    "headers and free texts of a dead letter in a list": [("../store/rules.h", "SEMEL_DEAD_BRIEF", 1)],
    "target and detail in the audit": [("../store/upkeep.h", "SEMEL_AUDIT_TEXT", 1)],
    "tokens": [("access.h", "SEMEL_TOKENS_MAX", 1), ("access.h", "SEMEL_TOKEN_MIN", 1)],
    "paths of `redact`": [("json_mask.h", "SEMEL_MASK_PATHS_MAX", 1), ("json_mask.h", "SEMEL_MASK_STEPS_MAX", 1)],
}


def test_the_bounds_on_the_page_are_those_of_the_code():
    page = (TREE / "docs/admin.md").read_text()
    table = page[page.index("## Bounds"):page.index("## What is not shown")]
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \| `", table, re.MULTILINE))
    for file, name in re.findall(r"`([\w/.]+)::(\w+)`", table):
        assert re.search(rf"^(def|static void) {name}\(", (TREE / "tests" / file).read_text(), re.MULTILINE), (file, name)
    for row, constants in CONSTANTS.items():
        for file, name, unit in constants:
            value = re.search(rf"#define {name}\s+([^/\n]+)", (TREE / "src/admin" / file).read_text()).group(1)
            factors = [int(number) for number in re.findall(r"\d+", value)]
            bound = factors[0] if len(factors) == 1 else eval("*".join(map(str, factors)))  # noqa: S307
            assert re.search(rf"\b{bound // unit}\b", rows[row]), (row, name, bound // unit)


# ---- audit ----------------------------------------------------------------------------------------

ANN, BOB = "ann-has-a-token-that-is-long-enough", "bob-has-a-token-that-is-long-enough"


@pytest.mark.anywhere
@pytest.mark.core
def test_the_audit_records_names_and_outcomes_also_of_refused_and_failed_requests(shop):
    server = Server(shop, "--token-file", token_file(shop, f"operate ann {ANN}", f"read bob {BOB}"))
    deliver(shop, ("bad", "1"), ("bad", "2"))
    first, second = server.json("/api/admin/dlq", headers=bearer(ANN))
    path = f"/api/admin/dlq/{first['dlqEntryId']}"
    server.json(f"{path}?reason={'r' * 9000}", "DELETE", headers=bearer(ANN))
    assert server.problem(409, f"{path}/replay", "POST", headers=bearer(ANN)) == "not-pending"
    assert server.problem(404, "/api/admin/subscriptions/unknown/pause", "POST", headers=bearer(ANN)) == "not-found"
    server.json("/api/admin/dlq/discard", "POST", headers=bearer(ANN))
    code, headers, _ = server.ask("/api/admin/replays", "POST", headers=bearer(ANN), body=b'{"type": "none"}')
    assert code == 202
    wait_for(lambda: server.json(headers["Location"], headers=bearer(ANN))["state"] == "done", what="the end of the replay")
    for _ in range(20):  # requests without a valid token or the role leave no row
        assert server.problem(401, f"{path}/replay", "POST", headers=bearer("unknown")) == "no-token"
        assert server.problem(403, f"{path}/replay", "POST", headers=bearer(BOB)) == "role"
    rows = server.json("/api/admin/audit", headers=bearer(BOB))[::-1]
    assert {row["who"] for row in rows} == {"ann"}
    assert [(row["what"], row["outcome"]) for row in rows] == [
        ("discard", "done"), ("replay", "refused: not-pending"), ("pause", "refused: not-found"), ("discard all", "done: 1 of 1"),
        ("start replay", "done: 0 sent")]
    assert rows[0]["detail"] == "r" * 4096 + "…"
    shop.sql("ALTER TABLE semel_subscription RENAME TO hidden")  # a failure after the row was written
    assert server.ask("/api/admin/subscriptions/billing/pause", "POST", headers=bearer(ANN))[0] >= 500
    shop.sql("ALTER TABLE hidden RENAME TO semel_subscription")
    assert server.json("/api/admin/audit?limit=1", headers=bearer(ANN))[0]["outcome"].startswith("failed: ")
    shop.stop(server.child)
    log = server.child.stderr.read()
    assert ANN not in log and 1 <= log.count("without a valid token") < 10
    assert "by ann: status 409" in log


@pytest.mark.only("sqlite")
def test_a_change_that_cannot_be_recorded_leaves_the_rows_of_others_unchanged(shop):
    server = Server(shop, "--token-file", token_file(shop, f"operate ann {ANN}", f"operate bob {BOB}"))
    deliver(shop, ("good", "1"))
    server.json("/api/admin/subscriptions/billing/pause", "POST", headers=bearer(ANN))
    shop.sql("CREATE TRIGGER refuse BEFORE INSERT ON semel_audit BEGIN SELECT RAISE(ABORT, 'no'); END")
    assert server.ask("/api/admin/subscriptions/billing/resume", "POST", headers=bearer(BOB))[0] >= 500
    shop.sql("DROP TRIGGER refuse")
    rows = server.json("/api/admin/audit", headers=bearer(ANN))
    assert [(row["who"], row["what"], row["outcome"]) for row in rows] == [("ann", "pause", "done")]


def test_the_audit_records_what_was_done_before_the_broker_was_unreachable(shop):
    deliver(shop, ("bad", "1"))
    server = Server(shop, env={"SEMEL_BROKER": "amqp://127.0.0.1:1/"})
    assert server.problem(503, "/api/admin/dlq/replay", "POST") == "outage"
    (row,) = server.json("/api/admin/audit")
    assert (row["what"], row["outcome"]) == ("replay all", "failed: outage; done: 0 of 1")


@pytest.mark.slow
def test_replay_jobs_are_bounded_in_number_and_in_what_is_asked_for(shop):
    deliver(shop, *((str(number), str(number)) for number in range(5)))
    server = Server(shop)
    large = json.dumps({"type": "x" * 20000}).encode()
    assert server.problem(400, "/api/admin/replays", "POST", body=large) == "usage"
    for _ in range(66):
        code, headers, _ = server.ask("/api/admin/replays", "POST", body=b'{"dryRun": true}')
        assert code == 202
        wait_for(lambda at=headers["Location"]: server.json(at)["state"] == "done", what="the end of a job")
    jobs = server.json("/api/admin/replays")
    assert [job["id"] for job in jobs] == [str(number) for number in range(66, 2, -1)]
    assert server.problem(404, "/api/admin/replays/2") == "not-found"
    for _ in range(4):
        assert server.ask("/api/admin/replays", "POST", body=b'{"rate": 1}')[0] == 202
    assert server.problem(503, "/api/admin/replays", "POST", body=b'{"rate": 1}') == "busy"


# ---- size of a response --------------------------------------------------------------------------


def add_dead_letters(shop, count, payload, headers="{}", reason="no"):
    """Inserts dead letters with predictable ids, the oldest first."""
    ids = [f"01930b5e-7c1a-7d10-8a3e-{number:012d}" for number in range(count)]
    rows = [(entry_id, entry_id, headers, payload, reason, f"2026-01-01T00:{number // 60:02d}:{number % 60:02d}.000Z")
            for number, entry_id in enumerate(ids)]
    for some in (rows[at:at + 50] for at in range(0, count, 50)):
        shop.sql("INSERT INTO semel_dead_letter (entry_id, scope, event_id, event_type, aggregate_type, aggregate_id, topic,"
                 " content_type, headers, payload, failure_reason, failed_at) VALUES " + ", ".join(
                     ["(?, 'billing', ?, 'order.created.v1', 'order', '1', 'order.events', 'application/json', ?, ?, ?, ?)"] * len(some)),
                 *(value for row in some for value in row))
    return ids


def peak(child):
    """The peak of its resident memory, in MiB."""
    with open(f"/proc/{child.pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def all_at_once(count, work):
    results = []
    clients = [threading.Thread(target=lambda: results.append(work())) for _ in range(count)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return results


def next_of(headers):
    return headers["Link"] and headers["Link"].removeprefix("<").removesuffix('>; rel="next"')


@pytest.mark.slow
@pytest.mark.anywhere
@pytest.mark.core
def test_lists_of_large_events_are_bounded_whatever_is_asked_for(shop):
    ids = add_dead_letters(shop, 30, json.dumps({"word": "x" * (4 * MIB)}))
    server = Server(shop)
    before = peak(server.child)
    for code, _, text in all_at_once(4, lambda: server.ask("/api/admin/dlq?limit=30")):
        entries = json.loads(text)
        assert code == 200 and [entry["dlqEntryId"] for entry in entries] == ids and len(text) < 30000
        assert all(entry["eventRecord"]["payload"] is None and entry["payloadSize"] > 4 * MIB for entry in entries)
    assert peak(server.child) - before < 40
    for code, headers, text in all_at_once(4, lambda: server.ask("/api/admin/dlq?limit=30&payload=true")):
        entries = json.loads(text)
        shown = [entry["dlqEntryId"] for entry in entries if entry["eventRecord"]["payload"]]
        assert code == 200 and [entry["dlqEntryId"] for entry in entries] == ids and shown == ids[:1] and len(text) < 8 * MIB
    assert len(server.json(f"/api/admin/dlq/{ids[9]}")["eventRecord"]["payload"]["word"]) == 4 * MIB
    assert peak(server.child) - before < 110


@pytest.mark.slow
@pytest.mark.anywhere
def test_a_list_that_does_not_fit_ends_early_and_links_to_its_next_page(shop):
    ids = add_dead_letters(shop, 500, "{}", headers=json.dumps({"note": "h" * 3900}), reason="ä\u0001" * 3000)  # 20 kB of JSON
    server = Server(shop)
    path, seen = "/api/admin/dlq?limit=1000&scope=billing&type=order.created.v1", []
    while path:
        code, headers, text = server.ask(path)
        entries = json.loads(text)
        assert code == 200 and 0 < len(text) < 8 * MIB and entries
        assert all(entry["failureReason"].endswith("…") and entry["eventRecord"]["headers"]["note"] for entry in entries)
        seen += [entry["dlqEntryId"] for entry in entries]
        path = next_of(headers)
        assert (path is None) == (len(seen) == len(ids))
    assert seen == ids
    assert len(server.json(f"/api/admin/dlq/{ids[0]}")["failureReason"]) == 6000
    assert server.problem(400, "/api/admin/dlq?payload=yes") == "usage"
    _, headers, _ = server.ask("/api/admin/dlq?limit=2&scope=a%26b%20%C3%A4")
    assert headers["Link"] is None
    _, headers, _ = server.ask("/api/admin/dlq?limit=2&payload=true&until=2026-12-31T00:00:00Z")
    assert [entry["dlqEntryId"] for entry in server.json(next_of(headers))] == ids[2:4]


@pytest.mark.anywhere
def test_a_page_after_a_deleted_entry_is_not_the_end_of_the_list(shop):
    ids = add_dead_letters(shop, 4, "{}")
    server = Server(shop)
    _, headers, _ = server.ask("/api/admin/dlq?limit=2")
    shop.sql("DELETE FROM semel_dead_letter WHERE entry_id = ?", ids[1])  # as prune does
    assert server.problem(404, next_of(headers)) == "not-found"
    assert server.json(f"/api/admin/dlq?after={ids[3]}") == []


def test_a_list_hides_the_reason_of_an_event_that_it_does_not_read(shop):
    """What to hide is known only after reading the payload, and a list does not read large payloads."""
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({"admin": {"listen": "127.0.0.1:0", "redact": ["$.card"]}}))
    payload = {"card": "4111-1111-1111-1111", "filler": "x" * 100000}
    (large,) = add_dead_letters(shop, 1, json.dumps(payload), reason="no money")
    server = Server(shop, env={"SEMEL_CONFIG": str(config)})
    (entry,) = server.json("/api/admin/dlq")
    assert entry["failureReason"] == "[hidden]" and entry["payloadSize"] > 100000
    assert server.json(f"/api/admin/dlq/{large}")["failureReason"] == "no money"
    shop.sql("UPDATE semel_dead_letter SET payload = ?", json.dumps({**payload, "filler": ""}))
    (entry,) = server.json("/api/admin/dlq")
    assert entry["failureReason"] == "no money" and entry["eventRecord"]["payload"] is None
    (entry,) = server.json("/api/admin/dlq?payload=true")
    assert entry["eventRecord"]["payload"] == {"card": "[hidden]", "filler": ""}
