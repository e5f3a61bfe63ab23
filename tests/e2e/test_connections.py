# SPDX-License-Identifier: Apache-2.0
"""Hundreds of hostile connections, with and without TLS, from one address and from many: probes and operators are answered."""
import contextlib
import itertools
import multiprocessing
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import threading
import time
import warnings
from types import SimpleNamespace

import pytest
from sandbox import free_port
from program import PROGRAM, Semel, wait_for
from server import Server

OPERATOR, READER, OTHER = "operator-" + "o" * 24, "reader-" + "r" * 24, "other-" + "x" * 24
TIMEOUT_S = 60
ESTABLISHED = b"\x01"  # the state in TCP_INFO
ATTACKERS = 260
ELSEWHERE, ATTACKED = "127.0.0.9", "127.0.0.1"
ONE_ADDRESS, MANY_ADDRESSES = [ATTACKED], [f"127.0.1.{n}" for n in range(1, 131)]


@pytest.fixture(scope="module")
def semel(tmp_path_factory):
    one = Semel(tmp_path_factory.mktemp("connections"))
    one.ok("init")
    one.tokens = one.folder / "tokens"
    one.tokens.write_text(f"{OPERATOR}\nread {READER}\nread {OTHER}\n")
    one.tokens.chmod(0o600)
    yield one
    one.close()


@pytest.fixture(scope="module")
def plain(semel):
    one = Server(semel, "--token-file", str(semel.tokens))
    yield one
    assert semel.stop(one.child) == 0, one.child.stderr.read()


@pytest.fixture(scope="module")
def secure(semel):
    cert, key = semel.folder / "cert.pem", semel.folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", cert],
        check=True, capture_output=True)
    key.chmod(0o600)
    one = Server(semel, "--tls-cert", str(cert), "--tls-key", str(key), "--token-file", str(semel.tokens),
                 context=ssl.create_default_context(cafile=cert))
    yield one
    assert semel.stop(one.child) == 0, one.child.stderr.read()


@pytest.fixture(scope="module", autouse=True)
def enough_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * ATTACKERS + 200
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- requests ------------------------------------------------------------------------------------


def head(server, line, *headers):
    return "\r\n".join([line, f"Host: localhost:{server.port}", *headers]).encode() + b"\r\n\r\n"


def connect(server, source, secured=True, receive_buffer=None):
    connection = socket.socket()
    connection.settimeout(TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.bind((source, 0))
    connection.connect(("127.0.0.1", server.port))
    if server.context and secured:
        return server.context.wrap_socket(connection, server_hostname="localhost")
    return connection


def ask(server, path, source, token=None):
    """(status, body)"""
    headers = [f"Authorization: Bearer {token}"] if token else []
    with connect(server, source) as connection:
        connection.sendall(head(server, f"GET {path} HTTP/1.1", "Connection: close", *headers))
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer, f"{path} for {source} was cut"
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


def is_answered(server, path, source, token=None):
    """While hundreds of connections are opened, one may be closed before its request is read: the client tries again."""
    with contextlib.suppress(OSError, AssertionError):
        return ask(server, path, source, token)[0] == 200
    return False


def wait_until_all_are_answered(server):
    for path, source, token in (
        ("/livez", ELSEWHERE, None), ("/readyz", ELSEWHERE, None), ("/api/admin/dlq/count", ELSEWHERE, OPERATOR), ("/livez", ATTACKED, None),
        ("/readyz", ATTACKED, None),
    ):
        wait_for(lambda ask=(path, source, token): is_answered(server, *ask), TIMEOUT_S, f"an answer of {path} for {source}")


def files_of(server):
    return len(os.listdir(f"/proc/{server.child.pid}/fd"))


def memory_of(server):
    """Resident, in MB."""
    with open(f"/proc/{server.child.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) // 1024


# ---- attacks -------------------------------------------------------------------------------------


class Attack:
    """A process with connections that send a request, read nothing or a few bytes at a time, and are opened again when the server
    has closed them."""

    def __init__(self, server, sources, request=b"", secured=True, drip=b"", read_size=0):
        self.server, self.request, self.secured, self.drip, self.read_size = server, request, secured, drip, read_size
        self.sources = [sources[n % len(sources)] for n in range(ATTACKERS)]
        self.connections = [None] * ATTACKERS

    def open(self, source):
        connection = None
        with contextlib.suppress(OSError):
            connection = connect(self.server, source, self.secured, receive_buffer=4096)
            connection.settimeout(0)
            connection.send(self.request)
        return connection

    def is_cut(self, connection):
        """The state of the socket shows whether it was shut down, without reading the response."""
        with contextlib.suppress(OSError):
            return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) != ESTABLISHED
        return True

    def step(self, n):
        connection = self.connections[n]
        if not connection or self.is_cut(connection):
            if connection:
                connection.close()
            self.connections[n] = self.open(self.sources[n])
        with contextlib.suppress(OSError, AttributeError):
            if self.drip:
                self.connections[n].send(self.drip)
            if self.read_size:
                self.connections[n].recv(self.read_size)

    def run(self, ready, stopped):
        while not stopped.wait(0.02):
            for n in range(ATTACKERS):
                self.step(n)
            ready.set()

    def __enter__(self):
        processes = multiprocessing.get_context("fork")
        ready, self.stopped = processes.Event(), processes.Event()
        self.process = processes.Process(target=self.run, args=(ready, self.stopped))
        self.process.start()
        assert ready.wait(TIMEOUT_S)
        return self

    def __exit__(self, *_):
        self.stopped.set()
        self.process.join(TIMEOUT_S)
        self.process.kill()


def stream(server, *headers):
    return head(server, "GET /api/admin/stream HTTP/1.1", *headers)


AS_READER = f"Authorization: Bearer {READER}"
ATTACKS = {
    "pipelined": lambda server: {"request": head(server, "GET /app.js HTTP/1.1") * 2000},
    "slow reader": lambda server: {"request": head(server, "GET /app.js HTTP/1.1") * 200, "read_size": 1},
    "pipelined probes": lambda server: {"request": head(server, "GET /livez HTTP/1.1") * 4000},
    "ready": lambda server: {"request": head(server, "GET /readyz HTTP/1.1") * 100},
    "silent": lambda server: {},
    "no handshake": lambda server: {"secured": False, "request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"},
    "slow request": lambda server: {"request": b"GET /livez HTTP/1.1\r\nX: ", "drip": b"y"},
    "streams without a token": lambda server: {"request": stream(server)},
    "streams": lambda server: {"request": stream(server, AS_READER)},
    "counted": lambda server: {"request": head(server, "GET /api/admin/dlq/count HTTP/1.1", AS_READER) * 50},
    "bodies": lambda server: {"request": head(
        server, "POST /api/admin/replays HTTP/1.1", f"Authorization: Bearer {OPERATOR}", "Content-Length: 1000000") + b"x" * 5000, "drip": b"x"},
    "expecting": lambda server: {"request": head(
        server, "POST /api/admin/replays HTTP/1.1", f"Authorization: Bearer {OPERATOR}", "Content-Length: 9", "Expect: 100-continue")},
}


def check_answers_under_attack(server, name, sources):
    before = files_of(server)
    with Attack(server, sources, **ATTACKS[name](server)):
        for _ in range(3):
            wait_until_all_are_answered(server)
        assert files_of(server) < before + 420
        assert memory_of(server) < 256 or "asan" in str(PROGRAM)  # ASan keeps freed memory
    wait_for(lambda: files_of(server) <= before + 16, TIMEOUT_S, "closed connections")
    wait_until_all_are_answered(server)


@pytest.mark.parametrize("name", ATTACKS)
def test_many_connections_from_one_address_exclude_no_other_client(plain, name):
    check_answers_under_attack(plain, name, ONE_ADDRESS)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ["pipelined", "bodies"])
def test_many_connections_from_many_addresses_exclude_no_other_client(plain, name):
    check_answers_under_attack(plain, name, MANY_ADDRESSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pipelined", "silent", "no handshake"])
def test_many_connections_with_tls_exclude_no_other_client(secure, name):
    check_answers_under_attack(secure, name, MANY_ADDRESSES)


def test_with_few_file_descriptors_every_client_is_answered_too(semel):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))

    server = Server(semel, "--token-file", str(semel.tokens), preexec_fn=few)
    check_answers_under_attack(server, "pipelined", ONE_ADDRESS)
    check_answers_under_attack(server, "slow request", ONE_ADDRESS)
    assert semel.stop(server.child) == 0
    assert server.child.stderr.read().count("too many connections") == 1


def test_the_metrics_of_a_relay_are_answered_too(semel):
    port = free_port()
    child = semel.spawn("relay", "--metrics", f"127.0.0.1:{port}")
    relay = SimpleNamespace(child=child, port=port, context=None)
    wait_for(lambda: is_answered(relay, "/livez", ELSEWHERE), TIMEOUT_S, "the metrics")
    with Attack(relay, ONE_ADDRESS, head(relay, "GET /metrics HTTP/1.1") * 500):
        for source, path in itertools.product((ELSEWHERE, ATTACKED), ("/livez", "/readyz")):
            wait_for(lambda ask=(path, source): is_answered(relay, *ask), TIMEOUT_S, f"an answer of {path} for {source}")
        wait_for(lambda: is_answered(relay, "/metrics", ELSEWHERE), TIMEOUT_S, "metrics for another client")
    assert semel.stop(child) == 0


# ---- streams -------------------------------------------------------------------------------------


def open_stream(server, token, source=ELSEWHERE):
    """The connection, with the first part of the stream or the refusal."""
    connection = connect(server, source)
    connection.sendall(stream(server, f"Authorization: Bearer {token}"))
    received = b""
    while b"data: {" not in received and b"/problems/" not in received:
        part = connection.recv(65536)
        assert part, received
        received += part
    return connection, received


def test_one_token_has_half_of_the_streams(plain):
    with contextlib.ExitStack() as opened:
        for _ in range(16):
            connection, received = open_stream(plain, READER)
            opened.enter_context(connection)
            assert received.startswith(b"HTTP/1.1 200 "), received
        for spelled in (READER, f"  {READER}"):
            connection, received = open_stream(plain, spelled)
            opened.enter_context(connection)
            assert received.startswith(b"HTTP/1.1 503 ") and b"Retry-After: 1" in received, received
        connection, received = open_stream(plain, OTHER)
        opened.enter_context(connection)
        assert received.startswith(b"HTTP/1.1 200 "), received


def test_the_head_of_a_stream_has_no_body(plain):
    """Otherwise a proxy takes it for the start of the next response."""
    with connect(plain, ELSEWHERE) as connection:
        connection.sendall(head(plain, "HEAD /api/admin/stream HTTP/1.1", AS_READER) + head(plain, "GET /livez HTTP/1.1", "Connection: close"))
        received = b""
        while part := connection.recv(65536):
            received += part
    first, second, body = received.split(b"\r\n\r\n")
    assert first.startswith(b"HTTP/1.1 200 ") and b"text/event-stream" in first, first
    assert second.startswith(b"HTTP/1.1 200 ") and b"alive" in body, received


def test_a_withdrawn_token_loses_its_open_streams(semel, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{OPERATOR}\nread {READER}\n")
    tokens.chmod(0o600)
    server = Server(semel, "--token-file", str(tokens))
    (gone, _), (stays, _) = open_stream(server, READER), open_stream(server, OPERATOR)
    tokens.write_text(f"{OPERATOR}\n")
    server.child.send_signal(signal.SIGHUP)
    with gone, stays:
        received, until = b"", time.monotonic() + TIMEOUT_S
        while not received.endswith(b"0\r\n\r\n"):  # the last chunk
            part = gone.recv(65536)
            assert part and time.monotonic() < until, received
            received = (received + part)[-65536:]
        wait_for(lambda: b"data: {" in stays.recv(65536), TIMEOUT_S, "more of the other stream")
    assert semel.stop(server.child) == 0


# ---- TLS -----------------------------------------------------------------------------------------


def client_context(version, ciphers="ALL:@SECLEVEL=0"):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers(ciphers)
    return context


def handshake(server, context):
    """The version and the cipher agreed on; None: refused."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT_S) as tcp:
        try:
            with context.wrap_socket(tcp) as connection:
                return connection.version(), connection.cipher()[0]
        except (ssl.SSLError, ConnectionError):
            return None


def can_be_offered(semel, context):
    """Does this OpenSSL support what the context offers? Tried in a handshake with itself."""
    listening = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        listening.minimum_version = ssl.TLSVersion.TLSv1
    listening.set_ciphers("ALL:@SECLEVEL=0")
    listening.load_cert_chain(semel.folder / "cert.pem", semel.folder / "key.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [context.wrap_bio(back, there), listening.wrap_bio(there, back, server_side=True)]
    for _ in range(4):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                try:
                    end.do_handshake()
                except ssl.SSLError as failure:
                    if not isinstance(failure, ssl.SSLWantReadError):
                        return False
    return ends[0].version() is not None


@pytest.mark.slow
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_of_tls_are_refused(semel, secure, version):
    context = client_context(version)
    if not can_be_offered(semel, context):
        pytest.skip(f"this OpenSSL cannot offer {version.name}")
    assert handshake(secure, context) is None
    assert ask(secure, "/livez", ELSEWHERE)[0] == 200


def test_weak_ciphers_are_refused_and_strong_ones_accepted(semel, secure):
    for weak in ("ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384"):  # CBC
        context = client_context(ssl.TLSVersion.TLSv1_2, f"{weak}:@SECLEVEL=0")
        assert can_be_offered(semel, context), weak
        assert handshake(secure, context) is None, weak
    assert handshake(secure, client_context(ssl.TLSVersion.TLSv1_2, "DEFAULT")) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    assert handshake(secure, client_context(ssl.TLSVersion.TLSv1_3, "DEFAULT")) == ("TLSv1.3", "TLS_AES_256_GCM_SHA384")


def test_a_client_cannot_renegotiate(secure):
    child = subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{secure.port}", "-tls1_2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(TIMEOUT_S, child.kill)
    timer.start()
    for line in child.stdout:
        if "Verify return code" in line:  # the session is established
            break
    child.stdin.write("R\n")
    child.stdin.flush()
    rest = child.stdout.read()  # to the end: the server closes
    timer.cancel()
    child.kill()
    child.wait()
    assert "RENEGOTIATING" in rest and "closed" in rest, rest
    assert ask(secure, "/livez", ELSEWHERE)[0] == 200
