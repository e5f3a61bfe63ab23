-- SPDX-License-Identifier: Apache-2.0
-- ---- replays that were processed ---------------------------------------------------------------

-- NULL in a REPLAYED row: the run was requested and has not happened yet. Replays older than this
-- column are settled as far as that can be known: the event was processed, its scope keeps no
-- claims, or it returned to the outbox.
ALTER TABLE semel_dead_letter ADD COLUMN settled_at timestamptz;
UPDATE semel_dead_letter AS d SET settled_at = coalesce(d.moved_at, d.failed_at)
WHERE d.status = 'REPLAYED' AND d.parked_behind IS NULL
	AND (d.scope = 'relay'
	OR EXISTS (SELECT 1 FROM semel_inbox i WHERE i.scope = d.scope AND i.event_id = d.event_id
		AND i.status = 'PROCESSED')
	OR EXISTS (SELECT 1 FROM semel_subscription s WHERE s.scope = d.scope
		AND s.guarantee = 'at-least-once'));

-- Reads, for a batch of events at a scope, the hold of each event's key and its dead letter;
-- returns only events that have either. Separate statements take the locks first: the last
-- statement then has a newer snapshot, and sees what the previous holders of the locks have done.
CREATE FUNCTION semel_states_look(of_scope text, event_ids text[], key_types text[], key_ids text[])
RETURNS TABLE (number bigint, aggregate_type text, aggregate_id text, state text, head_id text,
	attempts integer, due_at timestamptz, blocks boolean, letter text, replay_count integer,
	settled boolean)
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
	PERFORM 1 FROM semel_hold AS h
	WHERE h.scope = of_scope AND (h.aggregate_type, h.aggregate_id) IN
		(SELECT k.t, k.i FROM unnest(key_types, key_ids) AS k (t, i))
	ORDER BY h.aggregate_type, h.aggregate_id FOR UPDATE;
	PERFORM 1 FROM semel_dead_letter AS d
	WHERE d.scope = of_scope AND d.event_id = ANY (event_ids) AND d.parked_behind IS NULL
		AND d.event_id IS NOT NULL AND d.status = 'REPLAYED' AND d.settled_at IS NULL
	ORDER BY d.event_id FOR UPDATE;
	RETURN QUERY SELECT q.n, h.aggregate_type, h.aggregate_id, h.state, h.head_id, h.attempts,
		h.due_at, h.blocks, d.status, d.replay_count, d.settled_at IS NOT NULL
	FROM unnest(event_ids, key_types, key_ids) WITH ORDINALITY AS q (e, t, i, n)
	LEFT JOIN semel_hold AS h
		ON h.scope = of_scope AND h.aggregate_type = q.t AND h.aggregate_id = q.i
	LEFT JOIN semel_dead_letter AS d ON d.scope = of_scope AND d.event_id = q.e
		AND d.parked_behind IS NULL AND d.event_id IS NOT NULL
	WHERE h.scope IS NOT NULL OR d.scope IS NOT NULL;
END $$;

-- ---- consumers at work, and what subscriptions read ----------------------------------------------

-- Running consumers: each writes one row, with what it has in flight and what it waits for. A row
-- with an expired lease belongs to a consumer that died.
CREATE TABLE semel_consumer (
	scope text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL,
	in_hand bigint NOT NULL DEFAULT 0, -- deliveries that were fetched and are not settled
	breaker integer NOT NULL DEFAULT 0, -- 0 closed, 1 half-open, 2 open
	reason text, -- why nothing is fetched; NULL: events are fetched
	next_try_at timestamptz,
	paused boolean NOT NULL DEFAULT false,
	waits_since timestamptz, -- NULL: it does not wait
	updated_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (scope, owner)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);

-- A subscription receives only the topic's events with these routing keys; NULL: all.
ALTER TABLE semel_subscription ADD COLUMN bind text;

-- Which topics a scope has ever read. removed_at NULL: it still reads the topic.
CREATE TABLE semel_subscription_topic (
	scope text COLLATE "C" NOT NULL,
	topic text COLLATE "C" NOT NULL,
	since timestamptz NOT NULL,
	removed_at timestamptz,
	PRIMARY KEY (scope, topic)
);
INSERT INTO semel_subscription_topic (scope, topic, since)
	SELECT s.scope, t.topic, s.since
	FROM semel_subscription s, jsonb_array_elements_text(s.topics::jsonb) AS t (topic)
	ON CONFLICT DO NOTHING;

-- ---- runs that a crash may end -------------------------------------------------------------------

-- After a consumer died, events run one by one, and each is recorded before it runs; its row is
-- deleted with its effect. So an event at which consumers die repeatedly is recognised: runs is the
-- number of owners that have begun it and never ended it.
CREATE TABLE semel_running (
	scope text COLLATE "C" NOT NULL,
	event_id text COLLATE "C" NOT NULL,
	owner text COLLATE "C" NOT NULL, -- the last one
	runs integer NOT NULL,
	begun_at timestamptz NOT NULL,
	PRIMARY KEY (scope, event_id)
);

-- ---- when a row was committed -------------------------------------------------------------------

-- Retention and ages use this time, not the event's own. Older rows have none: they are not
-- rewritten, and count as committed at their own time, but not later than this upgrade.
ALTER TABLE semel_outbox ADD COLUMN committed_at timestamptz;
ALTER TABLE semel_outbox ALTER COLUMN committed_at SET DEFAULT clock_timestamp();

-- ---- names that an index can hold ----------------------------------------------------------------

-- Holds, exceptions and an index have the name of an aggregate as their key, and the size of a key
-- is limited. A row written by hand is refused at once, and not later by the broker.
CREATE OR REPLACE FUNCTION semel_outbox_complete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	wrong text;
BEGIN
	IF btrim(NEW.aggregate_type) = '' OR btrim(NEW.aggregate_id) = ''
		OR btrim(NEW.event_type) = '' OR btrim(NEW.topic) = '' OR btrim(NEW.id) = ''
		OR octet_length(NEW.id) > 255 OR json_typeof(NEW.headers) <> 'object'
		OR octet_length(NEW.aggregate_type) > 1024 OR octet_length(NEW.aggregate_id) > 1024
		OR (NEW.payload IS NULL) = (NEW.payload_bytes IS NULL) OR NEW.status <> 'NEW'
		OR NEW.created_at NOT BETWEEN '0001-01-01Z' AND '9999-12-31 23:59:59.999Z' THEN
		wrong := CASE
			WHEN btrim(NEW.aggregate_type) = '' THEN 'aggregate_type must not be blank'
			WHEN btrim(NEW.aggregate_id) = '' THEN 'aggregate_id must not be blank'
			WHEN btrim(NEW.event_type) = '' THEN 'event_type must not be blank'
			WHEN btrim(NEW.topic) = '' THEN 'topic must not be blank'
			WHEN btrim(NEW.id) = '' THEN 'id must not be blank'
			WHEN octet_length(NEW.id) > 255 THEN 'id must not be longer than 255 bytes'
			WHEN octet_length(NEW.aggregate_type) > 1024
				THEN 'aggregate_type must not be longer than 1024 bytes'
			WHEN octet_length(NEW.aggregate_id) > 1024
				THEN 'aggregate_id must not be longer than 1024 bytes'
			WHEN json_typeof(NEW.headers) <> 'object' THEN 'headers must be a JSON object'
			WHEN NEW.status <> 'NEW' THEN 'status of a new event is NEW'
			WHEN NEW.created_at NOT BETWEEN '0001-01-01Z' AND '9999-12-31 23:59:59.999Z'
				THEN 'created_at must lie in the years 1 to 9999'
			ELSE 'payload must be given, or payload_bytes'
		END;
		RAISE EXCEPTION '%', wrong USING ERRCODE = 'check_violation';
	END IF;
	-- semel_lane, which may not be in the search_path of the role that inserts
	NEW.lane := hashtextextended(NEW.aggregate_id, hashtextextended(NEW.aggregate_type, 0)) & 15;
	RETURN NEW;
END $$;
