-- SPDX-License-Identifier: Apache-2.0
-- The local broker's own file, version 1.
--
-- A log entry's position packs topic number (13 bits), partition (6 bits) and offset (44 bits), so a
-- partition of a topic is one range of the table's key, and reading from a cursor is a scan of that
-- range. Offsets grow over the whole broker. The event's columns may be NULL: an event that breaks the
-- contract is stored as well, and the consumer reports it. To write an entry by hand, take
-- semel_offset.next, add one to it, and insert at (number << 50) | (partition << 44) | offset.

CREATE TABLE semel_offset (
	one INTEGER PRIMARY KEY CHECK (one = 1),
	next INTEGER NOT NULL
);
INSERT INTO semel_offset (one, next) VALUES (1, 1);

CREATE TABLE semel_topic (
	number INTEGER PRIMARY KEY,
	name TEXT NOT NULL UNIQUE,
	partitions INTEGER NOT NULL,
	created_at INTEGER NOT NULL
);

-- How many entries were ever appended, and how many of them retention has removed.
CREATE TABLE semel_partition (
	topic INTEGER NOT NULL REFERENCES semel_topic (number),
	partition INTEGER NOT NULL,
	appended INTEGER NOT NULL DEFAULT 0,
	removed INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

CREATE TABLE semel_log (
	position INTEGER PRIMARY KEY,
	appended_at INTEGER,
	id TEXT,
	type TEXT,
	aggregate_type TEXT,
	aggregate_id TEXT,
	routing_key TEXT,
	content_type TEXT,
	headers TEXT,
	payload,
	time INTEGER,
	previous TEXT,
	attempt INTEGER,
	replay INTEGER
);

CREATE TABLE semel_subscription (
	number INTEGER PRIMARY KEY,
	scope TEXT NOT NULL,
	topic INTEGER NOT NULL REFERENCES semel_topic (number),
	created_at INTEGER NOT NULL,
	UNIQUE (scope, topic)
);

-- One partition of one subscription: everything at or below cursor is settled. owner and epoch are the
-- fence; semel_member shows whether the owner is alive. Entries up to fetched_to (an offset) and
-- delayed_fetched_to (a due time) may have been delivered before.
CREATE TABLE semel_share (
	subscription INTEGER NOT NULL REFERENCES semel_subscription (number),
	partition INTEGER NOT NULL,
	cursor INTEGER NOT NULL,
	settled INTEGER NOT NULL,
	fetched_to INTEGER NOT NULL DEFAULT 0,
	delayed_fetched_to INTEGER NOT NULL DEFAULT 0,
	owner TEXT,
	epoch INTEGER NOT NULL DEFAULT 0,
	PRIMARY KEY (subscription, partition)
) WITHOUT ROWID;

-- The consumers at work on a subscription, in the order in which they joined.
CREATE TABLE semel_member (
	joined INTEGER PRIMARY KEY,
	subscription INTEGER NOT NULL REFERENCES semel_subscription (number),
	owner TEXT NOT NULL,
	expires_at INTEGER NOT NULL,
	UNIQUE (subscription, owner)
);

-- Delayed retries and replays: to one subscription only.
CREATE TABLE semel_delayed (
	number INTEGER PRIMARY KEY AUTOINCREMENT,
	subscription INTEGER NOT NULL REFERENCES semel_subscription (number),
	partition INTEGER NOT NULL,
	due_at INTEGER NOT NULL,
	id TEXT,
	type TEXT,
	aggregate_type TEXT,
	aggregate_id TEXT,
	routing_key TEXT,
	content_type TEXT,
	headers TEXT,
	payload,
	time INTEGER,
	previous TEXT,
	attempt INTEGER,
	replay INTEGER
);
CREATE INDEX semel_delayed_due ON semel_delayed (subscription, due_at, number);
