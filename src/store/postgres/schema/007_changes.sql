-- SPDX-License-Identifier: Apache-2.0
-- ---- tables that must not be emptied under a running system --------------------------------------

-- A relay remembers up to which number everything was sent, and a consumer what it has processed.
-- Emptying a table invalidates both without notice, and numbers that start again are skipped. A
-- test suite that starts each test with empty tables must allow it in the transaction that empties
-- them: SET LOCAL semel.allow_truncate = 'on'. Then every relay loses its lanes, and begins with
-- the first number.
CREATE FUNCTION semel_refuse_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF TG_TABLE_NAME = 'semel_schema' THEN
		RAISE EXCEPTION 'semel_schema says which tables there are, and is never emptied'
			USING ERRCODE = 'check_violation',
			HINT = 'Leave semel_schema out of the TRUNCATE.';
	END IF;
	IF current_setting('semel.allow_truncate', true) IS DISTINCT FROM 'on' THEN
		RAISE EXCEPTION '% must not be emptied: events would be lost or repeated', TG_TABLE_NAME
			USING ERRCODE = 'check_violation', HINT = 'To forget what is old, run semel prune.'
			' A test suite may empty the tables: SET LOCAL semel.allow_truncate = ''on'','
			' in the same transaction.';
	END IF;
	IF TG_TABLE_NAME = 'semel_outbox' THEN
		EXECUTE format('DELETE FROM %I.semel_outbox_exception', TG_TABLE_SCHEMA);
		EXECUTE format('UPDATE %I.semel_lease SET low_seq = 0, unmarked_seq = 0, epoch = epoch + 1,'
			' owner = '''', expires_at = NULL', TG_TABLE_SCHEMA);
	END IF;
	RETURN NULL;
END $$;

-- Restores the rows of the lanes: a missing row is an error. Their first epoch is the time, since
-- an epoch must never repeat.
CREATE FUNCTION semel_put_lanes_back() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %I.semel_lease (lane, epoch) SELECT lane,'
		' (date_part(''epoch'', clock_timestamp()) * 1000)::bigint'
		' FROM generate_series(0, 15) AS lane ON CONFLICT DO NOTHING', TG_TABLE_SCHEMA);
	RETURN NULL;
END $$;

-- In the order in which running processes take their locks.
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['semel_position', 'semel_hold', 'semel_running',
		'semel_inbox', 'semel_inbox_other', 'semel_inbox_key', 'semel_dead_letter',
		'semel_subscription', 'semel_subscription_topic', 'semel_lease', 'semel_slot',
		'semel_outbox', 'semel_outbox_exception', 'semel_meta', 'semel_schema'] LOOP
		EXECUTE format('CREATE TRIGGER semel_refuse_truncate BEFORE TRUNCATE ON %I'
			' FOR EACH STATEMENT EXECUTE FUNCTION semel_refuse_truncate()', name);
	END LOOP;
END $$;
CREATE TRIGGER semel_put_lanes_back AFTER TRUNCATE ON semel_lease
FOR EACH STATEMENT EXECUTE FUNCTION semel_put_lanes_back();

-- ---- numbers that went back -----------------------------------------------------------------------

-- A low mark is valid for the sequence that generated the numbers. A sequence that was restarted,
-- or came from a dump, has another file. NULL: not known, since the row is older than this column;
-- whether rows were marked one by one is not known either.
ALTER TABLE semel_lease ADD COLUMN numbers oid;

-- Rows at or below it need not be marked one by one (relay --marks off): only the low mark shows
-- that they were sent. If there is a change stream, it is not known whether that mode was used
-- before this column; a relay of the earlier version may still run there for a while.
ALTER TABLE semel_lease ADD COLUMN unmarked_seq bigint NOT NULL DEFAULT 0;
UPDATE semel_lease SET unmarked_seq = low_seq WHERE EXISTS (SELECT 1 FROM semel_slot);
UPDATE semel_lease SET numbers = pg_relation_filenode('semel_outbox_seq')
	WHERE NOT EXISTS (SELECT 1 FROM semel_slot);

-- ---- the order of exceptions ----------------------------------------------------------------------

-- Exceptions of an aggregate are published in the order of (place, seq). place is where the
-- transaction was committed in the server's log, for events that came through the change stream; 0:
-- not known, and the numbers decide.
ALTER TABLE semel_outbox_exception ADD COLUMN place bigint NOT NULL DEFAULT 0;
DROP INDEX semel_outbox_exception_aggregate;
CREATE INDEX semel_outbox_exception_aggregate
	ON semel_outbox_exception (aggregate_type, aggregate_id, place, seq);

-- ---- the publication that the change stream came through -----------------------------------------

-- Identifies the publication in the catalogues, at the last inspection: if it has changed, rows
-- that it may have left out are polled. NULL: not known.
ALTER TABLE semel_slot ADD COLUMN publication text;
