/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker's statements: one table, prepared when first used. */
#ifndef SEMEL_BROKER_LOCAL_SQL_H
#define SEMEL_BROKER_LOCAL_SQL_H

#include "base/arena.h"
#include "base/text.h"
#include "broker/broker.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_local_sql {
	SEMEL_LOCAL_BEGIN_READ,
	SEMEL_LOCAL_BEGIN_WRITE,
	SEMEL_LOCAL_COMMIT,
	SEMEL_LOCAL_ROLLBACK,
	SEMEL_LOCAL_OFFSET_GET,
	SEMEL_LOCAL_OFFSET_SET,
	SEMEL_LOCAL_TOPIC_FIND,
	SEMEL_LOCAL_TOPIC_ADD,
	SEMEL_LOCAL_PARTITION_ADD,
	SEMEL_LOCAL_PARTITION_APPENDED,
	SEMEL_LOCAL_PARTITION_REMOVED,
	SEMEL_LOCAL_TOPIC_UNSETTLED,
	SEMEL_LOCAL_LOG_ADD,
	SEMEL_LOCAL_LOG_READ,
	SEMEL_LOCAL_LOG_ANY,
	SEMEL_LOCAL_LOG_FIND,
	SEMEL_LOCAL_LOG_OLD,
	SEMEL_LOCAL_LOG_CHUNK,
	SEMEL_LOCAL_LOG_REMOVE,
	SEMEL_LOCAL_PARTITION_FLOORS,
	SEMEL_LOCAL_SUBSCRIPTION_FIND,
	SEMEL_LOCAL_SUBSCRIPTION_ADD,
	SEMEL_LOCAL_ASSIGNMENTS_ADD,
	SEMEL_LOCAL_ASSIGNMENTS_READ,
	SEMEL_LOCAL_ASSIGNMENT_ACQUIRE,
	SEMEL_LOCAL_ASSIGNMENT_RELEASE,
	SEMEL_LOCAL_CURSOR_MOVE,
	SEMEL_LOCAL_MEMBERS,
	SEMEL_LOCAL_MEMBER_PUT,
	SEMEL_LOCAL_MEMBER_REMOVE,
	SEMEL_LOCAL_MEMBER_LEAVE,
	SEMEL_LOCAL_DELAYED_ADD,
	SEMEL_LOCAL_DELAYED_READ,
	SEMEL_LOCAL_DELAYED_REMOVE,
	SEMEL_LOCAL_DELAYED_COUNT,
	SEMEL_LOCAL_DELAYED_FIND,
	SEMEL_LOCAL_BACKLOG,
	SEMEL_LOCAL_CURSORS,
	SEMEL_LOCAL_SQL_COUNT
};

struct semel_local;

/* Integers for the first parameters of a statement: SEMEL_LOCAL_INTS(topic, partition). */
#define SEMEL_LOCAL_INTS(...)                                                                      \
	(const int64_t[]){ __VA_ARGS__ },                                                          \
		(int)(sizeof((const int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t))
#define SEMEL_LOCAL_NO_INTS NULL, 0

/* Prepares it if need be, and binds the integers as ?1, ?2, … Texts are bound afterwards. */
semel_status semel_local_bind(struct semel_local *local, enum semel_local_sql which,
			      const int64_t *values, int count, semel_error *error);
void semel_local_bind_text(struct semel_local *local, enum semel_local_sql which, int at,
			   struct semel_text text);
/* The next row, or the end; at the end and on failure the statement is reset. */
semel_status semel_local_next(struct semel_local *local, enum semel_local_sql which, bool *row_out,
			      semel_error *error);
/* Leaves rows unread. */
void semel_local_reset(struct semel_local *local, enum semel_local_sql which);
int64_t semel_local_int(const struct semel_local *local, enum semel_local_sql which, int column);
/* Runs one without results. */
semel_status semel_local_run(struct semel_local *local, enum semel_local_sql which,
			     semel_error *error);
/* Binds integers and runs. */
semel_status semel_local_run_ints(struct semel_local *local, enum semel_local_sql which,
				  const int64_t *values, int count, semel_error *error);
/* Of a bound statement: the integer in the first row; fallback when there is none. */
semel_status semel_local_get(struct semel_local *local, enum semel_local_sql which,
			     int64_t fallback, int64_t *value_out, semel_error *error);

/* Binds integers and gets. */
semel_status semel_local_get_ints(struct semel_local *local, enum semel_local_sql which,
				  const int64_t *values, int count, int64_t *value_out,
				  semel_error *error);

semel_status semel_local_begin(struct semel_local *local, enum semel_local_sql how,
			       semel_error *error);
/* Rolls back when it fails. */
semel_status semel_local_commit(struct semel_local *local, semel_error *error);
void semel_local_rollback(struct semel_local *local);

/* The event's columns, the same in log and delayed entries, from parameter or column `at` on. */
void semel_local_event_bind(struct semel_local *local, enum semel_local_sql which, int at,
			    const struct semel_event *event,
			    const struct semel_publish_metadata *metadata);
semel_status semel_local_event_read(struct semel_local *local, enum semel_local_sql which, int at,
				    struct semel_arena *arena, struct semel_delivery *delivery_out,
				    semel_error *error);

#endif
