/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker: a log in one SQLite file, for several processes on one machine.
 *
 *   local:PATH[?partitions=N&max-message=BYTES&max-length=N&busy-timeout=MS&mode=0660]
 *
 * Shared by the files of this folder and used by no other.
 *
 * To change here: every write is in a transaction of sql.c (semel_local_begin, semel_local_commit),
 * and in-memory state is updated only after its commit. Assignments start in maintain.c only. The
 * tables are schema/001_log.sql, which is released: a change of them is a new file there and a
 * higher version in local.c. */
#ifndef SEMEL_BROKER_LOCAL_LOCAL_H
#define SEMEL_BROKER_LOCAL_LOCAL_H

#include "base/balance.h"
#include "base/owner.h"
#include "base/sqlite_file.h"
#include "broker/broker.h"
#include "broker/local/sql.h"

#include <stdbool.h>
#include <stdint.h>

/* A log entry's key (SQL column: position): topic, partition, offset, from the highest bits to the
 * lowest. */
#define SEMEL_LOCAL_OFFSET_BITS    44
#define SEMEL_LOCAL_PARTITION_BITS 6
#define SEMEL_LOCAL_TOPIC_BITS     13
#define SEMEL_LOCAL_OFFSET_MAX     ((INT64_C(1) << SEMEL_LOCAL_OFFSET_BITS) - 1)
#define SEMEL_LOCAL_PARTITIONS_MAX (1 << SEMEL_LOCAL_PARTITION_BITS)
#define SEMEL_LOCAL_TOPIC_MAX      ((INT64_C(1) << SEMEL_LOCAL_TOPIC_BITS) - 1)

_Static_assert(SEMEL_LOCAL_TOPIC_BITS + SEMEL_LOCAL_PARTITION_BITS + SEMEL_LOCAL_OFFSET_BITS == 63,
	       "an entry key must fill a positive 64-bit integer");

int64_t semel_local_entry_key(int64_t topic, uint32_t partition, int64_t offset);

struct semel_local_settings {
	int64_t partitions; /* of created topics */
	bool partitions_named;
	int64_t message_max; /* bytes of payload and headers */
	int64_t length_max;  /* unacked entries of a topic; 0: unbounded */
	int64_t busy_timeout_ms;
	mode_t mode; /* of a created file */
};

struct semel_local_topic {
	char *name;
	int64_t number;
	uint32_t partitions;
	bool created;         /* in the open transaction */
	int64_t free_entries; /* entries that still fit, in the open transaction; -1: unknown */
	bool touched;         /* appended has a count */
	int64_t appended[SEMEL_LOCAL_PARTITIONS_MAX]; /* in the open transaction */
};

/* An event that was published and has no outcome yet. */
struct semel_local_inflight {
	const struct semel_event *event;
	struct semel_publish_metadata metadata;
	void *token;
	uint64_t hash; /* of its aggregate */
	semel_status status;
};

/* A log entry that was delivered. */
struct semel_local_unacked {
	int64_t offset;
	uint64_t bytes; /* of the delivery, in the caller's memory */
	bool acked;     /* but an earlier one of the partition is not */
};

/* The row of an assignment in the file, as last read, and the next move. */
struct semel_local_ownership {
	int64_t epoch, cursor, fetched_to, delayed_fetched_to;
	bool abandoned; /* its owner did not release it */
	enum semel_balance_move move;
};

/* One partition of a subscription, as this consumer reads it. */
struct semel_local_assignment {
	struct semel_local_ownership ownership;
	bool owned;
	bool releasing; /* read no further */
	bool more;      /* there may be more to read, in the running fetch */
	bool touched;   /* by the running ack */
	bool backward;  /* only a planted bug sets it */
	int64_t epoch;
	int64_t cursor;             /* everything at or below it is acked */
	int64_t read;               /* the last offset delivered */
	int64_t redelivered_to;     /* entries up to it may have been delivered before */
	uint32_t maybe_redelivered; /* as may the next ones, up to this count */
	int64_t delayed_redelivered_to_ms;
	struct semel_local_unacked *unacked; /* ascending */
	uint32_t unacked_first, unacked_count, unacked_capacity;
	int64_t *delayed; /* numbers of the delayed entries delivered */
	uint32_t delayed_count, delayed_capacity;
};

struct semel_local_subscription {
	const struct semel_local_topic *topic;
	int64_t number;
	struct semel_local_assignment *assignments; /* one per partition */
};

struct semel_local {
	struct semel_broker broker; /* first, so that one can be cast to the other */
	const struct semel_env *env;
	struct semel_local_settings settings;
	char *path;
	sqlite3 *db;
	int queue_fd;                /* the lock file; -1: not used */
	int64_t queue_skip_until_ms; /* steady: until then the queue is not waited for */
	sqlite3_stmt *statements[SEMEL_LOCAL_SQL_COUNT];

	struct semel_local_topic **topics;
	uint32_t topic_count;

	struct semel_local_inflight *inflight;
	uint32_t inflight_count, window;

	char owner[SEMEL_OWNER_SIZE];
	struct semel_local_subscription *subscriptions;
	uint32_t subscription_count;
	uint32_t prefetch, unacked_count;
	uint64_t prefetch_bytes, unacked_bytes;
	uint32_t next_assignment; /* the next fetch begins with it */
	int64_t lease_ms;
	bool member;             /* our heartbeat is in the file */
	int64_t heartbeat_at_ms; /* steady: the last heartbeat */
	int64_t checked_at_ms;   /* steady: the last check of the assignments */
};

static inline struct semel_local *semel_local_of(struct semel_broker *broker)
{
	return (struct semel_local *)broker;
}

/* -- write_queue.c: a queue before the write lock. enter: false when it cannot be entered. */
void semel_local_write_queue_open(struct semel_local *local);
void semel_local_write_queue_close(struct semel_local *local);
bool semel_local_write_queue_enter(struct semel_local *local);
void semel_local_write_queue_leave(struct semel_local *local);
void semel_local_write_queue_examine(struct semel_local *local,
				     const struct semel_examination *examination);

/* -- subscribe.c: in an open write transaction. scope: text of the subscription. */
semel_status semel_local_topic_declare(struct semel_local *local, struct semel_text name,
				       int64_t partitions, struct semel_local_topic **topic_out,
				       semel_error *error);
semel_status semel_local_subscription_declare(struct semel_local *local, const char *scope,
					      const struct semel_local_topic *topic,
					      bool from_latest, int64_t *number_out,
					      semel_error *error);
/* Ends the write transaction. status OK: commits, and keeps the topics that were created in it;
 * otherwise, and when the commit fails: rolls back, and forgets them. */
semel_status semel_local_topics_end(struct semel_local *local, semel_status status,
				    semel_error *error);
uint32_t semel_local_partition_of(const struct semel_local_topic *topic,
				  const struct semel_event *event);

/* -- maintain.c: members and assignments. */
semel_status semel_local_maintain(struct semel_local *local, semel_error *error);
bool semel_local_heartbeat_is_due(const struct semel_local *local);
/* In an open write transaction; after its commit the caller sets heartbeat_at_ms. */
semel_status semel_local_heartbeat(struct semel_local *local, semel_error *error);
/* Releases all assignments; one that cannot be released ends with its lease. */
void semel_local_leave(struct semel_local *local);

/* -- ack.c: what was delivered and is not acked. */
/* False: out of memory. */
bool semel_local_unacked_add(struct semel_local_assignment *assignment, int64_t offset,
			     uint64_t bytes);
bool semel_local_delayed_add(struct semel_local_assignment *assignment, int64_t number);
bool semel_local_delayed_has(const struct semel_local_assignment *assignment, int64_t number);
bool semel_local_assignment_is_idle(const struct semel_local_assignment *assignment);
/* Forgets everything that is unacked. */
void semel_local_unacked_clear(struct semel_local *local,
			       struct semel_local_assignment *assignment);
/* The assignment is no longer ours. */
void semel_local_assignment_end(struct semel_local *local,
				struct semel_local_assignment *assignment);

/* -- the functions of the driver, by file. */
extern const struct semel_broker_driver semel_local_driver;

/* publish.c */
semel_broker_publish_fn semel_local_publish;
semel_broker_poll_fn semel_local_poll;
semel_broker_requeue_fn semel_local_requeue;
/* subscribe.c */
semel_broker_subscribe_fn semel_local_subscribe;
/* fetch.c */
semel_broker_fetch_fn semel_local_fetch;
semel_broker_rewind_fn semel_local_rewind;
/* ack.c */
semel_broker_ack_fn semel_local_ack;
/* inspect.c */
semel_broker_backlog_fn semel_local_backlog;
semel_broker_find_event_fn semel_local_find_event;
semel_broker_compare_fn semel_local_compare;
semel_broker_examine_fn semel_local_examine;
/* prune.c */
semel_broker_prune_fn semel_local_prune;

/* -- a delivery's tag: the assignment it came from, and whether it was delayed. */
#define SEMEL_LOCAL_TAG_DELAYED (UINT64_C(1) << 63)

#endif
