# SPDX-License-Identifier: Apache-2.0
"""A role that may create objects in the schema of Semel's tables, and has no other rights, gains none of another role."""
import json

import mix
import pytest
from program import TREE

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
T = "2026-11-10T10:00:00.000Z"
OUTBOX = """CREATE TABLE outbox (id uuid NOT NULL PRIMARY KEY, aggregatetype varchar(255) NOT NULL,
    aggregateid varchar(255) NOT NULL, type varchar(255) NOT NULL, at bigint, payload jsonb)"""
ADOPT = {"relay": {}, "adopt": {"time": "at"}}
# Each fits what the functions of version 7 called better than PostgreSQL's own does.
OVERLOADS = ("to_char(date, text)", "format(text, text, date, date)", "format(text, text)", "format(text, name)", "format(text, text, name)",
             "json_build_object(text, text)", "to_timestamp(numeric)", "hashtextextended(text, integer)")
OPERATORS = {"&": ("bigint", "integer"), "*": ("double precision", "integer"), "||": ("text", "oid")}
# As PostgreSQL's own: found first in sessions whose search_path has pg_catalog behind the schema.
SAME = ("btrim(text)", "octet_length(text)", "json_typeof(json)", "hashtextextended(text, bigint)", "gen_random_uuid()",
        "clock_timestamp()", "current_setting(text, boolean)", "lpad(text, integer, text)")
SAME_OPERATORS = {"=": ("text", "text"), "<>": ("text", "text"), ">": ("integer", "integer"), "||": ("text", "text")}
RESULTS = {"&": "bigint", "*": "double precision", "||": "text", "hashtextextended": "bigint", "json_build_object": "json",
           "to_timestamp": "timestamptz", "round": "numeric", "octet_length": "integer", "gen_random_uuid": "uuid", "clock_timestamp": "timestamptz"}
INSERT = "INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'a.v1', '{}')"


class Mallory:
    """A role that records as whom its functions were run."""

    def __init__(self, shop):
        self.shop = shop
        name = str(shop.store).rpartition("/")[2].split("?")[0]
        self.name, self.victim = f"mallory_{name}", f"victim_{name}"
        for role in (self.name, self.victim):
            shop.sql(f"CREATE ROLE {role} LOGIN")
        shop.sql(f"CREATE TABLE loot (who text); GRANT ALL ON loot TO PUBLIC; GRANT CREATE ON SCHEMA public TO {self.name}")
        self.database = mix.Database(mix.servers().postgres_url(name, self.name))

    def act(self, statement):
        """Runs the statement as this role, and commits."""
        connection = mix.connect(self.database)
        try:
            connection.execute(statement)
            connection.commit()
        finally:
            connection.close()

    def make(self, name, arguments):
        result = RESULTS.get(name, "boolean" if name in SAME_OPERATORS else "text")
        function = f"evil_{'_'.join(str(ord(c)) for c in name)}" if name in "&*||=<>" else name
        self.act(f"CREATE FUNCTION public.{function}({', '.join(arguments)}) RETURNS {result} LANGUAGE plpgsql AS $$"
                 " BEGIN INSERT INTO public.loot VALUES (current_user); RETURN NULL; END $$")
        if function != name:
            left, right = arguments
            self.act(f"CREATE OPERATOR public.{name} (FUNCTION = {function}, LEFTARG = {left}, RIGHTARG = {right})")

    def plant(self, functions, operators):
        for declared in functions:
            name, _, arguments = declared.partition("(")
            self.make(name, [word.strip() for word in arguments.rstrip(")").split(",") if word])
        for name, arguments in operators.items():
            self.make(name, arguments)

    def has(self):
        return {row[0] for row in self.shop.sql("SELECT DISTINCT who FROM loot")} - {self.name}


@pytest.fixture
def mallory(bare):
    bare.sql(OUTBOX)
    attacker = Mallory(bare)
    yield attacker
    for role in (attacker.name, attacker.victim):
        bare.sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def config(shop):
    file = shop.folder / "adopt.yaml"
    file.write_text(json.dumps(ADOPT))
    return ("--config", str(file))


def make_version_7(shop):
    """As the program of that version created it: the tables, and an adopted outbox."""
    for version, file in enumerate(sorted((TREE / "src" / "store" / "postgres" / "schema").glob("00[1-7]_*.sql")), 1):
        shop.sql(file.read_text())
        shop.sql(f"INSERT INTO semel_schema (version, applied_at) VALUES ({version}, '{T}')")
    shop.sql("CREATE FUNCTION semel_adopt_0123456789ab() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public,"
             " pg_temp AS $$ BEGIN INSERT INTO semel_outbox (id, aggregate_type, aggregate_id, event_type, topic, headers, created_at,"
             " payload) VALUES (NEW.id::text, NEW.aggregatetype, NEW.aggregateid, NEW.type, 'outbox.event.order',"
             " json_build_object('id', NEW.id::text), to_timestamp(NEW.at / 1000.0), NEW.payload::text); RETURN NULL; END $$")
    mapping = json.dumps({"id": "id", "key": "aggregateid", "route-by": "aggregatetype", "payload": "payload", "type": "type",
                          "time": "at", "topic": "outbox.event.${routedByValue}", "header": [], "headers": "router"})
    shop.sql(f"COMMENT ON FUNCTION semel_adopt_0123456789ab() IS '{mapping}'")
    shop.sql("CREATE TRIGGER semel_adopt AFTER INSERT ON outbox FOR EACH ROW EXECUTE FUNCTION semel_adopt_0123456789ab()")


@pytest.fixture(params=["fresh", "upgraded"])
def shop(bare, mallory, request):
    """With everything that runs with the rights of another role."""
    if request.param == "upgraded":
        make_version_7(bare)
    bare.sql(f"DROP TABLE IF EXISTS semel_inbox_{monday(bare)}")
    bare.ok("init") if request.param == "upgraded" else bare.ok(*config(bare), "init")
    bare.sql(f"GRANT INSERT ON outbox TO {mallory.name}; GRANT INSERT, SELECT (id) ON semel_outbox TO {mallory.victim};"
             f" GRANT USAGE ON SEQUENCE semel_outbox_seq TO {mallory.victim}")
    return bare


def monday(shop):
    return shop.sql("SELECT to_char(date_trunc('week', now() AT TIME ZONE 'UTC'), 'YYYYMMDD')")[0][0]


def as_victim(shop, mallory, statement, path="public"):
    connection = mix.connect(shop.store)
    try:
        connection.execute(f"SET ROLE {mallory.victim}")
        connection.execute(f"SET search_path = {path}")
        connection.execute(statement)
        connection.commit()
    finally:
        connection.close()


def test_overloads_of_one_role_are_never_run_as_another(shop, mallory):
    shop.sql(f"DROP TABLE semel_inbox_{monday(shop)}")
    mallory.plant(OVERLOADS, OPERATORS)
    with pytest.raises(Exception, match="permission denied for function"):
        mallory.act("SELECT semel_inbox_prepare()")
    shop.sql(f"GRANT EXECUTE ON FUNCTION semel_inbox_prepare() TO {mallory.name}")
    mallory.act("SELECT semel_inbox_prepare()")
    mallory.act("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 'a.v1', 1700000000123, '{}')")
    as_victim(shop, mallory, INSERT)
    as_victim(shop, mallory, "SELECT semel_publish('a.v1', 'order', '1', '{}'::jsonb)")
    shop.sql("SET semel.allow_truncate = 'on'; TRUNCATE semel_lease, semel_outbox")
    shop.sql(f"SELECT semel_inbox_drop('semel_inbox_{monday(shop)}', now())")
    assert mallory.has() == set()
    assert shop.sql("SELECT count(*) FROM semel_lease") == [(16,)]


def test_overloads_before_pg_catalog_do_not_reach_the_triggers_of_the_outbox(shop, mallory):
    mallory.plant(SAME, SAME_OPERATORS)
    as_victim(shop, mallory, INSERT, "public, pg_catalog")
    as_victim(shop, mallory, "SELECT public.semel_publish('a.v1'::text, 'order'::text, '1'::text, '{}'::text)", "public, pg_catalog")
    assert mallory.has() == set()
    assert [row[0] for row in shop.sql("SELECT DISTINCT lane = semel_lane('order', '1') FROM semel_outbox")] == [True]


def test_no_other_role_can_attach_trigger_functions_of_the_owner_to_its_own_table(shop, mallory):
    ((name,),) = shop.sql("SELECT proname FROM pg_proc WHERE proname ~ '^semel_adopt_[0-9a-f]{12}$'"
                          " AND oid IN (SELECT tgfoid FROM pg_trigger WHERE tgname = 'semel_adopt')")
    mallory.act("CREATE TABLE public.mine (id uuid)")
    with pytest.raises(Exception, match="permission denied for function"):
        mallory.act(f"CREATE TRIGGER t AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION {name}()")


def test_init_refuses_to_work_among_overloads_of_others_and_none_is_run(bare, mallory):
    mallory.plant(("format(text, text)", "format(text, text, name)"), {})
    complaint = bare.fails(78, "init")
    assert "function public.format" in complaint and mallory.name in complaint and "REVOKE CREATE" in complaint
    assert mallory.has() == set()
    assert bare.sql("SELECT to_regclass('semel_outbox')") == [(None,)]
    bare.sql("DROP FUNCTION public.format(text, text), public.format(text, text, name)")
    mallory.plant(("round(double precision, integer)",), {})  # which init does not call
    bare.ok("init")
    done = bare.run("doctor", "--json")
    (found,) = [one for one in json.loads(done.stdout)["findings"] if "function public.round" in one["text"]]
    assert found["check"] == "store-schema-rights" and found["gravity"] == "advice" and mallory.name in found["text"]


def test_consumers_from_before_an_upgrade_can_still_prepare_the_inbox(bare, mallory):
    make_version_7(bare)
    bare.sql(f"GRANT INSERT, SELECT ON semel_inbox TO {mallory.victim}; GRANT INSERT ON semel_audit TO {mallory.victim}")
    bare.ok("init")
    as_victim(bare, mallory, "INSERT INTO semel_audit (at, who, what) VALUES (now(), 'operator', 'pause') RETURNING number")
    assert bare.sql("SELECT has_column_privilege(?, 'semel_audit', 'outcome', 'UPDATE')", mallory.victim) == [(True,)]
    may_execute = "SELECT has_function_privilege(?, 'semel_inbox_prepare()', 'EXECUTE')"
    assert bare.sql(may_execute, mallory.victim) == [(True,)] and bare.sql(may_execute, mallory.name) == [(False,)]
    bare.sql(f"REVOKE EXECUTE ON FUNCTION semel_inbox_prepare() FROM {mallory.victim}")
    bare.ok("init")  # which does not grant again what was revoked
    assert bare.sql(may_execute, mallory.victim) == [(False,)]


def test_functions_that_were_changed_are_restored_by_init(bare, mallory):
    bare.ok("init")
    definitions = "SELECT proname, pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'semel%' ORDER BY 1, 2"
    before = bare.sql(definitions)
    bare.sql("ALTER FUNCTION semel_inbox_prepare() SET search_path = public; ALTER FUNCTION semel_uuid7() SECURITY DEFINER;"
             " ALTER FUNCTION semel_try_claim RESET search_path; DROP FUNCTION semel_states_look")
    assert bare.sql(definitions) != before
    bare.ok("init")
    assert bare.sql(definitions) == before


def test_doctor_reports_triggers_of_other_roles_on_the_tables(bare, mallory):
    bare.ok("init")
    bare.sql(f"GRANT TRIGGER ON semel_outbox TO {mallory.name}")
    mallory.act("CREATE FUNCTION public.listen() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
                " INSERT INTO public.loot VALUES (current_user); RETURN NULL; END $$")
    mallory.act("CREATE TRIGGER listen AFTER INSERT ON public.semel_outbox FOR EACH ROW EXECUTE FUNCTION public.listen()")
    done = bare.run("doctor", "--json")
    (found,) = [one for one in json.loads(done.stdout)["findings"] if "trigger listen on table semel_outbox" in one["text"]]
    assert found["check"] == "store-schema-rights" and f"listen() of {mallory.name}" in found["text"]


def test_what_init_creates_again_is_not_granted_to_public(bare, mallory):
    """As after a restore without the grants (pg_restore --no-acl), or after it was dropped."""
    bare.ok(*config(bare), "init")
    ((adopted,),) = bare.sql("SELECT proname FROM pg_proc WHERE proname ~ '^semel_adopt_[0-9a-f]{12}$'")
    bare.sql("DROP FUNCTION semel_inbox_drop(text, timestamptz)")
    bare.sql(f"UPDATE pg_proc SET proacl = NULL WHERE proname IN ('semel_inbox_prepare', '{adopted}', 'semel_outbox_ring')")
    bare.ok("init")
    assert bare.sql("SELECT proname FROM pg_proc WHERE proname LIKE 'semel%' AND (prosecdef OR prorettype = 'trigger'::regtype)"
                    " AND has_function_privilege('public', oid, 'EXECUTE')") == []
    bare.sql("GRANT EXECUTE ON FUNCTION semel_inbox_prepare() TO PUBLIC")  # on purpose: it stays, and doctor reports it
    bare.ok("init")
    assert bare.sql("SELECT has_function_privilege('public', 'semel_inbox_prepare()', 'EXECUTE')") == [(True,)]


def test_init_adopts_no_table_that_only_appears_adopted(bare, mallory):
    """A type of another role may have a cast of that role, which would run with the rights of init."""
    bare.ok("init")
    mallory.act("CREATE TYPE public.trick AS (v text)")
    mallory.act("CREATE FUNCTION public.reveal(public.trick) RETURNS text LANGUAGE plpgsql AS $$ BEGIN"
                " INSERT INTO public.loot VALUES (current_user); RETURN 'x'; END $$")
    mallory.act("CREATE CAST (public.trick AS text) WITH FUNCTION public.reveal(public.trick) AS ASSIGNMENT")
    mallory.act("CREATE TABLE public.mine (id public.trick, aggregatetype text, aggregateid text, type text, at bigint, payload jsonb)")
    mallory.act("CREATE FUNCTION public.semel_adopt_000000000000() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    mapping = json.dumps({"id": "id", "key": "aggregateid", "route-by": "aggregatetype", "payload": "payload", "type": "type",
                          "time": "at", "topic": "outbox.event.${routedByValue}", "header": [], "headers": "router"})
    mallory.act(f"COMMENT ON FUNCTION public.semel_adopt_000000000000() IS '{mapping}'")
    mallory.act("CREATE TRIGGER semel_adopt AFTER INSERT ON public.mine FOR EACH ROW EXECUTE FUNCTION public.semel_adopt_000000000000()")
    bare.ok("init")
    mallory.act("INSERT INTO public.mine VALUES (ROW('x')::public.trick, 'order', '1', 'a.v1', 1, '{}')")
    assert mallory.has() == set()
    assert bare.sql("SELECT count(*) FROM semel_outbox") == [(0,)]


def test_init_replaces_no_function_of_another_role(bare, mallory):
    """CREATE OR REPLACE keeps the owner of a function, who can change it at any time."""
    make_version_7(bare)
    mallory.act("CREATE FUNCTION public.semel_adopt(regclass, text, json, boolean) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN"
                " INSERT INTO public.loot VALUES (current_user); RETURN false; END $$")
    complaint = bare.fails(78, *config(bare), "init")
    assert "semel_adopt" in complaint and mallory.name in complaint
    assert mallory.has() == set() and bare.sql("SELECT max(version) FROM semel_schema") == [(7,)]
    mallory.act("DROP FUNCTION public.semel_adopt(regclass, text, json, boolean)")
    ((number,),) = bare.sql("SELECT left(md5('outbox'::regclass::oid::text), 12)")
    bare.sql("DROP TRIGGER semel_adopt ON outbox")
    mallory.act(f"CREATE FUNCTION public.semel_adopt_{number}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    complaint = bare.fails(78, *config(bare), "init")
    assert f"semel_adopt_{number}" in complaint and mallory.name in complaint


def test_an_adopted_table_whose_trigger_is_disabled_stays_so(bare, mallory):
    make_version_7(bare)
    bare.sql("ALTER TABLE outbox DISABLE TRIGGER semel_adopt")
    bare.ok("init")
    bare.sql("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 'a.v1', 1700000000123, '{}')")
    assert bare.sql("SELECT count(*) FROM semel_outbox") == [(0,)]


def test_what_a_superuser_makes_for_the_owner_of_the_tables_is_the_owners(bare, mallory):
    """Else the triggers of adopted tables, with casts of their types, would run as a superuser."""
    make_version_7(bare)
    bare.sql("DO $$ DECLARE one record; BEGIN FOR one IN SELECT oid::regclass AS name FROM pg_class WHERE relname ~ '^semel_'"
             f" AND relkind IN ('r', 'p') LOOP EXECUTE 'ALTER TABLE ' || one.name || ' OWNER TO {mallory.victim}'; END LOOP; END $$")
    bare.ok(*config(bare), "init")
    bare.sql("DROP TRIGGER semel_adopt ON outbox")
    bare.ok(*config(bare), "init")
    assert bare.sql("SELECT proname FROM pg_proc WHERE oid IN (SELECT tgfoid FROM pg_trigger WHERE tgname = 'semel_adopt')"
                    " AND proowner <> ?::regrole", mallory.victim) == []
    as_victim(bare, mallory, "SELECT semel_inbox_prepare()")  # whose owner may create here, and stays
    bare.sql(f"GRANT CREATE ON SCHEMA public TO {mallory.victim}; ALTER FUNCTION semel_inbox_prepare() SET search_path = public")
    bare.ok("init")
    assert bare.sql("SELECT proowner = ?::regrole FROM pg_proc WHERE proname = 'semel_inbox_prepare'", mallory.victim) == [(True,)]
    bare.sql("INSERT INTO outbox VALUES (gen_random_uuid(), 'order', '1', 'a.v1', 1700000000123, '{}')")
    assert bare.sql("SELECT count(*) FROM semel_outbox") == [(1,)]
    bare.sql(f"GRANT {mallory.victim} TO {mallory.name}; ALTER FUNCTION semel_publish(text, text, text, text, json, text, text)"
             f" OWNER TO {mallory.name}")
    bare.ok("init")  # a member of the owner may do what the owner may
