# SPDX-License-Identifier: Apache-2.0
"""PostgreSQL behind PgBouncer. With pool_mode = session nothing is different. With pool_mode = transaction the program
refuses to run, and leaves nothing behind in shared sessions; the SQL functions work there too."""
import mix
import pytest
from sandbox import Missing, Sandbox
from pgbouncer_server import PgBouncer
from program import wait_for
from stream import Stream

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
HANDLER = ("--scope", "billing", "--topic", "order.events", "--sql", "INSERT INTO invoice VALUES (:aggregate_id, :payload)")
PUBLISH = "SELECT semel_publish('order.created.v1', 'order', %s, %s)"
CLAIM = "SELECT semel_try_claim('by hand', %s, now(), 'order.events', 0, 1)"
WAITING = "SELECT count(*) FROM semel_outbox WHERE status = 'NEW'"


@pytest.fixture
def pooler(semel):
    database = semel.store.rpartition("/")[2].partition("?")[0]
    with Sandbox() as sandbox:
        try:
            yield PgBouncer(sandbox, mix.servers().endpoints["postgres"], database).start()
        except Missing as reason:
            pytest.skip(f"{reason}; as root: apt-get install -y --no-install-recommends pgbouncer")


@pytest.fixture
def shop(semel):
    semel.sql(f"CREATE TABLE invoice (id text, payload text{mix.PLACE})")
    semel.backend.witness("order.events")
    return semel


def connect(pooler, mode):
    """As an application does."""
    import psycopg2

    return psycopg2.connect(pooler.url(mode))


def ask(connection, statement, *parameters):
    cursor = connection.cursor()
    cursor.execute(statement, parameters)
    return cursor.fetchone()[0]


def is_wakeup_armed(shop):
    """A relay sleeps until a commit wakes it."""
    return shop.sql("SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE datname = current_database()"
                    " AND locktype = 'advisory' AND objid = 1936026988 AND granted")


def test_pooled_sessions_work_like_direct_ones(shop, pooler):
    env = {"SEMEL_STORE": pooler.url("session")}
    assert "up to date" in shop.ok("init", env=env)
    relay = shop.spawn("relay", env=env)
    wait_for(lambda: is_wakeup_armed(shop))
    ids = [shop.publish(aggregate=f"order:{number}", env=env) for number in range(3)]
    wait_for(lambda: shop.sql(WAITING) == [(0,)])
    shop.ok("consume", *HANDLER, "--drain", env=env)
    assert sorted(row[0] for row in shop.sql("SELECT id FROM invoice")) == ["0", "1", "2"]
    assert shop.ok("dlq", "count", env=env).strip() == "0"
    shop.ok("verify", "--scope", "billing", env=env)
    assert "of order:0" in shop.ok("trace", ids[0], env=env)
    relay.terminate()
    assert relay.wait(60) == 0


def test_pooled_transactions_are_refused_and_nothing_is_left_in_them(shop, pooler):
    env = {"SEMEL_STORE": pooler.url("transaction")}
    application = connect(pooler, "transaction")
    before = ask(application, "SHOW statement_timeout")
    application.commit()
    for words in (("init",), ("relay", "--drain"), ("consume", *HANDLER, "--drain"), ("dlq", "count"), ("verify",),
                  ("publish", "--type", "order.created.v1", "--aggregate", "order:1")):
        assert "pool_mode = session" in shop.fails(78, *words, env=env)
    doctor = shop.run("doctor", env=env)
    assert doctor.returncode == 1 and "pool_mode = session" in doctor.stdout
    assert ask(application, "SHOW statement_timeout") == before
    assert ask(application, "SELECT count(*) FROM pg_prepared_statements") == 0
    application.close()
    assert shop.sql("SELECT count(*) FROM semel_outbox") == [(0,)]


def test_an_application_publishes_and_claims_through_pooled_transactions(shop, pooler):
    one, other = connect(pooler, "transaction"), connect(pooler, "transaction")
    for number in range(10):
        ask(one, PUBLISH, "a", f'{{"number": {number}}}')
        event = ask(other, PUBLISH, "b", f'{{"number": {number}}}')
        assert ask(other, CLAIM, event) is True
        other.commit()
        one.commit()
        assert ask(other, CLAIM, event) is False
        ask(one, PUBLISH, "gone", "{}")
        one.rollback()
        other.rollback()
    one.close()
    other.close()
    shop.ok("relay", "--drain")
    shop.ok("consume", *HANDLER, "--drain")
    effects = shop.sql("SELECT id, payload FROM invoice ORDER BY place")
    for aggregate in "ab":
        assert [mix.number_of(payload) for name, payload in effects if name == aggregate] == list(range(10))
    assert len(effects) == 20


def test_where_it_does_not_support_replication_the_relay_logs_it_and_polls(shop, pooler):
    """PgBouncer supports replication since 1.23; there the relay reads the stream."""
    env, stream = {"SEMEL_STORE": pooler.url("session")}, Stream(shop)
    stream.init()
    with stream.ended():
        for number in range(3):
            shop.publish(aggregate=f"order:{number}")
        relay = stream.start(env=env)
        stream.wait_until_published()
        wait_for(lambda: "reading the change stream" in relay.log() or "replication" in relay.log(), what="how it reads")
        assert shop.stop(relay) == 0
        assert len(shop.backend.log()) == 3
