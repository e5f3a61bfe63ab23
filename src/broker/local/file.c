/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's file: created by the first process, checked by all.
 *
 * The application id distinguishes our file from other databases; the user version identifies its
 * tables. Both are written in the transaction that creates the tables, under the write lock; so of
 * two processes that start at the same time, one creates them and the other finds them.
 */
#include "base/error.h"
#include "broker/local/local.h"

#define APPLICATION_ID   0x53656d42 /* "SemB" */
#define SCHEMA_VERSION   1
#define CHECKPOINT_PAGES 1000

#define TEXT_OF_(number) #number
#define TEXT_OF(number)  TEXT_OF_(number)

extern const char semel_sql_broker_local_001_log[];

static semel_status read_version(struct semel_local *local, bool *ready_out, semel_error *error)
{
	int64_t application = 0, version = 0, objects = 0;
	*ready_out = false;
	semel_status status =
		semel_sqlite_int(local->db, "PRAGMA application_id", 0, &application, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_int(local->db, "PRAGMA user_version", 0, &version, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_int(local->db, "SELECT count(*) FROM sqlite_schema", 0, &objects,
				  error);
	if (status != SEMEL_OK)
		return status;

	if (application == 0 && version == 0 && objects == 0)
		return SEMEL_OK;
	if (application != APPLICATION_ID)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s is a database, but no semel broker: the broker needs "
				       "a file of its own (try: local:semel-broker.db)",
				       local->path);
	if (version > SCHEMA_VERSION)
		return semel_error_set(error, SEMEL_SCHEMA_NEWER,
				       "%s has schema version %lld, this semel supports up to "
				       "%d (use the newer semel for this file)",
				       local->path, (long long)version, SCHEMA_VERSION);
	*ready_out = true;
	return SEMEL_OK;
}

static semel_status create_tables(struct semel_local *local, semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_WRITE, error);
	if (status != SEMEL_OK)
		return status;
	bool ready = false;
	status = read_version(local, &ready, error);
	if (status != SEMEL_OK || ready)
		goto roll_back;
	status = semel_sqlite_exec(local->db, semel_sql_broker_local_001_log, error);
	if (status != SEMEL_OK)
		goto roll_back;
	status = semel_sqlite_exec(
		local->db,
		"PRAGMA application_id = " TEXT_OF(APPLICATION_ID) ";"
								   "PRAGMA user_version = " TEXT_OF(
									   SCHEMA_VERSION),
		error);
	if (status != SEMEL_OK)
		goto roll_back;
	return semel_local_commit(local, error);

roll_back:
	semel_local_rollback(local);
	return status;
}

/* In one transaction: another process may be creating the tables meanwhile. */
static semel_status read_version_atomically(struct semel_local *local, bool *ready_out,
					    semel_error *error)
{
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	status = read_version(local, ready_out, error);
	semel_local_rollback(local); /* nothing was written */
	return status;
}

semel_status semel_local_file_open(struct semel_local *local, semel_error *error)
{
	const struct semel_sqlite_open how = {
		.path = local->path,
		.what = "broker",
		.create = true,
		.mode = local->settings.mode,
		.checkpoint_pages = CHECKPOINT_PAGES,
		.busy_timeout_ms = local->settings.busy_timeout_ms,
	};
	semel_status status = semel_sqlite_open(&how, &local->db, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_write_queue_open(local);
	bool ready = false;
	status = read_version_atomically(local, &ready, error);
	if (status != SEMEL_OK || ready)
		return status;
	return create_tables(local, error);
}
