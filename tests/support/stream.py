# SPDX-License-Identifier: Apache-2.0
"""A relay on the change stream, with a slot of the test's own: the server's slots are shared by all its databases."""
import contextlib
import json
import signal

from program import wait_for

TIMEOUT_S = 60
END_READER = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = ? AND active"
READER = """SELECT 1 FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid
    WHERE slot_name = ? AND backend_type = 'walsender'"""
DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = ?"


class Stream:
    options = ()  # of every relay

    def __init__(self, semel):
        self.semel, self.slot = semel, str(semel.store).rsplit("/", 1)[1].split("?")[0]
        self.relays = 0

    def init(self):
        return self.semel.ok("init", "--cdc", "--slot", self.slot)

    def words(self, *more):
        return ("relay", "--source", "cdc", "--slot", self.slot, *self.options, *more)

    def drain(self, *more, **options):
        return self.semel.run(*self.words("--drain", "--timeout", f"{TIMEOUT_S}s", *more), check=True, timeout=90, **options)

    def start(self, *more, lease="20s", env=None):
        """A relay in the background; its output is in .log(). lease: a short one where another relay is to take over;
        else it is none that a slow machine could make it lose, and so repeat what it has sent."""
        self.relays += 1
        path = self.semel.folder / f"relay-{self.slot}-{self.relays}.log"
        with open(path, "w") as log:
            child = self.semel.spawn(*self.words("--lease", lease, *more), stderr=log, env=env)
        child.log = path.read_text
        return child

    def waiting(self):
        return self.semel.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'")[0][0]

    def wait_until_published(self):
        wait_for(lambda: self.waiting() == 0, TIMEOUT_S, "everything is marked")

    def exists(self):
        return bool(self.semel.sql("SELECT 1 FROM pg_replication_slots WHERE slot_name = ?", self.slot))

    def is_read(self):
        """The server calls a slot active while it is still being made, too."""
        return bool(self.semel.sql(READER, self.slot))

    def wait_until_read(self):
        """A new slot waits up to three times for the longest transaction on the server, and another test's may last 20 s."""
        wait_for(self.is_read, 2 * TIMEOUT_S, "the slot has a reader")

    def drop(self):
        wait_for(self.dropped, TIMEOUT_S, "the slot is dropped")

    def dropped(self):
        try:
            self.semel.sql(END_READER, self.slot)
            self.semel.sql(DROP_SLOT, self.slot)
        except Exception as error:  # it is read again already
            assert "is active" in str(error)
            return False
        return True

    @contextlib.contextmanager
    def ended(self):
        """Afterwards the slot has no reader, and is dropped."""
        yield self
        for child in self.semel.children:
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.kill()
                child.wait()
        self.drop()


class Outbox(Stream):
    """Events whose payloads are numbers, and what of them has arrived."""

    def insert(self, count, aggregate="a", first=1, connection=None, size=0):
        """Their payloads are their numbers, filled up to the size."""
        values = (f"SELECT 'order', '{aggregate}', 'order.changed.v1', rpad(n::text, greatest(length(n::text), {size}))"
                  f" FROM generate_series({first}, {first + count - 1}) n")
        statement = f"INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) {values}"
        if connection:
            connection.execute(statement)
        else:
            self.semel.sql(statement)

    def arrived(self, scope="x"):
        """Per aggregate, the numbers in the order of their arrival, repeats included."""
        printed = self.semel.ok("consume", "--scope", scope, "--topic", "order.events", "--print", "--drain",
                             "--timeout", f"{TIMEOUT_S}s", "--guarantee", "at-least-once", timeout=120)
        found = {}
        for line in printed.splitlines():
            if line.startswith("{"):
                event = json.loads(line)
                found.setdefault(event["aggregateId"], []).append(int(event["payload"]))
        return found
