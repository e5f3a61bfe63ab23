# SPDX-License-Identifier: Apache-2.0
"""What Semel connects to with TLS: a server of an old version is refused, whatever the machine's settings of OpenSSL allow."""
import socket
import ssl
import subprocess
import threading
import warnings

import pytest
from program import Semel, wait_for

LAX = """openssl_conf = all
[all]
ssl_conf = modules
[modules]
system_default = lax
[lax]
MinProtocol = TLSv1
CipherString = ALL:@SECLEVEL=0
"""


class OldServer:
    """Speaks TLS 1.1 and nothing newer; the result of each handshake is in outcomes."""

    def __init__(self, folder):
        self.certificate, key = folder / "cert.pem", folder / "key.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", self.certificate],
            check=True, capture_output=True)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.context.minimum_version = ssl.TLSVersion.TLSv1
            self.context.maximum_version = ssl.TLSVersion.TLSv1_1
        self.context.set_ciphers("ALL:@SECLEVEL=0")
        self.context.load_cert_chain(self.certificate, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.outcomes = self.listener.getsockname()[1], []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            try:
                with self.context.wrap_socket(connection, server_side=True) as secured:
                    self.outcomes.append(secured.version())
            except (ssl.SSLError, OSError) as failure:
                self.outcomes.append(getattr(failure, "reason", None) or str(failure))

    def close(self):
        self.listener.close()


@pytest.fixture
def old(tmp_path):
    server = OldServer(tmp_path)
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname, lax.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        lax.minimum_version = ssl.TLSVersion.TLSv1
    lax.set_ciphers("ALL:@SECLEVEL=0")
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as plainly, lax.wrap_socket(plainly) as connection:
            assert connection.version() == "TLSv1.1"
    except ssl.SSLError:
        pytest.skip("this OpenSSL does not speak TLS 1.1")
    wait_for(lambda: server.outcomes, what="the handshake")
    server.outcomes.clear()
    yield server
    server.close()


@pytest.fixture
def lax(tmp_path):
    """An environment in which OpenSSL itself refuses nothing."""
    (tmp_path / "openssl.cnf").write_text(LAX)
    return {"OPENSSL_CONF": str(tmp_path / "openssl.cnf")}


def refused_as_too_old(server):
    """For its version, before anything else was checked."""
    wait_for(lambda: server.outcomes, what="a connection")
    return set(server.outcomes) <= {"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"}


@pytest.fixture
def semel(tmp_path):
    one = Semel(tmp_path)
    one.ok("init")
    yield one
    one.close()


def test_handlers_and_collectors_of_an_old_version_are_refused(semel, old, lax):
    url = f"https://127.0.0.1:{old.port}"
    semel.subscribe("web")
    semel.publish(env={**lax, "OTEL_EXPORTER_OTLP_ENDPOINT": url})  # waits for the collector
    assert refused_as_too_old(old), old.outcomes
    old.outcomes.clear()
    semel.ok("relay", "--drain")
    child = semel.spawn("consume", "--scope", "web", "--topic", "order.events", "--http", url, env=lax)
    assert refused_as_too_old(old), old.outcomes
    assert semel.stop(child) == 0


def test_a_rabbitmq_of_an_old_version_is_refused(semel, old, lax):
    broker = f"amqps://guest:guest@127.0.0.1:{old.port}/?cacert={old.certificate}"
    child = semel.spawn("relay", env={**lax, "SEMEL_BROKER": broker})
    assert refused_as_too_old(old), old.outcomes
    semel.stop(child)
