# SPDX-License-Identifier: Apache-2.0
"""Which store and which broker a test runs on. SEMEL_TEST_MIX names them: STORE[-SOURCE]+BROKER, such as
sqlite+local (the default), postgres+rabbitmq, postgres-cdc+rabbitmq. A test gets a database and a broker of its
own, and is written once, in SQL that both stores accept; the few differences are here."""
import hashlib
import json
import os
import sqlite3
import subprocess
from pathlib import Path

from brokers import BROKERS, fresh_name, servers
from sandbox import wait_until

NAME = os.environ.get("SEMEL_TEST_MIX", "sqlite+local")


def parts_of(name):
    """Its store, the relay's source there, and its broker."""
    store, _, broker = name.partition("+")
    store, _, source = store.partition("-")
    return store, source or "poll", broker


STORE, SOURCE, BROKER = parts_of(NAME)


# ---- SQL ----------------------------------------------------------------------------------------


class SqliteConnection:
    def __init__(self, path, timeout=60, **options):
        self.connection = sqlite3.connect(path, timeout=timeout, **options)

    def execute(self, statement, parameters=()):
        return self.connection.execute(statement, parameters)

    def lock(self, _aggregate):
        """There is one writer at a time, from its first change on."""
        if not self.connection.in_transaction:
            self.execute("BEGIN IMMEDIATE")

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()

    def script(self, text):
        self.connection.executescript(text)

    def close(self):
        self.connection.close()


class PostgresConnection:
    """psycopg2, asked in the manner of sqlite3: ? for a parameter, times as RFC 3339."""

    def __init__(self, url, timeout=60):
        import psycopg2

        self.connection = psycopg2.connect(url, options=f"-c TimeZone=UTC -c lock_timeout={timeout}s")
        moment = lambda value, _: value and rfc3339(value)  # noqa: E731
        kinds = psycopg2.extensions.new_type((1114, 1184), "MOMENT", moment)
        texts = psycopg2.extensions.new_type((1082, 114, 3802), "TEXT", lambda value, _: value)
        for kind in (kinds, texts):
            psycopg2.extensions.register_type(kind, self.connection)

    def execute(self, statement, parameters=()):
        cursor = self.connection.cursor()
        cursor.execute(statement.replace("%", "%%").replace("?", "%s"), parameters)
        return Rows(cursor)

    def lock(self, aggregate):
        """As an application locks the row that it is about to change, until it commits."""
        self.execute("SELECT pg_advisory_xact_lock(hashtext(?))", (aggregate,))

    def commit(self):
        self.connection.commit()

    def rollback(self):
        self.connection.rollback()

    def script(self, text):
        self.connection.cursor().execute(text)
        self.connection.commit()

    def close(self):
        self.connection.close()


def rfc3339(text):
    """As SQLite's tables have it: 2026-11-15 12:00:00.5+00 is 2026-11-15T12:00:00.500Z."""
    whole, _, part = text.removesuffix("+00").partition(".")
    return f"{whole.replace(' ', 'T')}.{part:0<3.3}Z"


class Rows:
    def __init__(self, cursor):
        self.rows = cursor.fetchall() if cursor.description else []
        self.rowcount = cursor.rowcount

    def fetchall(self):
        return self.rows

    def fetchone(self):
        return self.rows[0] if self.rows else None

    def __iter__(self):
        return iter(self.rows)


class Database(str):
    """A PostgreSQL database, by its URL. A SQLite one is the path of its file."""


def connect(database, timeout=60):
    if isinstance(database, Database):
        return PostgresConnection(database, timeout)
    return SqliteConnection(database, timeout)


def url_of(database):
    return str(database) if isinstance(database, Database) else f"sqlite:{database}"


def row_order(database):
    return "place" if isinstance(database, Database) else "rowid"


def is_idle(database):
    """Is no client in a transaction on the server? (For files: program.is_free.) The reader of a slot is in none."""
    busy = """SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND state <> 'idle'
        AND backend_type = 'client backend'"""
    return not isinstance(database, Database) or not ask(database, busy)


def ask(database, statement, *parameters):
    connection = connect(database)
    try:
        return list(connection.execute(statement, parameters).fetchall())
    finally:
        connection.close()


# ---- what differs ------------------------------------------------------------------------

# A column that counts the rows in the order of their insertion, and one to add where SQLite has its own.
SERIAL = "BIGSERIAL PRIMARY KEY" if STORE == "postgres" else "INTEGER PRIMARY KEY"
PLACE = f", place {SERIAL}" if STORE == "postgres" else ""


def fail_when(condition):
    """A transient error: not caused by the values."""
    return f"SELECT fail_when({condition})" if STORE == "postgres" else f"SELECT json(iif({condition}, '{{', '{{}}'))"


FAILURE = "it is too early" if STORE == "postgres" else "malformed JSON"

# Fails the first attempt of an event whose payload has "flaky".
FAIL_FIRST = fail_when(f":attempt = 1 AND json_extract(:payload, '$.flaky'){' = %r' % 'true' if STORE == 'postgres' else ''}")
# An expression that is an error when the word is no number.
NUMBER_OF_WORD = "json_set(:payload, '$.number', " + (
    "CAST(json_extract(:payload, '$.word') AS integer))" if STORE == "postgres" else "json(json_extract(:payload, '$.word')))")
# The payload of a row, as it was.
PAYLOAD_BYTES = (
    "coalesce(payload_bytes, convert_to(payload, 'UTF8'))" if STORE == "postgres" else "CAST(payload AS BLOB)")
# What SQLite's json_extract and json_set do for a member, and errors.
FUNCTIONS = """
CREATE FUNCTION json_extract(document text, path text) RETURNS text IMMUTABLE LANGUAGE sql AS
    $$ SELECT document::jsonb #>> ARRAY[substr(path, 3)] $$;
CREATE FUNCTION json_set(document text, path text, value anyelement) RETURNS text IMMUTABLE LANGUAGE sql AS
    $$ SELECT jsonb_set(document::jsonb, ARRAY[substr(path, 3)], to_jsonb(value), true)::text $$;
CREATE FUNCTION fail_when(failing boolean) RETURNS void LANGUAGE plpgsql AS
    $$ BEGIN IF failing THEN RAISE EXCEPTION 'it is too early'; END IF; END $$;
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION '%', TG_ARGV[0] USING ERRCODE = 'check_violation'; END $$;
"""


def refuse_when(condition, reason, name="poison", table="effect"):
    """A trigger: rows of which the condition is true are refused with an error that another attempt would not help."""
    head = f"CREATE TRIGGER {name} BEFORE INSERT ON {table}"
    if STORE == "postgres":
        return f"{head} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse('{reason}')"
    return f"{head} WHEN {condition} BEGIN SELECT RAISE(ABORT, '{reason}'); END"


def stop_refusing(name="poison", table="effect"):
    return f"DROP TRIGGER {name} ON {table}" if STORE == "postgres" else f"DROP TRIGGER {name}"


def shifted(column, kind="moment"):
    """The time, or the day, in a column, moved by a parameter such as '-8 days'."""
    if STORE == "postgres":
        moved = f"{column} + CAST(? AS interval)"
        return moved if kind == "moment" else f"CAST({moved} AS date)"
    return f"strftime('%Y-%m-%dT%H:%M:%fZ', {column}, ?)" if kind == "moment" else f"date({column}, ?)"


def refusals():
    """The exceptions with which a store refuses a row."""
    if STORE == "sqlite":
        return (sqlite3.IntegrityError,)
    import psycopg2

    return (psycopg2.Error, ValueError)


REFUSED = refusals()


def has_table(database, name):
    if isinstance(database, Database):
        return ask(database, "SELECT to_regclass(?) IS NOT NULL", name) == [(True,)]
    return ask(database, "SELECT count(*) FROM sqlite_schema WHERE name = ?", name) == [(1,)]


# ---- store and broker of a test -----------------------------------------------------------------------------------


class Backend:
    """The store and the broker of one test."""

    def __init__(self, folder, program=None):
        """program: has made the store's tables where `tables_are_there`."""
        self.folder, self.made = Path(folder), []
        self.tables_are_there = bool(program) and (STORE, SOURCE) == ("postgres", "poll")
        self.store = self.database("semel", database_with_tables(program) if self.tables_are_there else "")
        self.broker = BROKERS[BROKER](folder)
        self.made.append(self.broker)

    def database(self, name, template=""):
        """One more, without Semel's tables; template: with what that one has."""
        if STORE != "postgres":
            return self.folder / f"{name}.db"
        unique = fresh_name(name, "_")
        copied = f" TEMPLATE {template} STRATEGY = FILE_COPY" if template else ""  # with no WAL that each slot's reader has to read
        run_autocommit(f"CREATE DATABASE {unique}{copied}")
        made = Database(servers().postgres_url(unique))
        self.made.append(Dropped(unique))
        if not template:
            run_script(made, FUNCTIONS)
        return made

    def witness(self, topic):
        """Before anything is published there."""
        self.broker.witness(topic)

    def log(self):
        """What is, or was, at the broker: (id, aggregate id, payload)."""
        return self.broker.log()

    def environment(self):
        """How the program finds them; the defaults are the files."""
        variables = {}
        if STORE != "sqlite":
            variables["SEMEL_STORE"] = str(self.store)
        if BROKER != "local":
            variables["SEMEL_BROKER"] = self.broker.url
        return variables

    def words(self, words):
        """With the source and a slot of the test's own for a relay on the change stream; `init` creates the slot."""
        if SOURCE == "poll" or not {"--source", "--slot", "--store"}.isdisjoint(words):
            return words
        slot = ("--slot", self.store.rpartition("/")[2].partition("?")[0])
        more = {"relay": ("--source", SOURCE, *slot), "init": ("--cdc", *slot)}
        return (*words, *more.get(words[0] if words else "", ()))

    def close(self):
        while self.made:
            self.made.pop().close()


def run_script(database, text):
    connection = connect(database)
    connection.script(text)
    connection.close()


def database_with_tables(program, made={}):  # noqa: B006: one for the process, on purpose
    """The name of a PostgreSQL database that `init` of this program has made, to copy it: a tenth of the work of making the
    tables again. The first process that needs it on a server creates it; the others wait for that."""
    import psycopg2

    name = "semel_tables_" + hashlib.sha256(str(program).encode()).hexdigest()[:12]
    if made.get(name) == servers().endpoints["postgres"]:
        return name
    connection = psycopg2.connect(servers().postgres_url("postgres"))
    connection.autocommit = True
    cursor = connection.cursor()
    try:
        cursor.execute("SELECT pg_advisory_lock(hashtext(%s))", (name,))
        cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
        if not cursor.fetchone():
            make_tables(program, cursor, name)
    finally:
        connection.close()
    made[name] = servers().endpoints["postgres"]
    return name


def make_tables(program, cursor, name):
    """It has its name when it is complete."""
    cursor.execute(f"DROP DATABASE IF EXISTS {name}_new WITH (FORCE)")
    cursor.execute(f"CREATE DATABASE {name}_new")
    database = Database(servers().postgres_url(f"{name}_new"))
    run_script(database, FUNCTIONS)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
    subprocess.run([program, "--store", database, "init"], env=environment, check=True, capture_output=True)
    cursor.execute(f"ALTER DATABASE {name}_new ALLOW_CONNECTIONS false")
    cursor.execute(f"ALTER DATABASE {name}_new RENAME TO {name}")


class Dropped:
    def __init__(self, name):
        self.name = name

    def close(self):
        wait_until(self.is_gone, 60, f"the end of {self.name}")

    def is_gone(self):
        """A slot's reader that was killed stays connected for a moment, and then the database cannot be dropped."""
        import psycopg2

        try:
            run_autocommit(f"DROP DATABASE IF EXISTS {self.name} WITH (FORCE)")
            return True
        except psycopg2.errors.ObjectInUse:
            return False


def run_autocommit(statement):
    """Outside of any transaction, in the server's own database."""
    import psycopg2

    connection = psycopg2.connect(servers().postgres_url("postgres"))
    connection.autocommit = True
    try:
        connection.cursor().execute(statement)
    finally:
        connection.close()


def number_of(payload):
    return json.loads(payload)["number"]
