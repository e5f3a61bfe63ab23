# SPDX-License-Identifier: Apache-2.0
"""A PostgreSQL server of the test's own: primary or standby, killed and started again at will."""
import os
import signal
import subprocess
from pathlib import Path

from sandbox import START_S, Missing, alive, free_port, identity, kill_all, listens, process_tree, suspend, wait_until

BINARIES = "/usr/lib/postgresql/*/bin/postgres"
USER, DATABASE, PASSWORD = "semel", "semel", "a secret of the tests"
SETTINGS = {
    "wal_level": "logical", "fsync": "on", "max_connections": "200", "shared_buffers": "64MB",
    "max_wal_senders": "30", "max_replication_slots": "30", "listen_addresses": "127.0.0.1",
    "autovacuum_naptime": "5s", "log_min_messages": "warning", "max_prepared_transactions": "10",
    "wal_receiver_status_interval": "1s", "hot_standby_feedback": "on",
}
# Members of `careful` need their password, over TLS or not; all other users need none.
ACCESS = """\
local all all trust
host all +careful 127.0.0.1/32 scram-sha-256
host all all 127.0.0.1/32 trust
host replication all 127.0.0.1/32 trust
"""


def binaries():
    versions = sorted(Path("/").glob(BINARIES.lstrip("/")), key=lambda path: int(path.parts[4]))
    if not versions:
        raise Missing("PostgreSQL is not installed")
    return versions[-1].parent


class Postgres:
    def __init__(self, sandbox, name="postgres", certificates=None, settings=None):
        self.sandbox, self.name, self.bin = sandbox, name, binaries()
        self.folder = sandbox.make_folder(name, "postgres")
        self.data, self.log = self.folder / "data", sandbox.folder / f"{name}.log"
        self.port, self.child = free_port(), None
        self.settings = {**SETTINGS, "unix_socket_directories": str(self.folder), **(settings or {})}
        if certificates:
            self.settings.update(ssl="on", **self.own(certificates))
        sandbox.keep(self)

    def own(self, certificates):
        """The server requires that it owns its key file."""
        who = identity("postgres")
        for source in (certificates.certificate, certificates.key):
            target = self.folder / source.name
            target.write_bytes(source.read_bytes())
            target.chmod(0o600)
            if who:
                os.chown(target, who["user"], who["group"])
        return {"ssl_cert_file": str(self.folder / certificates.certificate.name),
                "ssl_key_file": str(self.folder / certificates.key.name)}

    def url(self, database=DATABASE, user=USER, port=None, **parameters):
        more = "".join(f"{'&' if number else '?'}{key}={value}" for number, (key, value) in enumerate(parameters.items()))
        return f"postgres://{user}@127.0.0.1:{port or self.port}/{database}{more}"

    # ---- start and stop ----------------------------------------------------------------------------------

    def create(self):
        self.sandbox.run([self.bin / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                       "--locale=C.UTF-8", "--no-sync"], "postgres")
        access = self.data / "pg_hba.conf"
        access.write_text(ACCESS)
        self.start()
        for statement in ("CREATE ROLE careful", f"CREATE ROLE {USER} LOGIN SUPERUSER", f"CREATE DATABASE {DATABASE} OWNER {USER}"):
            self.psql(statement, "postgres", "postgres")
        return self

    def start(self):
        words = [self.bin / "postgres", "-D", self.data, "-p", self.port]
        for key, value in self.settings.items():
            words += ["-c", f"{key}={value}"]
        self.child = self.sandbox.start(words, "postgres", self.log, end=signal.SIGQUIT, cwd=self.folder)
        wait_until(self.answers, START_S, f"{self.name} answers")
        return self

    def answers(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with {self.child.returncode}\n{self.log.read_text()[-3000:]}")
        done = subprocess.run([self.bin / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False)
        return done.returncode == 0

    def psql(self, statement, database=DATABASE, user=USER):
        return self.sandbox.run([self.bin / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p",
                              self.port, "-U", user, "-d", database, "-c", statement], "postgres").strip()

    def stop(self):
        """As an administrator restarts it: connections are ended, nothing is lost."""
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGINT)
            self.child.wait(START_S)

    def kill(self):
        """kill -9 of all its processes at once, as when the machine fails. It is suspended first: a
        session that it forks meanwhile would go on running, and its shared memory would prevent a restart."""
        suspend(self.child.pid)
        members = process_tree(self.child.pid)
        kill_all(members)
        self.child.wait()
        wait_until(lambda: not alive(members), 20, f"all of {self.name} is gone")
        wait_until(lambda: not listens(self.port), 10, f"{self.name} is gone")

    def close(self):
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGQUIT)
            try:
                self.child.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    # ---- a second machine ------------------------------------------------------------------------

    def standby(self, name="standby"):
        """A replica; from then on a commit waits for it, so that nothing that was
        committed is lost when it is promoted."""
        other = Postgres(self.sandbox, name)
        self.sandbox.run([self.bin / "pg_basebackup", "-D", other.data, "-R", "-X", "stream", "-c", "fast", "-d",
                       f"host=127.0.0.1 port={self.port} user={USER} application_name={name}"], "postgres")
        other.start()
        wait_until(lambda: self.psql("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1",
                   START_S, f"{name} follows")
        self.set("synchronous_standby_names", name)
        return other

    def set(self, name, value):
        """A setting of the running server; None: as it was. Commits wait for standbys when the checkpointer has read the
        setting, which may be later than in other processes: after a checkpoint it has."""
        self.psql(f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}")
        self.psql("SELECT pg_reload_conf()")
        self.psql("CHECKPOINT")

    def promote(self):
        self.psql("SELECT pg_promote(true, 60)")
        wait_until(lambda: self.psql("SELECT pg_is_in_recovery()") == "f", 60, f"{self.name} is promoted")
