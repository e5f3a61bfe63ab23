-- SPDX-License-Identifier: Apache-2.0
-- Semel's tables beside the application's own, in the connection's default schema. The names are a
-- contract: any language may insert into semel_outbox and call the functions below.

CREATE SEQUENCE semel_outbox_seq AS bigint;

-- A UUIDv7: milliseconds since 1970, then random bits.
CREATE FUNCTION semel_uuid7() RETURNS text LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
	SELECT overlay(lpad(to_hex((date_part('epoch', clock_timestamp()) * 1000)::bigint), 12, '0')
		PLACING '-' FROM 9 FOR 0) || '-7' || substr(gen_random_uuid()::text, 16)
$$;

-- The lane of an aggregate. There are as many lanes as semel_lease has rows.
CREATE FUNCTION semel_lane(aggregate_type text, aggregate_id text) RETURNS smallint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
	SELECT (hashtextextended(aggregate_id COLLATE "C",
		hashtextextended(aggregate_type COLLATE "C", 0)) & 15)::smallint
$$;

-- No column that a mark changes is indexed, and pages have room for the marked version beside the
-- new one, so that a mark touches no index. A batch is one range of the primary key. A transaction
-- gets its xid before it draws a number for the event: every later snapshot then knows all
-- transactions that have drawn a lower number.
CREATE TABLE semel_outbox (
	seq bigint NOT NULL DEFAULT (
		CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('semel_outbox_seq') END),
	lane smallint NOT NULL, -- filled in by the trigger below
	id text COLLATE "C" NOT NULL DEFAULT semel_uuid7(),
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	event_type text COLLATE "C" NOT NULL,
	topic text COLLATE "C", -- NULL: <aggregate_type>.events
	routing_key text, -- NULL: the event_type
	content_type text NOT NULL DEFAULT 'application/json',
	headers json NOT NULL DEFAULT '{}',
	created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
	published_at timestamptz,
	status text NOT NULL DEFAULT 'NEW', -- PUBLISHED, FAILED
	attempts integer NOT NULL DEFAULT 0,
	next_attempt_at timestamptz,
	last_error text,
	payload text, -- if it is text
	payload_bytes bytea, -- if it is not: broken UTF-8, zero bytes
	CONSTRAINT semel_outbox_pkey PRIMARY KEY (lane, seq) WITH (fillfactor = 90),
	CONSTRAINT "an id is published once" UNIQUE (id)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
	autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05,
	autovacuum_vacuum_cost_delay = 0);
ALTER SEQUENCE semel_outbox_seq OWNED BY semel_outbox.seq;

-- Every business transaction pays for what is checked here. One expression in a trigger costs a
-- microsecond; a generated column and CHECK constraints, which are read again for each statement,
-- cost twenty.
CREATE FUNCTION semel_outbox_complete() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
	wrong text;
BEGIN
	IF btrim(NEW.aggregate_type) = '' OR btrim(NEW.aggregate_id) = ''
		OR btrim(NEW.event_type) = '' OR btrim(NEW.topic) = '' OR btrim(NEW.id) = ''
		OR octet_length(NEW.id) > 255 OR json_typeof(NEW.headers) <> 'object'
		OR (NEW.payload IS NULL) = (NEW.payload_bytes IS NULL) OR NEW.status <> 'NEW'
		OR NEW.created_at NOT BETWEEN '0001-01-01Z' AND '9999-12-31 23:59:59.999Z' THEN
		wrong := CASE
			WHEN btrim(NEW.aggregate_type) = '' THEN 'aggregate_type must not be blank'
			WHEN btrim(NEW.aggregate_id) = '' THEN 'aggregate_id must not be blank'
			WHEN btrim(NEW.event_type) = '' THEN 'event_type must not be blank'
			WHEN btrim(NEW.topic) = '' THEN 'topic must not be blank'
			WHEN btrim(NEW.id) = '' THEN 'id must not be blank'
			WHEN octet_length(NEW.id) > 255 THEN 'id must not be longer than 255 bytes'
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
CREATE TRIGGER semel_outbox_complete BEFORE INSERT ON semel_outbox
FOR EACH ROW EXECUTE FUNCTION semel_outbox_complete();

-- An event is sent as it was written, also the second time. Marks do not touch these columns, so
-- they never run the trigger.
CREATE FUNCTION semel_outbox_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'an event does not change once it is written: publish another one'
		USING ERRCODE = 'check_violation';
END $$;
CREATE TRIGGER semel_outbox_immutable
BEFORE UPDATE OF seq, id, aggregate_type, aggregate_id, event_type, topic, routing_key,
	content_type, headers, created_at, payload, payload_bytes ON semel_outbox
FOR EACH STATEMENT EXECUTE FUNCTION semel_outbox_refuse_change();

-- Notifies only while a relay sleeps. A sleeping relay holds the exclusive lock, or waits for it;
-- the rows of a writer that gets the shared lock are seen by the relay's last read. A transaction
-- that notifies cannot be prepared for a two-phase commit: set semel.ring to off in it, and the
-- relay finds its rows by polling.
CREATE FUNCTION semel_outbox_ring() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF NOT pg_try_advisory_xact_lock_shared(TG_RELID::int, 1936026988)
		AND current_setting('semel.ring', true) IS DISTINCT FROM 'off' THEN
		PERFORM pg_notify('semel_outbox_' || TG_RELID, '');
	END IF;
	RETURN NULL;
END $$;
CREATE TRIGGER semel_outbox_bell AFTER INSERT ON semel_outbox
FOR EACH STATEMENT EXECUTE FUNCTION semel_outbox_ring();

-- Rows of the outbox that the relay skips when it reads a lane: refused events and those behind
-- them. retry: published again at due_at; failed: a dead letter that holds its aggregate; parked:
-- behind an earlier exception; due: may be published at once. Only the first exception of an
-- aggregate is published.
CREATE TABLE semel_outbox_exception (
	lane smallint NOT NULL,
	seq bigint NOT NULL,
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	state text NOT NULL CHECK (state IN ('retry', 'failed', 'parked', 'due')),
	due_at timestamptz,
	blocks boolean NOT NULL DEFAULT false,
	replay integer NOT NULL DEFAULT 0,
	PRIMARY KEY (lane, seq)
);
CREATE INDEX semel_outbox_exception_aggregate
	ON semel_outbox_exception (aggregate_type, aggregate_id, seq);
CREATE INDEX semel_outbox_exception_due
	ON semel_outbox_exception (lane, seq) WHERE state IN ('retry', 'due');

-- One row per lane. epoch is the fence; low_seq: no row at or below it waits.
CREATE TABLE semel_lease (
	lane smallint PRIMARY KEY,
	owner text NOT NULL DEFAULT '',
	epoch bigint NOT NULL DEFAULT 0,
	expires_at timestamptz,
	low_seq bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);
INSERT INTO semel_lease (lane) SELECT generate_series(0, 15);

-- The running relays.
CREATE TABLE semel_relay (
	owner text PRIMARY KEY,
	expires_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Which scope has processed which event. week_start: Monday of the event's own time, in UTC. Weeks
-- near the present have their own partitions, so that a week is removed by dropping a table; all
-- other weeks are in the default partition.
CREATE TABLE semel_inbox (
	scope text COLLATE "C" NOT NULL CHECK (btrim(scope) <> ''),
	event_id text COLLATE "C" NOT NULL CHECK (btrim(event_id) <> ''),
	week_start date NOT NULL,
	status text NOT NULL CHECK (status IN ('CLAIMED', 'PROCESSED', 'FAILED')),
	first_seen_at timestamptz NOT NULL,
	processed_at timestamptz,
	handler_version text,
	topic text NOT NULL,
	"partition" integer,
	"offset" bigint,
	error_code text,
	owner text, -- of a claim that is not finished
	lease_until timestamptz,
	replay integer NOT NULL DEFAULT 0, -- the last replay that took it over
	PRIMARY KEY (scope, event_id, week_start)
) PARTITION BY RANGE (week_start);
-- Unfinished claims are few; finished ones are not in the index.
CREATE INDEX semel_inbox_claimed ON semel_inbox (owner) WHERE status = 'CLAIMED';
CREATE TABLE semel_inbox_other PARTITION OF semel_inbox DEFAULT;

-- Creates partitions for last week, this week and the next five. A week that already has rows in
-- the default partition, or whose partition cannot be created now, stays there: nothing depends on
-- it. Creating a partition locks all of them, so it is tried once, with a short lock_timeout.
CREATE FUNCTION semel_inbox_prepare() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET lock_timeout = '500ms' AS $$
DECLARE
	week date := date_trunc('week', now() AT TIME ZONE 'UTC')::date - 7;
	name text;
	made integer := 0;
BEGIN
	FOR i IN 0 .. 6 LOOP
		name := 'semel_inbox_' || to_char(week, 'YYYYMMDD');
		IF to_regclass(name) IS NULL THEN
			BEGIN
				EXECUTE format('CREATE TABLE %I PARTITION OF semel_inbox'
					' FOR VALUES FROM (%L) TO (%L)', name, week, week + 7);
				made := made + 1;
			EXCEPTION
				WHEN lock_not_available THEN RETURN made;
				WHEN check_violation OR duplicate_table OR unique_violation THEN NULL;
			END;
		END IF;
		week := week + 7;
	END LOOP;
	RETURN made;
END $$;

-- Removes a whole week that has its own partition; NULL: its lock was not available in time.
-- Unfinished claims move to the default partition. The rows are counted before: while the lock is
-- held, only the unfinished claims are read, which have an index.
CREATE FUNCTION semel_inbox_drop(name text) RETURNS bigint
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
	gone bigint;
BEGIN
	EXECUTE format('SELECT count(*) FROM %I WHERE status <> ''CLAIMED''', name) INTO gone;
	BEGIN
		EXECUTE format('ALTER TABLE semel_inbox DETACH PARTITION %I', name);
	EXCEPTION WHEN lock_not_available THEN
		RETURN NULL;
	END;
	EXECUTE format('INSERT INTO semel_inbox SELECT * FROM %I WHERE status = ''CLAIMED''', name);
	EXECUTE format('DROP TABLE %I', name);
	RETURN gone;
END $$;

-- A business key must be new within the whole window, in any week.
CREATE TABLE semel_inbox_key (
	scope text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	event_id text COLLATE "C" NOT NULL,
	first_seen_at timestamptz NOT NULL,
	PRIMARY KEY (scope, key)
);
CREATE INDEX semel_inbox_key_event ON semel_inbox_key (scope, event_id);

-- Aggregates that must wait, per scope. A blank aggregate_type holds the whole topic that
-- aggregate_id names (total order).
CREATE TABLE semel_hold (
	scope text COLLATE "C" NOT NULL,
	aggregate_type text COLLATE "C" NOT NULL,
	aggregate_id text COLLATE "C" NOT NULL,
	state text NOT NULL CHECK (state IN ('retry', 'dead', 'gap', 'released')),
	head_id text,
	attempts integer NOT NULL DEFAULT 0,
	due_at timestamptz,
	blocks boolean NOT NULL DEFAULT false,
	PRIMARY KEY (scope, aggregate_type, aggregate_id)
);
CREATE INDEX semel_hold_ready ON semel_hold (scope) WHERE state IN ('released', 'gap');

-- How far a scope has read a log of the broker (a stream, a partition), and who reads it now.
-- Changed with every batch; no column that changes is indexed.
CREATE TABLE semel_position (
	scope text COLLATE "C" NOT NULL,
	topic text COLLATE "C" NOT NULL,
	"partition" integer NOT NULL,
	next_offset bigint NOT NULL DEFAULT -1, -- the first that is not settled; -1: never read
	epoch bigint NOT NULL,
	owner text NOT NULL DEFAULT '',
	expires_at timestamptz,
	PRIMARY KEY (scope, topic, "partition")
) WITH (fillfactor = 50);

-- Events that were given up (parked_behind NULL), and the later ones of their aggregates that wait
-- behind them, in the order of position. Names are kept as text, with U+FFFD for invalid bytes;
-- headers and payload also as the original bytes.
CREATE TABLE semel_dead_letter (
	position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	entry_id text COLLATE "C" NOT NULL UNIQUE,
	scope text COLLATE "C" NOT NULL,
	event_id text COLLATE "C",
	event_type text,
	aggregate_type text COLLATE "C",
	aggregate_id text COLLATE "C",
	topic text COLLATE "C",
	routing_key text,
	content_type text,
	event_time timestamptz,
	"partition" integer,
	"offset" bigint,
	failure_reason text,
	failed_at timestamptz NOT NULL,
	saga_id text,
	correlation_id text,
	attempts integer NOT NULL DEFAULT 0,
	replay_count integer NOT NULL DEFAULT 0,
	status text NOT NULL DEFAULT 'PENDING'
		CHECK (status IN ('PENDING', 'REPLAYED', 'DISCARDED')),
	moved_at timestamptz, -- when it was last replayed or discarded
	discard_reason text,
	parked_behind text,
	headers text,
	headers_bytes bytea,
	payload text,
	payload_bytes bytea
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
	scope text COLLATE "C" PRIMARY KEY,
	topics text NOT NULL,
	guarantee text,
	claim text,
	poison text,
	"order" text,
	dedup_by text,
	handler text,
	from_latest boolean NOT NULL DEFAULT false,
	since timestamptz NOT NULL,
	paused boolean NOT NULL DEFAULT false -- set by an operator, read by its consumers
);

-- What operators did: replays, discards, pauses.
CREATE TABLE semel_audit (
	number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
	at timestamptz NOT NULL,
	who text NOT NULL,
	what text NOT NULL,
	target text,
	detail text
);

-- Inbound idempotency keys with their stored answers.
CREATE TABLE semel_request (
	scope text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	request_hash text NOT NULL,
	status text NOT NULL,
	response bytea,
	created_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	PRIMARY KEY (scope, key)
);

-- External calls, recorded before they are made.
CREATE TABLE semel_operation (
	id text COLLATE "C" PRIMARY KEY,
	idempotency_key text COLLATE "C" NOT NULL UNIQUE,
	kind text NOT NULL,
	state text NOT NULL,
	request bytea,
	response bytea,
	created_at timestamptz NOT NULL,
	finished_at timestamptz
);

-- outbox_pruned_until, inbox_known_since
CREATE TABLE semel_meta (
	name text PRIMARY KEY,
	value timestamptz NOT NULL
);

CREATE TABLE semel_schema (
	version integer PRIMARY KEY,
	applied_at timestamptz NOT NULL
);

-- ---- for other languages: no library needed ---------------------------------------------------

-- Writes an event in the caller's transaction, and returns its id.
CREATE FUNCTION semel_publish(event_type text, aggregate_type text, aggregate_id text, payload text,
	headers json DEFAULT '{}', topic text DEFAULT NULL, id text DEFAULT NULL)
RETURNS text LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
	made text;
BEGIN
	INSERT INTO semel_outbox (event_type, aggregate_type, aggregate_id, payload, headers, topic, id)
	VALUES ($1, $2, $3, $4, coalesce($5, '{}'), $6, coalesce($7, semel_uuid7()))
	RETURNING id INTO made;
	RETURN made;
END $$;
CREATE FUNCTION semel_publish(event_type text, aggregate_type text, aggregate_id text, payload jsonb,
	headers json DEFAULT '{}', topic text DEFAULT NULL, id text DEFAULT NULL)
RETURNS text LANGUAGE sql VOLATILE AS $$
	SELECT semel_publish($1, $2, $3, $4::text, $5, $6, $7)
$$;

-- True for exactly one caller per scope and event: apply the effect. False: it was done before.
-- In a transaction block the claim commits with the effect; outside it commits at once.
CREATE FUNCTION semel_try_claim(scope text, event_id text, event_time timestamptz, topic text,
	"partition" integer DEFAULT 0, "offset" bigint DEFAULT 0)
RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
BEGIN
	IF $1 IS NULL OR btrim($1) = '' OR $2 IS NULL OR btrim($2) = '' THEN
		RAISE EXCEPTION 'scope and event_id must not be blank' USING ERRCODE = '22023';
	END IF;
	IF $3 IS NULL OR $4 IS NULL THEN
		RAISE EXCEPTION 'event_time and topic must be given' USING ERRCODE = '22004';
	END IF;
	IF $3 NOT BETWEEN '0001-01-01Z' AND '9999-12-31 23:59:59.999Z' THEN
		RAISE EXCEPTION 'event_time must lie in the years 1 to 9999' USING ERRCODE = '22008';
	END IF;
	INSERT INTO semel_inbox (scope, event_id, week_start, status, first_seen_at, processed_at,
		topic, "partition", "offset")
	VALUES ($1, $2, date_trunc('week', $3 AT TIME ZONE 'UTC')::date, 'PROCESSED',
		clock_timestamp(), clock_timestamp(), $4, $5, $6) ON CONFLICT DO NOTHING;
	RETURN FOUND;
END $$;

-- Whatever the caller and its search_path, the functions resolve names only in the schema of the
-- tables.
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY ARRAY['semel_inbox_prepare()', 'semel_inbox_drop(text)',
		'semel_publish(text, text, text, text, json, text, text)',
		'semel_publish(text, text, text, jsonb, json, text, text)',
		'semel_try_claim(text, text, timestamptz, text, integer, bigint)'] LOOP
		EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name,
			current_schema());
	END LOOP;
END $$;
