-- SPDX-License-Identifier: Apache-2.0
-- Makes every insert into a foreign outbox an event of ours, in the same transaction. Such tables
-- are often emptied by whoever fills them; a trigger sees the row all the same, and no log has to be
-- kept for a reader that may be away.
-- The trigger's function is written for the table, once, so that a row costs one insert and no look
-- at a mapping. It runs with the rights of its owner: the application needs none on our tables.
CREATE OR REPLACE FUNCTION semel_adopt(foreign_table text, mapping json, existing boolean)
RETURNS boolean LANGUAGE plpgsql AS $adopt$
DECLARE
	source regclass := to_regclass(foreign_table);
	place text := (SELECT quote_ident(nspname) FROM pg_class c JOIN pg_namespace n
		ON n.oid = relnamespace WHERE c.oid = 'semel_outbox'::regclass);
	name text;
	kind text; -- of the payload
	event_type text := 'NULL';
	moment text := 'NULL';
	headers text := '';
	fresh boolean;
	columns text;
	row_values text; -- of the row called NEW
	wanted record;
BEGIN
	IF source IS NULL THEN
		RAISE EXCEPTION 'there is no table % to adopt (is its schema in the name?)', foreign_table
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
			RAISE EXCEPTION 'the table % has no column % (adopt: %)', source, wanted.value, wanted.key
				USING ERRCODE = 'check_violation';
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
	fresh := NOT EXISTS (SELECT 1 FROM pg_trigger WHERE tgrelid = source AND tgname = 'semel_adopt');
	EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', source);
	EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER'
		' SET search_path = %s, pg_temp AS %L', name, place,
		format('BEGIN INSERT INTO semel_outbox (%s) VALUES (%s); RETURN NULL; END', columns,
			row_values));
	EXECUTE format('COMMENT ON FUNCTION %s() IS %L', name, mapping::text);
	EXECUTE format('DROP TRIGGER IF EXISTS semel_adopt ON %s', source);
	EXECUTE format('CREATE TRIGGER semel_adopt AFTER INSERT ON %s FOR EACH ROW EXECUTE FUNCTION %s()',
		source, name);
	IF fresh AND existing THEN
		EXECUTE format('INSERT INTO semel_outbox (%s) SELECT %s FROM %s AS new', columns,
			row_values, source);
	END IF;
	RETURN fresh;
END $adopt$;
