# SPDX-License-Identifier: Apache-2.0
"""Secrets of the operator are in no message, log, reason, table, answer, process list or environment of a handler; and a file
with a secret that other users can read is reported."""
import concurrent.futures
import contextlib
import http.server
import json
import os
import re
import resource
import signal
import sqlite3
import threading
from pathlib import Path

import pytest
from program import PROGRAM, handles_signal, wait_for
from server import Server

pytestmark = pytest.mark.only("local")
PIECES = ("Qz7a", "Xv8b", "Wk9c")
RESERVED = "#?@/&:=%;,' "
DEBUG_LOG = {"SEMEL_LOG_LEVEL": "debug", "SEMEL_LOG": "json"}
CONSUME = ("consume", "--scope", "billing", "--topic", "order.events")


def assert_no_secret(text, what):
    for piece in PIECES:
        assert piece not in text, (what, text)


def passwords():
    """With every reserved character, as it is and encoded."""
    for character in RESERVED:
        yield character.join(PIECES)
        yield f"%{ord(character):02X}".join(PIECES)


def urls():
    for password in passwords():
        yield "SEMEL_STORE", f"postgres://app:{password}@127.0.0.1:1/shop"
        yield "SEMEL_BROKER", f"amqp://app:{password}@127.0.0.1:1/"
    mixed = "#?@/".join((*PIECES, ""))
    yield "SEMEL_STORE", f"postgres://127.0.0.1:1/shop?password={mixed}"
    yield "SEMEL_STORE", f"host=127.0.0.1 port=1 password='{mixed}'"
    yield "SEMEL_STORE", f"postgres:app:{mixed}@127.0.0.1"
    yield "SEMEL_BROKER", f"kafka://127.0.0.1:1/?sasl.password={mixed}"
    yield "SEMEL_BROKER", f"kafka://app:{PIECES[0]}"
    yield "SEMEL_BROKER", f"amqp://app:{PIECES[0]}@a,app:{PIECES[1]}@127.0.0.1:1/"


@pytest.mark.slow
def test_no_character_of_a_password_brings_it_into_a_message(semel):
    """By every way in: a variable, an option, a file, the config file."""
    config, named = semel.folder / "semel.yaml", semel.folder / "named"
    runs = []
    for number, (variable, url) in enumerate(urls()):
        store = variable == "SEMEL_STORE"
        words = (("init",), ("verify",), ("publish", "--type", "t", "--aggregate", "a:1"))[number % 3] if store else \
            (("topology", "check", "--scope", "x", "--topic", "y"), ("doctor",))[number % 2]
        option = "--store" if store else "--broker"
        runs += [(words, {variable: url}), ((option, url, *words), {}), ((f"{option}={url}", *words), {}), ((url, *words), {}),
                 ((*words, f"--stroe{url}"), {})]
        Path(f"{named}{number}").write_text(url + "\n")
        runs.append((words, {f"{variable}_FILE": f"{named}{number}", variable: ""}))
        for form in ("{0}: {1}", "{0}:{1}", "relay: {{ lease: {1} }}", "{0}: [{1}]"):
            path = Path(f"{config}{len(runs)}")
            path.write_text(form.format(option[2:], json.dumps(url)) + "\n")
            runs.append((("--config", str(path), "run"), {variable: ""}))

    def run_and_check(words, env):
        done = semel.run(*words, env={**DEBUG_LOG, **env})
        assert done.returncode in (1, 64, 69, 75, 78), (words, done.stdout, done.stderr)
        assert_no_secret(done.stdout + done.stderr, (words, env))

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for outcome in [pool.submit(run_and_check, *run) for run in runs]:
            outcome.result()


class Echo:
    """An endpoint that refuses everything, and repeats the request, as many do."""

    def __enter__(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"] or 0))
                answer = f"Cannot POST {self.path} {self.headers['Authorization']}".encode()
                self.send_response(404)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"127.0.0.1:{self.server.server_port}"

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def test_the_secrets_of_an_http_handler_are_in_no_reason_table_or_answer(semel):
    token = semel.folder / "token"
    token.write_text("operate 0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    semel.publish("--payload", "{}")
    semel.ok("relay", "--drain")
    with Echo() as address:
        url = f"http://app:{PIECES[0]}@{address}/hooks/{PIECES[1]}0123456789abcdef?sig={PIECES[2]}#x"
        done = semel.run(*CONSUME, "--drain", "--http", url, env=DEBUG_LOG, check=True)
        refused = semel.run(*CONSUME, "--drain", "--timeout", "1s", "--http", url.replace(address, "127.0.0.1:1"), env=DEBUG_LOG)
    assert_no_secret(done.stdout + done.stderr + refused.stdout + refused.stderr, "consume")
    letters = semel.ok("dlq", "list", "--json")
    assert "answered 404" in letters and f"http://***@{address}/hooks/***?***" in letters
    for words in (("dlq", "list"), ("subscriptions", "list", "--json"), ("verify",), ("doctor",)):
        done = semel.run(*words)
        assert_no_secret(letters + done.stdout + done.stderr, words)
    for path in semel.folder.glob("semel*db*"):
        assert_no_secret(path.read_bytes().decode(errors="replace"), path)
    server = Server(semel, "--token-file", str(token))
    key = {"Authorization": "Bearer 0123456789abcdef0123456789abcdef"}
    for path in ("/readyz", "/metrics", "/api/admin/dlq", "/api/admin/subscriptions", "/api/admin/audit", "/"):
        assert_no_secret(server.ask(path, headers=key)[2], path)
    semel.stop(server.child)
    assert_no_secret(server.child.stderr.read(), "serve")


def test_a_secret_on_the_command_line_is_overwritten_in_the_process_list_and_reported(semel):
    server = Server(semel, f"--broker=amqp://app:{PIECES[0]}@127.0.0.1:1/", env=DEBUG_LOG)  # serve does not wait for the broker
    line = Path(f"/proc/{server.child.pid}/cmdline").read_text()
    assert "--broker=amqp://app:***@127.0.0.1:1/" in line
    assert_no_secret(line, "cmdline")
    limits = Path(f"/proc/{server.child.pid}/limits").read_text()
    assert re.search(r"Max core file size +[01] ", limits), limits
    semel.stop(server.child)
    log = server.child.stderr.read()
    assert "URL with a secret on the command line" in log
    assert_no_secret(log, "serve")


def core_size_limit():
    """The largest that is allowed here."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    return hard, hard


def test_a_crash_leaves_no_core_file_unless_it_is_requested(semel):
    if core_size_limit()[1] == 0 or not Path("/proc/sys/kernel/core_pattern").read_text().strip().startswith("core"):
        pytest.skip("core files are not written to the working directory here")
    for env, left in (({}, 0), ({"SEMEL_CORE": "1"}, 1)):
        child = semel.spawn("relay", env=env, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CORE, core_size_limit()))
        wait_for(lambda: handles_signal(child.pid, signal.SIGTERM), what="a program that handles signals")
        os.kill(child.pid, signal.SIGSEGV)
        child.wait()
        assert len(list(semel.folder.glob("core*"))) == left


def warnings(child):
    return [line for line in child.stderr.read().splitlines() if "a file with a secret is accessible to other users" in line]


def test_files_with_secrets_that_others_can_read_are_reported(semel):
    token, config, named = semel.folder / "token", semel.folder / "semel.yaml", semel.folder / "named"
    token.write_text("operate 0123456789abcdef0123456789abcdef\n")
    named.write_text(f"{semel.environment().get('SEMEL_STORE', 'sqlite:semel.db')}\n")
    config.write_text(json.dumps({"admin": {"token-file": str(token)}, "subscriptions": [
        {"scope": "billing", "topics": ["order.events"], "http": f"http://127.0.0.1:1/?sig={PIECES[0]}"}]}))
    env = {**DEBUG_LOG, "SEMEL_STORE_FILE": str(named), "SEMEL_STORE": ""}

    def findings_and_warnings():
        done = semel.run("--config", str(config), "doctor", "--json", env=env)
        findings = [row for row in json.loads(done.stdout)["findings"] if row["check"] == "secret-files"]
        server = Server(semel, "--token-file", str(token), env=env)
        semel.stop(server.child)
        return findings, warnings(server.child)

    for path in (token, config, named):
        path.chmod(0o644)
    findings, lines = findings_and_warnings()
    assert {row["do"] for row in findings} == {f"chmod 600 {path}" for path in (token, config, named)}
    assert all(row["gravity"] == "advice" for row in findings)
    assert len(lines) == 2 and any(f"chmod 600 {token}" in line for line in lines), lines
    for path in (token, config, named):
        path.chmod(0o600)
    findings, lines = findings_and_warnings()
    assert [row["gravity"] for row in findings] == ["fine"] and not lines
    if os.geteuid() == 0:
        os.chown(token, 12345, -1)
        findings, lines = findings_and_warnings()
        assert any("belongs to another user" in row["text"] for row in findings) and len(lines) == 1


def test_handlers_do_not_inherit_semels_own_variables(semel):
    semel.publish()
    semel.publish(aggregate="order:2")
    semel.ok("relay", "--drain")
    env = {"PGPASSWORD": PIECES[0], "NOTIFY_SOCKET": str(semel.folder / "none"), "SEMEL_STORE": "sqlite:semel.db",
           "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={PIECES[1]}", "SHOP_KEY": "mine", "SEMEL_KAFKA_PASSWORD_FILE": PIECES[2]}
    semel.ok(*CONSUME, "--exec", "env > inherited", "--max", "1", env=env)
    inherited = (semel.folder / "inherited").read_text()
    assert_no_secret(inherited, "exec")
    names = {line.split("=")[0] for line in inherited.splitlines()}
    assert "SHOP_KEY" in names and "SEMEL_EVENT_ID" in names and not names & {"NOTIFY_SOCKET", "SEMEL_STORE"}
    semel.ok(*CONSUME, "--drain", "--exec", "env > inherited", "--pass-env", "SEMEL_STORE", env=env)
    assert "SEMEL_STORE=sqlite:semel.db" in (semel.folder / "inherited").read_text()


def test_a_handler_that_publishes_without_a_store_does_not_write_to_the_default_one(semel):
    """SEMEL_STORE is withheld from it; the file with the default name in the same folder is another store."""
    env, publish = {"SEMEL_STORE": "sqlite:shop.db"}, ("publish", "--type", "order.created.v1", "--aggregate", "order:1")

    def published(name):
        with contextlib.closing(sqlite3.connect(semel.folder / name)) as connection:
            return connection.execute("SELECT count(*) FROM semel_outbox").fetchone()[0]

    semel.ok("init", env={"SEMEL_STORE": "sqlite:semel.db"})
    semel.ok("init", env=env)
    semel.ok(*publish, env=env)
    semel.ok("relay", "--drain", env=env)
    handler = ("--exec", f"{PROGRAM} {' '.join(publish)} --topic made")
    semel.ok(*CONSUME, *handler, "--attempts", "1", "--drain", env=env)
    assert (published("semel.db"), published("shop.db")) == (0, 1)
    (letter,) = semel.json("dlq", "list", env=env)
    assert "--pass-env SEMEL_STORE" in letter["failureReason"], letter
    semel.ok("dlq", "replay", letter["dlqEntryId"], env=env)
    semel.ok(*CONSUME, *handler, "--pass-env", "SEMEL_STORE", "--drain", env=env)
    assert (published("semel.db"), published("shop.db")) == (0, 2)
