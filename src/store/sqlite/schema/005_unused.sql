-- SPDX-License-Identifier: Apache-2.0

-- ---- tables that no command has written yet -----------------------------------------------------

-- They return, with the columns that are needed then, in the version that uses them.
DROP TABLE semel_request;
DROP TABLE semel_operation;
