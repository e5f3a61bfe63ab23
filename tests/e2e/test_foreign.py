# SPDX-License-Identifier: Apache-2.0
"""Foreign clients: psycopg2 publishes and claims by SQL alone, pika reads and writes messages. They use no library
of ours, only the documented contracts."""
import contextlib
import json
import re
import resource
import shlex
import uuid
from datetime import datetime, timezone
from pathlib import Path

import mix
import pytest
from program import TREE, wait_for
from proxy import Proxy
from servers import Certificates

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]

psycopg2 = pytest.importorskip("psycopg2")
pika = pytest.importorskip("pika")

TOPIC = "order.events"
TABLES = ("CREATE TABLE orders (id text PRIMARY KEY);"
          " CREATE TABLE invoice (place bigserial, event_id text, aggregate text, payload text)")
INVOICE = "INSERT INTO invoice (event_id, aggregate, payload) VALUES (:id, :aggregate_id, :payload)"
CONSUME = ("consume", "--scope", "billing", "--topic", TOPIC, "--sql", INVOICE, "--drain", "--first-delay", "20ms")


@pytest.fixture
def shop(semel):
    with contextlib.closing(mix.connect(semel.store)) as connection:
        connection.script(TABLES)
    return semel


@pytest.fixture
def database(shop):
    connection = psycopg2.connect(str(shop.store))
    yield connection
    connection.close()


@pytest.fixture
def channel(shop):
    opened = shop.broker.channel()
    opened.confirm_delivery()
    yield opened
    shop.broker.connection.close()


def run(connection, statement, *parameters):
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchall() if cursor.description else None


def invoices(shop):
    return shop.sql("SELECT event_id, aggregate, payload FROM invoice ORDER BY place")


# ---- psycopg2 -----------------------------------------------------------------------------------


def test_a_business_row_and_its_event_are_one_transaction(shop, database):
    run(database, "INSERT INTO orders VALUES ('ord-1')")
    ((event_id,),) = run(database, "SELECT semel_publish(%s, %s, %s, %s)", "order.created.v1", "order", "ord-1", '{"total": 5}')
    database.commit()
    run(database, "INSERT INTO orders VALUES ('ord-2')")
    run(database, "SELECT semel_publish('order.created.v1', 'order', 'ord-2', '{}')")
    database.rollback()
    shop.ok("relay", "--drain")
    shop.ok(*CONSUME)
    assert uuid.UUID(event_id).version == 7
    assert invoices(shop) == [(event_id, "ord-1", '{"total": 5}')]
    assert shop.sql("SELECT id FROM orders") == [("ord-1",)]
    shop.ok("verify")


def test_a_plain_insert_needs_four_columns(shop, database):
    run(database, "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                  " VALUES ('order', 'ord-1', 'order.created.v1', '{}')")
    database.commit()
    shop.ok("relay", "--drain")
    shop.ok(*CONSUME)
    ((event_id, aggregate, payload),) = invoices(shop)
    assert uuid.UUID(event_id) and (aggregate, payload) == ("ord-1", "{}")


def test_a_claim_is_won_once_and_joins_the_transaction(shop, database):
    claim = "SELECT semel_try_claim('audit', %s, now(), 'order.events', 0, 42)"
    event_id = str(uuid.uuid4())
    assert run(database, claim, event_id) == [(True,)]
    database.rollback()
    assert run(database, claim, event_id) == [(True,)]
    database.commit()
    assert run(database, claim, event_id) == [(False,)]
    database.commit()


@pytest.mark.parametrize("arguments", ["'', 'e', now(), 't'", "'s', ' ', now(), 't'", "NULL, 'e', now(), 't'",
                                       "'s', 'e', NULL, 't'", "'s', 'e', now(), NULL", "'s', 'e', 'infinity', 't'"])
def test_an_invalid_claim_is_an_error_and_leaves_no_row(shop, database, arguments):
    with pytest.raises(psycopg2.Error):
        run(database, f"SELECT semel_try_claim({arguments}, 0, 1)")
    database.rollback()
    assert shop.sql("SELECT count(*) FROM semel_inbox") == [(0,)]


def test_two_claimers_at_once_one_wins(shop, database):
    event_id, claim = str(uuid.uuid4()), "SELECT semel_try_claim('audit', %s, now(), 'order.events')"
    other = psycopg2.connect(str(shop.store))
    try:
        assert run(database, claim, event_id) == [(True,)]
        run(other, "SET lock_timeout = '200ms'")
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            run(other, claim, event_id)
        other.rollback()
        database.commit()
        assert run(other, claim, event_id) == [(False,)]
    finally:
        other.close()


# ---- pika ---------------------------------------------------------------------------------------


def test_a_foreign_consumer_finds_properties_and_headers(shop, database, channel):
    channel.queue_declare("theirs", durable=True)
    channel.queue_bind("theirs", TOPIC, "#")
    headers = {"correlationId": "c-1", "producer": "shop", "tenantId": "t-1", "traceparent": f"00-{'1' * 32}-{'2' * 16}-01"}
    began = datetime.now(timezone.utc)
    ((event_id,),) = run(database, "SELECT semel_publish('order.created.v1', 'order', 'ord-1', %s, %s)",
                         '{"total": 5}', json.dumps(headers))
    database.commit()
    shop.ok("relay", "--drain")
    method, properties, body = channel.basic_get("theirs", auto_ack=True)
    assert (method.exchange, method.routing_key, body) == (TOPIC, "order.created.v1", b'{"total": 5}')
    assert (properties.message_id, properties.type, properties.app_id) == (event_id, "order.created.v1", "shop")
    assert (properties.correlation_id, properties.content_type, properties.delivery_mode) == ("c-1", "application/json", 2)
    assert abs(properties.timestamp - began.timestamp()) < 60
    received = properties.headers
    assert (received["cloudEvents_id"], received["cloudEvents_type"]) == (event_id, "order.created.v1")
    assert received["cloudEvents_source"] == "shop" and received["cloudEvents_time"].endswith("Z")
    assert (received["semel-aggregate-type"], received["semel-aggregate-id"]) == ("order", "ord-1")
    assert (received["tenantId"], received["traceparent"]) == ("t-1", headers["traceparent"])


def send(channel, body=b'{"total": 5}', exchange=TOPIC, routing_key="order.created.v1", headers=None, **properties):
    properties = {"message_id": str(uuid.uuid4()), "type": "order.created.v1", "content_type": "application/json",
                  "delivery_mode": 2, **properties}
    channel.basic_publish(exchange, routing_key, body, pika.BasicProperties(headers=headers, **properties), mandatory=True)
    return properties["message_id"]


def test_a_foreign_message_is_consumed_once_however_often_it_comes(shop, channel):
    event_id = send(channel)
    for _ in range(3):
        send(channel, message_id=event_id)
    shop.ok(*CONSUME)
    send(channel, message_id=event_id)
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [event_id]


def test_a_foreign_message_that_is_delivered_again_is_consumed_once(shop, channel):
    event_id = send(channel)
    done = shop.run(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-commit:kill"})
    assert done.returncode == -9
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [event_id]


def test_the_aggregate_of_a_foreign_message_is_its_routing_key_or_what_its_headers_say(shop, channel):
    send(channel, routing_key="ord-7")
    send(channel, headers={"semel-aggregate-type": "order", "semel-aggregate-id": "ord-8"})
    shop.ok(*CONSUME)
    assert sorted(row[1] for row in invoices(shop)) == ["ord-7", "ord-8"]


@pytest.mark.parametrize("message, reason", [
    ({"message_id": None}, "id"), ({"body": b'{"total": '}, "application/json"), ({"body": b"\xff\x00\xfe"}, "application/json")],
    ids=["no id", "broken JSON", "no UTF-8"])
def test_a_foreign_message_that_breaks_the_contract_is_a_dead_letter(shop, channel, message, reason):
    send(channel, **message)
    good = send(channel, routing_key="other")
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [good]
    (letter,) = shop.json("dlq", "list")
    assert reason in letter["failureReason"] and letter["attempts"] == 0


LONG = "".join(str(uuid.uuid4()) for _ in range(200))[:6000]  # cannot be compressed
UNFIT = {
    "id not UTF-8": ({"message_id": b"a\xff\xfe"}, "id is not valid UTF-8"),
    "id with a NUL byte": ({"message_id": "a\x00b"}, "id has a NUL byte"),
    "long id": ({"message_id": None, "headers": {"cloudEvents_id": LONG}}, "id is 6000 bytes long"),
    "type not UTF-8": ({"type": b"\xff"}, "type is not valid UTF-8"),
    "long type": ({"type": None, "headers": {"cloudEvents_type": LONG}}, "type is 6000 bytes long"),
    "aggregate not UTF-8": ({"headers": {"semel-aggregate-type": "order", "semel-aggregate-id": b"\xff\xfe"}},
                            "aggregate id is not valid UTF-8"),
    "long aggregate": ({"headers": {"semel-aggregate-type": "order", "semel-aggregate-id": LONG}},
                       "aggregate id is 6000 bytes long"),
    "long aggregate type": ({"headers": {"semel-aggregate-type": LONG, "semel-aggregate-id": "1"}},
                            "aggregate type is 6000 bytes long"),
    "routing key not UTF-8": ({"routing_key": b"\xff\xfe"}, "is not valid UTF-8"),
    "content type not UTF-8": ({"content_type": b"text/\xff"}, "content type is not valid UTF-8"),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_foreign_message_with_a_name_that_no_store_can_keep_is_a_dead_letter(shop, channel, what):
    message, reason = UNFIT[what]
    send(channel, **message)
    good = send(channel, routing_key="other")
    done = shop.run(*CONSUME, env={"SEMEL_FAILPOINT": "consume.after-commit:kill"})
    assert done.returncode == -9, done.stderr
    shop.ok(*CONSUME)  # it is redelivered, and is the same dead letter
    assert [row[0] for row in invoices(shop)] == [good]
    (letter,) = shop.json("dlq", "list")
    assert reason in letter["failureReason"] and letter["attempts"] == 0
    assert shop.json("dlq", "show", letter["dlqEntryId"])["eventRecord"]["payload"] in ({"total": 5}, '{"total": 5}')
    shop.ok("trace", letter["originalEventId"])
    shop.ok("dlq", "replay", letter["dlqEntryId"])  # under the name that it has in the list
    shop.ok(*CONSUME)
    assert [row[0] for row in invoices(shop)] == [good, letter["originalEventId"]]
    assert shop.json("dlq", "list", "--status", "pending") == []


def test_two_foreign_ids_that_are_no_text_are_two_dead_letters(shop, channel):
    send(channel, b"1", message_id=b"a\xff", routing_key="1")
    send(channel, b"2", message_id=b"a\xfe", routing_key="2")
    shop.ok(*CONSUME)
    assert sorted(letter["eventRecord"]["payload"] for letter in shop.json("dlq", "list")) == [1, 2]


def test_a_business_key_that_no_store_can_keep_is_a_dead_letter(shop, channel):
    for key in (LONG, "a\x00b"):
        send(channel, headers={"idempotencyKey": key}, routing_key=key[:3].replace("\x00", "."))
    good = send(channel, headers={"idempotencyKey": "k"})
    shop.ok(*CONSUME, "--dedup-by", "header:idempotencyKey")
    assert [row[0] for row in invoices(shop)] == [good]
    assert all("idempotencyKey" in letter["failureReason"] for letter in shop.json("dlq", "list"))
    assert shop.ok("dlq", "count").strip() == "2"


def test_zero_bytes_in_a_foreign_message_end_in_a_dead_letter_and_not_in_a_loop(shop, channel):
    """PostgreSQL stores none in a text: neither in the dead letter, nor where the handler casts to jsonb."""
    shop.sql("ALTER TABLE invoice ALTER COLUMN payload TYPE jsonb USING payload::jsonb")
    odd = {send(channel, b'{"a": "\\u0000"}', routing_key="1"): "",
           send(channel, routing_key="2", headers={"x": "a\x00b", "semel-previous": "p\x00q"}, type="refused.v1"): "",
           send(channel, routing_key="3", headers={"x\x00y": "a"}): "headers",
           send(channel, routing_key="4\x00x"): "NUL byte",
           send(channel, b"\x00", content_type="text/plain", routing_key="5"): ""}
    good = send(channel, routing_key="6", headers={"x": "a\x00b", "traceparent": "00\x00", "correlationId": "c\x00d"})
    handler = INVOICE.replace(":payload)", "CASE WHEN :type = 'refused.v1' THEN '{' ELSE :payload END::jsonb)")
    shop.ok(*[handler if word == INVOICE else word for word in CONSUME], "--attempts", "2")
    assert [row[0] for row in invoices(shop)] == [good]
    letters = {letter["originalEventId"]: letter for letter in shop.json("dlq", "list")}
    assert letters.keys() == odd.keys()
    assert all(reason in letters[event_id]["failureReason"] for event_id, reason in odd.items())
    for letter in letters.values():
        shop.ok("dlq", "show", letter["dlqEntryId"])
        done = shop.run("dlq", "replay", letter["dlqEntryId"])
        assert done.returncode == (65 if "headers" in letter["failureReason"] else 0), done.stderr
    shop.ok(*[handler if word == INVOICE else word for word in CONSUME], "--attempts", "2")
    assert len(shop.json("dlq", "list", "--status", "pending")) == len(odd) - 1  # all but the one whose routing key was replaced


def test_a_foreign_message_that_claims_to_be_text_is_taken_as_it_is(shop, channel):
    send(channel, b"no JSON at all", content_type="text/plain")
    shop.ok(*CONSUME)
    assert [row[2] for row in invoices(shop)] == ["no JSON at all"]


def test_a_foreign_message_without_a_time_that_can_be_kept_is_still_consumed_once(shop, channel):
    """Its week is that of 1970, never the consumer's."""
    event_ids = [send(channel), send(channel, headers={"cloudEvents_time": "0000-01-05T00:00:00Z"}),
                 send(channel, timestamp=10**15), send(channel, timestamp=1794744000000)]  # milliseconds, not seconds
    shop.ok(*CONSUME)
    assert sorted(row[0] for row in invoices(shop)) == sorted(event_ids)
    assert shop.sql("SELECT DISTINCT week_start FROM semel_inbox") == [("1969-12-29",)]


class RawProperties(pika.BasicProperties):
    """Encoded properties, also such as pika would not write."""

    def __init__(self, raw):
        super().__init__()
        self.raw = raw

    def encode(self):
        return [self.raw]


def deep_properties(event_id, size=120_000):
    """A message id, and headers that are tables in tables, as deep as a frame has room for."""
    inner = b"".join(b"\0F" + left.to_bytes(4, "big") for left in range(size - 6, -1, -6))
    headers = len(inner).to_bytes(4, "big") + inner
    return RawProperties((1 << 13 | 1 << 7).to_bytes(2, "big") + headers + bytes([len(event_id)]) + event_id.encode())


def test_headers_that_are_nested_as_deep_as_a_frame_allows_are_read(shop, channel):
    """librabbitmq recurses when it decodes them; and where the stack limit is unlimited, threads get the smallest stacks."""
    event_id = str(uuid.uuid4())
    channel.basic_publish(TOPIC, "order.created.v1", b"{}", deep_properties(event_id), mandatory=True)
    config = shop.folder / "deep.yaml"
    config.write_text(f"subscriptions:\n- scope: billing\n  topics: [{TOPIC}]\n  sql: '{INVOICE}'\n")
    unlimited = (resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_STACK)[1])
    child = shop.spawn("--config", str(config), "run", preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, unlimited))
    wait_for(lambda: child.poll() is not None or invoices(shop), what="the effect")
    assert child.poll() is None
    assert [row[0] for row in invoices(shop)] == [event_id]
    assert shop.stop(child) == 0


# ---- TLS and secrets ----------------------------------------------------------------------------

SECRET = "s3cret-of-the-tests"


@pytest.fixture
def guarded(shop):
    """A role and a user that need their password, and URLs with certificates checked."""
    attached = mix.servers()
    role = f"careful_{shop.store.rpartition('/')[2]}"
    shop.sql(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{SECRET}'")
    shop.sql(f"GRANT careful TO {role}")
    attached.administrator.add_user(role, SECRET)
    attached.administrator.permit(role, shop.broker.name)
    name = shop.store.rpartition("/")[2]

    def urls(authority):
        return {"SEMEL_STORE": attached.postgres_url(name, f"{role}:{SECRET}", sslmode="verify-full", sslrootcert=authority),
                "SEMEL_BROKER": attached.rabbitmq_tls_url(shop.broker.name, f"{role}:{SECRET}") + f"?cacert={authority}"}
    yield urls
    shop.sql(f"REVOKE careful FROM {role}")


@pytest.mark.unless("rabbitmq-stream", reason="its URL has no parameter for streams")
def test_delivery_over_verified_certificates(shop, guarded):
    env = guarded(mix.servers().authority)
    event_id = shop.publish("--payload", '{"total": 5}', env=env)
    shop.ok("relay", "--drain", env=env)
    env["SEMEL_BROKER"] = env["SEMEL_BROKER"].replace("@localhost:", "@127.0.0.1:")  # an address that the certificate has, too
    shop.ok(*CONSUME, env=env)
    assert [row[0] for row in invoices(shop)] == [event_id]


def test_an_address_that_is_not_in_the_certificate_is_refused(shop, guarded):
    env = guarded(mix.servers().authority)
    shop.publish(env=env)
    proxy = Proxy(("127.0.0.1", mix.servers().endpoints["rabbitmq"]["tls_port"]), "127.0.0.2")
    elsewhere = re.sub(r"@localhost:\d+", f"@127.0.0.2:{proxy.port}", env["SEMEL_BROKER"])
    done = shop.run("relay", "--drain", env={**env, "SEMEL_BROKER": elsewhere})
    proxy.close()
    assert done.returncode == 78 and "its certificate must be for 127.0.0.2" in done.stderr, done.stderr
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(0,)]


class Folder:
    """As much of a sandbox as certificates need."""

    def __init__(self, folder):
        self.folder = folder


@pytest.mark.parametrize("which", ["SEMEL_STORE", "SEMEL_BROKER"])
def test_a_certificate_of_an_unknown_authority_is_refused(shop, guarded, tmp_path, which):
    right, wrong = guarded(mix.servers().authority), guarded(Certificates(Folder(tmp_path), "foreign").authority)
    shop.publish(env=right)
    done = shop.run("relay", "--drain", "--timeout", "3s", env={**right, which: wrong[which]})
    assert done.returncode in (69, 75, 78), done.stderr
    assert re.search("certificate|verif|SSL|TLS", done.stderr, re.IGNORECASE), done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(0,)]


@pytest.mark.parametrize("which", ["SEMEL_STORE", "SEMEL_BROKER"])
@pytest.mark.parametrize("damage", ["wrong password", "no server", "unknown name"])
def test_a_password_is_in_no_log_error_or_list_of_processes(shop, guarded, which, damage):
    env = {**guarded(mix.servers().authority), "SEMEL_LOG_LEVEL": "debug"}
    broken = {"wrong password": env[which].replace(SECRET, f"{SECRET}-typo"),
              "no server": re.sub(r"@(\w+|127.0.0.1):\d+", "@127.0.0.1:9", env[which]),
              "unknown name": re.sub(r"(:\d+)/[^?]+", r"\1/nowhere", env[which])}[damage]
    for words in (("relay", "--drain", "--timeout", "1s"), (*CONSUME, "--timeout", "1s"), ("verify",), ("dlq", "count")):
        done = shop.run(*words, env={**env, which: broken})
        assert SECRET not in done.stdout + done.stderr, (words, done.stderr)
    as_option = {"SEMEL_STORE": "--store", "SEMEL_BROKER": "--broker"}[which]
    done = shop.run(as_option, broken, "relay", "--drain", "--timeout", "1s", env=env)
    assert SECRET not in done.stdout + done.stderr


def test_a_password_comes_from_a_file(shop, guarded, tmp_path, monkeypatch):
    urls = guarded(mix.servers().authority)
    for key, url in urls.items():
        (tmp_path / key).write_text(url + "\n")
    env = {f"{key}_FILE": str(tmp_path / key) for key in urls}
    event_id = shop.publish()
    monkeypatch.setattr(shop.backend, "environment", dict)
    relay = shop.spawn("relay", env=env)
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", event_id),
             what="the event is published")
    for name in ("cmdline", "environ"):
        with open(f"/proc/{relay.pid}/{name}", "rb") as file:
            assert SECRET.encode() not in file.read()
    assert shop.stop(relay) == 0


def test_the_password_of_a_store_comes_from_a_passfile(shop, guarded, tmp_path):
    url = guarded(mix.servers().authority)["SEMEL_STORE"].replace(f":{SECRET}@", "@")
    passfile = tmp_path / "passfile"
    passfile.write_text(f"*:*:*:*:{SECRET}\n")
    passfile.chmod(0o600)  # libpq ignores one that others can read
    refused = shop.run("dlq", "count", env={"SEMEL_STORE": url, "PGPASSFILE": str(tmp_path / "none")})
    assert refused.returncode != 0 and "password" in refused.stderr, refused.stderr
    shop.ok("dlq", "count", env={"SEMEL_STORE": url, "PGPASSFILE": str(passfile)})
    shop.ok("dlq", "count", env={"SEMEL_STORE": f"{url}&passfile={passfile}"})


def test_users_with_the_rights_of_the_guide_can_do_their_work(shop):
    """configure, write and read, as docs/rabbitmq.md has them."""
    page = Path(TREE, "docs", "rabbitmq.md").read_text()
    rights = dict(re.findall(r"^rabbitmqctl set_permissions -p VHOST (\w+) (.*)$", page, re.M))
    env, attached = {}, mix.servers()
    for user, patterns in rights.items():
        name = f"{user}-{shop.broker.name}"
        attached.administrator.add_user(name, SECRET)
        attached.administrator.permit(name, shop.broker.name, *shlex.split(patterns))
        env[user] = {"SEMEL_BROKER": attached.rabbitmq_url(shop.broker.name, f"{name}:{SECRET}")}
    attached.administrator.delete_queues(shop.broker.name)
    attached.administrator.delete_exchange(shop.broker.name, TOPIC)
    retried = (*CONSUME, "--sql", "SELECT fail_when(:attempt < 4)")
    assert shop.run(*retried, env=env["relay"]).returncode == 78
    shop.ok(*retried, env=env["billing"])
    event_id = shop.publish()
    shop.ok("relay", "--drain", env=env["relay"])
    shop.ok(*retried, env=env["billing"])
    assert [row[0] for row in invoices(shop)] == [event_id]
