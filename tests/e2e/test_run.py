# SPDX-License-Identifier: Apache-2.0
"""One process with everything that a config file names."""
import json
import re
import signal
import socket
import urllib.error
import urllib.request

import pytest
from program import wait_for
from story import HANDLER, mend, prepare, publish, words

pytestmark = pytest.mark.anywhere


def ask(url, token=None):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        return refusal.code, refusal.read().decode()


def subscription(scope="billing", **more):
    return {"scope": scope, "topics": ["order.events"], "sql": [HANDLER.format(scope=scope)], **more}


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def write(shop, **parts):
    path = shop.folder / "semel.yaml"
    path.write_text(json.dumps(parts))  # JSON is YAML
    return str(path)


def start(shop, env=None, **parts):
    """(child, url of its admin server)"""
    config = write(shop, admin={"listen": "127.0.0.1:0"}, **parts)
    child = shop.spawn("--config", config, "run", env=env)
    line = child.stdout.readline()
    assert line.startswith("listening on "), line + child.stderr.read()
    return child, line.split()[2]


@pytest.mark.core
def test_relay_and_subscriptions_deliver_in_one_process(shop):
    child, url = start(shop, relay={}, subscriptions=[subscription("billing"), subscription("audit")])
    publish(shop, "one")
    publish(shop, "two")
    for scope in ("billing", "audit"):
        wait_for(lambda: words(shop, scope) == ["one", "two"], what=f"the effects in {scope}")
    assert ask(f"{url}/readyz") == (200, '{"reasons":[]}\n')
    # An effect can be seen before its event is counted, and even before the relay has its confirmation.
    for line in ("\nsemel_published_total 2\n", '\nsemel_consumed_total{scope="audit",outcome="done"} 2\n'):
        wait_for(lambda line=line: line in ask(f"{url}/metrics")[1], what=line)
    assert shop.stop(child) == 0


def test_a_service_that_fails_is_started_again_and_is_a_reason_not_to_be_ready(shop):
    child, url = start(shop, relay={}, subscriptions=[subscription()])
    shop.sql("ALTER TABLE semel_inbox RENAME TO hidden")
    publish(shop, "early")
    wait_for(lambda: "subscription billing" in ask(f"{url}/readyz")[1], what="a reason not to be ready")
    shop.sql("ALTER TABLE hidden RENAME TO semel_inbox")
    wait_for(lambda: ask(f"{url}/readyz")[0] == 200, timeout=90, what="the services to be ready")
    publish(shop, "late")
    wait_for(lambda: words(shop) == ["early", "late"], timeout=90)
    assert shop.stop(child) == 0


def test_hangup_starts_stops_and_restarts_what_changed(shop):
    child, url = start(shop, relay={}, subscriptions=[subscription("billing")])
    publish(shop, "one")
    wait_for(lambda: words(shop) == ["one"])
    write(shop, admin={"listen": "127.0.0.1:0"}, relay={"window": 10}, subscriptions=[subscription("audit")])
    child.send_signal(signal.SIGHUP)
    wait_for(lambda: words(shop, "audit") == ["one"], what="the new subscription")
    publish(shop, "two")
    wait_for(lambda: words(shop, "audit") == ["one", "two"])
    assert words(shop) == ["one"]
    assert shop.stop(child) == 0


def test_hangup_withdraws_a_token(shop):
    tokens = shop.folder / "tokens"
    tokens.write_text("kept-that-is-long-enough\nwithdrawn-that-is-long-enough\n")
    config = write(shop, admin={"listen": "127.0.0.1:0", "token-file": str(tokens)})
    child = shop.spawn("--config", config, "run")
    url = child.stdout.readline().split()[2]

    def answer(token):
        return ask(f"{url}/api/admin/dlq", token)[0]

    assert [answer(f"{name}-that-is-long-enough") for name in ("kept", "withdrawn")] == [200, 200]
    tokens.write_text("kept-that-is-long-enough\n")
    child.send_signal(signal.SIGHUP)
    wait_for(lambda: answer("withdrawn-that-is-long-enough") == 401, what="the token is refused")
    assert answer("kept-that-is-long-enough") == 200
    assert shop.stop(child) == 0


def test_a_file_with_a_mistake_changes_nothing_on_hangup(shop):
    child, _ = start(shop, relay={}, subscriptions=[subscription()])
    (shop.folder / "semel.yaml").write_text("relai: {}\n")
    child.send_signal(signal.SIGHUP)
    assert "not reloaded" in next(line for line in child.stderr if "config file" in line)
    publish(shop, "one")
    wait_for(lambda: words(shop) == ["one"])
    assert shop.stop(child) == 0


@pytest.mark.parametrize("text, complaint", [
    ("relai: {}", "did you mean relay"),
    ("relay: {windw: 3}", "did you mean window"),
    ("relay: {window: many}", "window"),
    ("store: sqlite:semel.db", "defines no service"),
    ("subscriptions: [{scope: a, topics: [t], exec: 'true'}, {scope: a, topics: [t], exec: 'true'}]", "duplicate scope"),
    ("subscriptions: [{scope: a, topics: [t], sql: ['NO SUCH SQL']}]", "bad.yaml: subscription a: "),
    ("subscriptions: [{scope: a, topics: [t], http: 'ftp://x'}]", "bad.yaml: subscription a: "),
    ("relay: {}\nsubscriptions:\n- {scope: a, topics: [t]}", "bad.yaml:3: a has no handler (add one of sql"),
    ("admin: {listen: '0.0.0.0:0'}", "token"),
    ("retention: {inbox: 1d, outbox: 2d}", "inbox"),
])
def test_invalid_settings_end_it_before_anything_runs(shop, text, complaint):
    path = shop.folder / "bad.yaml"
    path.write_text(text)
    assert complaint in shop.fails(78, "--config", str(path), "run").splitlines()[-1]


def test_without_a_config_file_it_says_where_to_get_one(shop):
    assert "--sample" in shop.fails(78, "run")


def test_the_sample_has_every_key_and_runs_as_it_stands(shop):
    sample = shop.ok("run", "--sample")
    for key in ("window:", "concurrency:", "ready-stall:", "dead-letters:", "claim:"):
        assert f"# {key}" in sample
    path = shop.folder / "sample.yaml"
    path.write_text(sample.replace("admin:\n", 'admin:\n  listen: "127.0.0.1:0"\n'))
    child = shop.spawn("--config", str(path), "run")
    assert child.stdout.readline().startswith("listening on "), child.stderr.read()
    publish(shop, "one")
    wait_for(lambda: (shop.folder / "audit.log").exists(), what="the sample's handler")
    assert shop.stop(child) == 0


def test_every_commented_key_of_the_sample_is_a_key(shop):
    sample = shop.ok("run", "--sample")
    for match in re.finditer(r"^( +)# ([a-z-]+): (.*)$", sample, re.MULTILINE):
        indent, key, value = match.groups()
        if key in ("scope", "topics", "topic", "sql", "exec", "pipe", "http", "print"):
            continue
        section = re.findall(r"^(?:# )?([a-z]+):$", sample[: match.start()], re.MULTILINE)[-1]
        text = f"{section}: {{{key}: {value}}}"
        if section == "subscriptions":
            text = f"subscriptions: [{{scope: a, topics: [t], exec: 'true', {key}: {value}}}]"
        path = shop.folder / "one.yaml"
        path.write_text(text)
        done = shop.run("--config", str(path), "dlq", "count")
        assert "unknown key" not in done.stderr and "did you mean" not in done.stderr, (text, done.stderr)


def test_it_notifies_systemd_that_it_is_ready_alive_and_stopping(shop):
    path = shop.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(30)
        child, _ = start(shop, env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}, relay={})
        messages = [listener.recv(1000).decode() for _ in range(3)]
        assert messages[0].startswith("READY=1") and messages[1:] == ["WATCHDOG=1", "WATCHDOG=1"]
        child.send_signal(signal.SIGTERM)
        while (last := listener.recv(1000).decode()) != "STOPPING=1":
            assert last == "WATCHDOG=1"
        assert child.wait(30) == 0


# A program that handles one event at a time, is busy with the first until a file is there, and leaves files when
# it is done and when it ends.
BUSY_PROGRAM = """
import json, pathlib, sys, time
name, until = sys.argv[1:]
for line in sys.stdin:
    pathlib.Path(f"{name}.busy").touch()
    while not pathlib.Path(until).exists():
        time.sleep(0.02)
    pathlib.Path(f"{name}.done").touch()
    print(json.dumps({"id": json.loads(line)["id"], "verdict": "done"}), flush=True)
pathlib.Path(f"{name}.ended").touch()
"""


def busy(shop, scope, until):
    """A subscription that has an event in flight until this file is there."""
    path = shop.folder / "busy.py"
    path.write_text(BUSY_PROGRAM)
    return {"scope": scope, "topics": ["order.events"], "handler-timeout": "10m",
            "pipe": f"exec /usr/bin/python3 {path} {scope} {until}"}


def wait_until_busy(shop, *scopes):
    publish(shop, "one")
    for scope in scopes:
        wait_for((shop.folder / f"{scope}.busy").exists, what=f"an event in flight of {scope}")


@pytest.mark.parametrize("slow, quick", [("billing", "audit"), ("audit", "billing")])
def test_hangup_asks_all_services_to_stop_before_it_waits_for_one(shop, slow, quick):
    """The slow one has its event in flight until the other one has ended, whichever would be stopped first."""
    subscriptions = [busy(shop, scope, f"{quick}.ended" if scope == slow else "go") for scope in ("billing", "audit")]
    child, _ = start(shop, relay={}, subscriptions=subscriptions)
    wait_until_busy(shop, "billing", "audit")
    write(shop, admin={"listen": "127.0.0.1:0"}, relay={}, subscriptions=[subscription("stock")])
    child.send_signal(signal.SIGHUP)
    (shop.folder / "go").touch()
    wait_for(lambda: words(shop, "stock") == ["one"], what="the new subscription")
    assert (shop.folder / f"{slow}.done").exists(), "the slow one was given up"
    assert shop.stop(child) == 0


def receive_until(listener, last):
    """All messages up to this one."""
    messages = [listener.recv(1000).decode()]
    while messages[-1] != last:
        messages.append(listener.recv(1000).decode())
    return messages


@pytest.mark.parametrize("number, begins", [(signal.SIGHUP, "RELOADING=1"), (signal.SIGTERM, "STOPPING=1")], ids=["hangup", "end"])
def test_the_watchdog_is_notified_while_services_finish_what_is_in_flight(shop, number, begins):
    path = shop.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(60)
        env = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "200000"}
        child, _ = start(shop, env=env, relay={}, subscriptions=[busy(shop, "billing", "go"), busy(shop, "audit", "go")])
        wait_until_busy(shop, "billing", "audit")
        write(shop, admin={"listen": "127.0.0.1:0"}, relay={})
        child.send_signal(number)
        receive_until(listener, begins)
        assert [listener.recv(1000) for _ in range(3)] == [b"WATCHDOG=1"] * 3
        (shop.folder / "go").touch()
        if number == signal.SIGHUP:
            receive_until(listener, "READY=1")
            child.send_signal(signal.SIGTERM)
        assert child.wait(60) == 0


def test_a_stop_that_is_requested_during_a_reload_reaches_all_services(shop):
    kept = busy(shop, "audit", "go")
    child, _ = start(shop, relay={}, subscriptions=[busy(shop, "billing", "audit.ended"), kept])
    wait_until_busy(shop, "billing", "audit")
    write(shop, admin={"listen": "127.0.0.1:0"}, relay={}, subscriptions=[kept])
    child.send_signal(signal.SIGHUP)
    child.send_signal(signal.SIGTERM)
    (shop.folder / "go").touch()
    assert child.wait(60) == 0


@pytest.mark.parametrize("words", [("relay",), ("consume", "--scope", "a", "--topic", "order.events", "--exec", "true"),
                                   ("serve", "--listen", "127.0.0.1:0")], ids=["relay", "consume", "serve"])
def test_the_other_services_notify_systemd_when_they_are_ready(shop, words):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind("")
        listener.settimeout(60)
        child = shop.spawn(*words, env={"NOTIFY_SOCKET": "@" + listener.getsockname()[1:].decode()})
        assert listener.recv(1000) == b"READY=1"
        assert shop.stop(child) == 0


def test_a_poisoned_event_of_one_subscription_does_not_stop_the_others(shop):
    child, url = start(shop, relay={}, subscriptions=[subscription("billing"), {"scope": "audit", "topics": ["order.events"], "exec": "true"}])
    publish(shop, "bad")
    wait_for(lambda: json.loads(ask(f"{url}/api/admin/dlq/count")[1])["count"] == 1, what="a dead letter")
    publish(shop, "good", "2")
    wait_for(lambda: words(shop) == ["good"])
    mend(shop)
    entry = json.loads(ask(f"{url}/api/admin/dlq")[1])[0]["dlqEntryId"]
    request = urllib.request.Request(f"{url}/api/admin/dlq/{entry}/replay", method="POST")
    urllib.request.urlopen(request, timeout=30).close()
    wait_for(lambda: words(shop) == ["good", "bad"])
    assert shop.stop(child) == 0


def test_killed_in_the_middle_nothing_is_lost_or_doubled(shop):
    for number in range(30):
        publish(shop, str(number), str(number))
    config = write(shop, admin={"listen": "127.0.0.1:0"}, relay={}, subscriptions=[subscription()])
    child = shop.spawn("--config", config, "run", env={"SEMEL_FAILPOINT": "consume.after-commit:kill@1"})
    assert child.wait(60) == -signal.SIGKILL
    child, _ = start(shop, relay={}, subscriptions=[subscription()])
    wait_for(lambda: sorted(words(shop), key=int) == [str(number) for number in range(30)])
    assert shop.stop(child) == 0
