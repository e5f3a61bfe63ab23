/* SPDX-License-Identifier: Apache-2.0 */
/* The statements of the local broker and the few ways in which they are run. */
#include "broker/local/sql.h"

#include "base/error.h"
#include "base/sqlite_access.h"
#include "broker/local/local.h"

#include <assert.h>

#define EVENT_COLUMNS                                                                              \
	"id, type, aggregate_type, aggregate_id, routing_key, content_type, headers, payload, "    \
	"time, previous, attempt, replay"

struct statement {
	const char *what; /* for messages: "cannot …" */
	const char *sql;
};

static const struct statement statements[SEMEL_LOCAL_SQL_COUNT] = {
	[SEMEL_LOCAL_BEGIN_READ] = { "read the broker", "BEGIN" },
	[SEMEL_LOCAL_BEGIN_WRITE] = { "write to the broker", "BEGIN IMMEDIATE" },
	[SEMEL_LOCAL_COMMIT] = { "commit to the broker", "COMMIT" },
	[SEMEL_LOCAL_ROLLBACK] = { "roll back", "ROLLBACK" },
	[SEMEL_LOCAL_OFFSET_GET] = { "read the next offset", "SELECT next FROM semel_offset" },
	[SEMEL_LOCAL_OFFSET_SET] = { "set the next offset", "UPDATE semel_offset SET next = ?1" },

	[SEMEL_LOCAL_TOPIC_FIND] = { "find a topic",
				     "SELECT number, partitions FROM semel_topic WHERE name = ?1" },
	[SEMEL_LOCAL_TOPIC_ADD] = { "create a topic", "INSERT INTO semel_topic "
						      "(partitions, created_at, name) "
						      "VALUES (?1, ?2, ?3)" },
	[SEMEL_LOCAL_PARTITION_ADD] = { "create a partition",
					"INSERT INTO semel_partition (topic, partition) "
					"VALUES (?1, ?2)" },
	[SEMEL_LOCAL_PARTITION_APPENDED] = { "count appended entries",
					     "UPDATE semel_partition SET appended = appended + ?3 "
					     "WHERE topic = ?1 AND partition = ?2" },
	[SEMEL_LOCAL_PARTITION_REMOVED] = { "count removed entries",
					    "UPDATE semel_partition SET removed = removed + ?3 "
					    "WHERE topic = ?1 AND partition = ?2" },
	/* Counted for the slowest subscription; without a subscription, everything that is kept. */
	[SEMEL_LOCAL_TOPIC_UNSETTLED] = { "count a topic's entries",
					  "SELECT coalesce((SELECT max(waiting) FROM ("
					  " SELECT sum(p.appended - s.settled) AS waiting"
					  " FROM semel_subscription c"
					  " JOIN semel_share s ON s.subscription = c.number"
					  " JOIN semel_partition p"
					  "  ON p.topic = c.topic AND p.partition = s.partition"
					  " WHERE c.topic = ?1 GROUP BY c.number)),"
					  "(SELECT sum(appended - removed) FROM semel_partition"
					  " WHERE topic = ?1))" },

	[SEMEL_LOCAL_LOG_ADD] = { "append to the log",
				  "INSERT INTO semel_log (position, appended_at, " EVENT_COLUMNS
				  ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" },
	[SEMEL_LOCAL_LOG_READ] = { "read the log",
				   "SELECT position, " EVENT_COLUMNS " FROM semel_log "
				   "WHERE position > ?1 AND position <= ?2 "
				   "ORDER BY position LIMIT ?3" },
	[SEMEL_LOCAL_LOG_ANY] = { "read the log",
				  "SELECT 1 FROM semel_log WHERE position > ?1 AND position <= ?2 "
				  "LIMIT 1" },
	[SEMEL_LOCAL_LOG_FIND] = { "search the log",
				   "SELECT 1 FROM semel_log WHERE position > ?1 AND position <= ?2 "
				   "AND id = ?3 LIMIT 1" },
	[SEMEL_LOCAL_LOG_OLD] = { "count old entries",
				  "SELECT count(*) FROM semel_log WHERE position > ?1 "
				  "AND position <= ?2 AND appended_at < ?3" },
	[SEMEL_LOCAL_LOG_CHUNK] = { "find old entries",
				    "SELECT max(position) FROM (SELECT position FROM semel_log "
				    "WHERE position > ?1 AND position <= ?2 "
				    "ORDER BY position LIMIT ?3)" },
	[SEMEL_LOCAL_LOG_REMOVE] = { "remove old entries",
				     "DELETE FROM semel_log WHERE position > ?1 "
				     "AND position <= ?2 AND appended_at < ?3" },
	/* What every subscription has acked; without a subscription, everything. */
	[SEMEL_LOCAL_PARTITION_FLOORS] = { "read the cursors",
					   "SELECT p.topic, p.partition, (SELECT min(s.cursor)"
					   " FROM semel_subscription c"
					   " JOIN semel_share s ON s.subscription = c.number"
					   " WHERE c.topic = p.topic"
					   " AND s.partition = p.partition)"
					   " FROM semel_partition p"
					   " WHERE (p.topic, p.partition) > (?1, ?2)"
					   " ORDER BY p.topic, p.partition LIMIT 1" },

	[SEMEL_LOCAL_SUBSCRIPTION_FIND] = { "find a subscription",
					    "SELECT number FROM semel_subscription "
					    "WHERE topic = ?1 AND scope = ?2" },
	[SEMEL_LOCAL_SUBSCRIPTION_ADD] = { "create a subscription",
					   "INSERT INTO semel_subscription "
					   "(topic, created_at, scope) VALUES (?1, ?2, ?3)" },
	[SEMEL_LOCAL_ASSIGNMENTS_ADD] = { "create a subscription's cursors",
					  "INSERT INTO semel_share "
					  "(subscription, partition, cursor, settled) "
					  "SELECT ?1, partition, ?3, iif(?4, appended, removed) "
					  "FROM semel_partition WHERE topic = ?2" },
	[SEMEL_LOCAL_ASSIGNMENTS_READ] = { "read the assignments",
					   "SELECT s.epoch, s.cursor, s.fetched_to, "
					   "s.delayed_fetched_to, "
					   "coalesce(m.expires_at, 0), s.owner FROM semel_share s "
					   "LEFT JOIN semel_member m "
					   "ON m.subscription = s.subscription AND m.owner = "
					   "s.owner "
					   "WHERE s.subscription = ?1 ORDER BY s.partition" },
	[SEMEL_LOCAL_ASSIGNMENT_ACQUIRE] = { "acquire a partition",
					     "UPDATE semel_share SET owner = ?3, epoch = epoch + 1 "
					     "WHERE subscription = ?1 AND partition = ?2" },
	[SEMEL_LOCAL_ASSIGNMENT_RELEASE] = { "release a partition",
					     "UPDATE semel_share SET owner = NULL, "
					     "fetched_to = max(fetched_to, ?4), "
					     "delayed_fetched_to = max(delayed_fetched_to, ?5) "
					     "WHERE subscription = ?1 AND partition = ?2 "
					     "AND epoch = ?3 AND owner = ?6" },
	/* Entries written into the log by hand are not counted in appended: settled must not exceed
	   it. */
	[SEMEL_LOCAL_CURSOR_MOVE] = { "move a cursor",
				      "UPDATE semel_share SET cursor = ?4, "
				      "settled = min(settled + ?5, (SELECT appended "
				      "FROM semel_partition p WHERE p.topic = ?7 "
				      "AND p.partition = ?2)), "
				      "fetched_to = max(fetched_to, ?6) "
				      "WHERE subscription = ?1 AND partition = ?2 "
				      "AND epoch = ?3 AND owner = ?8" },
	[SEMEL_LOCAL_MEMBERS] = { "read the members",
				  "SELECT joined, expires_at, owner FROM semel_member "
				  "WHERE subscription = ?1 ORDER BY joined" },
	[SEMEL_LOCAL_MEMBER_PUT] = { "renew a lease",
				     "INSERT INTO semel_member (subscription, expires_at, owner) "
				     "VALUES (?1, ?2, ?3) ON CONFLICT (subscription, owner) "
				     "DO UPDATE SET expires_at = excluded.expires_at" },
	[SEMEL_LOCAL_MEMBER_REMOVE] = { "remove a dead consumer",
					"DELETE FROM semel_member WHERE joined = ?1" },
	[SEMEL_LOCAL_MEMBER_LEAVE] = { "leave a subscription",
				       "DELETE FROM semel_member WHERE owner = ?1" },

	[SEMEL_LOCAL_DELAYED_ADD] = { "delay an event",
				      "INSERT INTO semel_delayed "
				      "(subscription, partition, due_at, " EVENT_COLUMNS
				      ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)" },
	[SEMEL_LOCAL_DELAYED_READ] = { "read delayed events",
				       "SELECT number, partition, due_at, " EVENT_COLUMNS
				       " FROM semel_delayed "
				       "WHERE subscription = ?1 AND due_at <= ?2 "
				       "ORDER BY due_at, number" },
	[SEMEL_LOCAL_DELAYED_REMOVE] = { "ack a delayed event",
					 "DELETE FROM semel_delayed WHERE number = ?1" },
	[SEMEL_LOCAL_DELAYED_COUNT] = { "count delayed events",
					"SELECT count(*), min(due_at) FROM semel_delayed "
					"WHERE subscription = ?1" },
	[SEMEL_LOCAL_DELAYED_FIND] = { "search delayed events",
				       "SELECT 1 FROM semel_delayed d JOIN semel_subscription c "
				       "ON c.number = d.subscription "
				       "WHERE c.scope = ?1 AND d.id = ?2 LIMIT 1" },
	/* A scope that has no subscription yet would start at the beginning. */
	[SEMEL_LOCAL_BACKLOG] = { "count the backlog",
				  "SELECT p.topic, p.partition, coalesce(s.cursor, 0), "
				  "p.appended - coalesce(s.settled, p.removed), c.number "
				  "FROM semel_topic t JOIN semel_partition p ON p.topic = t.number "
				  "LEFT JOIN semel_subscription c "
				  "ON c.topic = t.number AND c.scope = ?1 "
				  "LEFT JOIN semel_share s ON s.subscription = c.number "
				  "AND s.partition = p.partition "
				  "WHERE t.name = ?2 ORDER BY p.partition" },
	[SEMEL_LOCAL_CURSORS] = { "read the cursors",
				  "SELECT c.topic, s.partition, s.cursor FROM semel_subscription c "
				  "JOIN semel_share s ON s.subscription = c.number "
				  "WHERE c.scope = ?1 ORDER BY c.topic, s.partition" },
};

static semel_status failed(struct semel_local *local, enum semel_local_sql which, int code,
			   semel_error *error)
{
	char writer[SEMEL_WRITER_SIZE];
	if ((code & 0xff) == SQLITE_BUSY) {
		semel_sqlite_describe_writer(local->path, writer);
		return semel_error_set(error, SEMEL_BUSY,
				       "cannot %s: %s holds the lock on %s; waited %lld ms (end "
				       "its transaction, or wait longer with ?busy-timeout=MS)",
				       statements[which].what, writer, local->path,
				       (long long)local->settings.busy_timeout_ms);
	}
	return semel_sqlite_error(local->db, code, statements[which].what, error);
}

semel_status semel_local_bind(struct semel_local *local, enum semel_local_sql which,
			      const int64_t *values, int count, semel_error *error)
{
	if (local->statements[which] == NULL) {
		int code = sqlite3_prepare_v3(local->db, statements[which].sql, -1,
					      SQLITE_PREPARE_PERSISTENT, &local->statements[which],
					      NULL);
		if (code != SQLITE_OK)
			return failed(local, which, code, error);
	}
	for (int i = 0; i < count; i++)
		sqlite3_bind_int64(local->statements[which], i + 1, values[i]);
	return SEMEL_OK;
}

void semel_local_bind_text(struct semel_local *local, enum semel_local_sql which, int at,
			   struct semel_text text)
{
	semel_sqlite_bind_text(local->statements[which], at, text);
}

semel_status semel_local_next(struct semel_local *local, enum semel_local_sql which, bool *row_out,
			      semel_error *error)
{
	int code = sqlite3_step(local->statements[which]);
	*row_out = code == SQLITE_ROW;
	if (code == SQLITE_ROW)
		return SEMEL_OK;
	semel_status status = code == SQLITE_DONE ? SEMEL_OK : failed(local, which, code, error);
	sqlite3_reset(local->statements[which]);
	return status;
}

void semel_local_reset(struct semel_local *local, enum semel_local_sql which)
{
	sqlite3_reset(local->statements[which]);
}

int64_t semel_local_int(const struct semel_local *local, enum semel_local_sql which, int column)
{
	return sqlite3_column_int64(local->statements[which], column);
}

semel_status semel_local_run(struct semel_local *local, enum semel_local_sql which,
			     semel_error *error)
{
	bool row = true;
	while (row) {
		semel_status status = semel_local_next(local, which, &row, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_local_run_ints(struct semel_local *local, enum semel_local_sql which,
				  const int64_t *values, int count, semel_error *error)
{
	semel_status status = semel_local_bind(local, which, values, count, error);
	if (status != SEMEL_OK)
		return status;
	return semel_local_run(local, which, error);
}

semel_status semel_local_get(struct semel_local *local, enum semel_local_sql which,
			     int64_t fallback, int64_t *value_out, semel_error *error)
{
	bool row = false;
	*value_out = fallback;
	semel_status status = semel_local_next(local, which, &row, error);
	if (status != SEMEL_OK || !row)
		return status;
	if (sqlite3_column_type(local->statements[which], 0) != SQLITE_NULL)
		*value_out = semel_local_int(local, which, 0);
	semel_local_reset(local, which);
	return SEMEL_OK;
}

semel_status semel_local_get_ints(struct semel_local *local, enum semel_local_sql which,
				  const int64_t *values, int count, int64_t *value_out,
				  semel_error *error)
{
	semel_status status = semel_local_bind(local, which, values, count, error);
	if (status != SEMEL_OK)
		return status;
	return semel_local_get(local, which, 0, value_out, error);
}

/* ---- transactions --------------------------------------------------------------------------- */

semel_status semel_local_begin(struct semel_local *local, enum semel_local_sql how,
			       semel_error *error)
{
	assert(sqlite3_get_autocommit(local->db));
	semel_status status = semel_sqlite_check_moved(local->db, error);
	if (status != SEMEL_OK)
		return status;
	bool queued = how == SEMEL_LOCAL_BEGIN_WRITE && semel_local_write_queue_enter(local);
	status = semel_local_run_ints(local, how, SEMEL_LOCAL_NO_INTS, error);
	if (queued)
		semel_local_write_queue_leave(local);
	return status;
}

semel_status semel_local_commit(struct semel_local *local, semel_error *error)
{
	semel_status status =
		semel_local_run_ints(local, SEMEL_LOCAL_COMMIT, SEMEL_LOCAL_NO_INTS, error);
	if (status != SEMEL_OK) {
		semel_local_rollback(local);
		return status;
	}
	return semel_sqlite_check_moved(local->db, error);
}

void semel_local_rollback(struct semel_local *local)
{
	if (sqlite3_get_autocommit(local->db))
		return; /* SQLite has rolled back on its own, as it does on a full disk */
	(void)semel_local_run_ints(local, SEMEL_LOCAL_ROLLBACK, SEMEL_LOCAL_NO_INTS, NULL);
}

/* ---- events --------------------------------------------------------------------------------- */

void semel_local_event_bind(struct semel_local *local, enum semel_local_sql which, int at,
			    const struct semel_event *event,
			    const struct semel_publish_metadata *metadata)
{
	sqlite3_stmt *statement = local->statements[which];
	const struct semel_text texts[] = {
		event->id,          event->type,         event->aggregate_type, event->aggregate_id,
		event->routing_key, event->content_type, event->headers,        event->payload
	};
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		semel_sqlite_bind_text(statement, at++, texts[i]);
	sqlite3_bind_int64(statement, at++, event->time_ms);
	semel_sqlite_bind_text(statement, at++, metadata->previous);
	sqlite3_bind_int64(statement, at++, metadata->attempt);
	sqlite3_bind_int64(statement, at++, metadata->replay);
}

/* A text without data but with a length is one for which there was no memory; a NULL in the file
 * has no length. */
static bool is_out_of_memory(struct semel_text text)
{
	return text.data == NULL && text.length > 0;
}

semel_status semel_local_event_read(struct semel_local *local, enum semel_local_sql which, int at,
				    struct semel_arena *arena, struct semel_delivery *delivery_out,
				    semel_error *error)
{
	sqlite3_stmt *statement = local->statements[which];
	struct semel_event *event = &delivery_out->event;
	struct semel_publish_metadata *metadata = &delivery_out->metadata;
	struct semel_text *texts[] = {
		&event->id,           &event->type,        &event->aggregate_type,
		&event->aggregate_id, &event->routing_key, &event->content_type,
		&event->headers,      &event->payload
	};
	bool no_memory = false;
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		*texts[i] = semel_sqlite_text(statement, at++, arena);
		no_memory = no_memory || is_out_of_memory(*texts[i]);
	}
	event->time_ms = sqlite3_column_int64(statement, at++);
	metadata->previous = semel_sqlite_text(statement, at++, arena);
	metadata->attempt = (uint32_t)sqlite3_column_int64(statement, at++);
	metadata->replay = (uint32_t)sqlite3_column_int64(statement, at++);
	if (event->headers.data == NULL)
		event->headers = SEMEL_TEXT("{}");
	if (no_memory || is_out_of_memory(metadata->previous))
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a delivery");
	return SEMEL_OK;
}
