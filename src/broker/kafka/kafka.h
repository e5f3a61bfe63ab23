/* SPDX-License-Identifier: Apache-2.0 */
/* The Kafka broker, shared by the files of this folder and used by no other.
 *
 * A producer is made when the broker is opened; it publishes, requeues, and queries the cluster.
 * subscribe() adds a consumer. librdkafka's own threads talk to the cluster; everything that they
 * report is an event in a queue, which is handled only inside our functions, on the caller's
 * thread.
 *
 * The parts, each with a header that says what may be changed there:
 *
 *   library.h   librdkafka's functions, loaded at run time
 *   client.h    clients, the state of the cluster, calls that wait for an answer
 *   topics.h    topics and their names
 *   producer.h  from publish to an outcome
 *   consumer.h  assignments, fetch, ack, commits
 *
 * and, with no state of their own: kafka.c (open, close, the table), settings.c (the URL: a new
 * parameter needs a row there and docs/kafka.md), requeue.c, inspect.c, examine.c, remove.c.
 *
 * To change here: a field belongs to the part whose name is above it; other parts may read it. */
#ifndef SEMEL_BROKER_KAFKA_KAFKA_H
#define SEMEL_BROKER_KAFKA_KAFKA_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "broker/kafka/client.h"
#include "broker/kafka/consumer.h"
#include "broker/kafka/library.h"
#include "broker/kafka/producer.h"
#include "broker/kafka/topics.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- what a kafka: URL says (settings.c) ---- */

/* Read once, when the broker is opened, and constant afterwards; every file may read them. */
struct semel_kafka_setting {
	const char *name, *value; /* of librdkafka's configuration */
};

struct semel_kafka_settings {
	char *servers;                                                  /* "host:port,host:port" */
	struct semel_kafka_setting forwarded[SEMEL_URL_PARAMS_MAX + 1]; /* to librdkafka */
	size_t forwarded_count;
	char *prefix; /* of the names of topics and groups at the cluster */
	bool create_topics;
	int64_t partitions, replication; /* of created topics; 0: the cluster's defaults */
	bool offsets_in_store;
	bool publishes_dead_letters; /* copies go to a topic, too */
};

/* Reads the URL and the files that it names. CONFIG: the error says what is wrong, and never shows
 * a secret. */
semel_status semel_kafka_settings_read(const struct semel_url *url,
				       struct semel_kafka_settings *settings_out,
				       semel_error *error);
void semel_kafka_settings_free(struct semel_kafka_settings *settings);

/* ---- the broker ---- */

struct semel_kafka {
	struct semel_broker broker; /* first, so that one can be cast to the other */
	const struct semel_kafka_library *library;
	const struct semel_env *env;
	struct semel_kafka_settings settings;
	char address[256]; /* for messages: "kafka://host:9092" */
	int event_fd;      /* readable when a queue has events */
	struct semel_wake *wake;
	struct semel_arena *scratch;
	struct semel_buffer header_text;

	/* client.c */
	int64_t down_since_ms;     /* steady; 0: a broker answers */
	bool authenticated;        /* the cluster has answered once */
	bool lost;                 /* the broker has to be opened again */
	semel_status fatal_status; /* why it has to be opened again */
	char fatal_text[256];
	char connection_errors[512]; /* librdkafka's, until a broker answers */

	/* topics.c */
	struct semel_kafka_topic *topics;
	size_t topic_count, topic_last;

	/* the producer */
	rd_kafka_t *producer;
	rd_kafka_queue_t *producer_queue;
	struct semel_kafka_window window;
	struct semel_kafka_resend resend;
	struct semel_kafka_transaction transaction;
	bool isolating;             /* one event at a time is in flight, to find the faulty one */
	bool single_record_batches; /* every event is a batch of its own */
	uint64_t batch_bytes;       /* batch size after refusals; 0: librdkafka's own */
	semel_kafka_partitioner *partitioner;
	struct semel_kafka_header_template header_templates[SEMEL_KAFKA_HEADER_TEMPLATES];
	uint64_t header_template_count;
	struct {
		bool waiting;
		rd_kafka_resp_err_t err;
	} requeue;
	int64_t tier_due_ms[SEMEL_KAFKA_TIERS +
			    1]; /* by tier, from 1: of the last event that was requeued */

	/* the consumer */
	const struct semel_offset_store *offset_store; /* NULL: the broker stores offsets */
	/* The broker stores the offsets now; this offset store did once. */
	const struct semel_offset_store *former_offset_store;
	rd_kafka_t *consumer;
	rd_kafka_queue_t *consumer_queue;
	char *scope;
	uint32_t prefetch;
	uint64_t prefetch_bytes;
	bool from_latest;
	uint32_t tiers; /* number of tiers that this process writes to */
	bool closing;
	bool assigned; /* the group has answered with an assignment, perhaps empty, at least once */
	struct semel_kafka_assignment *assignments;
	uint32_t assignment_count, assignment_next;
	rd_kafka_topic_partition_list_t *revoked; /* revoked by the group; NULL: none */
	struct semel_kafka_group_join *group_join;
	int64_t commit_ms;           /* steady: of the last commit */
	bool committing;             /* a commit is unanswered */
	int64_t recommit_ms;         /* steady: offsets of retry topics are committed again */
	int64_t commit_retry_ms;     /* steady: after a failure, no commit before this */
	uint32_t next_topic_checked; /* the check for new retry topics continues here */
	struct {
		rd_kafka_t *reader; /* of single records; NULL: not made */
		rd_kafka_queue_t *queue;
		int64_t next_ms;  /* steady: of the next check */
		bool running;     /* a check is running */
		int64_t until_ms; /* steady: its deadline */
	} check;
	bool must_reopen; /* a log was replaced */
};

static inline struct semel_kafka *semel_kafka_of(struct semel_broker *broker)
{
	return (struct semel_kafka *)broker;
}

/* ---- the functions of the driver, by file ---- */

extern const struct semel_broker_driver semel_kafka_driver;

/* publish.c */
semel_broker_publish_fn semel_kafka_publish;
semel_broker_poll_fn semel_kafka_poll;
semel_broker_blocked_fn semel_kafka_blocked;
/* transaction.c */
semel_broker_init_transactions_fn semel_kafka_init_transactions;
semel_broker_complete_transaction_fn semel_kafka_complete_transaction;
/* subscribe.c */
semel_broker_subscribe_fn semel_kafka_subscribe;
/* consume.c */
semel_broker_fetch_fn semel_kafka_fetch;
semel_broker_ack_fn semel_kafka_ack;
semel_broker_rewind_fn semel_kafka_rewind;
/* requeue.c */
semel_broker_requeue_fn semel_kafka_requeue;
semel_broker_publish_dead_letter_fn semel_kafka_publish_dead_letter;
/* inspect.c */
semel_broker_backlog_fn semel_kafka_backlog;
semel_broker_find_event_fn semel_kafka_find_event;
/* examine.c */
semel_broker_compare_fn semel_kafka_compare;
semel_broker_examine_fn semel_kafka_examine;
/* remove.c */
semel_broker_remove_fn semel_kafka_remove;

#endif
