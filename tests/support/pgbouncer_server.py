# SPDX-License-Identifier: Apache-2.0
"""PgBouncer before one database of a PostgreSQL server: under one name it pools sessions, under another transactions."""
from pathlib import Path

from sandbox import Missing, free_port, listens, wait_until

SERVER = Path("/usr/sbin/pgbouncer")
MODES = ("session", "transaction")


class PgBouncer:
    def __init__(self, sandbox, address, database, user="semel"):
        """address: host and port of the server."""
        if not SERVER.exists():
            raise Missing("PgBouncer is not installed")
        self.folder, self.port, self.child = sandbox.make_folder("pgbouncer", "postgres"), free_port(), None
        host, _, port = address.partition(":")
        names = [f"{mode} = host={host} port={port} dbname={database} user={user} pool_mode={mode}" for mode in MODES]
        (self.folder / "settings.ini").write_text("\n".join([
            "[databases]", *names, "[pgbouncer]", "listen_addr = 127.0.0.1", f"listen_port = {self.port}",
            "auth_type = any", "unix_socket_dir =", ""]))
        self.sandbox, self.log = sandbox, sandbox.folder / "pgbouncer.log"
        sandbox.keep(self)

    def start(self):
        self.child = self.sandbox.start([SERVER, self.folder / "settings.ini"], "postgres", self.log, cwd=self.folder)
        wait_until(self.answers, 60, "PgBouncer answers")
        return self

    def answers(self):
        if self.child.poll() is not None:
            raise RuntimeError(f"PgBouncer ended with {self.child.returncode}\n{self.log.read_text()[-3000:]}")
        return listens(self.port)

    def url(self, mode):
        return f"postgres://semel@127.0.0.1:{self.port}/{mode}"

    def close(self):
        if self.child and self.child.poll() is None:
            self.child.kill()
            self.child.wait()
