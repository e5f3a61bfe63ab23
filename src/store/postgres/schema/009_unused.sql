-- SPDX-License-Identifier: Apache-2.0

-- ---- tables that no command has written yet -----------------------------------------------------

-- The version that uses them will create them again, with the columns that it needs.
DROP TABLE IF EXISTS semel_request, semel_operation;
