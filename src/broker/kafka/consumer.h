/* SPDX-License-Identifier: Apache-2.0 */
/* The consumer: partitions come and go, records are fetched and acked, offsets are committed.
 *
 *   subscribe.c  the topics of a subscription, its start offsets, joining the group
 *   group.c      rebalances and commits
 *   consume.c    what was read of a partition: fetch, ack, rewind
 *   record.c     a record as a delivery, and the metadata of a commit
 *   anchor.c     is it still the same log?
 *
 * To change here: an assignment starts and ends in group.c only, with the group's consent. The
 * position moves in consume.c only, over acked records; nothing else is ever committed. All of it
 * runs on the caller's thread, except the two flags of its struct semel_kafka_group_join. */
#ifndef SEMEL_BROKER_KAFKA_CONSUMER_H
#define SEMEL_BROKER_KAFKA_CONSUMER_H

#include "broker/broker.h"
#include "broker/kafka/library.h"

#include <stdbool.h>
#include <stdint.h>

struct semel_kafka;

/* A record that was read and not acked, or was acked ahead of an earlier one. */
struct semel_kafka_unacked {
	int64_t offset;
	rd_kafka_message_t *message; /* NULL: acked */
	bool fetched;                /* the caller has it */
	bool redelivered;
};

/* A record that has to be in the log, if the log is the one that was read. */
struct semel_kafka_expected {
	struct semel_anchor anchor;
	bool from_offset_store; /* the hash is then that of the event's id */
};
#define SEMEL_KAFKA_EXPECTED_MAX 3

/* A partition that is, or was, assigned to us. */
struct semel_kafka_assignment {
	char *topic;       /* its full name */
	char *event_topic; /* the topic of its events */
	uint32_t tier;     /* 0: no retry topic */
	int32_t partition;
	int32_t group_partition; /* of the topic, with which it is assigned and revoked */
	bool owned, releasing;
	uint32_t epoch; /* counts assignments: what was fetched in an earlier one cannot be acked */
	rd_kafka_queue_t *queue;
	struct semel_kafka_unacked *unacked;
	size_t start, length, capacity; /* of unacked */
	size_t next;                    /* from start: all before it are fetched or acked */
	uint32_t fetched_count;
	uint64_t fetched_bytes;
	int64_t position;       /* everything before it is acked; -1: unknown */
	int64_t committed;      /* the position at the broker; -1: unknown */
	int64_t fetched_to;     /* in the last commit: records below it may have been fetched */
	int64_t redelivered_to; /* the same, from the previous owner */
	int64_t next_offset;    /* after the last record that was read */
	int64_t due_ms;         /* of the first record in a tier; 0: unknown */
	int64_t committed_ms;   /* steady: of the last commit */

	/* records that identify the log: see anchor.c */
	struct semel_anchor last_acked; /* the newest */
	struct semel_anchor verified;   /* it was in the log at the last check */
	struct semel_anchor candidate;  /* verified, if the check succeeds */
	struct semel_kafka_expected expected[SEMEL_KAFKA_EXPECTED_MAX];
	uint32_t expected_count; /* to be found by the check */
	bool requested;          /* the first of them was requested */
	bool unverified;         /* nothing is delivered before they are found */
};

/* ---- consume.c ---- */

/* NULL: it was never assigned to us. */
struct semel_kafka_assignment *semel_kafka_assignment_find(struct semel_kafka *kafka,
							   const char *topic, int32_t partition);
/* The entry's partition is ours from now on, and is read from the entry's offset. Records up to
 * redelivered_to may have been fetched before (-1: nothing was ever committed). NULL: out of
 * memory. */
struct semel_kafka_assignment *semel_kafka_assignment_start(struct semel_kafka *kafka,
							    const rd_kafka_topic_partition_t *entry,
							    int64_t redelivered_to);
/* Forgets what was read of the partition. */
void semel_kafka_assignment_clear(struct semel_kafka *kafka,
				  struct semel_kafka_assignment *assignment);
/* The same, and the partition is no longer ours. */
void semel_kafka_assignment_end(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment);
/* How many records are acked ahead of an unacked one. */
uint64_t semel_kafka_assignment_acked_ahead(const struct semel_kafka_assignment *assignment);
void semel_kafka_assignments_free(struct semel_kafka *kafka);

/* ---- group.c ---- */

/* Handles the consumer's events: rebalances, results of commits, errors. */
semel_status semel_kafka_group_serve(struct semel_kafka *kafka, semel_error *error);
/* Commits the positions that have moved, if the last commit was a while ago or nothing else is to
 * be done (idle). */
void semel_kafka_group_commit(struct semel_kafka *kafka, bool idle);
/* Commits all positions, and waits for the answer. */
semel_status semel_kafka_group_commit_now(struct semel_kafka *kafka, semel_error *error);
/* Starts reading retry topics that were created since the partitions were assigned. */
semel_status semel_kafka_group_add_retry_topics(struct semel_kafka *kafka, semel_error *error);
void semel_kafka_group_leave(struct semel_kafka *kafka);

/* Observes the join requests of the consumer that is about to be made. */
semel_status semel_kafka_group_join_watch(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
					  semel_error *error);
/* A request to join the group is unanswered. */
bool semel_kafka_group_is_joining(const struct semel_kafka *kafka);

/* ---- record.c ---- */

/* The record as a delivery, in the arena. False: out of memory. */
bool semel_kafka_read_record(struct semel_kafka *kafka,
			     const struct semel_kafka_assignment *assignment,
			     const rd_kafka_message_t *message, struct semel_arena *arena,
			     struct semel_delivery *delivery_out);
/* When a record of a retry topic is due. */
int64_t semel_kafka_due_of(const struct semel_kafka *kafka, const rd_kafka_message_t *message);
/* A header as text; data NULL: it is missing. */
struct semel_text semel_kafka_header(const struct semel_kafka *kafka,
				     const rd_kafka_message_t *message, const char *name);

#define SEMEL_KAFKA_COMMIT_METADATA_SIZE 160
void semel_kafka_commit_metadata_write(const struct semel_kafka_assignment *assignment,
				       int64_t fetched_to,
				       char metadata_out[SEMEL_KAFKA_COMMIT_METADATA_SIZE]);
/* Returns the offset up to which records may have been fetched (-1: nothing was ever committed),
 * and the records that have to be in the log. */
int64_t semel_kafka_commit_metadata_read(const rd_kafka_topic_partition_t *entry,
					 struct semel_anchor anchors_out[2], uint32_t *count_out);

/* ---- anchor.c ---- */

#define SEMEL_KAFKA_CHECK_MS 10000
/* The anchor has to be found before anything of the assignment is delivered. */
void semel_kafka_anchor_expect(struct semel_kafka_assignment *assignment,
			       struct semel_anchor anchor, bool from_offset_store);
/* This record was acked. */
void semel_kafka_anchor_record(const struct semel_kafka *kafka,
			       struct semel_kafka_assignment *assignment,
			       const rd_kafka_message_t *message);
/* Something unexpected happened: the next check comes soon. */
void semel_kafka_anchor_recheck(struct semel_kafka *kafka);
/* Checks from time to time whether the logs are still the ones that were read; does not wait.
 * OUTAGE: a log was replaced; it is read from its beginning when the broker is opened again. */
semel_status semel_kafka_anchor_check(struct semel_kafka *kafka, semel_error *error);
/* The assignment's log was replaced: it will be read from its beginning. Always OUTAGE. */
semel_status semel_kafka_log_replaced(struct semel_kafka *kafka,
				      struct semel_kafka_assignment *assignment, const char *what,
				      semel_error *error);
void semel_kafka_anchor_close(struct semel_kafka *kafka);

/* ---- subscribe.c ---- */

/* Entries without an offset get the one at which the subscription begins. */
semel_status semel_kafka_set_start_offsets(struct semel_kafka *kafka,
					   rd_kafka_topic_partition_list_t *partitions,
					   semel_error *error);
/* CONFIG when the subscription selects by routing key. */
semel_status semel_kafka_check_bind(const struct semel_subscribe_options *options,
				    semel_error *error);

#endif
