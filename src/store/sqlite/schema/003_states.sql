-- SPDX-License-Identifier: Apache-2.0
-- ---- replays that were processed ---------------------------------------------------------------

-- REPLAYED and NULL: the run was asked for and has not happened yet. What was replayed before this
-- column was there is settled where that can be known: it was processed, its scope keeps no claims,
-- or it went back to the outbox.
ALTER TABLE semel_dead_letter ADD COLUMN settled_at TEXT;
UPDATE semel_dead_letter SET settled_at = coalesce(moved_at, failed_at)
WHERE status = 'REPLAYED' AND parked_behind IS NULL
	AND (scope = 'relay'
	OR EXISTS (SELECT 1 FROM semel_inbox AS i WHERE i.scope = semel_dead_letter.scope
		AND i.event_id = semel_dead_letter.event_id AND i.status = 'PROCESSED')
	OR EXISTS (SELECT 1 FROM semel_subscription AS s WHERE s.scope = semel_dead_letter.scope
		AND s.guarantee = 'at-least-once'));
