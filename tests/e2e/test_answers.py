# SPDX-License-Identifier: Apache-2.0
"""What an answer of the admin server may cost, and whom it tells what."""
import json
import socket
import threading

import pytest
from program import wait_for
from server import Server
from story import prepare, publish
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
