/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker, opened and closed: a log in a SQLite file of its own (WAL, synchronous FULL),
 * for several processes on one machine. The first process creates the file, all check it.
 *
 * The application id distinguishes our file from other databases; the user version identifies its
 * tables. Both are written in the transaction that creates the tables, under the write lock; so of
 * two processes that start at the same time, one creates them and the other finds them.
 */
#include "broker/local/local.h"
#include "base/error.h"
#include "base/sqlite_access.h"

#include <stdlib.h>
#include <string.h>

#define APPLICATION_ID   0x53656d42 /* "SemB" */
#define SCHEMA_VERSION   1
#define CHECKPOINT_PAGES 1000
#define PARTITIONS       8
#define MESSAGE_MAX      ((int64_t)SEMEL_PAYLOAD_MAX + SEMEL_HEADERS_MAX)
#define BUSY_TIMEOUT_MS  5000

/* ---- the file -------------------------------------------------------------------------------- */

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
				       "%s is a database, but not a semel broker: the broker needs "
				       "a file of its own (try: local:semel-broker.db)",
				       local->path);
	if (version > SCHEMA_VERSION)
		return semel_error_set(error, SEMEL_SCHEMA_NEWER,
				       "%s: the tables have version %lld, this version of Semel "
				       "supports versions up to %d (upgrade Semel)",
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

static semel_status open_file(struct semel_local *local, semel_error *error)
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

/* ---- the broker ------------------------------------------------------------------------------ */

static semel_status read_settings(const struct semel_url *url,
				  struct semel_local_settings *settings, semel_error *error)
{
	static const char *const known[] = { "partitions", "max-message", "max-length",
					     "busy-timeout", "mode" };
	const struct semel_range ranges[] = {
		{ 1, SEMEL_LOCAL_PARTITIONS_MAX, PARTITIONS },
		{ 1, INT32_MAX, MESSAGE_MAX },
		{ 0, INT64_MAX, 0 },
		{ 0, INT32_MAX, BUSY_TIMEOUT_MS },
	};
	int64_t *const values[] = { &settings->partitions, &settings->message_max,
				    &settings->length_max, &settings->busy_timeout_ms };
	const size_t count = sizeof(ranges) / sizeof(ranges[0]);
	semel_status status =
		semel_url_check_params(url, known, sizeof(known) / sizeof(known[0]), error);
	if (status != SEMEL_OK)
		return status;
	status = semel_sqlite_mode_of(url, &settings->mode, error);
	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < count; i++) {
		status = semel_url_param_int(url, known[i], ranges[i], values[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	settings->partitions_named = semel_url_param(url, "partitions") != NULL;
	return SEMEL_OK;
}

static void free_subscriptions(struct semel_local *local)
{
	for (uint32_t i = 0; i < local->subscription_count; i++) {
		struct semel_local_subscription *subscription = &local->subscriptions[i];
		for (uint32_t p = 0;
		     subscription->assignments && p < subscription->topic->partitions; p++) {
			free(subscription->assignments[p].unacked);
			free(subscription->assignments[p].delayed);
		}
		free(subscription->assignments);
	}
	free(local->subscriptions);
}

static void local_close(struct semel_broker *broker)
{
	struct semel_local *local = semel_local_of(broker);
	if (local->db != NULL)
		semel_local_leave(local);
	for (int i = 0; i < SEMEL_LOCAL_SQL_COUNT; i++)
		sqlite3_finalize(local->statements[i]);
	semel_sqlite_close(local->db);
	semel_local_write_queue_close(local);
	free_subscriptions(local);
	for (uint32_t i = 0; i < local->topic_count; i++) {
		free(local->topics[i]->name);
		free(local->topics[i]);
	}
	free(local->topics);
	free(local->inflight);
	free(local->path);
	free(local);
}

static semel_status local_open(const struct semel_url *url, const struct semel_env *env,
			       uint32_t window, struct semel_broker **broker_out,
			       semel_error *error)
{
	struct semel_local_settings settings = { 0 };
	semel_status status = read_settings(url, &settings, error);
	if (status != SEMEL_OK)
		return status;
	if (url->path[0] == '\0')
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the broker's URL names no file (try: local:semel-broker.db)");
	struct semel_local *local = calloc(1, sizeof(*local));
	if (local == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the broker");
	local->broker.driver = &semel_local_driver;
	local->env = env;
	local->settings = settings;
	local->window = window;
	local->queue_fd = -1;
	local->path = strdup(url->path);
	local->inflight = calloc(window, sizeof(local->inflight[0]));
	semel_owner_make(env, local->owner);
	if (local->path == NULL || local->inflight == NULL)
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory for the broker");
	else
		status = open_file(local, error);
	if (status != SEMEL_OK) {
		local_close(&local->broker);
		return status;
	}
	*broker_out = &local->broker;
	return SEMEL_OK;
}

static void local_watch(struct semel_broker *broker, struct semel_wake *wake)
{
	semel_wake_watch_database(wake, semel_local_of(broker)->path);
}

/* A full disk is an outcome of each event, so nothing blocks. */
static const char *local_blocked(struct semel_broker *broker)
{
	(void)broker;
	return NULL;
}

const struct semel_broker_driver semel_local_driver = {
	.scheme = "local",
	.form = "local:PATH",
	.open = local_open,
	.close = local_close,
	.watch = local_watch,
	.publish = semel_local_publish,
	.poll = semel_local_poll,
	.blocked = local_blocked,
	.subscribe = semel_local_subscribe,
	.fetch = semel_local_fetch,
	.ack = semel_local_ack,
	.rewind = semel_local_rewind,
	.requeue = semel_local_requeue,
	.backlog = semel_local_backlog,
	.find_event = semel_local_find_event,
	.compare = semel_local_compare,
	.prune = semel_local_prune,
	.examine = semel_local_examine,
};
