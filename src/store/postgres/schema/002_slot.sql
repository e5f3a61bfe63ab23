-- SPDX-License-Identifier: Apache-2.0
-- How far the change stream was settled, and in which history of the database. The server's state
-- of the slot is compared with it, so that no event is skipped unnoticed.
CREATE TABLE semel_slot (
	name text PRIMARY KEY,
	identity text NOT NULL, -- system identifier and timeline
	position pg_lsn NOT NULL, -- every commit up to it is settled
	poll_to bigint NOT NULL DEFAULT 0 -- rows up to this number are polled before the stream
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0);
