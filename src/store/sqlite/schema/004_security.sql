-- SPDX-License-Identifier: Apache-2.0

-- ---- the audit ---------------------------------------------------------------------------------

-- How the action ended; NULL in rows that are older than the column.
ALTER TABLE semel_audit ADD COLUMN outcome TEXT;
