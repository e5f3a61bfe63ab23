-- SPDX-License-Identifier: Apache-2.0
-- The last event that a scope has settled before its place in a log: where it was, and a hash of
-- its id. A log that has another one there is not the log that was read: nothing is passed over.
ALTER TABLE semel_position
	ADD COLUMN anchor_offset bigint NOT NULL DEFAULT -1, -- -1: not known
	ADD COLUMN anchor_hash bigint NOT NULL DEFAULT 0;
