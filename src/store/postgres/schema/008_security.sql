-- SPDX-License-Identifier: Apache-2.0
-- ---- whose code runs with whose rights -----------------------------------------------------------

-- A role that may create functions or operators in a schema of the search_path can have its own run
-- instead of PostgreSQL's: pg_catalog is searched first, but an overload that fits the argument
-- types better is chosen from any schema. So:
-- 1. Each of our functions (functions.sql) has search_path = pg_catalog, pg_temp, and qualifies our
--    tables and functions with their schema. Functions that run for each published event have no
--    search_path of their own, which would cost more than everything they do; in them every
--    function, operator, type and collation is qualified with pg_catalog.
-- 2. Only functions that need them run with the owner's rights (SECURITY DEFINER):
--    semel_inbox_prepare (a consumer may not create tables), semel_inbox_drop (a role that prunes
--    may not drop tables) and the triggers of adopted tables (the application has no rights on our
--    tables). The comment of each states what a caller can do with it.
-- 3. PUBLIC may not execute functions that run with the owner's rights or that only triggers call.
--    All other functions run with the caller's rights, and do nothing that the caller could not do
--    without them.
-- 4. Defaults, constraints and indexes are bound to functions when they are created.
-- 5. `semel init` refuses to work if another role has overloads of PostgreSQL's functions or
--    operators in the search_path. `semel doctor` reports which roles may create objects in the
--    schema of the tables.

-- The argument of this version was the name of a table, resolved with our search_path.
DROP FUNCTION IF EXISTS semel_adopt(text, json, boolean);

-- Running consumers continue as before: a role that may insert claims may have partitions created.
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

-- How the action ended; NULL in rows that are older than the column.
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
