/* SPDX-License-Identifier: Apache-2.0 */
/* Opens the application's file, and creates or upgrades the tables in it.
 *
 * - Opening never creates a file: a mistyped path is an error.
 * - An upgrade is one transaction with the write lock held, so if two run at once, only one does
 *   the work.
 * - An existing file keeps its journal mode; a file that init creates is in WAL mode.
 */
#include "store/sqlite/sqlite.h"

#include "base/error.h"
#include "base/sqlite_access.h"
#include "diagnose/sqlite.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* The WAL may grow to four times SQLite's own threshold before we checkpoint it: the application's
 * own connections do so first. */
#define CHECKPOINT_PAGES 4000
#define BUSY_TIMEOUT_MS  5000

extern const char semel_sql_store_sqlite_001_spine[], semel_sql_store_sqlite_002_anchor[],
	semel_sql_store_sqlite_003_states[], semel_sql_store_sqlite_004_security[],
	semel_sql_store_sqlite_005_unused[];

static const char *const versions[SEMEL_SQLITE_SCHEMA] = { semel_sql_store_sqlite_001_spine,
							   semel_sql_store_sqlite_002_anchor,
							   semel_sql_store_sqlite_003_states,
							   semel_sql_store_sqlite_004_security,
							   semel_sql_store_sqlite_005_unused };

static semel_status open_file(const struct semel_url *url, bool create, sqlite3 **db_out,
			      semel_error *error)
{
	static const char *const known[] = { "busy-timeout", "mode" };
	const struct semel_range range = { 0, 3600000, BUSY_TIMEOUT_MS };
	struct semel_sqlite_open how = { .path = url->path,
					 .what = "store",
					 .create = create,
					 .checkpoint_pages = CHECKPOINT_PAGES };
	semel_status status = semel_url_check_params(url, known, 2, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_mode_of(url, &how.mode, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_url_param_int(url, "busy-timeout", range, &how.busy_timeout_ms, error);
	if (status != SEMEL_OK)
		return status;
	return semel_sqlite_open(&how, db_out, error);
}

/* 0: our tables do not exist. */
static semel_status read_version(sqlite3 *db, int64_t *version_out, semel_error *error)
{
	int64_t tables = 0;
	*version_out = 0;
	semel_status status = semel_sqlite_int(
		db, "SELECT count(*) FROM sqlite_master WHERE name = 'semel_schema'", 0, &tables,
		error);
	if (status != SEMEL_OK || tables == 0)
		return status;
	return semel_sqlite_int(db, "SELECT max(version) FROM semel_schema", 0, version_out, error);
}

static semel_status refuse_newer(int64_t version, const struct semel_url *url, semel_error *error)
{
	if (version <= SEMEL_SQLITE_SCHEMA)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_SCHEMA_NEWER,
			       "%s: the tables have version %lld, this version of Semel supports "
			       "versions up to %d (upgrade Semel)",
			       url->text, (long long)version, SEMEL_SQLITE_SCHEMA);
}

static semel_status check_version(sqlite3 *db, const struct semel_url *url, semel_error *error)
{
	int64_t version = 0;
	semel_status status = read_version(db, &version, error);
	if (status != SEMEL_OK)
		return status;
	if (version == 0)
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "%s: Semel's tables are not there (run: semel --store %s "
				       "init)",
				       url->text, url->text);
	if (version < SEMEL_SQLITE_SCHEMA)
		return semel_error_set(error, SEMEL_NO_SCHEMA,
				       "%s: the tables have version %lld, this program needs %d "
				       "(run: semel --store %s init)",
				       url->text, (long long)version, SEMEL_SQLITE_SCHEMA,
				       url->text);
	return refuse_newer(version, url, error);
}

/* ---- init ------------------------------------------------------------------------------------ */

static semel_status upgrade(sqlite3 *db, const struct semel_url *url, semel_error *error)
{
	int64_t version = 0;
	semel_status status = read_version(db, &version, error);
	if (status != SEMEL_OK)
		return status;
	status = refuse_newer(version, url, error);
	if (status != SEMEL_OK)
		return status;
	for (; version < SEMEL_SQLITE_SCHEMA; version++) {
		char note[160];
		sqlite3_snprintf((int)sizeof(note), note,
				 "INSERT INTO semel_schema (version, applied_at) VALUES (%lld, "
				 "strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now'))",
				 (long long)version + 1);
		int code = sqlite3_exec(db, versions[version], NULL, NULL, NULL);
		if (code == SQLITE_OK)
			code = sqlite3_exec(db, note, NULL, NULL, NULL);
		if (code != SQLITE_OK)
			return semel_sqlite_error(db, code, "create Semel's tables", error);
	}
	return SEMEL_OK;
}

semel_status semel_sqlite_store_init(const struct semel_url *url, semel_error *error)
{
	sqlite3 *db = NULL;
	semel_status status = open_file(url, true, &db, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_exec(db, "BEGIN IMMEDIATE", error);
	if (status != SEMEL_OK)
		goto close_db;
	status = upgrade(db, url, error);
	if (status != SEMEL_OK)
		goto roll_back;
	status = semel_sqlite_exec(db, "COMMIT", error);
roll_back:
	if (sqlite3_get_autocommit(db) == 0)
		sqlite3_exec(db, "ROLLBACK", NULL, NULL, NULL);
close_db:
	semel_sqlite_close(db);
	return status;
}

semel_status semel_sqlite_check_schema(semel_store *store, semel_error *error)
{
	char text[PATH_MAX + 8];
	const struct semel_url url = { .text = text };
	sqlite3_snprintf((int)sizeof(text), text, "sqlite:%s", semel_sqlite_of(store)->path);
	return check_version(semel_sqlite_of(store)->db, &url, error);
}

/* ---- examine --------------------------------------------------------------------------------- */

static void examine_schema(sqlite3 *db, const struct semel_url *url,
			   const struct semel_examination *examination, semel_status *status)
{
	semel_error error = { .status = SEMEL_OK };
	*status = check_version(db, url, &error);
	if (*status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_STORE_SCHEMA, &error);
		return;
	}
	semel_examination_fine(examination, SEMEL_CHECK_STORE_SCHEMA, "version %d",
			       SEMEL_SQLITE_SCHEMA);
}

static void examine_journal(sqlite3 *db, const struct semel_examination *examination)
{
	int64_t wal = 0;
	semel_status status = semel_sqlite_int(
		db, "SELECT journal_mode = 'wal' FROM pragma_journal_mode", 0, &wal, NULL);
	if (status != SEMEL_OK)
		return;
	if (wal == 1)
		semel_examination_fine(examination, SEMEL_CHECK_STORE_SETTINGS,
				       "the journal mode is WAL");
	else
		semel_examination_report(
			examination, SEMEL_CHECK_STORE_SETTINGS, SEMEL_SEVERITY_ADVICE,
			"the journal mode is not WAL: readers and writers block each other",
			"PRAGMA journal_mode = WAL, once, unless the application needs it so");
}

semel_status semel_sqlite_store_examine(const struct semel_url *url,
					const struct semel_examination *examination)
{
	static const struct semel_sqlite_checks checks = { SEMEL_CHECK_STORE_RIGHTS,
							   SEMEL_CHECK_STORE_FILES,
							   SEMEL_CHECK_STORE_TRANSACTIONS,
							   SEMEL_CHECK_STORE_DISK };
	sqlite3 *db = NULL;
	semel_error error = { .status = SEMEL_OK };
	semel_status status = open_file(url, false, &db, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_STORE_REACHED, &error);
		return status;
	}
	semel_examination_fine(examination, SEMEL_CHECK_STORE_REACHED, "%s", url->path);
	semel_examination_fine(examination, SEMEL_CHECK_STORE_VERSION, "SQLite %s",
			       sqlite3_libversion());
	examine_schema(db, url, examination, &status);
	examine_journal(db, examination);
	semel_sqlite_examine(db, url, &checks, examination);
	semel_sqlite_close(db);
	return status;
}

/* ---- open ------------------------------------------------------------------------------------ */

semel_status semel_sqlite_store_open(const struct semel_url *url, semel_store **store_out,
				     semel_error *error)
{
	sqlite3 *db = NULL;
	semel_status status = open_file(url, false, &db, error);
	if (status != SEMEL_OK)
		return status;
	status = check_version(db, url, error);
	if (status != SEMEL_OK)
		goto close_db;
	struct semel_sqlite_store *store = calloc(1, sizeof(*store));
	char *path = strdup(url->path);
	if (store == NULL || path == NULL) {
		free(store);
		free(path);
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory");
		goto close_db;
	}
	store->base.driver = &semel_store_sqlite;
	store->db = db;
	store->path = path;
	*store_out = &store->base;
	return SEMEL_OK;

close_db:
	semel_sqlite_close(db);
	return status;
}

void semel_sqlite_store_close(semel_store *base)
{
	struct semel_sqlite_store *store = semel_sqlite_of(base);
	semel_sqlite_rollback(base);
	for (size_t i = 0; i < SEMEL_SQLITE_COUNT; i++)
		sqlite3_finalize(store->prepared[i]);
	for (size_t i = 0; i < SEMEL_SQLITE_SHARED_MAX; i++)
		sqlite3_finalize(store->shared[i].prepared);
	semel_sqlite_effects_free(store->effects);
	semel_sqlite_close(store->db);
	semel_buffer_free(&store->prune.scope);
	semel_buffer_free(&store->prune.event_id);
	free(store->path);
	free(store);
}

void semel_sqlite_store_watch(semel_store *store, struct semel_wake *wake)
{
	semel_wake_watch_database(wake, semel_sqlite_of(store)->path);
}
