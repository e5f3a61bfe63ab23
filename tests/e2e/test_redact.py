# SPDX-License-Identifier: Apache-2.0
"""What the config redacts is hidden in the API and on the page, and stays complete in what is stored and sent."""
import json
import urllib.request

import pytest
from server import Server
from story import HANDLER, consume, mend, prepare, relay, words

pytestmark = pytest.mark.anywhere
NUMBER = "4111-1111"
HIDDEN = "[hidden]"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def test_hidden_members_are_shown_nowhere_and_replayed_whole(shop):
    payload = {"word": "bad", "card": {"number": NUMBER, "owner": "Ada"}}
    shop.publish("--payload", json.dumps(payload), "--header", "sessionKey=confidential-1")
    relay(shop)
    consume(shop)
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({"admin": {"listen": "127.0.0.1:0", "redact": ["$.card.number", "headers.sessionKey"]}}))
    server = Server(shop, env={"SEMEL_CONFIG": str(config)})
    (entry,) = server.json("/api/admin/dlq?payload=true")
    assert entry["eventRecord"]["payload"] == {"word": "bad", "card": {"number": "[hidden]", "owner": "Ada"}}
    assert entry["eventRecord"]["headers"]["sessionKey"] == "[hidden]"
    path = f"/api/admin/dlq/{entry['dlqEntryId']}"
    assert server.json(path) == entry
    for shown in (path, "/api/admin/dlq", f"/api/admin/trace/{entry['originalEventId']}", "/api/admin/outbox", "/metrics"):
        text = server.ask(shown)[2]
        assert NUMBER not in text and "confidential" not in text
    (whole,) = shop.json("dlq", "list")  # who may read the tables may read them
    assert whole["eventRecord"]["payload"] == payload
    mend(shop)
    server.json(f"{path}/replay", "POST")
    statement = HANDLER.format(scope="billing").replace("'$.word'", "'$.card'")
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--sql", statement, "--drain")
    assert NUMBER in words(shop)[0]


def test_a_zero_byte_in_what_is_hidden_neither_crashes_nor_reads_the_heap(shop):
    for size in (20_000, 900_000):
        file = shop.folder / "payload.json"
        file.write_text(json.dumps({"word": "bad", "card": "4711\0" + "x" * size}))
        shop.publish("--payload", f"@{file}", aggregate=f"order:{size}")
    relay(shop)
    consume(shop)
    shop.sql("UPDATE semel_dead_letter SET failure_reason = 'no card 4711'")
    server = Server(shop, "--redact", "$.card")
    for entry in server.json("/api/admin/dlq?payload=true"):
        assert (entry["failureReason"], entry["eventRecord"]["payload"]["card"]) == (HIDDEN, HIDDEN)
        assert server.json(f"/api/admin/dlq/{entry['dlqEntryId']}") == entry
    assert server.child.poll() is None


def first_of_stream(server):
    with urllib.request.urlopen(f"{server.url}/api/admin/stream", timeout=30) as stream:
        return stream.readline().decode()


def test_texts_about_events_are_hidden_in_every_view(shop):
    """Texts of handlers, brokers and operators about an event: in its trace, the outbox, subscriptions, stream and audit."""
    payload = json.dumps({"word": "bad", "card": {"number": NUMBER}})
    rejected = shop.publish("--payload", payload)
    refused = shop.publish("--payload", payload, aggregate="order:2")
    relay(shop)
    consume(shop)
    waiting = shop.publish("--payload", payload, aggregate="order:3")
    relay(shop)
    shop.sql(f"UPDATE semel_dead_letter SET failure_reason = 'handler says {NUMBER}'")
    shop.sql("UPDATE semel_dead_letter SET scope = 'relay' WHERE event_id = ?", refused)
    shop.sql(f"UPDATE semel_outbox SET attempts = 2, last_error = 'broker says {NUMBER}'")
    shop.sql(
        "INSERT INTO semel_consumer (scope, owner, breaker, reason, waits_since, updated_at, expires_at) VALUES ('billing', 'elsewhere',"
        f" 2, 'breaker says {NUMBER}', '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z', '2099-01-01T00:00:00.000Z')"
    )
    server = Server(shop, "--redact", "$.card.number")
    entry = next(entry for entry in server.json("/api/admin/dlq") if entry["originalEventId"] == rejected)
    assert entry["failureReason"] == HIDDEN
    views = [f"/api/admin/trace/{event_id}" for event_id in (rejected, refused, waiting)]
    views += ["/api/admin/outbox", "/api/admin/subscriptions", "/api/admin/dlq", "/api/admin/audit", "/readyz", "/metrics"]
    seen = {view: server.ask(view)[2] for view in views}
    assert f"attempts: {HIDDEN}" in seen[views[0]] and f"the last: {HIDDEN}" in seen[views[0]]
    assert f"{HIDDEN} since" in seen[views[2]] and f"{HIDDEN} since" in seen["/api/admin/subscriptions"]
    assert server.json("/api/admin/outbox")["lastError"] == HIDDEN
    seen["stream"] = first_of_stream(server)
    assert seen["stream"].count(HIDDEN) == 2
    server.json(f"/api/admin/dlq/{entry['dlqEntryId']}?reason=operator+says+{NUMBER}", "DELETE")
    after = {view: server.ask(view)[2] for view in views}
    assert after["/api/admin/audit"].count(HIDDEN) == 1 and server.json(f"/api/admin/dlq/{entry['dlqEntryId']}")["discardReason"] == HIDDEN
    for view, text in [*seen.items(), *after.items()]:
        assert NUMBER not in text and " says " not in text, view
    whole = shop.ok("trace", rejected)  # who may read the tables may read them
    assert all(f"{who} says {NUMBER}" in whole for who in ("handler", "broker", "operator"))


def test_a_path_that_cannot_be_right_is_refused_before_anything_is_served(shop):
    config = shop.folder / "semel.yaml"
    config.write_text('admin:\n  listen: "127.0.0.1:0"\n  redact: ["card.number"]\n')
    complaint = shop.fails(78, "--config", str(config), "serve")
    assert "semel.yaml:3" in complaint and "$.card.number" in complaint
    assert "$.card.number" in shop.fails(64, "serve", "--redact", "card.number")
