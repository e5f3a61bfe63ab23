# SPDX-License-Identifier: Apache-2.0
"""What the config hides is seen neither in the API nor on the page, and is still what is stored and sent."""
import json

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
    shop.publish("--payload", json.dumps(payload), "--header", "sessionKey=geheim-1")
    relay(shop)
    consume(shop)
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({"admin": {"listen": "127.0.0.1:0", "redact": ["$.card.number", "headers.sessionKey"]}}))
    server = Server(shop, env={"SEMEL_CONFIG": str(config)})
    (entry,) = server.json("/api/admin/dlq")
    assert entry["eventRecord"]["payload"] == {"word": "bad", "card": {"number": "[hidden]", "owner": "Ada"}}
    assert entry["eventRecord"]["headers"]["sessionKey"] == "[hidden]"
    path = f"/api/admin/dlq/{entry['dlqEntryId']}"
    assert server.json(path) == entry
    for shown in (path, "/api/admin/dlq", f"/api/admin/trace/{entry['originalEventId']}", "/api/admin/outbox", "/metrics"):
        text = server.ask(shown)[2]
        assert NUMBER not in text and "geheim" not in text
    (whole,) = shop.json("dlq", "list")  # who may read the tables may read them
    assert whole["eventRecord"]["payload"] == payload
    mend(shop)
    server.json(f"{path}/replay", "POST")
    seen = HANDLER.format(scope="billing").replace("'$.word'", "'$.card'")
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--sql", seen, "--drain")
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
    for entry in server.json("/api/admin/dlq"):
        assert (entry["failureReason"], entry["eventRecord"]["payload"]["card"]) == (HIDDEN, HIDDEN)
        assert server.json(f"/api/admin/dlq/{entry['dlqEntryId']}") == entry
    assert server.child.poll() is None


def test_a_path_that_cannot_be_right_is_refused_before_anything_is_served(shop):
    config = shop.folder / "semel.yaml"
    config.write_text('admin:\n  listen: "127.0.0.1:0"\n  redact: ["card.number"]\n')
    complaint = shop.fails(78, "--config", str(config), "serve")
    assert "semel.yaml:3" in complaint and "$.card.number" in complaint
    assert "$.card.number" in shop.fails(64, "serve", "--redact", "card.number")
