/* SPDX-License-Identifier: Apache-2.0 */
/* How much waits for a scope, whether one event does, what a subscription lacks, and what
 * `semel doctor` checks of the file. Reads only, over all partitions, no matter which consumer owns
 * them; a missing file is not created. */
#include "base/error.h"
#include "broker/local/local.h"
#include "diagnose/sqlite.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

struct cursor {
	int64_t topic, cursor, waiting, subscription;
	uint32_t partition;
};

static semel_status bind_range(struct semel_local *local, enum semel_local_sql which,
			       const struct cursor *cursor, semel_error *error)
{
	return semel_local_bind(
		local, which,
		SEMEL_LOCAL_INTS(
			semel_local_entry_key(cursor->topic, cursor->partition, cursor->cursor),
			semel_local_entry_key(cursor->topic, cursor->partition,
					      SEMEL_LOCAL_OFFSET_MAX)),
		error);
}

/* Entries that were written into the log by hand are not counted; so an empty backlog is reported
 * only after the log was read. */
static semel_status count_partition(struct semel_local *local, const struct cursor *cursor,
				    struct semel_backlog *backlog, semel_error *error)
{
	int64_t any = 0;
	if (cursor->waiting > 0) {
		backlog->waiting += (uint64_t)cursor->waiting;
		return SEMEL_OK;
	}
	semel_status status = bind_range(local, SEMEL_LOCAL_LOG_ANY, cursor, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_get(local, SEMEL_LOCAL_LOG_ANY, 0, &any, error);
	backlog->waiting += (uint64_t)any;
	return status;
}

static semel_status count_delayed(struct semel_local *local, int64_t subscription,
				  struct semel_backlog *backlog, semel_error *error)
{
	const enum semel_local_sql row = SEMEL_LOCAL_DELAYED_COUNT;
	bool found = false;
	semel_status status = semel_local_bind(local, row, SEMEL_LOCAL_INTS(subscription), error);
	if (status != SEMEL_OK)
		return status;
	status = semel_local_next(local, row, &found, error);
	if (status != SEMEL_OK || !found)
		return status;
	int64_t count = semel_local_int(local, row, 0), due_ms = semel_local_int(local, row, 1);
	semel_local_reset(local, row);
	backlog->waiting += (uint64_t)count;
	backlog->delayed += (uint64_t)count;
	if (count > 0 && (backlog->next_due_ms == 0 || due_ms < backlog->next_due_ms))
		backlog->next_due_ms = due_ms;
	return SEMEL_OK;
}

static semel_status count_topic(struct semel_local *local, const char *scope, const char *topic,
				struct semel_backlog *backlog, semel_error *error)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_BACKLOG;
	struct cursor cursor = { 0 };
	bool row = true;
	semel_status status = semel_local_bind(local, rows, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, rows, 1, semel_text_of(scope));
	semel_local_bind_text(local, rows, 2, semel_text_of(topic));
	for (;;) {
		status = semel_local_next(local, rows, &row, error);
		if (status != SEMEL_OK || !row)
			break;
		cursor = (struct cursor){
			.topic = semel_local_int(local, rows, 0),
			.partition = (uint32_t)semel_local_int(local, rows, 1),
			.cursor = semel_local_int(local, rows, 2),
			.waiting = semel_local_int(local, rows, 3),
			.subscription = semel_local_int(local, rows, 4),
		};
		status = count_partition(local, &cursor, backlog, error);
		if (status != SEMEL_OK)
			break;
	}
	semel_local_reset(local, rows);
	if (status != SEMEL_OK || cursor.subscription == 0)
		return status;
	return count_delayed(local, cursor.subscription, backlog, error);
}

semel_status semel_local_backlog(struct semel_broker *broker, const char *scope,
				 const char *const *topics, struct semel_backlog *backlog_out,
				 semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	*backlog_out = (struct semel_backlog){ 0 };
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; topics[i] != NULL; i++) {
		status = count_topic(local, scope, topics[i], backlog_out, error);
		if (status != SEMEL_OK)
			break;
	}
	semel_local_rollback(local);
	return status;
}

/* ---- one event ------------------------------------------------------------------------------ */

static semel_status find_delayed(struct semel_local *local, const char *scope, const char *event_id,
				 bool *found_out, semel_error *error)
{
	int64_t found = 0;
	semel_status status =
		semel_local_bind(local, SEMEL_LOCAL_DELAYED_FIND, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_DELAYED_FIND, 1, semel_text_of(scope));
	semel_local_bind_text(local, SEMEL_LOCAL_DELAYED_FIND, 2, semel_text_of(event_id));
	status = semel_local_get(local, SEMEL_LOCAL_DELAYED_FIND, 0, &found, error);
	*found_out = found != 0;
	return status;
}

static semel_status find_after(struct semel_local *local, const struct cursor *cursor,
			       const char *event_id, bool *found_out, semel_error *error)
{
	int64_t found = 0;
	semel_status status = bind_range(local, SEMEL_LOCAL_LOG_FIND, cursor, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, SEMEL_LOCAL_LOG_FIND, 3, semel_text_of(event_id));
	status = semel_local_get(local, SEMEL_LOCAL_LOG_FIND, 0, &found, error);
	*found_out = found != 0;
	return status;
}

static semel_status find_in_log(struct semel_local *local, const char *scope, const char *event_id,
				bool *found_out, semel_error *error)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_CURSORS;
	bool row = true;
	semel_status status = semel_local_bind(local, rows, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, rows, 1, semel_text_of(scope));
	while (!*found_out) {
		status = semel_local_next(local, rows, &row, error);
		if (status != SEMEL_OK || !row)
			break;
		struct cursor cursor = { .topic = semel_local_int(local, rows, 0),
					 .partition = (uint32_t)semel_local_int(local, rows, 1),
					 .cursor = semel_local_int(local, rows, 2) };
		status = find_after(local, &cursor, event_id, found_out, error);
		if (status != SEMEL_OK)
			break;
	}
	semel_local_reset(local, rows);
	return status;
}

/* The scope's cursors say where to search; the topics are not needed. */
semel_status semel_local_find_event(struct semel_broker *broker, const char *scope,
				    const char *const *topics, const char *event_id,
				    bool *waiting_out, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	(void)topics;
	*waiting_out = false;
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	status = find_delayed(local, scope, event_id, waiting_out, error);
	if (status != SEMEL_OK || *waiting_out)
		goto roll_back;
	status = find_in_log(local, scope, event_id, waiting_out, error);

roll_back:
	semel_local_rollback(local);
	return status;
}

/* ---- what a subscription needs -------------------------------------------------------------- */

static semel_status compare_topic(struct semel_local *local, const char *scope, const char *topic,
				  bool *exists_out, semel_error *error)
{
	const enum semel_local_sql rows = SEMEL_LOCAL_BACKLOG;
	bool row = false;
	semel_status status = semel_local_bind(local, rows, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK)
		return status;
	semel_local_bind_text(local, rows, 1, semel_text_of(scope));
	semel_local_bind_text(local, rows, 2, semel_text_of(topic));
	status = semel_local_next(local, rows, &row, error);
	if (status != SEMEL_OK || !row)
		return status;
	*exists_out = semel_local_int(local, rows, 4) != 0; /* the topic alone is not enough */
	semel_local_reset(local, rows);
	return SEMEL_OK;
}

semel_status semel_local_compare(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 semel_difference_callback callback, void *user, semel_error *error)
{
	struct semel_local *local = semel_local_of(broker);
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_status status = semel_local_begin(local, SEMEL_LOCAL_BEGIN_READ, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t i = 0; options->topics[i] != NULL; i++) {
		bool exists = false;
		status = compare_topic(local, options->scope, options->topics[i], &exists, error);
		if (status != SEMEL_OK)
			break;
		snprintf(text, sizeof(text), "%s is not subscribed to %s", options->scope,
			 options->topics[i]);
		if (!exists)
			callback(text, user);
	}
	semel_local_rollback(local);
	return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

static bool exists(const char *path)
{
	struct stat found;
	return stat(path, &found) == 0 || errno != ENOENT;
}

/* A file is created when it is needed, a folder is not. */
static void report_missing(const char *path, const struct semel_examination *examination)
{
	char text[512], folder[400];
	const char *slash = strrchr(path, '/');
	snprintf(folder, sizeof(folder), "%.*s", slash ? (int)(slash - path) + 1 : 1,
		 slash ? path : ".");
	bool can_be_created = exists(folder);
	snprintf(text, sizeof(text), "%.400s does not exist%s", path,
		 can_be_created ? "" : ", nor does its folder");
	semel_examination_report(
		examination, SEMEL_CHECK_BROKER_REACHED,
		can_be_created ? SEMEL_SEVERITY_ADVICE : SEMEL_SEVERITY_PROBLEM, text,
		can_be_created
			? "none if the path is right: the first relay or consumer creates the file"
			: "create the folder, or correct the path in the broker's URL");
}

semel_status semel_local_examine(const struct semel_url *url,
				 const struct semel_examination *examination)
{
	static const struct semel_sqlite_checks checks = { SEMEL_CHECK_BROKER_RIGHTS,
							   SEMEL_CHECK_BROKER_FILES,
							   SEMEL_CHECK_BROKER_ALARM,
							   SEMEL_CHECK_BROKER_DISK };
	struct semel_broker *broker = NULL;
	semel_error error = { 0 };
	if (url->path[0] != '\0' && !exists(url->path)) {
		report_missing(url->path, examination);
		return SEMEL_NOT_FOUND;
	}
	semel_status status = semel_local_driver.open(url, examination->env, 1, &broker, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		return status;
	}
	struct semel_local *local = semel_local_of(broker);
	semel_examination_fine(examination, SEMEL_CHECK_BROKER_REACHED, "%s", local->path);
	semel_sqlite_examine(local->db, url, &checks, examination);
	semel_local_write_queue_examine(local, examination);
	broker->driver->close(broker);
	return SEMEL_OK;
}
