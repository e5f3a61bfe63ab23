/* SPDX-License-Identifier: Apache-2.0 */
/* The topics that this connection knows, and how topics, groups and retry topics are named
 * (topics.c).
 *
 * To change here: names are a contract with those who operate the cluster (docs/kafka.md). Only
 * topics.c creates topics. The state of partitions in a topic belongs to the producer:
 * first_record.c and stall.c change it, nothing else does. */
#ifndef SEMEL_BROKER_KAFKA_TOPICS_H
#define SEMEL_BROKER_KAFKA_TOPICS_H

#include "broker/kafka/library.h"

#include <stdbool.h>
#include <stdint.h>

struct semel_kafka;
struct semel_kafka_inflight;

#define SEMEL_KAFKA_NAME_MAX  249 /* of a topic */
#define SEMEL_KAFKA_NAME_SIZE (SEMEL_KAFKA_NAME_MAX + 1)
#define SEMEL_KAFKA_TIERS     7

/* A partition as the producer sees it. Times are steady. */
struct semel_kafka_partition {
	/* first_record.c: */
	bool accepted; /* a record of this producer */
	int64_t accepted_ms;
	const struct semel_kafka_inflight *first; /* the first record, unanswered; NULL: none */
	uint32_t waiting;                         /* events that wait for the first record */
	/* stall.c: */
	uint64_t oldest, stuck; /* sequence: the oldest unanswered event; the same a check ago */
	int64_t stuck_ms;       /* since when it is that one */
	uint32_t leaderless;    /* checks in a row without a leader */
	int64_t stalled_ms;     /* since when it accepts nothing; 0: not stalled */
	int64_t probe_ms;       /* no probe before this; while probing: it fails after this */
	uint32_t probe_count;
	bool probing; /* one event is in flight, as the probe */
};

struct semel_kafka_topic {
	char *name;               /* in events */
	char *full;               /* at the cluster, with the prefix */
	rd_kafka_topic_t *handle; /* of the producer; NULL: not made yet */
	uint32_t partitions;      /* 0: not known to exist */
	bool has_leaders;         /* at the last query every partition had one */
	int replicas, brokers;    /* of the first partition; in the cluster */
	struct semel_kafka_partition *partition_states;
	uint32_t partition_state_count;
	bool start_committed;     /* the subscription's start offsets are committed */
	int64_t missing_until_ms; /* steady: it was missing; no query before this */
	int64_t refused_until_ms; /* steady: refusal and reason are valid until then */
	semel_status refusal;
	char reason[160];
};

/* The name of a topic or a group at the cluster; the caller frees it. NULL: out of memory. */
char *semel_kafka_full_name(const struct semel_kafka *kafka, const char *name);
/* The reverse: points into full. */
const char *semel_kafka_own_name(const struct semel_kafka *kafka, const char *full);
/* Creates the topic if it is missing. partitions: of a created topic; 0: those of the URL, or the
 * cluster's default. UNROUTABLE: it is missing and may not be created. NACKED: the user has no
 * right to it. */
semel_status semel_kafka_topic_ensure(struct semel_kafka *kafka, const char *name,
				      uint32_t partitions, struct semel_kafka_topic **topic_out,
				      semel_error *error);
/* Creates nothing: partitions is 0 if the topic is missing. */
semel_status semel_kafka_topic_resolve(struct semel_kafka *kafka, const char *name,
				       struct semel_kafka_topic **topic_out, semel_error *error);
/* The refusal is remembered for a short time. */
void semel_kafka_topic_refuse(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
			      semel_status status, const char *reason);
/* NULL: not known. */
struct semel_kafka_topic *semel_kafka_topic_find(struct semel_kafka *kafka, const char *name);
/* The producer's handle for it; NULL: out of memory. */
rd_kafka_topic_t *semel_kafka_topic_handle(struct semel_kafka *kafka,
					   struct semel_kafka_topic *topic);
void semel_kafka_topics_free(struct semel_kafka *kafka);
/* "T.S.retry.N"; CONFIG when it is too long. */
semel_status semel_kafka_tier_name(const char *scope, const char *topic, uint32_t tier,
				   char name_out[SEMEL_KAFKA_NAME_SIZE], semel_error *error);
/* The tier, from 1 on, for events with this delay. */
uint32_t semel_kafka_tier_for(int64_t delay_ms);
int64_t semel_kafka_tier_ms(uint32_t tier);

/* How many partitions the topic has now; 0: it is missing. False: the cluster does not answer. */
bool semel_kafka_count_partitions(struct semel_kafka *kafka, const char *name, int64_t until_ms,
				  uint32_t *partitions_out);
/* Adds, for each partition of a topic in the list, the partitions of all its retry topics that are
 * read with it. until_ms 0: each topic has the time of a call. */
semel_status semel_kafka_tiers_add(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
				   int64_t until_ms, semel_error *error);
/* The partition of the topic with which the entry is read. */
int32_t semel_kafka_topic_partition_of(const rd_kafka_topic_partition_t *entry);
/* "T.S.retry.N" belongs to T when S is this scope. 0: it is not a retry topic. */
uint32_t semel_kafka_tier_of(const struct semel_kafka *kafka, const char *topic,
			     size_t *length_out);

/* ---- examine.c ---- */

/* Does the topic (its full name) keep every record between its beginning and its end? False also if
 * the cluster does not answer. */
bool semel_kafka_has_all_records(struct semel_kafka *kafka, const char *topic);

#endif
