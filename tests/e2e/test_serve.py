# SPDX-License-Identifier: Apache-2.0
"""The admin server: its answers, access to it, and what it withstands."""
import contextlib
import hashlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from sandbox import free_port
from program import wait_for
from server import Server
from story import consume, deliver, mend, prepare, publish, relay, words

TOKEN = "t0ken-that-is-long-enough-for-us"
READER = "reader-that-is-long-enough-for-us"

pytestmark = pytest.mark.anywhere


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


@pytest.fixture
def server(shop):
    return Server(shop)


def test_a_dead_letter_is_listed_counted_and_shown_as_on_the_command_line(shop, server):
    ids = deliver(shop, ("bad", "1"), ("second", "1"), ("good", "2"))
    (brief,) = server.json("/api/admin/dlq")
    (entry,) = server.json("/api/admin/dlq?payload=true")
    assert entry == shop.json("dlq", "list")[0]
    assert entry["originalEventId"] == ids[0]
    assert entry["eventRecord"]["payload"] == {"word": "bad"}
    assert brief == {**entry, "eventRecord": {**entry["eventRecord"], "payload": None}} and brief["payloadSize"] > 0
    assert server.json("/api/admin/dlq/count") == {"count": 1}
    assert server.json(f"/api/admin/dlq/{entry['dlqEntryId']}") == entry
    assert server.json("/api/admin/dlq?status=REPLAYED") == []
    assert server.json("/api/admin/dlq?scope=audit") == []


@pytest.mark.core
def test_a_replay_over_http_runs_the_event_and_the_parked_followers_in_order(shop, server):
    deliver(shop, ("bad", "1"), ("second", "1"))
    mend(shop)
    (entry,) = server.json("/api/admin/dlq")
    answer = server.json(f"/api/admin/dlq/{entry['dlqEntryId']}/replay", "POST")
    assert answer == {"status": "replayed", "dlqEntryId": entry["dlqEntryId"]}
    consume(shop)
    assert words(shop) == ["bad", "second"]
    assert server.problem(409, f"/api/admin/dlq/{entry['dlqEntryId']}/replay", "POST") == "not-pending"


def test_a_dead_letter_is_replayed_three_times_at_most_and_can_still_be_discarded(shop, server):
    deliver(shop, ("bad", "1"))
    (entry,) = server.json("/api/admin/dlq")
    path = f"/api/admin/dlq/{entry['dlqEntryId']}"
    for _ in range(3):
        server.json(f"{path}/replay", "POST")
        consume(shop)
    assert server.problem(409, f"{path}/replay", "POST") == "replay-limit"
    assert server.json(path, "DELETE") == {"status": "discarded", "dlqEntryId": entry["dlqEntryId"]}
    assert server.json(path)["status"] == "DISCARDED"


@pytest.mark.parametrize("limit", ["0", "1001", "-1", "x", "", "1e3"])
def test_a_limit_out_of_bounds_is_refused(server, limit):
    assert server.problem(400, f"/api/admin/dlq?limit={limit}") == "usage"


@pytest.mark.parametrize("path", ["/api/admin/dlq/nope", "/api/admin/dlq/01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41", "/api/admin/dlq/%00", "/x"])
def test_what_is_not_there_is_not_found(server, path):
    assert server.problem(404, path) == "not-found"


def test_a_parameter_that_is_not_known_is_refused_with_the_nearest_one(server):
    code, _, text = server.ask("/api/admin/dlq?limt=3")
    assert code == 400 and "did you mean limit" in text


def test_a_wrong_method_is_answered_with_the_right_ones(server):
    code, headers, _ = server.ask("/api/admin/dlq/count", "POST")
    assert (code, headers["Allow"]) == (405, "GET, HEAD")
    code, headers, _ = server.ask("/api/admin/dlq/x", "PUT")
    assert (code, headers["Allow"]) == (405, "GET, HEAD, DELETE")
    code, headers, _ = server.ask("/api/admin/dlq/replay", "DELETE")
    assert (code, headers["Allow"]) == (405, "POST")


@pytest.mark.core
def test_outbox_subscriptions_and_trace_show_what_waits(shop, server):
    (event_id,) = deliver(shop, ("good", "1"))
    publish(shop, "waiting", "2")
    assert server.json("/api/admin/outbox")["waiting"] == 1
    (billing,) = server.json("/api/admin/subscriptions")
    assert billing["breaker"] is None and billing["paused"] is False
    assert (billing["scope"], billing["topics"], billing["lag"], billing["deadLetters"]) == ("billing", ["order.events"], 0, 0)
    relay(shop)
    wait_for(lambda: server.json("/api/admin/subscriptions")[0]["lag"] == 1, what="the lag")
    facts = [fact["what"] for fact in server.json(f"/api/admin/trace/{event_id}")["facts"]]
    assert facts[0] == "committed" and "processed" in facts
    assert server.problem(404, "/api/admin/trace/unknown") == "not-found"


def run_replay(server, **body):
    code, headers, text = server.ask("/api/admin/replays", "POST", body=json.dumps(body).encode())
    assert code == 202, text
    return wait_for(lambda: (run := server.json(headers["Location"]))["state"] not in ("running", "cancelling") and run)


@pytest.mark.core
def test_a_replay_run_reports_its_progress(shop, server):
    deliver(shop, ("one", "1"), ("two", "2"))
    assert (run := run_replay(server, dryRun=True))["chosen"] == 2 and run["replayed"] == 0
    run = run_replay(server, scope="billing", reprocess=True, aggregate="order:2")
    assert (run["state"], run["replayed"], run["error"]) == ("done", 1, None)
    consume(shop)
    assert sorted(words(shop)) == ["one", "two", "two"]
    assert [run["id"] for run in server.json("/api/admin/replays")] == ["2", "1"]


def test_a_replay_run_can_be_cancelled(shop, server):
    deliver(shop, *((str(number), str(number)) for number in range(30)))
    code, headers, _ = server.ask("/api/admin/replays", "POST", body=b'{"rate": 1}')
    assert code == 202
    server.json(headers["Location"], "DELETE")
    run = wait_for(lambda: (run := server.json(headers["Location"]))["state"] == "cancelled" and run)
    assert run["replayed"] < 30
    assert [(row["what"], row["target"]) for row in server.json("/api/admin/audit")] == [("cancel replay", run["id"]), ("start replay", None)]


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"tpye": "x"}', b'{"max": "1"}', b'{"rate": 0}', b'{"reprocess": true}', b'{"since": "yesterday"}', b"\xff"])
def test_an_invalid_replay_request_is_refused(server, body):
    assert server.problem(400, "/api/admin/replays", "POST", body=body) == "usage"


def test_the_description_lists_every_path(server):
    page = server.json("/api/openapi.json")
    assert page["openapi"] == "3.1.0"
    assert {"/api/admin/dlq", "/api/admin/dlq/{id}", "/api/admin/dlq/{id}/replay", "/metrics", "/readyz"} <= page["paths"].keys()
    assert page["paths"]["/api/admin/dlq/{id}"].keys() == {"get", "delete"}


def fits(value, schema, whole):
    """Does the value match the schema, as far as schemas go here? Every member of it has to be in the schema."""
    if "$ref" in schema:
        return fits(value, whole["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]], whole)
    kinds = {"string": str, "integer": int, "boolean": bool, "object": dict, "array": list, "null": type(None)}
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert type(value) in [kinds[kind] for kind in allowed], (value, schema)
    assert value in schema.get("enum", [value])
    if isinstance(value, list):
        return all(fits(one, schema["items"], whole) for one in value)
    if isinstance(value, dict) and "properties" in schema:
        assert value.keys() == schema["properties"].keys()
        return all(fits(value[name], one, whole) for name, one in schema["properties"].items())
    return True


def test_every_answer_is_as_it_is_described(shop, server):
    (event_id,) = deliver(shop, ("bad", "1"))
    whole = server.json("/api/openapi.json")
    (entry,) = server.json("/api/admin/dlq")
    admin, entry_id = "/api/admin", entry["dlqEntryId"]
    asked = {  # (path, method): (the value of {id}, query)
        (f"{admin}/dlq", "get"): ("", ""), (f"{admin}/dlq/count", "get"): ("", ""),
        (f"{admin}/dlq/{{id}}", "get"): (entry_id, ""),
        (f"{admin}/dlq/replay", "post"): ("", "?preview=1"), (f"{admin}/dlq/discard", "post"): ("", "?preview=1"),
        (f"{admin}/dlq/{{id}}/replay", "post"): (entry_id, ""), (f"{admin}/outbox", "get"): ("", ""),
        (f"{admin}/subscriptions", "get"): ("", ""), (f"{admin}/subscriptions/{{id}}/pause", "post"): ("billing", ""),
        (f"{admin}/subscriptions/{{id}}/resume", "post"): ("billing", ""), (f"{admin}/trace/{{id}}", "get"): (event_id, ""),
        (f"{admin}/replays", "post"): ("", ""), (f"{admin}/replays", "get"): ("", ""), (f"{admin}/replays/{{id}}", "get"): ("1", ""),
        (f"{admin}/replays/{{id}}", "delete"): ("1", ""), (f"{admin}/audit", "get"): ("", ""), ("/livez", "get"): ("", ""), ("/readyz", "get"): ("", ""),
    }
    for (path, method), (name, query) in asked.items():
        ((code, answer),) = [(code, one) for code, one in whole["paths"][path][method]["responses"].items() if code != "default"]
        value = server.json(path.replace("{id}", name) + query, method.upper(), status=int(code))
        assert fits(value, answer["content"]["application/json"]["schema"], whole), path
    described = {(path, method) for path, methods in whole["paths"].items() for method, one in methods.items()
                 if any("content" in answer for code, answer in one["responses"].items() if code != "default")}
    assert described - asked.keys() == {(f"{admin}/dlq/{{id}}", "delete")}


def samples(server):
    _, headers, text = server.ask("/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}


def test_gauges_show_the_store(shop, server):
    deliver(shop, ("bad", "1"))
    publish(shop, "waiting", "2")
    shown = samples(server)
    assert shown["semel_outbox_unpublished"] == 1
    assert shown["semel_dlq_pending"] == 1
    lag = 'semel_consumer_lag{scope="billing",topic="order.events"}'
    assert shown[lag] == 0
    relay(shop)
    wait_for(lambda: samples(server)[lag] == 1, what="one event at the broker")


def test_an_idle_system_is_ready_and_a_stuck_one_is_not(shop):
    server = Server(shop, "--ready-stall", "300ms")
    assert server.json("/readyz") == {"reasons": []}
    publish(shop, "waiting")
    wait_for(lambda: server.ask("/readyz")[0] == 503, what="503 from /readyz")
    (reason,) = json.loads(server.ask("/readyz")[2])["reasons"]
    assert reason.startswith("1 event waiting")
    assert server.json("/livez") == {"alive": True}
    relay(shop)
    wait_for(lambda: json.loads(server.ask("/readyz")[2]) == {"reasons": []}, what="200 from /readyz")


def test_without_a_store_it_is_alive_and_not_ready_and_reports_why(bare):
    server = Server(bare)
    assert server.json("/livez") == {"alive": True}
    (reason,) = server.json("/readyz", status=503)["reasons"]
    assert re.search(r"semel .*init", reason)
    assert server.problem(503, "/api/admin/dlq") in ("no-schema", "outage")
    assert server.ask("/metrics")[0] == 200
    bare.ok("init")
    wait_for(lambda: json.loads(server.ask("/readyz")[2]) == {"reasons": []}, what="200 from /readyz")


def test_every_answer_forbids_mime_sniffing_and_framing(server):
    for path in ("/api/admin/dlq", "/nope"):
        headers = server.ask(path)[1]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Cache-Control"] == "no-store"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "localhost", "localhost:1", "127.0.0.1"])
def test_a_foreign_host_is_forbidden(server, host):
    assert server.problem(403, "/api/admin/dlq", headers={"Host": host.format(port=server.port)}) == "host"


def test_localhost_is_allowed(server):
    assert server.ask("/livez", headers={"Host": f"localhost:{server.port}"})[0] == 200


def test_a_page_of_a_foreign_origin_may_not_change_anything(shop, server):
    deliver(shop, ("bad", "1"))
    (entry,) = server.json("/api/admin/dlq")
    path = f"/api/admin/dlq/{entry['dlqEntryId']}"
    assert server.problem(403, path, "DELETE", headers={"Origin": "http://evil.example"}) == "origin"
    assert server.problem(403, path, "DELETE", headers={"Origin": "null"}) == "origin"
    assert server.json(path)["status"] == "PENDING"
    assert server.json(path, "DELETE", headers={"Origin": server.url})["status"] == "discarded"


@pytest.fixture
def tokens(bare):
    path = bare.folder / "tokens"
    path.write_text(f"{TOKEN}\nread {READER}\n")
    return path


def test_a_token_is_required_and_its_role_is_checked(shop, tokens):
    server = Server(shop, "--token-file", str(tokens))
    assert server.problem(401, "/api/admin/dlq") == "no-token"
    assert server.problem(401, "/api/admin/dlq", headers={"Authorization": "Bearer wrong"}) == "no-token"
    assert server.json("/api/admin/dlq", headers={"Authorization": f"Bearer {READER}"}) == []
    replays = {"path": "/api/admin/replays", "method": "POST", "body": b'{"dryRun": true}'}
    assert server.problem(403, **replays, headers={"Authorization": f"Bearer {READER}"}) == "role"
    server.json(**replays, status=202, headers={"Authorization": f"Bearer {TOKEN}"})
    assert server.json("/livez") == {"alive": True}


def hang_up(server, message):
    """Has the token file read again, and returns the log once the message is in it."""
    parts, log = [], server.child.stderr.fileno()
    os.set_blocking(log, False)

    def logged():
        with contextlib.suppress(BlockingIOError):
            parts.append(os.read(log, 65536).decode())
        text = "".join(parts)
        return text.endswith("\n") and message in text and text

    server.child.send_signal(signal.SIGHUP)
    return wait_for(logged, what=message)


def test_a_withdrawn_token_is_refused_after_a_hangup(shop, tokens):
    server = Server(shop, "--token-file", str(tokens))
    as_reader = {"path": "/api/admin/dlq", "headers": {"Authorization": f"Bearer {READER}"}}
    assert server.json(**as_reader) == []
    tokens.write_text(f"{TOKEN}\n")
    hang_up(server, "token file reloaded")
    assert server.problem(401, **as_reader) == "no-token"
    assert server.json("/api/admin/dlq", headers={"Authorization": f"Bearer {TOKEN}"}) == []
    assert shop.stop(server.child) == 0


def test_an_invalid_token_file_changes_nothing_on_hangup(shop, tokens):
    server = Server(shop, "--token-file", str(tokens))
    tokens.write_text("short\n")
    assert "fewer than" in hang_up(server, "cannot reload the token file")
    tokens.unlink()
    assert "cannot read" in hang_up(server, "cannot reload the token file")
    assert server.json("/api/admin/dlq", headers={"Authorization": f"Bearer {READER}"}) == []
    assert shop.stop(server.child) == 0


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_it_does_not_start_without_token_and_tls(semel, tokens, address):
    complaint = semel.fails(78, "serve", "--listen", address)
    assert "--token-file" in complaint and "--tls-cert" in complaint
    complaint = semel.fails(78, "serve", "--listen", address, "--token-file", str(tokens))
    assert "--tls-cert" in complaint


def test_with_a_certificate_it_speaks_tls(shop, tokens):
    cert, key = shop.folder / "cert.pem", shop.folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True)
    server = Server(
        shop, "--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(tokens),
        context=ssl.create_default_context(cafile=cert))
    assert server.url.startswith("https://")
    assert server.json("/api/admin/dlq", headers={"Authorization": f"Bearer {TOKEN}"}) == []


def test_an_address_in_use_is_a_clear_error(semel):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        complaint = semel.fails(78, "serve", "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert "--listen" in complaint


def test_no_secret_is_logged(shop, tokens):
    server = Server(shop, "--token-file", str(tokens))
    server.ask("/api/admin/replays", "POST", headers={"Authorization": f"Bearer {TOKEN}"}, body=b"{}")
    assert shop.stop(server.child) == 0
    assert TOKEN not in server.child.stderr.read()


@pytest.mark.slow
def test_a_request_that_is_never_completed_is_aborted(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        began = time.monotonic()
        connection.sendall(b"GET /livez HTTP/1.1\r\nX: ")
        with pytest.raises(ConnectionError):
            while time.monotonic() - began < 120:
                connection.sendall(b"y")
                connection.settimeout(1)
                try:
                    if connection.recv(1) == b"":
                        raise ConnectionResetError
                except TimeoutError:
                    pass


def test_it_stops_at_once_on_sigterm(server):
    assert server.semel.stop(server.child) == 0


def test_head_is_get_without_a_body(server):
    code, headers, text = server.ask("/livez", "HEAD")
    assert (code, text) == (200, "") and re.fullmatch(r"\d+", headers["Content-Length"])


def spawn_with_metrics(shop, *words):
    """A child that serves its metrics, as a Server."""
    port = free_port()
    child = shop.spawn(*words, "--metrics", f"127.0.0.1:{port}")
    server = Server.__new__(Server)
    server.semel, server.context, server.child, server.url, server.port = shop, None, child, f"http://127.0.0.1:{port}", port

    def answers():
        assert child.poll() is None, child.stderr.read()
        try:
            return server.ask("/livez")[0] == 200
        except urllib.error.URLError:
            return False

    wait_for(answers, what="the metrics")
    return server


def test_a_relay_and_a_consumer_serve_their_counters(shop):
    relaying = spawn_with_metrics(shop, "relay")
    publish(shop, "good", "1"), publish(shop, "bad", "2"), publish(shop, "second", "2")
    wait_for(lambda: samples(relaying).get("semel_published_total") == 3, what="three published")
    shown = samples(relaying)
    assert shown["semel_outbox_publish_attempts_total"] == 3
    assert shown["semel_publish_confirm_seconds_count"] == 3
    assert shown["semel_publish_outstanding"] == 0
    statement = "INSERT INTO effect (scope, id, word) VALUES ('billing', :id, json_extract(:payload, '$.word'))"
    consuming = spawn_with_metrics(shop, "consume", "--scope", "billing", "--topic", "order.events", "--sql", statement)
    done = 'semel_consumed_total{scope="billing",outcome="%s"}'
    counted = (done % "parked", done % "done", done % "dead", "semel_dlq_entries_added_total")
    wait_for(lambda: [samples(consuming).get(name) for name in counted] == [1, 1, 1, 1], what="one of each")
    shown = samples(consuming)
    assert shown['semel_claims_total{scope="billing",outcome="claimed"}'] == 1
    assert shown['semel_event_age_seconds_count{scope="billing"}'] == 1
    assert shown['semel_breaker_state{scope="billing"}'] == 0
    assert shown["semel_dlq_pending"] == 1
    assert consuming.problem(404, "/api/admin/dlq") == "not-found"
    assert shop.stop(relaying.child) == 0 and shop.stop(consuming.child) == 0


def test_duplicates_and_retries_are_counted(shop):
    deliver(shop, ("good", "1"))
    consuming = spawn_with_metrics(shop, "consume", "--scope", "billing", "--topic", "order.events", "--exec", "exit 75")
    shop.ok("replay")
    wait_for(lambda: samples(consuming).get('semel_duplicates_total{scope="billing"}') == 1, what="a duplicate")
    publish(shop, "again", "2")
    relay(shop)
    wait_for(lambda: samples(consuming).get('semel_retries_total{scope="billing",reason="handler"}', 0) >= 1, what="a retry")


@pytest.mark.only("local")
def test_what_a_full_broker_refused_is_counted(shop):
    publish(shop, "fits", "1"), publish(shop, "waits", "2")
    relaying = spawn_with_metrics(shop, "--broker", "local:semel-broker.db?max-length=1", "relay")
    wait_for(lambda: samples(relaying).get("semel_publish_nacked_total", 0) >= 1, what="a refusal")
    wait_for(lambda: samples(relaying).get("semel_published_total") == 1, what="the one that fits")
    assert samples(relaying)["semel_publish_returned_total"] == 0


@pytest.mark.only("rabbitmq")
def test_events_that_the_broker_returns_as_unroutable_are_counted(shop):
    relaying = spawn_with_metrics(shop, "relay", "--first-delay", "20ms", "--attempts", "2")
    shop.publish("--topic", "unread.events")
    wait_for(lambda: samples(relaying).get("semel_dlq_entries_added_total") == 1, what="the dead letter")
    shown = samples(relaying)
    assert shown["semel_publish_returned_total"] == 2 and shown["semel_publish_nacked_total"] == 0


@pytest.mark.only("local", "rabbitmq")
@pytest.mark.unless("rabbitmq-stream", reason="a log does not report to a new reader what another one had in flight")
def test_redeliveries_are_counted(shop):
    publish(shop, "good")
    relay(shop)
    again = ("consume", "--scope", "billing", "--topic", "order.events", "--exec", "true")
    assert shop.run(*again, env={"SEMEL_FAILPOINT": "consume.after-commit:kill@1"}).returncode == -9
    consuming = spawn_with_metrics(shop, *again)
    wait_for(lambda: samples(consuming).get('semel_redelivered_total{scope="billing"}') == 1, what="the redelivery")


def test_an_open_breaker_is_reported(shop):
    publish(shop, "good")
    relay(shop)
    outage = ("--http", "http://127.0.0.1:1/")
    consuming = spawn_with_metrics(shop, "consume", "--scope", "billing", "--topic", "order.events", *outage)
    wait_for(lambda: samples(consuming)['semel_breaker_state{scope="billing"}'] == 2, what="an open breaker")


def test_metrics_beyond_loopback_are_refused(semel):
    assert "loopback" in semel.fails(78, "relay", "--drain", "--metrics", "0.0.0.0:0")


def test_the_list_is_filtered_and_paged(shop, server):
    deliver(shop, *(("bad", str(number)) for number in range(5)))
    everything = [entry["dlqEntryId"] for entry in server.json("/api/admin/dlq")]
    first = [entry["dlqEntryId"] for entry in server.json("/api/admin/dlq?limit=2")]
    second = [entry["dlqEntryId"] for entry in server.json(f"/api/admin/dlq?limit=3&after={first[-1]}")]
    assert first + second == everything and len(everything) == 5
    assert server.json("/api/admin/dlq?type=other.v1") == []
    assert len(server.json("/api/admin/dlq?type=order.created.v1&since=2020-01-01T00:00:00Z")) == 5
    assert server.json("/api/admin/dlq?until=2020-01-01T00:00:00Z") == []
    assert server.problem(400, "/api/admin/dlq?since=yesterday") == "usage"


@pytest.mark.core
def test_many_are_replayed_at_once_after_a_preview(shop, server):
    deliver(shop, ("bad", "1"), ("bad", "2"))
    preview = server.json("/api/admin/dlq/replay?scope=billing&preview=1", "POST")
    assert (preview["chosen"], preview["done"], preview["preview"]) == (2, 0, True)
    assert server.json("/api/admin/dlq/count") == {"count": 2}
    assert server.json("/api/admin/dlq/replay?scope=audit", "POST")["chosen"] == 0
    mend(shop)
    assert server.json("/api/admin/dlq/replay?scope=billing", "POST")["done"] == 2
    assert samples(server)["semel_dlq_entries_replayed_total"] == 2
    assert [(row["what"], row["detail"]) for row in server.json("/api/admin/audit?limit=1")] == [("replay all", "2 entries, scope billing")]
    consume(shop)
    assert words(shop) == ["bad", "bad"]


def test_many_are_discarded_at_once_with_a_reason(shop, server):
    deliver(shop, ("bad", "1"), ("bad", "2"))
    assert server.json("/api/admin/dlq/discard?reason=a%20test", "POST")["done"] == 2
    assert samples(server)["semel_dlq_entries_discarded_total"] == 2
    assert {entry["discardReason"] for entry in server.json("/api/admin/dlq")} == {"a test"}


@pytest.mark.core
def test_every_change_is_in_the_audit_log(shop, tokens):
    server = Server(shop, "--token-file", str(tokens))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    deliver(shop, ("bad", "1"))
    (entry,) = server.json("/api/admin/dlq", headers=headers)
    server.json(f"/api/admin/dlq/{entry['dlqEntryId']}?reason=wrong", "DELETE", headers=headers)
    server.json("/api/admin/subscriptions/billing/pause", "POST", headers=headers)
    newest, older = server.json("/api/admin/audit", headers=headers)
    name = f"token:{hashlib.sha256(TOKEN.encode()).hexdigest()[:8]}"
    assert (newest["what"], newest["target"], newest["outcome"]) == ("pause", "billing", "done")
    assert (older["who"], older["what"], older["target"], older["detail"]) == (name, "discard", entry["dlqEntryId"], "wrong")


def test_a_change_that_cannot_be_recorded_is_not_made(shop, server):
    deliver(shop, ("bad", "1"))
    (entry,) = server.json("/api/admin/dlq?payload=true")
    shop.sql("ALTER TABLE semel_audit RENAME TO hidden")
    path = f"/api/admin/dlq/{entry['dlqEntryId']}"
    for changing in ((path, "DELETE"), (f"{path}/replay", "POST"), ("/api/admin/dlq/replay", "POST"), ("/api/admin/replays", "POST"),
                     ("/api/admin/subscriptions/billing/pause", "POST")):
        assert server.ask(*changing)[0] >= 500, changing
    shop.sql("ALTER TABLE hidden RENAME TO semel_audit")
    assert server.json(path) == entry
    assert server.json("/api/admin/subscriptions")[0]["paused"] is False
    assert server.json("/api/admin/replays") == []


def test_a_paused_subscription_processes_nothing_until_it_is_resumed(shop, server):
    deliver(shop, ("first", "1"))
    server.json("/api/admin/subscriptions/billing/pause", "POST")
    assert server.json("/api/admin/subscriptions")[0]["paused"] is True
    publish(shop, "second")
    relay(shop)
    statement = "INSERT INTO effect (scope, id, word) VALUES ('billing', :id, json_extract(:payload, '$.word'))"
    child = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--sql", statement)
    assert next(line for line in child.stderr if "subscription paused" in line)
    assert words(shop) == ["first"]
    server.json("/api/admin/subscriptions/billing/resume", "POST")
    wait_for(lambda: words(shop) == ["first", "second"])
    assert server.problem(404, "/api/admin/subscriptions/unknown/pause", "POST") == "not-found"


def test_a_drain_of_a_paused_subscription_reports_why_it_ends(shop, server):
    deliver(shop, ("first", "1"))
    server.json("/api/admin/subscriptions/billing/pause", "POST")
    publish(shop, "second")
    relay(shop)
    shop.drain_times_out("consume", "--scope", "billing", "--topic", "order.events", "--exec", "true", expected=["paused"])
