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

-- ---- consumers at work, and what subscriptions read ----------------------------------------------

-- Consumers at work, one row each, written by themselves: what they have in hand, and what they
-- wait for. A row whose lease is over belongs to one that died.
CREATE TABLE semel_consumer (
	scope TEXT NOT NULL,
	owner TEXT NOT NULL,
	in_hand INTEGER NOT NULL DEFAULT 0, -- deliveries that were fetched and are not settled
	breaker INTEGER NOT NULL DEFAULT 0, -- 0 closed, 1 half-open, 2 open
	reason TEXT, -- why nothing is taken; NULL: it is
	next_try_at TEXT,
	paused INTEGER NOT NULL DEFAULT 0,
	waits_since TEXT, -- NULL: it does not wait
	updated_at TEXT NOT NULL,
	expires_at TEXT NOT NULL,
	PRIMARY KEY (scope, owner)
) WITHOUT ROWID;

-- Of the topic's events a subscription wants those with such routing keys; NULL: all.
ALTER TABLE semel_subscription ADD COLUMN bind TEXT;

-- Which topics a scope has ever read. removed_at NULL: it still does.
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

-- After a consumer died, events run one by one, and each is written down before it runs; the row goes
-- with its effect. So one at which consumers die again and again is known: by how many owners it
-- was begun and never ended.
CREATE TABLE semel_running (
	scope TEXT NOT NULL,
	event_id TEXT NOT NULL,
	owner TEXT NOT NULL, -- the last one
	runs INTEGER NOT NULL,
	begun_at TEXT NOT NULL,
	PRIMARY KEY (scope, event_id)
) WITHOUT ROWID;
