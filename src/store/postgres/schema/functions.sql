-- SPDX-License-Identifier: Apache-2.0
-- All our functions, by the rules at the head of 008_security.sql. Run by every `semel init`: it
-- replaces a function that is not as written here, for example after the schema was renamed.
-- @. stands for the schema of the tables, @place for its name as a literal.
DO $init$
DECLARE
	place pg_catalog.text := (SELECT pg_catalog.quote_ident(n.nspname::pg_catalog.text)
		FROM pg_catalog.pg_class AS c
		JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
		WHERE c.oid OPERATOR(pg_catalog.=) 'semel_outbox'::pg_catalog.regclass::pg_catalog.oid);
	closed CONSTANT pg_catalog.text := 'pg_catalog, pg_temp';
	wanted record;
	body text;
	stranger text;
	trusted oid[];
	-- the owner of the tables, if a superuser runs init for it and it may create partitions
	heir text;
	may_make boolean;
BEGIN
	-- For the rest of the transaction no name is resolved in a schema that others may write to.
	PERFORM pg_catalog.set_config('search_path'::pg_catalog.text, closed, true);
	-- CREATE OR REPLACE keeps the owner of an existing function.
	SELECT array_agg(r.oid), bool_or(r.oid = c.relowner AND pg_has_role(r.oid, 'USAGE')),
			min(CASE WHEN r.rolname = current_user AND r.rolsuper
				AND has_schema_privilege(c.relowner, n.oid, 'CREATE') THEN c.relowner::regrole::text END)
		INTO trusted, may_make, heir FROM pg_roles AS r, pg_class AS c
		JOIN pg_namespace AS n ON n.oid = c.relnamespace
		WHERE c.oid = (place || '.semel_outbox')::regclass
			AND (pg_has_role(r.oid, c.relowner, 'MEMBER') OR r.rolname = current_user
				OR r.oid = n.nspowner);
	-- caller: runs with the caller's rights; owner: with the owner's; hot: with the caller's,
	-- and so often that a search_path of its own would cost more than everything it does: each
	-- name is qualified.
	FOR wanted IN SELECT * FROM (VALUES

-- A UUIDv7: milliseconds since 1970, then random bits.
('semel_uuid7()', 'semel_uuid7()', 'hot',
'RETURNS text LANGUAGE sql VOLATILE PARALLEL SAFE', $$
	SELECT overlay(pg_catalog.lpad(pg_catalog.to_hex((pg_catalog.date_part('epoch',
		pg_catalog.clock_timestamp()) OPERATOR(pg_catalog.*) 1000)::bigint), 12, '0')
		PLACING '-' FROM 9 FOR 0) OPERATOR(pg_catalog.||) '-7' OPERATOR(pg_catalog.||)
		pg_catalog.substr(pg_catalog.gen_random_uuid()::pg_catalog.text, 16)
$$),

-- The lane of an aggregate. There are as many lanes as semel_lease has rows.
('semel_lane(aggregate_type text, aggregate_id text)', 'semel_lane(text, text)', 'hot',
'RETURNS smallint LANGUAGE sql IMMUTABLE PARALLEL SAFE', $$
	SELECT (pg_catalog.hashtextextended(aggregate_id COLLATE pg_catalog."C",
		pg_catalog.hashtextextended(aggregate_type COLLATE pg_catalog."C", 0))
		OPERATOR(pg_catalog.&) 15)::smallint
$$),

-- Every business transaction pays for what is checked here. One expression in a trigger costs a
-- microsecond; a generated column and CHECK constraints, which are read again for each statement,
-- cost twenty. Holds, exceptions and an index have the name of an aggregate as their key, and the
-- size of a key is limited: a row written by hand is refused at once, not later by the broker.
('semel_outbox_complete()', 'semel_outbox_complete()', 'hot', 'RETURNS trigger LANGUAGE plpgsql', $$
DECLARE
	wrong pg_catalog.text;
BEGIN
	IF pg_catalog.btrim(NEW.aggregate_type) OPERATOR(pg_catalog.=) ''
		OR pg_catalog.btrim(NEW.aggregate_id) OPERATOR(pg_catalog.=) ''
		OR pg_catalog.btrim(NEW.event_type) OPERATOR(pg_catalog.=) ''
		OR pg_catalog.btrim(NEW.topic) OPERATOR(pg_catalog.=) ''
		OR pg_catalog.btrim(NEW.id) OPERATOR(pg_catalog.=) ''
		OR pg_catalog.octet_length(NEW.id) OPERATOR(pg_catalog.>) 255
		OR pg_catalog.json_typeof(NEW.headers) OPERATOR(pg_catalog.<>) 'object'
		OR pg_catalog.octet_length(NEW.aggregate_type) OPERATOR(pg_catalog.>) 1024
		OR pg_catalog.octet_length(NEW.aggregate_id) OPERATOR(pg_catalog.>) 1024
		OR (NEW.payload IS NULL) OPERATOR(pg_catalog.=) (NEW.payload_bytes IS NULL)
		OR NEW.status OPERATOR(pg_catalog.<>) 'NEW'
		OR NEW.created_at OPERATOR(pg_catalog.<) '0001-01-01Z'
		OR NEW.created_at OPERATOR(pg_catalog.>) '9999-12-31 23:59:59.999Z' THEN
		wrong := CASE
			WHEN pg_catalog.btrim(NEW.aggregate_type) OPERATOR(pg_catalog.=) ''
				THEN 'aggregate_type must not be blank'
			WHEN pg_catalog.btrim(NEW.aggregate_id) OPERATOR(pg_catalog.=) ''
				THEN 'aggregate_id must not be blank'
			WHEN pg_catalog.btrim(NEW.event_type) OPERATOR(pg_catalog.=) ''
				THEN 'event_type must not be blank'
			WHEN pg_catalog.btrim(NEW.topic) OPERATOR(pg_catalog.=) '' THEN 'topic must not be blank'
			WHEN pg_catalog.btrim(NEW.id) OPERATOR(pg_catalog.=) '' THEN 'id must not be blank'
			WHEN pg_catalog.octet_length(NEW.id) OPERATOR(pg_catalog.>) 255
				THEN 'id must not be longer than 255 bytes'
			WHEN pg_catalog.octet_length(NEW.aggregate_type) OPERATOR(pg_catalog.>) 1024
				THEN 'aggregate_type must not be longer than 1024 bytes'
			WHEN pg_catalog.octet_length(NEW.aggregate_id) OPERATOR(pg_catalog.>) 1024
				THEN 'aggregate_id must not be longer than 1024 bytes'
			WHEN pg_catalog.json_typeof(NEW.headers) OPERATOR(pg_catalog.<>) 'object'
				THEN 'headers must be a JSON object'
			WHEN NEW.status OPERATOR(pg_catalog.<>) 'NEW' THEN 'status of a new event must be NEW'
			WHEN NEW.created_at OPERATOR(pg_catalog.<) '0001-01-01Z'
				OR NEW.created_at OPERATOR(pg_catalog.>) '9999-12-31 23:59:59.999Z'
				THEN 'created_at must lie in the years 1 to 9999'
			ELSE 'exactly one of payload and payload_bytes must be given'
		END;
		RAISE EXCEPTION '%', wrong USING ERRCODE = 'check_violation';
	END IF;
	-- as semel_lane does it
	NEW.lane := pg_catalog.hashtextextended(NEW.aggregate_id,
		pg_catalog.hashtextextended(NEW.aggregate_type, 0)) OPERATOR(pg_catalog.&) 15;
	RETURN NEW;
END $$),

-- An event is sent as it was written, also the second time. Marks do not touch these columns, so
-- they never run the trigger.
('semel_outbox_refuse_change()', 'semel_outbox_refuse_change()', 'caller',
'RETURNS trigger LANGUAGE plpgsql', $$
BEGIN
	RAISE EXCEPTION 'an event does not change once it is written: publish another one'
		USING ERRCODE = 'check_violation';
END $$),

-- Notifies only while a relay sleeps. A sleeping relay holds the exclusive lock, or waits for it;
-- the rows of a writer that gets the shared lock are seen by the relay's last read. A transaction
-- that notifies cannot be prepared for a two-phase commit: set semel.ring to off in it, and the
-- relay finds its rows by polling.
('semel_outbox_ring()', 'semel_outbox_ring()', 'hot', 'RETURNS trigger LANGUAGE plpgsql', $$
BEGIN
	IF NOT pg_catalog.pg_try_advisory_xact_lock_shared(TG_RELID::int, 1936026988)
		AND coalesce(pg_catalog.current_setting('semel.ring', true), '')
			OPERATOR(pg_catalog.<>) 'off' THEN
		PERFORM pg_catalog.pg_notify('semel_outbox_' OPERATOR(pg_catalog.||)
			TG_RELID::pg_catalog.text, '');
	END IF;
	RETURN NULL;
END $$),

-- Creates partitions for last week, this week and the next five. A week that already has rows in
-- the default partition, or whose partition cannot be created now, stays there: nothing depends on
-- it. Creating a partition locks all of them, so it is tried once, with a short lock_timeout. Runs
-- with the owner's rights, since a consumer may not create tables; a caller can only get these
-- seven empty partitions.
('semel_inbox_prepare()', 'semel_inbox_prepare()', 'owner',
'RETURNS integer LANGUAGE plpgsql SET lock_timeout = ''500ms''', $$
DECLARE
	place CONSTANT text := @place;
	week date := date_trunc('week', now() AT TIME ZONE 'UTC')::date - 7;
	name text;
	made integer := 0;
BEGIN
	FOR i IN 0 .. 6 LOOP
		name := 'semel_inbox_' || to_char(week, 'YYYYMMDD');
		IF to_regclass(place || '.' || name) IS NULL THEN
			BEGIN
				EXECUTE format('CREATE TABLE %1$s.%2$I PARTITION OF %1$s.semel_inbox'
					' FOR VALUES FROM (%3$L) TO (%4$L)', place, name, week, week + 7);
				made := made + 1;
			EXCEPTION
				WHEN lock_not_available THEN RETURN made;
				WHEN check_violation OR duplicate_table OR unique_violation THEN NULL;
			END;
		END IF;
		week := week + 7;
	END LOOP;
	RETURN made;
END $$),

-- Removes a week, and returns how many claims it had; NULL: the partition is in use. Unfinished
-- claims, and those first seen at the horizon or later, are not counted: they move to the default
-- partition. Runs with the owner's rights, for roles that prune: it touches nothing but a week of
-- the inbox.
('semel_inbox_drop(name text, horizon timestamptz)', 'semel_inbox_drop(text, timestamptz)', 'owner',
'RETURNS bigint LANGUAGE plpgsql SET lock_timeout = ''500ms''', $$
DECLARE
	place CONSTANT text := @place;
	gone bigint;
BEGIN
	IF name IS NULL OR horizon IS NULL OR name !~ '^semel_inbox_[0-9]{8}$' OR NOT EXISTS (
		SELECT 1 FROM pg_inherits WHERE inhparent = (place || '.semel_inbox')::regclass
		AND inhrelid = to_regclass(place || '.' || name)) THEN
		RAISE EXCEPTION '% is not a weekly partition of the inbox', coalesce(name, 'NULL') USING ERRCODE = '22023';
	END IF;
	BEGIN
		EXECUTE format('ALTER TABLE %1$s.semel_inbox DETACH PARTITION %1$s.%2$I', place, name);
	EXCEPTION WHEN lock_not_available THEN
		RETURN NULL;
	END;
	EXECUTE format('SELECT count(*) FROM %s.%I WHERE status <> ''CLAIMED'' AND first_seen_at < $1',
		place, name) INTO gone USING horizon;
	EXECUTE format('INSERT INTO %1$s.semel_inbox SELECT * FROM %1$s.%2$I WHERE status = ''CLAIMED'''
		' OR first_seen_at >= $1', place, name) USING horizon;
	EXECUTE format('DROP TABLE %s.%I', place, name);
	RETURN gone;
END $$),

-- ---- tables that must not be emptied (007_changes.sql) ------------------------------------------

('semel_refuse_truncate()', 'semel_refuse_truncate()', 'caller',
'RETURNS trigger LANGUAGE plpgsql', $$
BEGIN
	IF TG_TABLE_NAME = 'semel_schema' THEN
		RAISE EXCEPTION 'semel_schema records the version of the tables and must not be truncated'
			USING ERRCODE = 'check_violation',
			HINT = 'Leave semel_schema out of the TRUNCATE.';
	END IF;
	IF current_setting('semel.allow_truncate', true) IS DISTINCT FROM 'on' THEN
		RAISE EXCEPTION '% must not be truncated: events would be lost or repeated', TG_TABLE_NAME
			USING ERRCODE = 'check_violation', HINT = 'To remove old rows, run semel prune.'
			' A test suite may empty the tables: SET LOCAL semel.allow_truncate = ''on'','
			' in the same transaction.';
	END IF;
	IF TG_TABLE_NAME = 'semel_outbox' THEN
		EXECUTE format('DELETE FROM %I.semel_outbox_exception', TG_TABLE_SCHEMA);
		EXECUTE format('UPDATE %I.semel_lease SET low_seq = 0, unmarked_seq = 0, epoch = epoch + 1,'
			' owner = '''', expires_at = NULL', TG_TABLE_SCHEMA);
	END IF;
	RETURN NULL;
END $$),

-- Restores the rows of the lanes: a missing row is an error. Their first epoch is the time, since
-- an epoch must never repeat.
('semel_put_lanes_back()', 'semel_put_lanes_back()', 'caller',
'RETURNS trigger LANGUAGE plpgsql', $$
BEGIN
	EXECUTE format('INSERT INTO %I.semel_lease (lane, epoch) SELECT lane,'
		' (date_part(''epoch'', clock_timestamp()) * 1000)::bigint'
		' FROM generate_series(0, 15) AS lane ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA);
	RETURN NULL;
END $$),

-- ---- what a consumer asks for a batch -----------------------------------------------------------

-- Claims a batch of events. True: all of them were new, as usual. False: one was claimed before,
-- and nothing is claimed. ON CONFLICT would double the cost of a row, and an error that is caught
-- here is not in the server's log.
('semel_inbox_claim_new(scopes text[], event_ids text[], weeks date[], statuses text[],
	topics text[], partitions integer[], offsets bigint[], versions text[], owners text[],
	leases timestamptz[], replays integer[], error_codes text[], at timestamptz)',
'semel_inbox_claim_new(text[], text[], date[], text[], text[], integer[], bigint[], text[], text[],
	timestamptz[], integer[], text[], timestamptz)', 'caller',
'RETURNS boolean LANGUAGE plpgsql', $$
BEGIN
	INSERT INTO @.semel_inbox (scope, event_id, week_start, status, topic, "partition", "offset",
		handler_version, owner, lease_until, replay, error_code, first_seen_at,
		processed_at)
	SELECT c.*, at, CASE WHEN c.status = 'PROCESSED' THEN at END
	FROM unnest(scopes, event_ids, weeks, statuses, topics, partitions, offsets, versions,
		owners, leases, replays, error_codes)
		AS c (scope, event_id, week_start, status, topic, p, o, v, w, l, r, e);
	RETURN true;
EXCEPTION WHEN unique_violation THEN
	RETURN false;
END $$),

-- Reads, for a batch of events at a scope, the hold of each event's key and its dead letter;
-- returns only events that have either. Separate statements take the locks first: the last
-- statement then has a newer snapshot, and sees what the previous holders of the locks have done.
('semel_states_look(of_scope text, event_ids text[], key_types text[], key_ids text[])',
'semel_states_look(text, text[], text[], text[])', 'caller',
'RETURNS TABLE (number bigint, aggregate_type text, aggregate_id text, state text, head_id text,
	attempts integer, due_at timestamptz, blocks boolean, letter text, replay_count integer,
	settled boolean) LANGUAGE plpgsql VOLATILE', $$
#variable_conflict use_column
BEGIN
	PERFORM 1 FROM @.semel_hold AS h
	WHERE h.scope = of_scope AND (h.aggregate_type, h.aggregate_id) IN
		(SELECT k.t, k.i FROM unnest(key_types, key_ids) AS k (t, i))
	ORDER BY h.aggregate_type, h.aggregate_id FOR UPDATE;
	PERFORM 1 FROM @.semel_dead_letter AS d
	WHERE d.scope = of_scope AND d.event_id = ANY (event_ids) AND d.parked_behind IS NULL
		AND d.event_id IS NOT NULL AND d.status = 'REPLAYED' AND d.settled_at IS NULL
	ORDER BY d.event_id FOR UPDATE;
	RETURN QUERY SELECT q.n, h.aggregate_type, h.aggregate_id, h.state, h.head_id, h.attempts,
		h.due_at, h.blocks, d.status, d.replay_count, d.settled_at IS NOT NULL
	FROM unnest(event_ids, key_types, key_ids) WITH ORDINALITY AS q (e, t, i, n)
	LEFT JOIN @.semel_hold AS h
		ON h.scope = of_scope AND h.aggregate_type = q.t AND h.aggregate_id = q.i
	LEFT JOIN @.semel_dead_letter AS d ON d.scope = of_scope AND d.event_id = q.e
		AND d.parked_behind IS NULL AND d.event_id IS NOT NULL
	WHERE h.scope IS NOT NULL OR d.scope IS NOT NULL;
END $$),

-- ---- for other languages: no library needed -----------------------------------------------------

-- Writes an event in the caller's transaction, and returns its id.
('semel_publish(event_type text, aggregate_type text, aggregate_id text, payload text,
	headers json DEFAULT ''{}'', topic text DEFAULT NULL, id text DEFAULT NULL)',
'semel_publish(text, text, text, text, json, text, text)', 'caller',
'RETURNS text LANGUAGE plpgsql VOLATILE', $$
#variable_conflict use_column
DECLARE
	made text;
BEGIN
	INSERT INTO @.semel_outbox (event_type, aggregate_type, aggregate_id, payload, headers, topic, id)
	VALUES ($1, $2, $3, $4, coalesce($5, '{}'), $6, coalesce($7, @.semel_uuid7()))
	RETURNING id INTO made;
	RETURN made;
END $$),
('semel_publish(event_type text, aggregate_type text, aggregate_id text, payload jsonb,
	headers json DEFAULT ''{}'', topic text DEFAULT NULL, id text DEFAULT NULL)',
'semel_publish(text, text, text, jsonb, json, text, text)', 'caller',
'RETURNS text LANGUAGE sql VOLATILE', $$
	SELECT @.semel_publish($1, $2, $3, $4::text, $5, $6, $7)
$$),

-- True for exactly one caller per scope and event: apply the effect. False: it was done before.
-- In a transaction block the claim commits with the effect; outside it commits at once.
('semel_try_claim(scope text, event_id text, event_time timestamptz, topic text,
	"partition" integer DEFAULT 0, "offset" bigint DEFAULT 0)',
'semel_try_claim(text, text, timestamptz, text, integer, bigint)', 'caller',
'RETURNS boolean LANGUAGE plpgsql VOLATILE', $$
BEGIN
	IF $1 IS NULL OR btrim($1) = '' OR $2 IS NULL OR btrim($2) = '' THEN
		RAISE EXCEPTION 'scope and event_id must not be blank' USING ERRCODE = '22023';
	END IF;
	IF $3 IS NULL OR $4 IS NULL THEN
		RAISE EXCEPTION 'event_time and topic must be given' USING ERRCODE = '22004';
	END IF;
	IF $3 NOT BETWEEN '0001-01-01Z' AND '9999-12-31 23:59:59.999Z' THEN
		RAISE EXCEPTION 'event_time must lie in the years 1 to 9999' USING ERRCODE = '22008';
	END IF;
	INSERT INTO @.semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at,
		topic, "partition", "offset")
	VALUES ($1, $2, date_trunc('week', $3 AT TIME ZONE 'UTC')::date, 'PROCESSED',
		clock_timestamp(), clock_timestamp(), $4, $5, $6) ON CONFLICT DO NOTHING;
	RETURN FOUND;
END $$),

-- ---- outboxes of others --------------------------------------------------------------------------

-- Turns every insert into a foreign outbox into an event of ours, in the same transaction. Such
-- tables are often emptied by the program that fills them; a trigger sees the row all the same, and
-- no log has to be kept for a reader that may be down.
-- The trigger's function is generated for the table, once, so that a row costs one insert and no
-- read of a mapping. It runs with the rights of its owner: the application needs none on our
-- tables. No other role may call it: with a table of its own, that role could publish anything.
('semel_adopt(source regclass, foreign_table text, mapping json, existing boolean)',
'semel_adopt(regclass, text, json, boolean)', 'caller', 'RETURNS boolean LANGUAGE plpgsql', $$
DECLARE
	place CONSTANT text := @place;
	name text;
	kind text; -- of the payload
	event_type text := 'NULL';
	moment text := 'NULL';
	headers text := '';
	fresh boolean;
	columns text;
	row_values text; -- of the row called NEW
	body text;
	stranger text;
	heir oid; -- the owner of the tables, and of the function, even if a superuser creates it
	wanted record;
BEGIN
	IF source IS NULL THEN
		RAISE EXCEPTION 'table % not found (does its name need a schema?)', foreign_table
			USING ERRCODE = 'check_violation';
	END IF;
	FOR wanted IN SELECT key, value FROM json_each_text(mapping)
		WHERE key IN ('id', 'key', 'route-by', 'payload', 'type', 'time')
		UNION ALL SELECT 'header', h ->> 'column' FROM json_array_elements(mapping -> 'header') h
	LOOP
		SELECT format_type(atttypid, NULL) INTO kind FROM pg_attribute
			WHERE attrelid = source AND attname = wanted.value AND attnum > 0 AND NOT attisdropped;
		IF kind IS NULL AND wanted.key = 'type' AND wanted.value = 'type' THEN
			CONTINUE; -- the default; Debezium does without it as well
		ELSIF kind IS NULL THEN
			RAISE EXCEPTION 'the table % has no column % (adopt: %)', foreign_table, wanted.value,
				wanted.key USING ERRCODE = 'check_violation';
		ELSIF wanted.key = 'type' THEN
			event_type := format('nullif(btrim(NEW.%I::text), '''')', wanted.value);
		ELSIF wanted.key = 'time' THEN
			moment := format(CASE WHEN kind LIKE 'timestamp%' THEN 'NEW.%I::timestamptz'
				ELSE 'to_timestamp(NEW.%I / 1000.0)' END, wanted.value);
		END IF;
	END LOOP;
	SELECT format_type(atttypid, NULL) INTO kind FROM pg_attribute
		WHERE attrelid = source AND attname = mapping ->> 'payload';
	SELECT coalesce(string_agg(format(', %L, NEW.%I::text', h ->> 'name', h ->> 'column'), ''), '')
		INTO headers FROM json_array_elements(mapping -> 'header') h;
	IF mapping ->> 'headers' = 'router' THEN
		headers := headers || ', ''semel-wire'', ''plain''';
	END IF;
	columns := 'id, aggregate_type, aggregate_id, event_type, topic, content_type, headers,'
		|| ' created_at, ' || CASE kind WHEN 'bytea' THEN 'payload_bytes' ELSE 'payload' END;
	row_values := format('NEW.%1$I::text, NEW.%2$I::text, coalesce(NEW.%3$I::text, NEW.%1$I::text),'
		' coalesce(%4$s, NEW.%2$I::text), replace(%5$L, ''${routedByValue}'', NEW.%2$I::text),'
		' CASE WHEN NEW.%6$I IS NULL THEN ''application/octet-stream'' ELSE %7$L END,'
		' json_strip_nulls(json_build_object(''id'', NEW.%1$I::text%8$s)),'
		' coalesce(%9$s, clock_timestamp()), coalesce(NEW.%6$I%10$s, '''')',
		mapping ->> 'id', mapping ->> 'route-by', mapping ->> 'key', event_type, mapping ->> 'topic',
		mapping ->> 'payload', CASE WHEN kind IN ('json', 'jsonb') THEN 'application/json'
		ELSE 'application/octet-stream' END, headers, moment,
		CASE kind WHEN 'bytea' THEN '' ELSE '::text' END);
	name := place || '.' || quote_ident('semel_adopt_' || left(md5(source::oid::text), 12));
	body := format('BEGIN INSERT INTO %s.semel_outbox (%s) VALUES (%s); RETURN NULL; END', place,
		columns, row_values);
	SELECT c.relowner INTO heir FROM pg_class AS c WHERE c.oid = (place || '.semel_outbox')::regclass;
	SELECT r.rolname INTO stranger FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner
		WHERE p.oid = to_regprocedure(name || '()') AND r.rolname <> current_user
			AND NOT pg_has_role(r.oid, heir, 'MEMBER');
	IF FOUND THEN
		RAISE EXCEPTION 'the function %() is owned by role %, which could change it at any time (find out why;'
			' drop it)', name, stranger USING ERRCODE = 'insufficient_privilege';
	END IF;
	fresh := NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = source AND tgname = 'semel_adopt');
	IF fresh THEN
		EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', source);
	END IF;
	EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER'
		' SET search_path = pg_catalog, pg_temp AS %L', name, body);
	EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', name);
	IF (SELECT r.rolsuper FROM pg_roles AS r WHERE r.rolname = current_user) THEN
		EXECUTE format('ALTER FUNCTION %s() OWNER TO %s', name, heir::regrole);
	END IF;
	EXECUTE format('COMMENT ON FUNCTION %s() IS %L', name, mapping::text);
	IF NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = source AND tgname = 'semel_adopt'
		AND tgfoid = to_regprocedure(name || '()') AND tgenabled <> 'D') THEN
		EXECUTE format('DROP TRIGGER IF EXISTS semel_adopt ON %s', source);
		EXECUTE format('CREATE TRIGGER semel_adopt AFTER INSERT ON %s FOR EACH ROW'
			' EXECUTE FUNCTION %s()', source, name);
	END IF;
	IF fresh AND existing THEN
		EXECUTE format('INSERT INTO %s.semel_outbox (%s) SELECT %s FROM %s AS new', place, columns,
			row_values, source);
	END IF;
	RETURN fresh;
END $$)

	) AS f (declared, signature, kind, properties, body) LOOP
		SELECT r.rolname INTO stranger FROM pg_proc AS p JOIN pg_roles AS r ON r.oid = p.proowner
			WHERE p.oid = to_regprocedure(place || '.' || wanted.signature)
			AND p.proowner <> ALL (trusted) AND may_make;
		IF FOUND THEN
			RAISE EXCEPTION 'the function %.% is owned by role %, which could change it at any time (find out'
				' why; drop it, or ALTER FUNCTION … OWNER TO the owner of the tables)', place,
				wanted.signature, stranger USING ERRCODE = 'insufficient_privilege';
		END IF;
		body := replace(replace(wanted.body, '@.', place || '.'), '@place', quote_literal(place));
		CONTINUE WHEN EXISTS (SELECT 1 FROM pg_proc AS p
			WHERE p.oid = to_regprocedure(place || '.' || wanted.signature)
			AND p.prosrc = body AND p.prosecdef = (wanted.kind = 'owner')
			AND coalesce('search_path=' || closed = ANY (p.proconfig), false)
				= (wanted.kind <> 'hot'));
		EXECUTE format('CREATE OR REPLACE FUNCTION %s.%s %s %s %s AS %L', place,
			wanted.declared, wanted.properties,
			CASE wanted.kind WHEN 'owner' THEN 'SECURITY DEFINER' ELSE '' END,
			CASE wanted.kind WHEN 'hot' THEN '' ELSE 'SET search_path = ' || closed END, body);
		IF heir IS NOT NULL THEN
			EXECUTE format('ALTER FUNCTION %s.%s OWNER TO %s', place, wanted.signature, heir);
		END IF;
	END LOOP;
	-- The trigger functions of adopted tables: only those that an init has created, one for
	-- each table, and none that merely resembles them. A function that no longer suits its
	-- table, or whose table this role may not change, stays as it was; a trigger that an
	-- operator has disabled stays disabled.
	FOR wanted IN SELECT t.tgrelid::regclass AS source, obj_description(p.oid, 'pg_proc') AS mapping,
			t.tgenabled = 'D' AS disabled
		FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
		WHERE t.tgname = 'semel_adopt' AND p.pronamespace = place::regnamespace
			AND p.proowner = ANY (trusted)
			AND (p.proname = 'semel_adopt_' || left(md5(t.tgrelid::text), 12)
				OR NOT EXISTS (SELECT 1 FROM pg_trigger AS o WHERE o.tgfoid = p.oid AND o.oid <> t.oid))
			AND NOT (coalesce('search_path=' || closed = ANY (p.proconfig), false)
			AND strpos(p.prosrc, 'BEGIN INSERT INTO ' || place || '.semel_outbox ') = 1)
	LOOP
		BEGIN
			EXECUTE format('SELECT %s.semel_adopt($1, $2, $3, false)', place)
				USING wanted.source, wanted.source::text, wanted.mapping::json;
			IF wanted.disabled THEN
				EXECUTE format('ALTER TABLE %s DISABLE TRIGGER semel_adopt', wanted.source);
			END IF;
		EXCEPTION WHEN check_violation OR insufficient_privilege THEN NULL;
		END;
	END LOOP;
	-- A function that was just created, or was restored without its grants, may be executed by
	-- PUBLIC until a first GRANT or REVOKE.
	FOR wanted IN SELECT p.oid::regprocedure AS function FROM pg_proc AS p
		WHERE p.pronamespace = place::regnamespace AND p.proname LIKE 'semel\_%' AND p.proacl IS NULL
			AND (p.prosecdef OR p.prorettype = 'trigger'::regtype)
			AND pg_has_role(p.proowner, 'USAGE') LOOP
		EXECUTE 'REVOKE ALL ON FUNCTION ' || wanted.function || ' FROM PUBLIC';
	END LOOP;
END $init$;
