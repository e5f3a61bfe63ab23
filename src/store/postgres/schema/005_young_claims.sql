-- SPDX-License-Identifier: Apache-2.0
-- An old event may have been claimed a moment ago: its claim is kept for the whole window, counted
-- from when it was first seen, not from the event's own time.
DROP FUNCTION semel_inbox_drop(text);

-- Returns how many claims were removed; NULL: the partition is in use. Unfinished claims, and those
-- first seen at the horizon or later, move to the default partition.
CREATE FUNCTION semel_inbox_drop(name text, horizon timestamptz) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
	gone bigint;
BEGIN
	BEGIN
		EXECUTE format('ALTER TABLE semel_inbox DETACH PARTITION %I', name);
	EXCEPTION WHEN lock_not_available THEN
		RETURN NULL;
	END;
	EXECUTE format('SELECT count(*) FROM %I WHERE status <> ''CLAIMED'' AND first_seen_at < $1',
		name) INTO gone USING horizon;
	EXECUTE format('INSERT INTO semel_inbox SELECT * FROM %I WHERE status = ''CLAIMED'''
		' OR first_seen_at >= $1', name) USING horizon;
	EXECUTE format('DROP TABLE %I', name);
	RETURN gone;
END $$;

DO $$
BEGIN
	EXECUTE format('ALTER FUNCTION semel_inbox_drop(text, timestamptz) SET search_path = %I, pg_temp',
		current_schema());
END $$;
