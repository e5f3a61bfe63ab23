-- SPDX-License-Identifier: Apache-2.0
-- Semel's tables beside the application's own. The names are a contract: any language may insert
-- into semel_outbox. Times are text, RFC 3339 in UTC with milliseconds.

-- No column that a mark changes is indexed, and these columns are before the payload, so that a
-- batch costs the same however much waits and however much is kept.
CREATE TABLE semel_outbox (
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
	published_at TEXT,
	status TEXT NOT NULL DEFAULT 'NEW'
		CONSTRAINT "status is NEW, PUBLISHED or FAILED"
		CHECK (status IN ('NEW', 'PUBLISHED', 'FAILED')),
	attempts INTEGER NOT NULL DEFAULT 0,
	next_attempt_at TEXT,
	last_error TEXT,
	payload NOT NULL -- text, or a blob when it is not UTF-8
);
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

-- Rows of the outbox that the relay skips when it reads the table: refused events and those behind
-- them. retry: published again at due_at; failed: a dead letter that holds its aggregate; parked:
-- behind an earlier exception; due: may be published at once. Only the first exception of an
-- aggregate is published.
CREATE TABLE semel_outbox_exception (
	seq INTEGER PRIMARY KEY,
	aggregate_type TEXT NOT NULL,
	aggregate_id TEXT NOT NULL,
	state TEXT NOT NULL CHECK (state IN ('retry', 'failed', 'parked', 'due')),
	due_at TEXT,
	blocks INTEGER NOT NULL DEFAULT 0,
	replay INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX semel_outbox_exception_aggregate
	ON semel_outbox_exception (aggregate_type, aggregate_id);
CREATE INDEX semel_outbox_exception_due
	ON semel_outbox_exception (seq) WHERE state IN ('retry', 'due');

-- One lane: SQLite has one writer at a time, so commit order is the order of seq.
CREATE TABLE semel_lease (
	lane INTEGER PRIMARY KEY,
	owner TEXT NOT NULL DEFAULT '',
	epoch INTEGER NOT NULL DEFAULT 0,
	expires_at TEXT,
	low_seq INTEGER NOT NULL DEFAULT 0
);
INSERT INTO semel_lease (lane) VALUES (0);

-- Which scope has processed which event. week_start: Monday of the event's own time.
CREATE TABLE semel_inbox (
	scope TEXT NOT NULL CHECK (trim(scope) <> ''),
	event_id TEXT NOT NULL CHECK (trim(event_id) <> ''),
	week_start TEXT NOT NULL,
	status TEXT NOT NULL CHECK (status IN ('CLAIMED', 'PROCESSED', 'FAILED')),
	first_seen_at TEXT NOT NULL,
	processed_at TEXT,
	handler_version TEXT,
	topic TEXT NOT NULL,
	"partition" INTEGER,
	"offset" INTEGER,
	error_code TEXT,
	owner TEXT, -- of a claim that is not finished
	lease_until TEXT,
	replay INTEGER NOT NULL DEFAULT 0, -- the last replay that took it over
	PRIMARY KEY (scope, event_id, week_start)
) WITHOUT ROWID;
-- Unfinished claims are few; finished ones are not in the index.
CREATE INDEX semel_inbox_claimed ON semel_inbox (owner) WHERE status = 'CLAIMED';

-- A business key must be new within the whole window, in any week.
CREATE TABLE semel_inbox_key (
	scope TEXT NOT NULL,
	key TEXT NOT NULL,
	event_id TEXT NOT NULL,
	first_seen_at TEXT NOT NULL,
	PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX semel_inbox_key_event ON semel_inbox_key (scope, event_id);

-- Aggregates that must wait, per scope. A blank aggregate_type holds the whole topic that
-- aggregate_id names (total order).
CREATE TABLE semel_hold (
	scope TEXT NOT NULL,
	aggregate_type TEXT NOT NULL,
	aggregate_id TEXT NOT NULL,
	state TEXT NOT NULL CHECK (state IN ('retry', 'dead', 'gap', 'released')),
	head_id TEXT,
	attempts INTEGER NOT NULL DEFAULT 0,
	due_at TEXT,
	blocks INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (scope, aggregate_type, aggregate_id)
) WITHOUT ROWID;
CREATE INDEX semel_hold_ready ON semel_hold (scope) WHERE state IN ('released', 'gap');

-- How far a scope has read a log of the broker (a stream, a partition), and who reads it now.
CREATE TABLE semel_position (
	scope TEXT NOT NULL,
	topic TEXT NOT NULL,
	"partition" INTEGER NOT NULL,
	next_offset INTEGER NOT NULL DEFAULT -1, -- the first that is not settled; -1: never read
	epoch INTEGER NOT NULL,
	owner TEXT NOT NULL DEFAULT '',
	expires_at TEXT,
	PRIMARY KEY (scope, topic, "partition")
) WITHOUT ROWID;

-- Events that were given up (parked_behind NULL), and the later ones of their aggregates that wait
-- behind them, in the order of position. The event's columns may contain any bytes.
CREATE TABLE semel_dead_letter (
	position INTEGER PRIMARY KEY AUTOINCREMENT,
	entry_id TEXT NOT NULL UNIQUE,
	scope TEXT NOT NULL,
	event_id TEXT,
	event_type TEXT,
	aggregate_type TEXT,
	aggregate_id TEXT,
	topic TEXT,
	routing_key TEXT,
	content_type TEXT,
	event_time TEXT,
	"partition" INTEGER,
	"offset" INTEGER,
	failure_reason TEXT,
	failed_at TEXT NOT NULL,
	saga_id TEXT,
	correlation_id TEXT,
	attempts INTEGER NOT NULL DEFAULT 0,
	replay_count INTEGER NOT NULL DEFAULT 0,
	status TEXT NOT NULL DEFAULT 'PENDING'
		CHECK (status IN ('PENDING', 'REPLAYED', 'DISCARDED')),
	moved_at TEXT, -- when it was last replayed or discarded
	discard_reason TEXT,
	parked_behind TEXT,
	headers,
	payload
);
CREATE UNIQUE INDEX semel_dead_letter_event ON semel_dead_letter (scope, event_id)
	WHERE parked_behind IS NULL AND event_id IS NOT NULL;
CREATE INDEX semel_dead_letter_failed ON semel_dead_letter (failed_at, entry_id)
	WHERE parked_behind IS NULL;
CREATE UNIQUE INDEX semel_dead_letter_parked_event ON semel_dead_letter (scope, event_id)
	WHERE parked_behind IS NOT NULL;
CREATE INDEX semel_dead_letter_parked
	ON semel_dead_letter (scope, aggregate_type, aggregate_id, position)
	WHERE parked_behind IS NOT NULL;
CREATE INDEX semel_dead_letter_parked_topic ON semel_dead_letter (scope, topic, position)
	WHERE parked_behind IS NOT NULL;

CREATE TABLE semel_subscription (
	scope TEXT PRIMARY KEY,
	topics TEXT NOT NULL,
	guarantee TEXT,
	claim TEXT,
	poison TEXT,
	"order" TEXT,
	dedup_by TEXT,
	handler TEXT,
	from_latest INTEGER NOT NULL DEFAULT 0,
	since TEXT NOT NULL,
	paused INTEGER NOT NULL DEFAULT 0 -- set by an operator, read by its consumers
) WITHOUT ROWID;

-- What operators did: replays, discards, pauses.
CREATE TABLE semel_audit (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	at TEXT NOT NULL,
	who TEXT NOT NULL,
	what TEXT NOT NULL,
	target TEXT,
	detail TEXT
);

-- Inbound idempotency keys with their stored answers.
CREATE TABLE semel_request (
	scope TEXT NOT NULL,
	key TEXT NOT NULL,
	request_hash TEXT NOT NULL,
	status TEXT NOT NULL,
	response,
	created_at TEXT NOT NULL,
	expires_at TEXT NOT NULL,
	PRIMARY KEY (scope, key)
) WITHOUT ROWID;

-- External calls, recorded before they are made.
CREATE TABLE semel_operation (
	id TEXT PRIMARY KEY,
	idempotency_key TEXT NOT NULL UNIQUE,
	kind TEXT NOT NULL,
	state TEXT NOT NULL,
	request,
	response,
	created_at TEXT NOT NULL,
	finished_at TEXT
) WITHOUT ROWID;

-- outbox_pruned_until, inbox_known_since
CREATE TABLE semel_meta (
	name TEXT PRIMARY KEY,
	value TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE semel_schema (
	version INTEGER PRIMARY KEY,
	applied_at TEXT NOT NULL
);
