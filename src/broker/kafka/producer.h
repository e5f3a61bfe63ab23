/* SPDX-License-Identifier: Apache-2.0 */
/* The producer: from publish to the outcome of each event.
 *
 *   publish.c       the window: events in flight, delivery reports, outcomes
 *   first_record.c  the first record at each partition goes alone
 *   resend.c        after a refusal, a new producer sends what is unanswered, and finds the fault
 *   stall.c         partitions that accept nothing while others do
 *   transaction.c   transactions
 *   record.c        an event as a record
 *
 * To change here: only these files change the window and its entries. An entry leaves it by
 * semel_kafka_finish and nothing else, exactly once. Where there is a transaction, transaction.c
 * takes the place of resend.c; poll runs a step of one of them. */
#ifndef SEMEL_BROKER_KAFKA_PRODUCER_H
#define SEMEL_BROKER_KAFKA_PRODUCER_H

#include "broker/broker.h"
#include "broker/kafka/library.h"

#include <stdbool.h>
#include <stdint.h>

struct semel_kafka;
struct semel_kafka_topic;

/* ---- the window of unanswered events ---- */

enum semel_kafka_inflight_state {
	SEMEL_KAFKA_UNUSED,
	SEMEL_KAFKA_QUEUED, /* published, and not passed to librdkafka yet */
	SEMEL_KAFKA_SENT,
	SEMEL_KAFKA_ACCEPTED, /* the broker has it; its transaction is not committed */
	SEMEL_KAFKA_ANSWERED
};

struct semel_kafka_inflight {
	const struct semel_event *event;
	struct semel_publish_metadata metadata;
	void *token;
	uint64_t sequence; /* counts published events */
	enum semel_kafka_inflight_state state;
	semel_status status;
	int64_t took_us;             /* time until the answer; 0: unknown */
	char *reason;                /* of a refusal */
	rd_kafka_headers_t *headers; /* of an earlier event, to be used again; NULL: none */
	uint64_t template_number;    /* of these headers; 0: none */
	size_t topic;                /* index of its topic */
	int32_t partition;           /* -1: any */
	bool suspected;              /* it was in a batch that was refused */
	struct semel_kafka_inflight *next;
	struct semel_kafka_inflight *list_next; /* in a semel_kafka_inflight_list */
};

/* By sequence. */
struct semel_kafka_inflight_list {
	struct semel_kafka_inflight *first, *last;
};

struct semel_kafka_window {
	struct semel_kafka_inflight *inflight, *unused;
	struct semel_kafka_inflight *done, *last_done;       /* answered, not reported */
	struct semel_kafka_inflight *waiting, *last_waiting; /* for a first record */
	int64_t polled_ms;      /* steady: when delivery reports were handled last */
	uint32_t size, refused; /* entries; refused ones among the done */
	uint64_t sequence;
	uint64_t refused_bytes; /* in batches that were too large, since the producer was made */
	bool broken;            /* something was not accepted: a new producer is needed */
	bool too_large;         /* a single event was too large, since the resend began */
	int64_t stall_check_ms; /* steady: the next check of the partitions; see stall.c */
};

/* ---- resend.c ---- */

struct semel_kafka_resend {
	enum {
		SEMEL_KAFKA_RESEND_IDLE,
		SEMEL_KAFKA_RESEND_DRAINING, /* the old producer may still get answers */
		SEMEL_KAFKA_RESEND_SENDING
	} state;
	bool stalled; /* a partition stalled: the producer must forget its events */
	struct semel_kafka_inflight *first, *last; /* queued, by sequence */
	size_t suspects;       /* the fault is in the first ones, up to this count; 0: unknown */
	size_t group;          /* size of a group when there is no suspect */
	size_t sent_count;     /* in the last group */
	size_t accepted_count; /* since the last fault */
	uint64_t end;          /* sequence: later events are not suspects */
	uint64_t refused_bytes;
	int64_t until_ms, progress_ms; /* steady */
};

/* ---- transaction.c ---- */

/* A transaction of Kafka's; it holds whole transactions of the database (source transactions). */
struct semel_kafka_transaction {
	char *name; /* transactional.id; NULL: no transactions */
	enum {
		SEMEL_KAFKA_TRANSACTION_READY,
		SEMEL_KAFKA_TRANSACTION_ABORTING, /* a new producer follows */
		SEMEL_KAFKA_TRANSACTION_STARTING  /* a new producer fences off those before it */
	} phase;
	int64_t until_ms;                               /* steady: of the phase */
	struct semel_kafka_inflight_list sent, pending; /* in this transaction; not yet in one */
	uint32_t count, unreported;                     /* of those sent */
	uint64_t bytes;
	uint64_t last;       /* the source transaction of the last event, */
	bool open;           /* and more of it may come */
	bool begun;          /* librdkafka has a transaction */
	bool closing;        /* large enough: committed before more is sent */
	bool committing;     /* not answered yet */
	uint64_t isolate_to; /* sequence: the fault is searched for up to here */
	uint64_t refused;    /* source transaction that is refused as a whole; 0: none */
	semel_status refused_by;
	semel_status refusal; /* of the faulty event, while the transaction is being aborted */
	const struct semel_kafka_inflight *faulty;
	char reason[160];
};

/* ---- publish.c ---- */

bool semel_kafka_window_new(struct semel_kafka_window *window, uint32_t size);
void semel_kafka_window_free(struct semel_kafka *kafka);
/* Handles the producer's events, waiting at most wait_ms for the first. */
void semel_kafka_producer_serve(struct semel_kafka *kafka, int64_t wait_ms);
/* Batches were refused for their size, though none of their events is too large by itself: the next
 * producer makes smaller ones. */
void semel_kafka_shrink_batches(struct semel_kafka *kafka);
/* The event has its outcome, which the next poll reports. */
void semel_kafka_finish(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight,
			semel_status status, const char *reason);
/* Was an earlier event of its aggregate refused, and is this not reported yet? */
bool semel_kafka_is_held(const struct semel_kafka_window *window,
			 const struct semel_kafka_inflight *inflight);
/* Finishes the event as HELD. */
void semel_kafka_hold(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight);
/* OK also if the event was refused (it is finished then, or its transaction is broken), and if it
 * has to wait for the first record at its partition. */
semel_status semel_kafka_send(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			      semel_error *error);

/* ---- first_record.c ---- */

/* Fills in topic and partition. False: out of memory. */
bool semel_kafka_choose_partition(struct semel_kafka *kafka, const struct semel_kafka_topic *topic,
				  struct semel_kafka_inflight *inflight);
bool semel_kafka_is_behind_first(struct semel_kafka *kafka,
				 const struct semel_kafka_inflight *inflight);
void semel_kafka_wait_for_first(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* The event was sent; it may be the first of its partition. */
void semel_kafka_first_sent(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* accepted_by: the partition that has the record. */
void semel_kafka_partition_accepted(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    int32_t accepted_by);
/* Sends the waiting events that need not wait any longer. */
semel_status semel_kafka_send_waiting(struct semel_kafka *kafka, semel_error *error);
/* There is a new producer, and no event waits. */
void semel_kafka_first_reset(struct semel_kafka *kafka);

/* ---- resend.c ---- */

/* Queues the event; it is sent when its turn comes. */
void semel_kafka_resend_queue(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* Starts a resend when the window is broken, and continues one. Does not wait. */
semel_status semel_kafka_resend_step(struct semel_kafka *kafka, semel_error *error);

/* ---- stall.c ---- */

/* Does the event's partition accept nothing for now? */
bool semel_kafka_is_stalled(const struct semel_kafka *kafka,
			    const struct semel_kafka_inflight *inflight);
/* May the event be sent nevertheless, as the probe or after a probe of its aggregate? */
bool semel_kafka_can_probe(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* False: the event's partition is not stalled, and the event is not finished. */
bool semel_kafka_finish_stalled(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* The event's partition has answered. */
void semel_kafka_end_stall(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* Checks the partitions. */
void semel_kafka_check_stalls(struct semel_kafka *kafka);

/* ---- transaction.c ---- */

/* Sends the event now, or when its turn comes. */
semel_status semel_kafka_transaction_offer(struct semel_kafka *kafka,
					   struct semel_kafka_inflight *inflight,
					   semel_error *error);
/* The broker has accepted the event. */
void semel_kafka_transaction_accept(struct semel_kafka *kafka,
				    struct semel_kafka_inflight *inflight);
/* The broker has refused the event. */
void semel_kafka_transaction_refuse(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    semel_status refusal, const char *reason);
bool semel_kafka_transaction_can_commit(const struct semel_kafka *kafka);
/* Continues what is under way: sends, commits and finishes, aborts, starts a new producer. */
semel_status semel_kafka_transaction_step(struct semel_kafka *kafka, semel_error *error);

/* ---- record.c ---- */

/* Headers that events of one type have in common. */
#define SEMEL_KAFKA_HEADER_TEMPLATES 16

struct semel_kafka_header_template {
	uint64_t number; /* never used twice; 0: empty */
	size_t length;
	char text[256]; /* type, aggregate type and content type */
};

/* A record about to be produced. */
struct semel_kafka_outgoing {
	const struct semel_event *event;
	const struct semel_publish_metadata *metadata;
	const struct semel_wire_field *extra; /* more headers */
	size_t extra_count;
	void *opaque;
	rd_kafka_headers_t *used; /* of an earlier event of its template, or NULL; consumed */
};

/* The template of the event's headers; 0: no template has them. */
uint64_t semel_kafka_header_template_of(struct semel_kafka *kafka,
					const struct semel_kafka_outgoing *outgoing);
/* OK: librdkafka will send the record. FULL: librdkafka's queue is full. TOO_LARGE. */
semel_status semel_kafka_produce(struct semel_kafka *kafka, rd_kafka_topic_t *topic,
				 const struct semel_kafka_outgoing *outgoing, semel_error *error);

#endif
