# SPDX-License-Identifier: Apache-2.0
"""The admin server under malformed requests, slow and many connections: it refuses, disconnects, and goes on answering."""
import json
import os
import random
import resource
import socket

import pytest
from program import Semel, wait_for
from server import Server

MIB = 1024 * 1024
DEEP = b"[" * 200000


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server for all tests: no attack may affect the tests after it."""
    semel = Semel(tmp_path_factory.mktemp("hammer"))
    semel.ok("init")
    one = Server(semel)
    yield one
    assert semel.stop(one.child) == 0, one.child.stderr.read()
    semel.close()


def assert_alive(server):
    assert server.json("/livez") == {"alive": True}


def head(server, line, *headers):
    """A complete head; the connection is closed after the answer."""
    first = line.encode() if isinstance(line, str) else line
    lines = [first, f"Host: localhost:{server.port}".encode(), b"Connection: close", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def status(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else None


def problem(answer):
    """The answer is a problem in JSON."""
    top, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/problem+json" in top, answer
    return json.loads(body)


MALFORMED = [
    b"", b"\r\n\r\n", b"\0" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /livez\r\n\r\n", b"A" * 100000,
    b"GET /livez HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20000 + b"\r\n", b" GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200,
]


@pytest.mark.sanitize
def test_malformed_data_is_never_answered_as_a_request(server):
    for data in MALFORMED:
        assert status(server.raw(data, finished=True)) not in (200, 202), data[:60]
    assert_alive(server)


@pytest.mark.sanitize
def test_ambiguous_heads_are_refused(server):
    line, body = "POST /api/admin/replays HTTP/1.1", b"0\r\n\r\n"
    for headers in (
        [b"Host: evil.example"], [b"Content-Length: 5", b"Content-Length: 2"],
        [b"Content-Length: 5", b"Transfer-Encoding: chunked"],
        [b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"], [b"Transfer-Encoding: gzip, chunked"],
    ):
        answer = server.raw(head(server, line, *headers) + body)
        assert (status(answer), problem(answer)["type"]) == (400, "/problems/malformed"), headers
    assert server.json("/api/admin/replays") == []


@pytest.mark.sanitize
def test_no_text_is_silently_cut_at_a_zero_byte(server):
    assert problem(server.raw(head(server, "GET /livez%00/x HTTP/1.1")))["status"] == 404
    assert problem(server.raw(head(server, "GET /api/admin/dlq?scope=a%00b HTTP/1.1")))["status"] == 400


@pytest.mark.sanitize
def test_texts_that_are_not_utf8_are_refused(server):
    for line, code in (
        ("GET /api/admin/dlq?scope=%ff HTTP/1.1", 400), ("GET /api/admin/dlq?%ff=1 HTTP/1.1", 400),
        ("GET /api/admin/trace/%c0%80 HTTP/1.1", 404),
        ("POST /api/admin/subscriptions/%ff/pause HTTP/1.1", 404), ("DELETE /api/admin/dlq/x?reason=%ed%a0%80 HTTP/1.1", 400),
        (b"GET /\xff\xfe HTTP/1.1", 404), (b"GET /api/admin/dlq?type=\xff HTTP/1.1", 400),
    ):
        assert problem(server.raw(head(server, line)))["status"] == code, line


@pytest.mark.sanitize
def test_a_head_has_32_kib_and_no_more(server):
    assert status(server.raw(head(server, "GET /livez HTTP/1.1", b"X: " + b"y" * 31000))) == 200
    for large in (33000, 60000):
        assert status(server.raw(head(server, "GET /livez HTTP/1.1", b"X: " + b"y" * large))) == 431
    assert status(server.raw(head(server, "GET /" + "y" * 40000 + " HTTP/1.1"))) in (414, 431)
    assert status(server.raw(head(server, "GET /livez HTTP/1.1", b"X: " + b"y" * MIB))) != 200
    assert_alive(server)


def chunked(*chunks):
    return b"".join(chunk if isinstance(chunk, bytes) else b"%x\r\n%s\r\n" % (len(chunk[0]), chunk[0]) for chunk in chunks)


@pytest.mark.sanitize
def test_only_valid_chunks_are_accepted(server):
    start = head(server, "POST /api/admin/replays HTTP/1.1", b"Transfer-Encoding: chunked")
    answer = server.raw(start + chunked((b'{"dry',), (b'Run": true}',), b"0\r\n\r\n"))
    assert status(answer) == 202
    for body in (b"zz\r\n", b"-1\r\n{}\r\n0\r\n\r\n", b"2\r\n{}garbage\r\n0\r\n\r\n", b"\r\n\r\n", b"ffffffffffffffffff\r\n{}"):
        assert status(server.raw(start + body, finished=True)) not in (200, 202), body
    many = start + chunked(*[(b"x" * 1000,)] * 1100, b"0\r\n\r\n")
    assert problem(server.raw(many))["type"] == "/problems/too-large"
    assert_alive(server)


@pytest.mark.sanitize
def test_bodies_that_are_too_large_or_too_deep_are_refused(server):
    replays = ("/api/admin/replays", "POST")
    assert server.problem(413, *replays, body=b"x" * (MIB + 1)) == "too-large"
    assert server.problem(400, *replays, body=b"x" * MIB) == "usage"
    assert server.problem(400, *replays, body=DEEP) == "usage"
    assert server.problem(400, *replays, body=b'{"type": "\xff"}') == "usage"
    huge = head(server, "POST /api/admin/replays HTTP/1.1", b"Content-Length: 99999999999999999999")
    assert status(server.raw(huge)) in (400, 413)
    assert_alive(server)


@pytest.mark.sanitize
def test_pipelined_requests_are_answered_in_order(server):
    host = f"Host: localhost:{server.port}\r\n"
    paths = ["/livez", "/api/admin/dlq/count", "/readyz", "/api/admin/dlq/nope"] * 10
    data = "".join(f"GET {path} HTTP/1.1\r\n{host}\r\n" for path in paths).encode() + head(server, "GET /livez HTTP/1.1")
    answers = server.raw(data).split(b"HTTP/1.1 ")[1:]
    assert [int(answer[:3]) for answer in answers] == [200, 200, 200, 404] * 10 + [200]


@pytest.mark.sanitize
def test_requests_with_random_damage_do_no_harm(server):
    chance = random.Random(1)
    whole = [
        head(server, "GET /api/admin/dlq?limit=5&status=PENDING&since=2026-01-01T00:00:00Z HTTP/1.1"),
        head(server, "DELETE /api/admin/dlq/01930b5e-7c1a-7d10-8a3e-5f0a3c9d2b41?reason=x HTTP/1.1"),
        head(server, "POST /api/admin/replays HTTP/1.1", b"Content-Length: 16") + b'{"dryRun": true}',
        head(server, "GET /metrics HTTP/1.1", b"Authorization: Bearer x"),
    ]
    for _ in range(200):
        data = bytearray(chance.choice(whole))
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(data))
            data[at:at + chance.randint(0, 3)] = bytes(chance.randrange(256) for _ in range(chance.randint(0, 3)))
        answer = server.raw(bytes(data), finished=True)
        assert status(answer) is None or status(answer) < 500, bytes(data)
    assert_alive(server)


def files_of(server):
    return len(os.listdir(f"/proc/{server.child.pid}/fd"))


def test_a_thousand_incomplete_requests_do_not_block_other_clients(server):
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1200, most), most))
    number = min(1000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 200)
    before = files_of(server)
    incomplete = []
    try:
        for _ in range(number):
            incomplete.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            incomplete[-1].sendall(b"GET /livez HTTP/1.1\r\nX: ")
        for _ in range(10):
            assert_alive(server)
        assert files_of(server) < before + 220
    finally:
        for connection in incomplete:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    wait_for(lambda: files_of(server) <= before + 12, timeout=60, what="closed connections")


def test_too_many_streams_are_refused_and_the_others_go_on(server):
    request = head(server, "GET /api/admin/stream HTTP/1.1")
    streams = []
    try:
        for number in range(32):
            source = (f"127.0.0.{2 + number % 2}", 0)  # one address has half of them
            streams.append(socket.create_connection(("127.0.0.1", server.port), timeout=60, source_address=source))
            streams[-1].sendall(request)
        for stream in streams:
            received = b""
            while b"data: {" not in received:
                part = stream.recv(65536)
                assert part, received
                received += part
        assert problem(server.raw(request))["type"] == "/problems/busy"
        assert_alive(server)
    finally:
        for stream in streams:
            stream.close()
    wait_for(lambda: status(first_bytes(server, request)) == 200, timeout=60, what="room for a stream")


def first_bytes(server, data):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(data)
        return connection.recv(65536)


def test_livez_is_answered_while_the_store_does_not_answer(tmp_path):
    semel = Semel(tmp_path)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        store = f"postgres://app@127.0.0.1:{silent.getsockname()[1]}/nothing"
        server = Server(semel, env={"SEMEL_STORE": store})
        waiting = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(12)]
        for connection in waiting:
            connection.sendall(head(server, "GET /readyz HTTP/1.1"))
        assert_alive(server)
        assert server.ask("/")[0] == 200
        for connection in waiting:
            connection.close()
        server.child.kill()  # it would wait for the store
    semel.close()
