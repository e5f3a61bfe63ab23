-- SPDX-License-Identifier: Apache-2.0
-- The last event before a scope's position in a log: its offset, and a hash of its id. If a log has
-- another event there, it is not the log that was read, and no event is skipped.
ALTER TABLE semel_position
	ADD COLUMN anchor_offset bigint NOT NULL DEFAULT -1, -- -1: not known
	ADD COLUMN anchor_hash bigint NOT NULL DEFAULT 0;
