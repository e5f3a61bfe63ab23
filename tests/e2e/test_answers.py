# SPDX-License-Identifier: Apache-2.0
"""What an answer of the admin server may cost, and whom it tells what."""
import json
import socket
import threading

import pytest
from program import wait_for
from server import Server
from story import deliver, prepare, publish
from test_serve import spawn_with_metrics

READER = "reader-that-is-long-enough-for-us"


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


def test_probes_ask_the_store_nothing_and_tell_strangers_no_names(bare):
    """The watch alone connects: a store that never answers keeps no probe waiting."""
    came = []
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:

        def accept():
            with pytest.raises(OSError):
                while True:
                    came.append(silent.accept()[0])

        listener = threading.Thread(target=accept)
        listener.start()
        store = f"postgres://somebody@127.0.0.1:{silent.getsockname()[1]}/somewhere"
        server = Server(bare, "--token-file", token_file(bare, f"read {READER}"), env={"SEMEL_STORE": store})
        told = []
        askers = [threading.Thread(target=lambda: told.append(server.ask("/readyz"))) for _ in range(40)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        assert [(code, json.loads(text)) for code, _, text in told] == [(503, {"reasons": ["store"]})] * 40
        assert "store" in json.loads(server.ask("/readyz", headers=bearer(READER))[2])["reasons"][0]
        assert len(came) <= 2
        server.child.kill()  # it would wait for the store
        silent.shutdown(socket.SHUT_RDWR)
    listener.join()


def test_why_it_is_red_is_told_in_full_to_those_with_a_token_only(shop):
    server = Server(shop, "--ready-stall", "300ms", "--token-file", token_file(shop, f"read {READER}"))
    publish(shop, "waiting")
    wait_for(lambda: server.ask("/readyz")[0] == 503, what="red")
    assert server.json("/readyz", status=503) == {"reasons": ["stalled"]}
    assert server.json("/readyz", status=503, headers=bearer("nobody")) == {"reasons": ["stalled"]}
    (reason,) = server.json("/readyz", status=503, headers=bearer(READER))["reasons"]
    assert reason.startswith("1 event waits")
    beside = spawn_with_metrics(shop, "consume", "--scope", "billing", "--topic", "order.events", "--print")  # without tokens
    shop.sql("UPDATE semel_schema SET version = version - 100")
    for one in (server, beside):
        wait_for(lambda one=one: json.loads(one.ask("/readyz")[2]) == {"reasons": ["store"]}, what="the code of the store")


# ---- who did what, and how it ended ---------------------------------------------------------------

ANN, BOB = "ann-has-a-token-that-is-long-enough", "bob-has-a-token-that-is-long-enough"


@pytest.mark.anywhere
@pytest.mark.core
def test_the_audit_tells_names_and_outcomes_also_of_what_was_refused_or_failed(shop):
    server = Server(shop, "--token-file", token_file(shop, f"operate ann {ANN}", f"read bob {BOB}"))
    deliver(shop, ("bad", "1"), ("bad", "2"))
    first, second = server.json("/api/admin/dlq", headers=bearer(ANN))
    path = f"/api/admin/dlq/{first['dlqEntryId']}"
    server.json(f"{path}?reason={'r' * 9000}", "DELETE", headers=bearer(ANN))
    assert server.problem(409, f"{path}/replay", "POST", headers=bearer(ANN)) == "not-pending"
    assert server.problem(404, "/api/admin/subscriptions/nobody/pause", "POST", headers=bearer(ANN)) == "not-found"
    server.json("/api/admin/dlq/discard", "POST", headers=bearer(ANN))
    code, headers, _ = server.ask("/api/admin/replays", "POST", headers=bearer(ANN), body=b'{"type": "none"}')
    assert code == 202
    wait_for(lambda: server.json(headers["Location"], headers=bearer(ANN))["state"] == "done", what="the end of the replay")
    for _ in range(20):  # strangers, and those who may only read, leave no row
        assert server.problem(401, f"{path}/replay", "POST", headers=bearer("nobody")) == "no-token"
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
    assert "of ann answered 409" in log


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


# ---- what an answer may weigh ---------------------------------------------------------------------

MIB = 1024 * 1024


def bury(shop, count, payload, headers="{}", reason="no"):
    """Dead letters by hand: ids that can be foretold, the oldest first."""
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
    """The most memory that it ever had, in MiB."""
    with open(f"/proc/{child.pid}/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM"))


def all_at_once(count, work):
    told = []
    askers = [threading.Thread(target=lambda: told.append(work())) for _ in range(count)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    return told


def next_of(headers):
    return headers["Link"] and headers["Link"].removeprefix("<").removesuffix('>; rel="next"')


@pytest.mark.anywhere
@pytest.mark.core
def test_lists_of_large_events_are_bounded_whatever_is_asked_for(shop):
    ids = bury(shop, 30, json.dumps({"word": "x" * (4 * MIB)}))
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


@pytest.mark.anywhere
def test_a_list_that_does_not_fit_ends_early_and_says_where_it_goes_on(shop):
    ids = bury(shop, 500, "{}", headers=json.dumps({"note": "h" * 3900}), reason="ä\u0001" * 3000)  # 20 kB of JSON each
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


def test_a_list_hides_the_reason_of_an_event_that_it_does_not_read(shop):
    """What is hidden in a payload is known only to who reads it, and a list does not read large ones."""
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({"admin": {"listen": "127.0.0.1:0", "redact": ["$.card"]}}))
    payload = {"card": "4111-1111-1111-1111", "filler": "x" * 100000}
    (large,) = bury(shop, 1, json.dumps(payload), reason="no money")
    server = Server(shop, env={"SEMEL_CONFIG": str(config)})
    (entry,) = server.json("/api/admin/dlq")
    assert entry["failureReason"] == "[hidden]" and entry["payloadSize"] > 100000
    assert server.json(f"/api/admin/dlq/{large}")["failureReason"] == "no money"
    shop.sql("UPDATE semel_dead_letter SET payload = ?", json.dumps({**payload, "filler": ""}))
    (entry,) = server.json("/api/admin/dlq")
    assert entry["failureReason"] == "no money" and entry["eventRecord"]["payload"] is None
    (entry,) = server.json("/api/admin/dlq?payload=true")
    assert entry["eventRecord"]["payload"] == {"card": "[hidden]", "filler": ""}
