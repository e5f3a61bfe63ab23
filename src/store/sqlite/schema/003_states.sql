-- SPDX-License-Identifier: Apache-2.0
-- ---- replays that were processed ---------------------------------------------------------------

-- NULL in a REPLAYED row: the run was requested and has not happened yet. Replays older than this
-- column are settled as far as that can be known: the event was processed, its scope keeps no
-- claims, or it returned to the outbox.
ALTER TABLE semel_dead_letter ADD COLUMN settled_at TEXT;
UPDATE semel_dead_letter SET settled_at = coalesce(moved_at, failed_at)
WHERE status = 'REPLAYED' AND parked_behind IS NULL
	AND (scope = 'relay'
	OR EXISTS (SELECT 1 FROM semel_inbox AS i WHERE i.scope = semel_dead_letter.scope
		AND i.event_id = semel_dead_letter.event_id AND i.status = 'PROCESSED')
	OR EXISTS (SELECT 1 FROM semel_subscription AS s WHERE s.scope = semel_dead_letter.scope
		AND s.guarantee = 'at-least-once'));

-- ---- consumers at work, and what subscriptions read ----------------------------------------------

-- Running consumers: each writes one row, with what it has in flight and what it waits for. A row
-- with an expired lease belongs to a consumer that died.
CREATE TABLE semel_consumer (
	scope TEXT NOT NULL,
	owner TEXT NOT NULL,
	in_hand INTEGER NOT NULL DEFAULT 0, -- deliveries that were fetched and are not settled
	breaker INTEGER NOT NULL DEFAULT 0, -- 0 closed, 1 half-open, 2 open
	reason TEXT, -- why nothing is fetched; NULL: events are fetched
	next_try_at TEXT,
	paused INTEGER NOT NULL DEFAULT 0,
	waits_since TEXT, -- NULL: it does not wait
	updated_at TEXT NOT NULL,
	expires_at TEXT NOT NULL,
	PRIMARY KEY (scope, owner)
) WITHOUT ROWID;

-- A subscription receives only the topic's events with these routing keys; NULL: all.
ALTER TABLE semel_subscription ADD COLUMN bind TEXT;

-- Which topics a scope has ever read. removed_at NULL: it still reads the topic.
CREATE TABLE semel_subscription_topic (
	scope TEXT NOT NULL,
	topic TEXT NOT NULL,
	since TEXT NOT NULL,
	removed_at TEXT,
	PRIMARY KEY (scope, topic)
) WITHOUT ROWID;
INSERT INTO semel_subscription_topic (scope, topic, since)
	SELECT s.scope, t.value, s.since FROM semel_subscription s, json_each(s.topics) t
	WHERE true ON CONFLICT DO NOTHING;

-- ---- runs that a crash may end -------------------------------------------------------------------

-- After a consumer died, events run one by one, and each is recorded before it runs; its row is
-- deleted with its effect. So an event at which consumers die repeatedly is recognised: runs is the
-- number of owners that have begun it and never ended it.
CREATE TABLE semel_running (
	scope TEXT NOT NULL,
	event_id TEXT NOT NULL,
	owner TEXT NOT NULL, -- the last one
	runs INTEGER NOT NULL,
	begun_at TEXT NOT NULL,
	PRIMARY KEY (scope, event_id)
) WITHOUT ROWID;

-- ---- when a row was committed -------------------------------------------------------------------

-- Retention and ages use this time, not the event's own. The column is before the payload and has a
-- default that is not a constant, so the table is created again; its numbers continue. Existing
-- rows count as committed at their own time, but not later than now. The application's own triggers
-- that name the table are left as they are.
PRAGMA legacy_alter_table = ON;
CREATE TABLE semel_outbox_new (
	seq INTEGER PRIMARY KEY AUTOINCREMENT,
	id TEXT NOT NULL UNIQUE DEFAULT (
		-- a UUIDv7: milliseconds since 1970, then random bits
		printf('%08x-%04x-7%03x-%04x-%012x',
			CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) >> 16,
			CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) & 65535,
			random() & 4095,
			(random() & 16383) | 32768,
			random() & 281474976710655))
		CONSTRAINT "id must not be blank, nor longer than 255 bytes"
		CHECK (trim(id) <> '' AND length(CAST(id AS BLOB)) <= 255),
	aggregate_type TEXT NOT NULL
		CONSTRAINT "aggregate_type must not be blank" CHECK (trim(aggregate_type) <> ''),
	aggregate_id TEXT NOT NULL
		CONSTRAINT "aggregate_id must not be blank" CHECK (trim(aggregate_id) <> ''),
	event_type TEXT NOT NULL
		CONSTRAINT "event_type must not be blank" CHECK (trim(event_type) <> ''),
	topic TEXT -- NULL: <aggregate_type>.events
		CONSTRAINT "topic must not be blank" CHECK (trim(topic) <> ''),
	routing_key TEXT, -- NULL: the event_type
	content_type TEXT NOT NULL DEFAULT 'application/json',
	headers TEXT NOT NULL DEFAULT '{}'
		CONSTRAINT "headers must be a JSON object" CHECK (
			headers = '{}' OR CASE WHEN json_valid(headers)
				THEN json_type(headers) = 'object' ELSE 0 END),
	created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
		CONSTRAINT "created_at must be a time like 2026-11-15T12:00:00.000Z" CHECK (
			created_at GLOB '????-??-??*' AND julianday(created_at) IS NOT NULL),
	committed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
	published_at TEXT,
	status TEXT NOT NULL DEFAULT 'NEW'
		CONSTRAINT "status is NEW, PUBLISHED or FAILED"
		CHECK (status IN ('NEW', 'PUBLISHED', 'FAILED')),
	attempts INTEGER NOT NULL DEFAULT 0,
	next_attempt_at TEXT,
	last_error TEXT,
	payload NOT NULL -- text, or a blob when it is not UTF-8
);
INSERT INTO semel_outbox_new (seq, id, aggregate_type, aggregate_id, event_type, topic, routing_key,
	content_type, headers, created_at, published_at, status, attempts, next_attempt_at,
	last_error, payload, committed_at)
SELECT seq, id, aggregate_type, aggregate_id, event_type, topic, routing_key,
	content_type, headers, created_at, published_at, status, attempts, next_attempt_at,
	last_error, payload,
	min(strftime('%Y-%m-%dT%H:%M:%fZ', created_at), strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
FROM semel_outbox;
DELETE FROM sqlite_sequence WHERE name = 'semel_outbox_new';
INSERT INTO sqlite_sequence (name, seq)
SELECT 'semel_outbox_new', seq FROM sqlite_sequence WHERE name = 'semel_outbox';
DROP TABLE semel_outbox;
ALTER TABLE semel_outbox_new RENAME TO semel_outbox;
PRAGMA legacy_alter_table = OFF;
-- For the predecessor of an event, and for replays of one aggregate.
CREATE INDEX semel_outbox_aggregate ON semel_outbox (aggregate_type, aggregate_id);

-- An event is sent as it was written, also the second time. Marks do not touch these columns, so
-- they never run the trigger.
CREATE TRIGGER semel_outbox_immutable
BEFORE UPDATE OF seq, id, aggregate_type, aggregate_id, event_type, topic, routing_key,
	content_type, headers, created_at, payload ON semel_outbox
BEGIN
	SELECT RAISE(ABORT, 'an event does not change once it is written: publish another one');
END;
