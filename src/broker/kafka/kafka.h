/* SPDX-License-Identifier: Apache-2.0 */
/* The Kafka broker's inside, shared by the files of this folder.
 *
 * A producer is made when the broker is opened; it publishes, requeues, and asks the cluster. A
 * consumer joins it with subscribe(). librdkafka's threads do the talking; everything that they
 * have to say is an event in a queue, and is heard only inside our calls, on the caller's thread.
 *
 * kafka.c (open, close)  settings.c (the URL)  client.c (producers and consumers are made)
 * publish.c (the window)  first_record.c (the first event at a partition)  resend.c (after a
 * refusal) stall.c (partitions that take nothing)  transaction.c (transactions) write.c, read.c
 * (events as records)  topics.c (names, declaring) subscribe.c, assignment.c (one partition),
 * consume.c (fetch, ack), group.c (rebalances, commits), commit_metadata.c (what a commit carries)
 * start_offset.c (where a subscription begins)  anchor.c (is it still the same log?)  tiers.c
 * (retry topics)  group_join.c (is a rebalance going on?)  backlog_scan.c (what waits) requeue.c
 * (to one subscription)  dead_letter.c (what was given up)  inspect.c (backlog, find)  compare.c
 * (settings of topics) transient.c (which answers are asked for again)
 */
#ifndef SEMEL_BROKER_KAFKA_KAFKA_H
#define SEMEL_BROKER_KAFKA_KAFKA_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "broker/kafka/library.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SEMEL_KAFKA_NAME_MAX  249 /* of a topic */
#define SEMEL_KAFKA_NAME_SIZE (SEMEL_KAFKA_NAME_MAX + 1)
#define SEMEL_KAFKA_CALL_MS   10000 /* for a call that waits for an answer */

/* ---- the URL (settings.c) ---- */

struct semel_kafka_setting {
	const char *name, *value; /* as librdkafka calls it */
};

struct semel_kafka_settings {
	char *servers; /* "host:port,host:port" */
	struct semel_kafka_setting forwarded[SEMEL_URL_PARAMS_MAX + 1];
	size_t forwarded_count;
	char *prefix; /* before the names of topics and groups at the broker */
	bool create_topics;
	int64_t partitions, replication; /* of topics that are made; 0: the broker's defaults */
	bool offsets_in_store;
	bool publishes_dead_letters; /* what was given up goes to a topic too */
};

/* Reads the URL, and the files that it names; CONFIG tells what is wrong, never a secret. */
semel_status semel_kafka_settings_read(const struct semel_url *url,
				       struct semel_kafka_settings *settings_out,
				       semel_error *error);
void semel_kafka_settings_free(struct semel_kafka_settings *settings);

/* ---- the window of unanswered events (publish.c) ---- */

enum semel_kafka_inflight_state {
	SEMEL_KAFKA_UNUSED,
	SEMEL_KAFKA_QUEUED, /* offered, and not given to librdkafka: a repair goes on */
	SEMEL_KAFKA_SENT,
	SEMEL_KAFKA_ACCEPTED, /* the broker has it; its transaction is not committed */
	SEMEL_KAFKA_ANSWERED
};

struct semel_kafka_inflight {
	const struct semel_event *event;
	struct semel_publish_metadata metadata;
	void *token;
	uint64_t sequence; /* counts offers */
	enum semel_kafka_inflight_state state;
	semel_status status;
	int64_t took_us;             /* until it was answered; 0: nobody knows */
	char *reason;                /* of a refusal */
	rd_kafka_headers_t *headers; /* of an earlier event, to be used again; NULL: none */
	uint64_t template_number;    /* of the event whose headers they are, or will be; 0: none */
	size_t topic;                /* its number */
	int32_t partition;           /* -1: any */
	bool suspected;              /* it was in a batch that was refused */
	struct semel_kafka_inflight *next;
	struct semel_kafka_inflight *list_next; /* in its bundle */
};

/* In the order of the offers, by follower. */
struct semel_kafka_inflight_list {
	struct semel_kafka_inflight *first, *last;
};

/* What is shown together (transaction.c). */
struct semel_kafka_transaction {
	char *name; /* transactional.id; NULL: no transactions */
	enum {
		SEMEL_KAFKA_TRANSACTION_READY,
		SEMEL_KAFKA_TRANSACTION_ABORTING, /* it broke: the producer is about to be made anew
						   */
		SEMEL_KAFKA_TRANSACTION_STARTING  /* a new one shuts out whoever was before it */
	} phase;
	int64_t until_ms;                               /* steady: the phase takes no longer */
	struct semel_kafka_inflight_list sent, pending; /* in this bundle; not yet in any */
	uint32_t count, unreported;                     /* of those sent */
	uint64_t bytes;
	uint64_t last;       /* the transaction of the last event, */
	bool open;           /* of which more may come */
	bool begun;          /* librdkafka has a transaction */
	bool closing;        /* it is large enough: shown before more is taken */
	bool committing;     /* and is not answered for yet */
	uint64_t isolate_to; /* sequence: up to here the one at fault is looked for */
	uint64_t refused;    /* a transaction of which nothing will be shown; 0: none */
	semel_status refused_by;
	semel_status refusal; /* while it is repaired: of what was sent last */
	const struct semel_kafka_inflight *faulty;
	char reason[160];
};

struct semel_kafka_window {
	struct semel_kafka_inflight *inflight, *unused;
	struct semel_kafka_inflight *done, *last_done; /* answered, not reported */
	struct semel_kafka_inflight *waiting,
		*last_waiting;  /* for the first one at their partition */
	int64_t polled_ms;      /* steady: when reports were heard last */
	uint32_t size, refused; /* of the done ones */
	uint64_t sequence;
	uint64_t refused_bytes; /* in batches that were too large, since the producer was made */
	bool broken;            /* something was not taken: the producer has to be made anew */
	bool too_large;         /* one was, by itself, since the repair began */
	int64_t stall_check_ms; /* steady: when partitions are looked at next; see stall.c */
};

/* A new producer sends again what was not answered: see resend.c. */
struct semel_kafka_resend {
	enum {
		SEMEL_KAFKA_RESEND_IDLE,
		SEMEL_KAFKA_RESEND_DRAINING, /* the old producer hears what is still answered */
		SEMEL_KAFKA_RESEND_SENDING
	} state;
	bool stalled; /* a partition has: the producer must forget it */
	struct semel_kafka_inflight *first, *last; /* queued, in the order of the offers */
	size_t suspects; /* among so many of the first is the one at fault; 0: not known */
	size_t group;    /* goes together where nobody is suspected */
	size_t sent_count, accepted_count; /* sent last; answered since the last one at fault */
	uint64_t end;                      /* sequence: what was offered later needs no care */
	uint64_t refused_bytes;
	int64_t until_ms, progress_ms; /* steady */
};

/* What the events of a kind have in common. */
#define SEMEL_KAFKA_HEADER_TEMPLATES 16

struct semel_kafka_header_template {
	uint64_t number; /* never given twice; 0: empty */
	size_t length;
	char text[256]; /* its type, aggregate type and content type */
};

/* What a partition has of the producer: see first_record.c. */
struct semel_kafka_partition {
	bool accepted;
	int64_t accepted_ms; /* steady: the last time */
	const struct semel_kafka_inflight
		*first; /* introduces us, and is not answered; NULL: none */
	uint32_t waiting;
	/* See stall.c; times are steady. */
	uint64_t oldest, stuck; /* offers without an answer: the oldest; the same a look before */
	int64_t stuck_ms;       /* since when it is that one */
	uint32_t leaderless;    /* looks in a row without a leader */
	int64_t stalled_ms;     /* since when it takes nothing; 0: it does */
	int64_t probe_ms;       /* stalled: not tried before this; tried: given up after this */
	uint32_t probe_count;
	bool probing; /* one event is on its way */
};

struct semel_kafka_topic {
	char *name;               /* as events say it */
	char *full;               /* as it is called at the broker */
	rd_kafka_topic_t *handle; /* of the producer; NULL: to be made */
	uint32_t partitions;      /* 0: not known to be there */
	bool has_leaders;         /* each of them had a leader when it was asked for */
	int replicas, brokers;    /* replicas of the first partition; in the cluster */
	struct semel_kafka_partition *partition_states;
	uint32_t partition_state_count;
	bool start_committed;     /* the subscription to it has its beginning */
	int64_t missing_until_ms; /* steady: it was not there, and is not asked for before this */
	int64_t refused_until_ms; /* steady: why it cannot be used is known until then */
	semel_status refusal;
	char reason[160];
};

/* ---- consuming ---- */

/* A record that was read and not settled, or settled before one that stands before it. */
struct semel_kafka_unacked {
	int64_t offset;
	rd_kafka_message_t *message; /* NULL: settled */
	bool fetched;                /* in the caller's hands */
	bool redelivered;
};

/* A record that has to be in the log, if it is the one that was read. */
struct semel_kafka_expected {
	struct semel_anchor anchor;
	bool from_offset_store; /* by the offset store, as the hash of an event's id */
};
#define SEMEL_KAFKA_EXPECTED_MAX 3

/* One partition that is, or was, assigned to us. */
struct semel_kafka_assignment {
	char *topic;       /* as it is at the broker */
	char *event_topic; /* what its events belong to */
	uint32_t tier;     /* 0: no retry topic */
	int32_t partition;
	int32_t owner; /* the partition of the topic with which it comes and goes */
	bool owned, releasing;
	uint32_t epoch; /* counts assignments: what came before cannot be acked any more */
	rd_kafka_queue_t *queue;
	struct semel_kafka_unacked *unacked;
	size_t start, length, capacity;
	size_t next;            /* the first flight that may not be out, from start */
	uint32_t fetched_count; /* flights in the caller's hands */
	uint64_t fetched_bytes; /* of them */
	int64_t position;       /* everything before it is settled; -1: not known */
	int64_t committed;      /* as the broker was last told */
	int64_t fetched_to;     /* may have been handed out up to here, as the broker was told */
	int64_t redelivered_to; /* the same, as it was when the partition came */
	int64_t next_offset;    /* behind the last one that was read */
	int64_t due_ms;         /* of the first in a tier; 0: none known */
	int64_t committed_ms;   /* steady: of the last commit */

	/* by what the log is known again: see anchor.c */
	struct semel_anchor last_acked; /* the newest record that was settled */
	struct semel_anchor verified;   /* one that was in the log at the last check */
	struct semel_anchor candidate;  /* proven, if the check succeeds */
	struct semel_kafka_expected expected[SEMEL_KAFKA_EXPECTED_MAX];
	uint32_t expected_count; /* to be found by the check */
	bool requested;          /* the first of them is being looked for */
	bool unverified;         /* nothing is handed out before they were found */
};

/* What librdkafka's threads note of a consumer: see group_join.c. */
struct semel_kafka_group_join {
	const struct semel_kafka_library *library;
	atomic_bool going_on;
	atomic_bool answered; /* a request to join was, once */
};

struct semel_kafka {
	struct semel_broker broker;
	const struct semel_kafka_library *library;
	const struct semel_env *env;
	struct semel_kafka_settings settings;
	char address[256]; /* for messages: "kafka://host:9092" */
	int event_fd;
	struct semel_wake *wake;

	rd_kafka_t *producer;
	rd_kafka_queue_t *producer_queue;
	struct semel_kafka_window window;
	struct semel_kafka_resend resend;
	struct semel_kafka_header_template
		header_templates[SEMEL_KAFKA_HEADER_TEMPLATES]; /* by hash */
	uint64_t header_template_count;
	struct semel_kafka_transaction transaction;
	semel_kafka_partitioner *partitioner;
	struct semel_kafka_topic *topics;
	size_t topic_count, topic_last;
	struct semel_arena *scratch;
	struct semel_buffer header_text;
	bool isolating;             /* one event at a time is on its way */
	bool single_record_batches; /* the producer makes a batch of every event */
	uint64_t batch_bytes;       /* of a batch, as we have learned it; 0: librdkafka's own */
	int64_t down_since_ms;      /* steady; 0: somebody answers */
	bool authenticated;         /* the cluster has answered once */
	bool lost;                  /* open anew */
	semel_status fatal_status;  /* what makes open anew necessary */
	char fatal_text[256];
	char connection_errors[512]; /* whom librdkafka could not reach, and why, until somebody
					answers */

	struct {
		bool waiting;
		rd_kafka_resp_err_t err;
	} requeue;

	const struct semel_offset_store *offset_store; /* NULL: offsets are the broker's */
	const struct semel_offset_store
		*former_offset_store; /* NULL: they are the offset store's, or there is none */
	rd_kafka_t *consumer;
	rd_kafka_queue_t *consumer_queue;
	char *scope;
	uint32_t prefetch;
	uint64_t prefetch_bytes;
	bool from_latest;
	bool closing;
	bool assigned; /* the group has taken us in */
	struct semel_kafka_assignment *assignments;
	uint32_t assignment_count, assignment_next;
	rd_kafka_topic_partition_list_t *revoked;  /* asked back by the group; NULL: none */
	struct semel_kafka_group_join *group_join; /* see group_join.c */
	int64_t commit_ms;                         /* steady: of the last commit */
	bool committing;                           /* a commit is under way */
	int64_t recommit_ms;                       /* steady: offsets of retry topics, anew */
	uint32_t next_topic_checked; /* from this share on retry topics are looked for next */
	int64_t commit_retry_ms;     /* steady: not before this, after a failure */
	uint32_t tiers;              /* that we write to */
	struct {
		rd_kafka_t *reader; /* of single records; NULL: not made */
		rd_kafka_queue_t *queue;
		int64_t next_ms;  /* steady: of the next check */
		bool running;     /* one is under way, */
		int64_t until_ms; /* steady: and this long */
	} check;
	bool must_reopen;        /* a log is another one: everything is opened anew */
	int64_t tier_due_ms[16]; /* by tier: of what we put there last */
};

static inline struct semel_kafka *semel_kafka_of(struct semel_broker *broker)
{
	return (struct semel_kafka *)broker;
}

/* ---- client.c ---- */
semel_status semel_kafka_producer_make(struct semel_kafka *kafka, semel_error *error);
/* What was not answered is dropped; nothing of it is referenced any more. */
void semel_kafka_producer_free(struct semel_kafka *kafka);
semel_status semel_kafka_consumer_make(struct semel_kafka *kafka, const char *group,
				       rd_kafka_t **consumer_out, semel_error *error);
/* One that looks, and joins nobody. */
semel_status semel_kafka_observer_make(struct semel_kafka *kafka, const char *group,
				       rd_kafka_t **observer_out, semel_error *error);
/* The same, for single records. */
semel_status semel_kafka_record_reader_make(struct semel_kafka *kafka, rd_kafka_t **reader_out,
					    semel_error *error);
/* Asks somebody of the cluster for an answer. */
semel_status semel_kafka_connect(struct semel_kafka *kafka, semel_error *error);
/* Takes what an error event says. */
void semel_kafka_handle_error(struct semel_kafka *kafka, rd_kafka_t *client,
			      rd_kafka_event_t *event);
/* Is the cluster there, as far as we know? Call it where events have been heard. */
semel_status semel_kafka_check_health(struct semel_kafka *kafka, semel_error *error);
/* The status for a call that failed. what: "read the offsets". */
semel_status semel_kafka_call_failed(struct semel_kafka *kafka, rd_kafka_resp_err_t err,
				     const char *what, semel_error *error);
/* What comes to the queue rings our bell; or does not any more. */
void semel_kafka_notify_on(struct semel_kafka *kafka, rd_kafka_queue_t *queue);
void semel_kafka_notify_off(struct semel_kafka *kafka, rd_kafka_queue_t *queue);

/* ---- transient.c ---- */
/* Does the answer pass by itself, as those of a cluster that is being restarted do? */
bool semel_kafka_is_transient(rd_kafka_resp_err_t err);
/* A call begins: how long it may ask (steady), what of it the next question has, and whether there
 * is to be one after this answer; then a moment has passed. */
int64_t semel_kafka_call_deadline(const struct semel_kafka *kafka);
int semel_kafka_call_remaining_ms(const struct semel_kafka *kafka, int64_t until_ms);
bool semel_kafka_retry_call(const struct semel_kafka *kafka, rd_kafka_resp_err_t err,
			    int64_t until_ms);
/* The offsets of the client's group. */
semel_status semel_kafka_read_committed(struct semel_kafka *kafka, rd_kafka_t *client,
					rd_kafka_topic_partition_list_t *list, semel_error *error);
/* The offsets that stand for beginning and end become those of the partitions. */
semel_status semel_kafka_resolve_offsets(struct semel_kafka *kafka, rd_kafka_t *client,
					 rd_kafka_topic_partition_list_t *list, semel_error *error);
/* Waits until the broker has answered. */
rd_kafka_resp_err_t semel_kafka_commit_sync(struct semel_kafka *kafka,
					    const rd_kafka_topic_partition_list_t *list);

/* ---- publish.c ---- */
bool semel_kafka_window_make(struct semel_kafka_window *window, uint32_t size);
void semel_kafka_window_free(struct semel_kafka *kafka);
semel_status semel_kafka_publish(struct semel_broker *broker, const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, void *token,
				 semel_error *error);
semel_status semel_kafka_poll(struct semel_broker *broker, int64_t wait_ms,
			      semel_outcome_callback callback, void *user, semel_error *error);
const char *semel_kafka_blocked(struct semel_broker *broker);
/* Hears what the producer has to say, waiting at most wait_ms for the first of it. */
void semel_kafka_producer_serve(struct semel_kafka *kafka, int64_t wait_ms);
/* Batches were refused for their size, and none of their events is too large by itself: the next
 * producer makes smaller ones. */
void semel_kafka_shrink_batches(struct semel_kafka *kafka);
/* What a delivery report of this kind means for the event. OK: nothing, it may be sent again. */
semel_status semel_kafka_refusal_of(rd_kafka_resp_err_t err);

/* For transaction.c and first_record.c: */
void semel_kafka_finish(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight,
			semel_status status, const char *reason);
/* An earlier one of its aggregate was refused, and the caller has not heard of it yet. */
bool semel_kafka_is_held(const struct semel_kafka_window *window,
			 const struct semel_kafka_inflight *inflight);
void semel_kafka_hold(struct semel_kafka_window *window, struct semel_kafka_inflight *inflight);
/* OK also when it was refused: then it is answered, or its bundle is broken; and when it has to
 * wait for the first one at its partition. */
semel_status semel_kafka_send(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight,
			      semel_error *error);

/* ---- first_record.c ---- */
/* Where it will go. False: no memory. */
bool semel_kafka_choose_partition(struct semel_kafka *kafka, const struct semel_kafka_topic *topic,
				  struct semel_kafka_inflight *inflight);
bool semel_kafka_must_wait_for_first(struct semel_kafka *kafka,
				     const struct semel_kafka_inflight *inflight);
void semel_kafka_wait_for_first(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* It is on its way. */
void semel_kafka_first_sent(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* This partition has taken it. */
void semel_kafka_partition_accepted(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    int32_t accepted_by);
/* Those who need not wait any longer. */
semel_status semel_kafka_send_waiting(struct semel_kafka *kafka, semel_error *error);
/* The producer is another one, and nobody waits. */
void semel_kafka_first_reset(struct semel_kafka *kafka);

/* ---- resend.c ---- */
/* It is sent when the repair comes to it. */
void semel_kafka_resend_queue(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* Begins one when something is broken, goes on with one that has begun. Does not wait. */
semel_status semel_kafka_resend_step(struct semel_kafka *kafka, semel_error *error);

/* ---- stall.c ---- */
/* Its partition takes nothing for now. */
bool semel_kafka_is_stalled(const struct semel_kafka *kafka,
			    const struct semel_kafka_inflight *inflight);
/* It may go there all the same: to try, or behind one of its aggregate that tries. */
bool semel_kafka_may_probe(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* False: its partition has not stalled, and it is not answered. */
bool semel_kafka_finish_stalled(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight);
/* Its partition has given an answer. */
void semel_kafka_end_stall(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight);
/* Looks at the partitions when it is time. */
void semel_kafka_check_stalls(struct semel_kafka *kafka);

/* ---- transaction.c ---- */
semel_status semel_kafka_init_transactions(struct semel_broker *broker, const char *name,
					   semel_error *error);
bool semel_kafka_complete_transaction(struct semel_broker *broker, bool whole);
/* It is sent now, or when its turn comes. */
semel_status semel_kafka_transaction_offer(struct semel_kafka *kafka,
					   struct semel_kafka_inflight *inflight,
					   semel_error *error);
/* The broker has it. */
void semel_kafka_transaction_accept(struct semel_kafka *kafka,
				    struct semel_kafka_inflight *inflight);
/* The broker will not have it. */
void semel_kafka_transaction_refuse(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    semel_status refusal, const char *reason);
bool semel_kafka_transaction_can_commit(const struct semel_kafka *kafka);
/* Goes on with whatever is under way: sends, commits and answers, aborts, begins anew. */
semel_status semel_kafka_transaction_step(struct semel_kafka *kafka, semel_error *error);

/* ---- write.c ---- */
struct semel_kafka_outgoing {
	const struct semel_event *event;
	const struct semel_publish_metadata *metadata;
	const struct semel_wire_field *extra; /* more headers */
	size_t extra_count;
	void *opaque;
	rd_kafka_headers_t *used; /* of an earlier event of its kind, or NULL; gone afterwards */
};
/* Events of one kind have the same headers but for those that vary. 0: it has others. */
uint64_t semel_kafka_header_template_of(struct semel_kafka *kafka,
					const struct semel_kafka_outgoing *outgoing);
/* OK: it will be sent. TOO_LARGE; FULL: librdkafka's queue is. */
semel_status semel_kafka_produce(struct semel_kafka *kafka, rd_kafka_topic_t *topic,
				 const struct semel_kafka_outgoing *outgoing, semel_error *error);

/* ---- read.c ---- */
/* The record as a delivery, in the arena. False: no memory. */
bool semel_kafka_read_record(struct semel_kafka *kafka,
			     const struct semel_kafka_assignment *assignment,
			     const rd_kafka_message_t *message, struct semel_arena *arena,
			     struct semel_delivery *delivery_out);
/* When a record of a retry topic is due. */
int64_t semel_kafka_due_of(const struct semel_kafka *kafka, const rd_kafka_message_t *message);
/* A header as text; data NULL: it has none. */
struct semel_text semel_kafka_header(const struct semel_kafka *kafka,
				     const rd_kafka_message_t *message, const char *name);

/* ---- topics.c ---- */
/* A topic or a group, as it is called at the broker; the caller frees it. NULL: no memory. */
char *semel_kafka_full_name(const struct semel_kafka *kafka, const char *name);
/* The other way round: within full. */
const char *semel_kafka_own_name(const struct semel_kafka *kafka, const char *full);
/* partitions: of a topic that is made now; 0: as the URL or the broker has it. UNROUTABLE when it
 * is missing and may not be made; NACKED when we may not use it. */
semel_status semel_kafka_topic_ensure(struct semel_kafka *kafka, const char *name,
				      uint32_t partitions, struct semel_kafka_topic **topic_out,
				      semel_error *error);
/* The same, but nothing is made: partitions 0 when it is not there. */
semel_status semel_kafka_topic_lookup(struct semel_kafka *kafka, const char *name,
				      struct semel_kafka_topic **topic_out, semel_error *error);
/* Why it cannot be used is remembered for a moment. */
void semel_kafka_topic_refuse(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
			      semel_status status, const char *reason);
struct semel_kafka_topic *semel_kafka_topic_find(struct semel_kafka *kafka, const char *name);
/* The handle of the producer for it; NULL: no memory. */
rd_kafka_topic_t *semel_kafka_topic_handle(struct semel_kafka *kafka,
					   struct semel_kafka_topic *topic);
void semel_kafka_topics_free(struct semel_kafka *kafka);
/* "T.S.retry.N"; CONFIG when it gets too long. */
semel_status semel_kafka_tier_name(const char *scope, const char *topic, uint32_t tier,
				   char name_out[SEMEL_KAFKA_NAME_SIZE], semel_error *error);
/* The tier, from 1 on, whose events are due in order when they wait so long. */
uint32_t semel_kafka_tier_for(int64_t delay_ms);
int64_t semel_kafka_tier_ms(uint32_t tier);
#define SEMEL_KAFKA_TIERS 7

/* ---- assignment.c ---- */
struct semel_kafka_assignment *semel_kafka_assignment_find(struct semel_kafka *kafka,
							   const char *topic, int32_t partition);
/* The entry's partition is ours from now on, and is read from its offset on; up to seen_to it may
 * have been handed out before (-1: nothing was ever committed). Makes the share when it is new.
 * NULL: no memory. */
struct semel_kafka_assignment *semel_kafka_assignment_start(struct semel_kafka *kafka,
							    const rd_kafka_topic_partition_t *entry,
							    int64_t redelivered_to);
/* Nothing of it is in hand any more. */
void semel_kafka_assignment_clear(struct semel_kafka *kafka,
				  struct semel_kafka_assignment *assignment);
/* The same, and it is not ours any more. */
void semel_kafka_assignment_end(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment);
/* A record or the partition's end has been read. False: no memory. */
bool semel_kafka_assignment_add(struct semel_kafka_assignment *assignment,
				rd_kafka_message_t *message, int64_t offset);
/* False: it is not in the caller's hands. */
bool semel_kafka_assignment_ack(struct semel_kafka *kafka,
				struct semel_kafka_assignment *assignment, int64_t offset);
/* Moves the position over what is settled. */
void semel_kafka_assignment_advance(struct semel_kafka_assignment *assignment);
void semel_kafka_assignment_rewind(struct semel_kafka_assignment *assignment);
/* What it takes of the caller's room. */
uint64_t semel_kafka_unacked_bytes(const struct semel_kafka_unacked *unacked);
/* Settled, but behind one that is not. */
uint64_t semel_kafka_assignment_acked_ahead(const struct semel_kafka_assignment *assignment);
void semel_kafka_assignments_free(struct semel_kafka *kafka);

/* ---- group.c ---- */
/* Hears what the consumer has to say: partitions come and go, commits are done, errors. */
semel_status semel_kafka_group_serve(struct semel_kafka *kafka, semel_error *error);
/* Tells the broker the positions that have moved; the last time was a while ago, or idle. */
void semel_kafka_group_commit(struct semel_kafka *kafka, bool idle);
/* The same, all of it, and waits until it has answered. */
semel_status semel_kafka_group_commit_now(struct semel_kafka *kafka, semel_error *error);
/* More retry topics may have been made since the partitions came. */
semel_status semel_kafka_group_add_retry_topics(struct semel_kafka *kafka, semel_error *error);
void semel_kafka_group_leave(struct semel_kafka *kafka);

/* ---- commit_metadata.c ---- */
/* What a commit carries as its metadata. */
#define SEMEL_KAFKA_COMMIT_METADATA_SIZE 160
void semel_kafka_commit_metadata_write(const struct semel_kafka_assignment *assignment,
				       int64_t fetched_to,
				       char note_out[SEMEL_KAFKA_COMMIT_METADATA_SIZE]);
/* Up to where records may have been handed out, -1 when nothing was ever committed; and which
 * records are to be found in the log. */
int64_t semel_kafka_commit_metadata_read(const rd_kafka_topic_partition_t *entry,
					 struct semel_anchor anchors_out[2], uint32_t *count_out);

/* ---- start_offset.c ---- */
/* The offsets of those that have none are set to where the subscription begins there. */
semel_status semel_kafka_set_start_offsets(struct semel_kafka *kafka,
					   rd_kafka_topic_partition_list_t *partitions,
					   semel_error *error);

/* ---- anchor.c ---- */
#define SEMEL_KAFKA_CHECK_MS 10000
/* By what a record is known again. */
struct semel_anchor semel_kafka_anchor_of(const struct semel_kafka *kafka,
					  const rd_kafka_message_t *message);
/* It has to be found before anything of the share is handed out. */
void semel_kafka_anchor_expect(struct semel_kafka_assignment *assignment,
			       struct semel_anchor anchor, bool from_offset_store);
/* This one was settled. */
void semel_kafka_anchor_record(const struct semel_kafka *kafka,
			       struct semel_kafka_assignment *assignment,
			       const rd_kafka_message_t *message);
/* Something is strange: the next check comes at once. */
void semel_kafka_anchor_recheck(struct semel_kafka *kafka);
/* Looks from time to time whether the logs are still the ones that were read; does not wait.
 * OUTAGE: one is not, and is read from its beginning when the broker is opened anew. */
semel_status semel_kafka_anchor_check(struct semel_kafka *kafka, semel_error *error);
/* The share's log is another one: it will be read from its beginning. Always OUTAGE. */
semel_status semel_kafka_log_replaced(struct semel_kafka *kafka,
				      struct semel_kafka_assignment *assignment, const char *what,
				      semel_error *error);
void semel_kafka_anchor_close(struct semel_kafka *kafka);

/* ---- tiers.c ---- */
/* How many partitions the topic has just now; 0: it is not there. False: nobody says. */
bool semel_kafka_count_partitions(struct semel_kafka *kafka, const char *name, int64_t until_ms,
				  uint32_t *partitions_out);
/* Adds, for each partition of a topic in the list, those of its retry topics that come with it:
 * of all retry topics that there are. until_ms 0: each topic has the time of a call. */
semel_status semel_kafka_tiers_add(struct semel_kafka *kafka, rd_kafka_topic_partition_list_t *list,
				   int64_t until_ms, semel_error *error);
/* The partition of the topic with which it comes. */
int32_t semel_kafka_topic_partition_of(const rd_kafka_topic_partition_t *entry);
/* "T.S.retry.N" belongs to T, when S is our scope. 0: it is no retry topic. */
uint32_t semel_kafka_tier_of(const struct semel_kafka *kafka, const char *topic,
			     size_t *length_out);

/* ---- group_join.c ---- */
/* Of the consumer that is about to be made. */
semel_status semel_kafka_group_join_watch(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
					  semel_error *error);
bool semel_kafka_group_join_in_progress(const struct semel_kafka *kafka);
bool semel_kafka_group_join_was_answered(const struct semel_kafka *kafka);

/* ---- subscribe.c ---- */
/* CONFIG when the subscription wants only some routing keys. */
semel_status semel_kafka_check_bind(const struct semel_subscribe_options *options,
				    semel_error *error);
semel_status semel_kafka_subscribe(struct semel_broker *broker,
				   const struct semel_subscribe_options *options,
				   semel_error *error);

/* ---- consume.c ---- */
semel_status semel_kafka_fetch(struct semel_broker *broker, uint32_t max, struct semel_arena *arena,
			       struct semel_delivery *deliveries_out, uint32_t *count_out,
			       semel_error *error);
semel_status semel_kafka_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			     size_t count, semel_error *error);
semel_status semel_kafka_rewind(struct semel_broker *broker, semel_error *error);

/* ---- requeue.c ---- */
semel_status semel_kafka_requeue(struct semel_broker *broker, const char *scope,
				 const struct semel_event *event,
				 const struct semel_publish_metadata *metadata, int64_t delay_ms,
				 semel_error *error);

/* Confirmed when it returns. */
semel_status semel_kafka_produce_and_wait(struct semel_kafka *kafka,
					  struct semel_kafka_topic *topic,
					  struct semel_kafka_outgoing *outgoing,
					  semel_error *error);

/* ---- dead_letter.c ---- */
semel_status semel_kafka_publish_dead_letter(struct semel_broker *broker,
					     const struct semel_dead_letter_copy *letter,
					     semel_error *error);

/* ---- backlog_scan.c ---- */
/* A partition of a subscription, and what of it waits. */
struct semel_kafka_offset_range {
	const char *topic; /* lives as long as the broker */
	uint32_t tier;
	int32_t partition;
	int64_t from, end;                               /* offsets */
	const struct semel_kafka_assignment *assignment; /* NULL: it is not ours */
};
struct semel_kafka_backlog_scan {
	struct semel_kafka_offset_range *ranges;
	size_t count;
};
/* Of all partitions of the scope's topics; free it also after a failure. */
semel_status semel_kafka_backlog_scan_run(struct semel_kafka *kafka, const char *scope,
					  const char *const *topics,
					  struct semel_kafka_backlog_scan *survey_out,
					  semel_error *error);
void semel_kafka_backlog_scan_free(struct semel_kafka_backlog_scan *scan);

/* ---- inspect.c ---- */
semel_status semel_kafka_backlog(struct semel_broker *broker, const char *scope,
				 const char *const *topics, struct semel_backlog *backlog_out,
				 semel_error *error);
semel_status semel_kafka_find_event(struct semel_broker *broker, const char *scope,
				    const char *const *topics, const char *event_id,
				    bool *waiting_out, semel_error *error);

/* ---- compare.c ---- */
semel_status semel_kafka_compare(struct semel_broker *broker,
				 const struct semel_subscribe_options *options,
				 semel_difference_callback callback, void *user,
				 semel_error *error);

/* Is nothing taken out of the middle of this topic (its full name)? False also when nobody says. */
bool semel_kafka_keeps_all_records(struct semel_kafka *kafka, const char *topic);

/* ---- examine.c ---- */
semel_status semel_kafka_examine(const struct semel_url *url,
				 const struct semel_examination *examination);

/* ---- remove.c ---- */
semel_status semel_kafka_remove(struct semel_broker *broker, const char *topic,
				const char *const *scopes, semel_error *error);

#endif
