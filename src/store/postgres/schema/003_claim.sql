-- SPDX-License-Identifier: Apache-2.0
-- Claims a batch of events. True: all of them were new, as usual. False: one was claimed before,
-- and nothing is claimed. ON CONFLICT would double the cost of a row, and an error that is caught
-- here is not in the server's log.
CREATE FUNCTION semel_inbox_claim_new(scopes text[], event_ids text[], weeks date[],
	statuses text[], topics text[], partitions integer[], offsets bigint[], versions text[],
	owners text[], leases timestamptz[], replays integer[], error_codes text[], at timestamptz)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO semel_inbox (scope, event_id, week_start, status, topic, "partition", "offset",
		handler_version, owner, lease_until, replay, error_code, first_seen_at,
		processed_at)
	SELECT c.*, at, CASE WHEN c.status = 'PROCESSED' THEN at END
	FROM unnest(scopes, event_ids, weeks, statuses, topics, partitions, offsets, versions,
		owners, leases, replays, error_codes)
		AS c (scope, event_id, week_start, status, topic, p, o, v, w, l, r, e);
	RETURN true;
EXCEPTION WHEN unique_violation THEN
	RETURN false;
END $$;
