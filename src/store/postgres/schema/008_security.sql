-- SPDX-License-Identifier: Apache-2.0
-- ---- whose code runs with whose rights -----------------------------------------------------------

-- Whoever may create functions or operators in a schema of the search_path can have his own ones run
-- instead of PostgreSQL's: pg_catalog is searched first, but an overload that fits the types better
-- wins from any schema. So:
-- 1. Every function of ours (functions.sql) has search_path = pg_catalog, pg_temp, and names tables
--    and functions of ours with their schema. Those that run for each event that is published have
--    no search_path of their own, which costs more than all they do; there every function, operator,
--    type and collation is written with pg_catalog.
-- 2. Rights of the owner (SECURITY DEFINER) have only those that cannot do without:
--    semel_inbox_prepare (a consumer cannot make tables), semel_inbox_drop (whoever prunes cannot
--    drop them) and the triggers of adopted tables (the application has no rights on ours). What a
--    caller can reach by them stands at each.
-- 3. What runs with the owner's rights, and what only triggers call, is not for PUBLIC. The rest runs
--    with the caller's own rights, and does nothing that he could not do by himself.
-- 4. Defaults, constraints and indexes are bound to functions when they are made.
-- 5. `semel init` refuses to work where another role has overloads of PostgreSQL's functions or
--    operators in the search_path. `semel doctor` reports who may create in the schema of the tables.

-- The table of its name was an argument, and was resolved with our search_path.
DROP FUNCTION IF EXISTS semel_adopt(text, json, boolean);

-- Consumers that are at work go on as before: whoever may insert claims may have a week made.
DO $$
DECLARE
	place CONSTANT pg_catalog.oid := (SELECT c.relnamespace FROM pg_catalog.pg_class AS c
		WHERE c.oid OPERATOR(pg_catalog.=) 'semel_outbox'::pg_catalog.regclass::pg_catalog.oid);
	claims CONSTANT pg_catalog.regclass := 'semel_inbox';
	weeks CONSTANT pg_catalog.regprocedure := 'semel_inbox_prepare()';
	path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path'::pg_catalog.text);
	was_public boolean;
	name text;
BEGIN
	PERFORM pg_catalog.set_config('search_path'::pg_catalog.text,
		'pg_catalog, pg_temp'::pg_catalog.text, true);
	was_public := has_function_privilege('public', weeks, 'EXECUTE');
	FOR name IN SELECT p.oid::regprocedure::text FROM pg_proc AS p
		WHERE p.pronamespace = place AND p.proname LIKE 'semel\_%' AND (p.prosecdef
			OR p.prorettype = 'trigger'::regtype OR p.proname = 'semel_inbox_drop') LOOP
		EXECUTE 'REVOKE ALL ON FUNCTION ' || name || ' FROM PUBLIC';
	END LOOP;
	FOR name IN SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
		FROM pg_class AS c, aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a
		WHERE was_public AND c.oid = claims AND a.privilege_type = 'INSERT'
			AND a.grantee <> (SELECT p.proowner FROM pg_proc AS p WHERE p.oid = weeks) LOOP
		EXECUTE 'GRANT EXECUTE ON FUNCTION ' || weeks || ' TO ' || name;
	END LOOP;
	PERFORM set_config('search_path', path, true);
END $$;

-- ---- the audit ---------------------------------------------------------------------------------

-- How it ended; NULL in rows that are older than the column.
ALTER TABLE semel_audit ADD COLUMN outcome text;

-- Running admin servers continue as before: a role that may insert a row may add its outcome.
DO $$
DECLARE
	audit CONSTANT pg_catalog.regclass := 'semel_audit';
	path CONSTANT pg_catalog.text := pg_catalog.current_setting('search_path'::pg_catalog.text);
	name text;
BEGIN
	PERFORM pg_catalog.set_config('search_path'::pg_catalog.text,
		'pg_catalog, pg_temp'::pg_catalog.text, true);
	FOR name IN SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE a.grantee::regrole::text END
		FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = audit
			AND a.privilege_type = 'INSERT' AND a.grantee <> c.relowner LOOP
		EXECUTE 'GRANT SELECT (number), UPDATE (outcome) ON ' || audit || ' TO ' || name;
	END LOOP;
	PERFORM set_config('search_path', path, true);
END $$;
