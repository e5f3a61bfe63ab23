# SPDX-License-Identifier: Apache-2.0
"""The roles of docs/postgresql.md, with the rights of that page, and the tables in a schema of their own: each does all of its
work, and is refused the work of the others."""
import json
import re
from pathlib import Path

import mix
import pytest
from program import TREE, wait_for
from server import Server

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
ROLES = ("semel_owner", "semel_producer", "semel_relay_role", "semel_consumer_role", "semel_reader", "semel_operator", "semel_pruner")
HANDLER = "INSERT INTO invoice VALUES (:aggregate_id, (:payload::json ->> 'total')::integer)"


class Company:
    """A database with all roles of the guide. They are the server's, so each test has names of its own for them."""

    def __init__(self, shop):
        self.shop = shop
        self.name = str(shop.store).rpartition("/")[2].split("?")[0]
        self.make, self.grant, self.stream = self.statements()
        for role in ROLES[1:]:
            shop.sql(f"CREATE ROLE {self.own(role)} LOGIN")
        shop.sql(self.make)
        shop.ok("init", env=self.env("semel_owner"))
        shop.sql("SET search_path = semel; " + self.grant)
        shop.sql("CREATE TABLE public.invoice (id text PRIMARY KEY, total integer NOT NULL CHECK (total > 0))")
        shop.sql(f"GRANT INSERT ON public.invoice TO {self.own('semel_consumer_role')}")
        shop.backend.witness("order.events")
        shop.subscribe("billing", "mail", "retry", "lax")

    def own(self, text):
        """With the names that the roles have here."""
        return re.sub(r"\b(" + "|".join(ROLES) + r")\b", rf"\1_{self.name}", text)

    def statements(self):
        """The blocks of the page's section, unchanged but for the names of the roles."""
        page = Path(TREE, "docs", "postgresql.md").read_text()
        section = page.partition("\n## Roles\n")[2].partition("\n## ")[0]
        return [self.own(block) for block in re.findall(r"```sql\n(.*?)```", section, re.S)]

    def url(self, role):
        options = "options=-csearch_path%3Dsemel,public"
        return f"{mix.servers().postgres_url(self.name, self.own(role))}?{options}"

    def env(self, role):
        return {"SEMEL_STORE": self.url(role)}

    def ok(self, role, *words):
        return self.shop.ok(*words, env=self.env(role))

    def sql(self, role, statement, *parameters):
        connection = mix.connect(mix.Database(mix.servers().postgres_url(self.name, self.own(role))))
        try:
            connection.execute("SET search_path = semel, public")
            rows = connection.execute(statement, parameters).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def publish(self, aggregate, total):
        return self.sql("semel_producer", "SELECT semel_publish('order.created.v1', 'order', ?, ?)", aggregate,
                        json.dumps({"total": total}))[0][0]

    def consume(self, scope="billing", *words):
        return self.ok("semel_consumer_role", "consume", "--scope", scope, "--topic", "order.events", "--attempts", "3",
                       "--first-delay", "1ms", "--drain", *(words or ("--sql", HANDLER)))

    def invoices(self):
        return sorted(row[0] for row in self.shop.sql("SELECT id FROM public.invoice"))


@pytest.fixture
def company(bare):
    roles = Company(bare)
    yield roles
    for role in map(roles.own, ROLES):
        bare.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_each_role_does_its_work_with_the_rights_of_the_guide(company):
    shop = company.shop
    company.ok("semel_producer", "publish", "--type", "order.created.v1", "--aggregate", "order:c", "--payload", '{"total": 5}')
    company.sql("semel_producer", "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                " VALUES ('order', 'plain', 'order.created.v1', '{\"total\": 5}')")
    bad = company.publish("bad", 0)
    for name, total in (("bad", 7), ("worse", 0), ("worst", 0), ("good", 7)):
        company.publish(name, total)
    company.ok("semel_relay_role", "relay", "--drain")
    company.consume()
    assert company.invoices() == ["c", "good", "plain"]
    company.consume("mail", "--exec", "true", "--claim", "separate", "--dedup-by", "header:none", "--order", "strict")
    company.consume("retry", "--exec", "exit 1", "--poison", "skip")
    company.consume("lax", "--exec", "true", "--guarantee", "at-least-once")

    letters = dict(shop.sql("SELECT aggregate_id, entry_id FROM semel.semel_dead_letter WHERE parked_behind IS NULL AND scope = 'billing'"))
    assert set(letters) == {"bad", "worse", "worst"}
    for words in (("dlq", "list", "--json"), ("dlq", "show", letters["bad"]), ("trace", bad), ("subscriptions", "list"), ("top", "--json")):
        company.ok("semel_reader", *words)
    shop.sql("ALTER TABLE public.invoice DROP CONSTRAINT invoice_total_check; ALTER TABLE public.invoice DROP CONSTRAINT invoice_pkey")
    company.ok("semel_operator", "dlq", "discard", letters["worst"], "--reason", "never paid")
    company.ok("semel_operator", "dlq", "replay", letters["bad"])
    check_admin_server(company, letters["worse"], bad)
    company.ok("semel_operator", "repair")
    company.consume()
    assert company.invoices() == ["bad", "bad", "c", "good", "plain", "worse"]
    company.ok("semel_operator", "replay", "--scope", "billing", "--reprocess", "--aggregate", "order:good")
    company.ok("semel_operator", "replay", "--aggregate", "order:good")
    company.consume()
    assert company.invoices().count("good") == 2
    company.ok("semel_reader", "verify", "--wait", "60s")


def check_admin_server(company, entry, event):
    """As the role that may operate, and as the one that may only read."""
    operator = Server(company.shop, env=company.env("semel_operator"))
    for path in ("outbox", "subscriptions", "dlq", "dlq/count", "audit", f"trace/{event}"):
        assert operator.ask(f"/api/admin/{path}")[0] == 200, path
    for path in (f"dlq/{entry}/replay", "subscriptions/billing/pause", "subscriptions/billing/resume"):
        code, _, text = operator.ask(f"/api/admin/{path}", "POST", headers={"Content-Type": "application/json"}, body=b"{}")
        assert code < 300, text
    assert [row["outcome"] for row in operator.json("/api/admin/audit?limit=3")] == ["done"] * 3
    reader = Server(company.shop, env=company.env("semel_reader"))
    assert reader.ask("/api/admin/dlq")[0] == 200
    code, _, text = reader.ask("/api/admin/subscriptions/billing/pause", "POST", headers={"Content-Type": "application/json"}, body=b"{}")
    assert code >= 400, text
    assert company.shop.sql("SELECT paused FROM semel.semel_subscription WHERE scope = 'billing'") == [(False,)]


def test_whoever_prunes_needs_no_more_than_the_rights_of_the_guide(company):
    shop = company.shop
    for number in range(3):
        company.publish(f"p{number}", 5 if number else 0)
    company.ok("semel_relay_role", "relay", "--drain")
    company.consume()
    shop.sql("SET search_path = semel; SET session_replication_role = replica;"
             " UPDATE semel_outbox SET committed_at = '2020-01-01', created_at = '2020-01-01';"
             " UPDATE semel_dead_letter SET failed_at = '2020-01-01';"
             " CREATE TABLE semel_inbox_20200106 PARTITION OF semel_inbox FOR VALUES FROM ('2020-01-06') TO ('2020-01-13');"
             " ALTER TABLE semel_inbox_20200106 OWNER TO " + company.own("semel_owner") + ";"
             " INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, topic) VALUES"
             " ('old', 'a', '2020-01-06', 'PROCESSED', '2020-01-06', 't'), ('old', 'b', '2019-01-07', 'PROCESSED', '2019-01-07', 't')")
    gone = json.loads(company.ok("semel_pruner", "prune", "--json"))
    assert (gone["outbox"], gone["inbox"], gone["deadLetters"]) == (3, 2, 1), gone
    assert shop.sql("SELECT to_regclass('semel.semel_inbox_20200106')") == [(None,)]


def test_the_change_stream_is_read_with_the_rights_of_the_guide(company):
    company.shop.sql(company.stream)
    slot = ("--slot", company.name)
    company.ok("semel_owner", "init", "--cdc", *slot)
    company.publish("streamed", 5)
    company.ok("semel_relay_role", "relay", "--source", "cdc", *slot, "--drain")
    assert company.shop.sql("SELECT status FROM semel.semel_outbox") == [("PUBLISHED",)]
    for statement in (f"SELECT pg_drop_replication_slot('{company.name}')", "DROP PUBLICATION semel"):
        with pytest.raises(Exception, match="replication role|REPLICATION|must be owner of publication"):
            company.sql("semel_consumer_role", statement)
    company.shop.sql("SELECT pg_drop_replication_slot(?)", company.name)


def test_locks_and_notifications_of_another_role_stop_no_process(company):
    """Every role of the database may take advisory locks, and notify on every channel."""
    foreign = f"foreign_{company.name}"
    company.shop.sql(f"CREATE ROLE {foreign} LOGIN")
    connection = mix.connect(mix.Database(mix.servers().postgres_url(company.name, foreign)))
    ((number,),) = connection.execute("SELECT oid::bigint FROM pg_class WHERE relname = 'semel_outbox'")
    connection.execute("SELECT pg_advisory_lock(1936026988), pg_advisory_lock(?::oid::int, 1936026988)", (number,))
    connection.commit()
    relay = company.shop.spawn("relay", env=company.env("semel_relay_role"))
    for round_ in range(3):
        connection.execute("SELECT pg_notify(?, repeat('x', 7000))", (f"semel_outbox_{number}",))
        connection.commit()
        company.publish(f"n{round_}", 5)
        wait_for(lambda sent=round_ + 1: company.shop.sql("SELECT count(*) FROM semel.semel_outbox WHERE status = 'PUBLISHED'") == [(sent,)])
    assert relay.poll() is None
    connection.close()
    company.shop.sql(f"DROP ROLE {foreign}")


def test_a_start_with_the_rights_of_the_relay_finds_the_tables_made(company):
    """As older units did: init before each start, with the role of the service."""
    company.ok("semel_relay_role", "init")


REFUSED = {
    "semel_producer": ("SELECT * FROM semel_inbox", "SELECT payload FROM semel_outbox", "DELETE FROM semel_outbox",
                       "UPDATE semel_outbox SET status = 'PUBLISHED'", "UPDATE semel_lease SET owner = ''", "TRUNCATE semel_outbox",
                       "SELECT semel_try_claim('billing', 'x', now(), 't')", "SELECT semel_inbox_prepare()",
                       "SELECT setval('semel_outbox_seq', 1)", "CREATE TABLE semel.mine ()"),
    "semel_relay_role": ("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('a', 'b', 'c', '{}')",
                         "DELETE FROM semel_outbox", "SELECT * FROM semel_inbox", "DELETE FROM semel_dead_letter",
                         "INSERT INTO semel_audit (at, who, what) VALUES (now(), 'me', 'x')", "SELECT setval('semel_outbox_seq', 1)"),
    "semel_consumer_role": ("SELECT * FROM semel_outbox", "SELECT semel_publish('a.v1', 'a', 'b', '{}')", "SELECT * FROM semel_audit",
                            "INSERT INTO semel_audit (at, who, what) VALUES (now(), 'me', 'x')", "UPDATE semel_lease SET owner = ''",
                            "DELETE FROM semel_subscription", "SELECT semel_inbox_drop('semel_inbox_20200106', now())",
                            "DROP TABLE semel_inbox_other", "CREATE FUNCTION semel.f() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
    "semel_reader": ("UPDATE semel_subscription SET paused = true", "DELETE FROM semel_dead_letter", "DELETE FROM semel_inbox",
                     "INSERT INTO semel_audit (at, who, what) VALUES (now(), 'me', 'x')", "SELECT semel_inbox_prepare()"),
    "semel_operator": ("DELETE FROM semel_audit", "UPDATE semel_audit SET who = 'you'", "DELETE FROM semel_outbox",
                       "SELECT semel_publish('a.v1', 'a', 'b', '{}')", "DELETE FROM semel_subscription",
                       "SELECT semel_inbox_drop('semel_inbox_20200106', now())"),
    "semel_pruner": ("UPDATE semel_outbox SET status = 'NEW'", "DELETE FROM semel_audit", "SELECT semel_inbox_drop('invoice', now())",
                     "SELECT semel_publish('a.v1', 'a', 'b', '{}')", "UPDATE semel_subscription SET paused = true"),
}


def test_each_role_is_refused_the_work_of_the_others(company):
    for role, statements in REFUSED.items():
        for statement in statements:
            with pytest.raises(Exception, match="permission denied|must be owner|is not a weekly partition of the inbox"):
                company.sql(role, statement)
                raise AssertionError(f"{role} may: {statement}")


def findings(company, role, check, **sections):
    file = company.shop.folder / "doctor.yaml"
    file.write_text(json.dumps(sections))
    done = company.shop.run("--config", str(file), "doctor", "--json", env=company.env(role))
    return [finding for finding in json.loads(done.stdout)["findings"] if finding["check"] == check]


def test_doctor_reports_roles_with_too_many_rights_in_the_schema(company):
    shop, billing = company.shop, {"subscriptions": [{"scope": "billing", "topics": ["order.events"], "exec": "true"}]}
    (found,) = findings(company, "semel_relay_role", "store-rights", relay={})
    assert found["gravity"] == "fine", found
    (found,) = findings(company, "semel_consumer_role", "store-rights", **billing)
    assert found["gravity"] == "fine", found
    shop.sql(company.own("REVOKE EXECUTE ON FUNCTION semel.semel_inbox_prepare() FROM semel_consumer_role"))
    (found,) = findings(company, "semel_consumer_role", "store-rights", **billing)
    assert "GRANT EXECUTE ON FUNCTION semel_inbox_prepare() TO" in found["do"]

    (found,) = findings(company, "semel_reader", "store-schema-rights", relay={})
    assert found["gravity"] == "fine", found
    for who, gravity in ((company.own("semel_producer"), "advice"), ("PUBLIC", "problem")):
        shop.sql(f"GRANT CREATE ON SCHEMA semel TO {who}")
        (found,) = findings(company, "semel_reader", "store-schema-rights", relay={})
        assert found["gravity"] == gravity and who in found["text"], found
        shop.sql(found["do"])
    shop.sql("ALTER FUNCTION semel.semel_inbox_prepare() SET search_path = semel; GRANT SELECT ON semel.semel_audit TO PUBLIC")
    wrong, public = findings(company, "semel_reader", "store-schema-rights", relay={})
    assert wrong["gravity"] == "problem" and "semel_inbox_prepare" in wrong["text"] and "init" in wrong["do"]
    assert public["gravity"] == "advice" and "SELECT on semel_audit" in public["text"]
    shop.sql(public["do"])
    company.ok("semel_owner", "init")
    (found,) = findings(company, "semel_reader", "store-schema-rights", relay={})
    assert found["gravity"] == "fine", found
    shop.sql("ALTER SCHEMA semel RENAME TO elsewhere")  # which is not in the search_path of the functions
    env = {"SEMEL_STORE": company.url("semel_owner").replace("%3Dsemel", "%3Delsewhere")}
    done = shop.run("doctor", "--json", env=env)
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "store-schema-rights"]
    assert found["gravity"] == "problem" and "semel_publish" in found["text"] and "init" in found["do"], found
    shop.ok("init", env=env)
    done = shop.run("doctor", "--json", env=env)
    (found,) = [one for one in json.loads(done.stdout)["findings"] if one["check"] == "store-schema-rights"]
    assert found["gravity"] == "fine", found
