/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the RabbitMQ driver, shared by the files of this folder.
 *
 * One connection (a consumer that retries has a second one, see requeue.c), and a channel for each
 * concern: publishing (with confirms), requeueing (with confirms, one at a time), control
 * (declaring and counting), and one for each queue consumed, so that one queue can be given up
 * without the others. What is sent without waiting (messages, acks, heartbeats) is gathered in
 * `output` and written when the socket takes it; calls that wait for an answer are the library's,
 * and `output` is written to its end before each of them.
 *
 * To change here: a file here uses this header, its seam (broker/broker.h) and the rooms below
 * it. Only write.c writes to the socket, only read.c takes frames from the library, only topology.c
 * and names.c change what is declared at the broker. Every function of the driver's table that uses
 * the connection holds the mutex of heartbeat.c.
 *
 * connection  connection.c (open, close, errors, TLS), write.c (frames out), read.c (frames in, and
 *             deliveries made of them), heartbeat.c (heartbeats by a thread, and the mutex)
 * names       settings.c (the URL), names.c (of queues; deleting), topology.c (what is declared)
 * publishing  publish.c (the window), requeue.c (to one subscription)
 * consuming   consume.c (subscribe, fetch, ack), assignment.c (one queue consumed), message.c (the
 *             headers of a message), unacked.c (what is not acked), stream.c (a queue that is a
 *             log)
 * inspecting  inspect.c (backlog), examine.c (for semel doctor)
 */
#ifndef SEMEL_BROKER_RABBITMQ_RABBITMQ_H
#define SEMEL_BROKER_RABBITMQ_RABBITMQ_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "broker/rabbitmq/library.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define SEMEL_RABBIT_NAME_MAX  255 /* AMQP's short strings */
#define SEMEL_RABBIT_NAME_SIZE (SEMEL_RABBIT_NAME_MAX + 1)

enum semel_rabbit_channel {
	SEMEL_RABBIT_PUBLISH = 1,
	SEMEL_RABBIT_REQUEUE,
	SEMEL_RABBIT_CONTROL,
	SEMEL_RABBIT_MEMBERS,    /* counts the consumers of a partitioned subscription */
	SEMEL_RABBIT_PROBE,      /* to read a stream without consuming it; open for one probe */
	SEMEL_RABBIT_ASSIGNMENTS /* this and the following: one per queue consumed */
};

struct semel_rabbit_settings {
	char *user, *password, *host, *vhost;
	int port;
	bool tls;
	const char *queue_type; /* "quorum", "classic", "stream" */
	bool stream;
	bool single_active;
	char *alternate_exchange; /* NULL: none */
	char *cacert, *cert, *key;
	int64_t heartbeat_s;
	int64_t max_message; /* bytes of a payload; 0: as the server has it */
	int64_t partitions;  /* of subscriptions; 0: not set */
};

/* Reads the URL. CONFIG names what is wrong, and never shows the password. */
semel_status semel_rabbit_settings_read(const struct semel_rabbit_library *library,
					const struct semel_url *url,
					struct semel_rabbit_settings *settings_out,
					semel_error *error);
void semel_rabbit_settings_free(struct semel_rabbit_settings *settings);

/* ---- the window of unanswered events (publish.c) ---- */

/* An event that was published and has no outcome yet. */
struct semel_rabbit_inflight {
	const struct semel_event *event;
	struct semel_publish_metadata metadata;
	void *token;
	uint64_t aggregate; /* its hash */
	uint64_t tag;       /* of its confirm; 0: not sent */
	semel_status status;
	struct semel_rabbit_inflight *next;           /* in its list */
	struct semel_rabbit_inflight *before, *after; /* among those sent, by tag */
	struct semel_rabbit_inflight *aggregate_next; /* the next event of its aggregate */
	struct semel_rabbit_inflight *aggregate_last; /* of the first one: the last one */
	struct semel_rabbit_inflight *bucket_next;    /* in the bucket of its hash */
	bool returned;
	char reason[160];
};

struct semel_rabbit_list {
	struct semel_rabbit_inflight *first, *last;
};

struct semel_rabbit_window {
	struct semel_rabbit_inflight *entries;
	struct semel_rabbit_inflight **buckets; /* the first unanswered event of each aggregate */
	size_t bucket_count;                    /* a power of two */
	struct semel_rabbit_list unused, ready, done;
	struct semel_rabbit_inflight *oldest, *newest; /* of those sent */
	uint64_t last_tag;
};

/* ---- deliveries (read.c, unacked.c, assignment.c, consume.c) ---- */

struct semel_rabbit_slab; /* memory of several deliveries */

/* A delivery that was read and is not acked. */
struct semel_rabbit_unacked {
	struct semel_rabbit_unacked *before, *after;
	struct semel_rabbit_slab *slab;
	struct semel_delivery delivery;
	size_t size; /* size of all that */
	uint32_t assignment;
	bool fetched; /* the caller has it */
	bool skip;    /* a marker of ours, or acked before the stream was opened again */
};

struct semel_rabbit_unacked_list {
	struct semel_rabbit_unacked *first, *last; /* in the order of arrival */
	struct semel_rabbit_unacked *next;         /* all before it are fetched */
	uint32_t waiting;                          /* not fetched */
	uint32_t waiting_before;                   /* of these, at the end of the last fetch */
	size_t bytes;                              /* of all, including those that are arriving */
	struct semel_rabbit_slab *slab, *spare;
};

/* A message that is arriving frame by frame. */
struct semel_rabbit_assembly {
	bool expects_header;
	uint64_t body_left;
	char *body_at;
	struct semel_rabbit_unacked *unacked; /* NULL: not kept (a returned message) */
};

/* Of a delivery: ACKED_NOW until its ack is sent. */
enum { SEMEL_RABBIT_UNACKED, SEMEL_RABBIT_ACKED_NOW, SEMEL_RABBIT_ACKED };

/* One queue that we consume. */
struct semel_rabbit_assignment {
	char *queue;
	const char *topic;
	int32_t partition;
	bool open;               /* its channel is open, and we are its consumer */
	bool releasing;          /* goes to another consumer once no delivery is fetched */
	bool active;             /* something has arrived since it was opened */
	uint16_t epoch;          /* counts openings: earlier deliveries cannot be acked */
	uint32_t fetched;        /* and not acked yet */
	uint32_t acks_sent;      /* since it was opened, or since the queue has applied all */
	uint32_t counts_pending; /* count requests without an answer, on its channel */
	uint64_t first;          /* the tag of acked[start] */
	uint8_t *acked;          /* by tag, from the oldest unacked one on */
	struct semel_rabbit_unacked **unacked; /* likewise; NULL: acked, or arriving */
	size_t start, length, capacity;
	struct {                        /* of a stream */
		int64_t *offsets;       /* by tag, like acked */
		int64_t next;           /* after the last one that arrived; -1: none has */
		int64_t redelivered_to; /* deliveries below it are redelivered */
		int64_t *acked_ahead;   /* ascending; acked ahead of others before a reopening */
		size_t acked_ahead_count;
		bool has_skipped;    /* some are acked without being fetched */
		int64_t retry_at_ms; /* steady: another consumer reads it; no attempt before this */
		int64_t idle_next;   /* value of next at the last arrival … */
		int64_t idle_since_ms; /* … and when that was */
		bool had_backlog;      /* at the last check of an idle reader */
	} log;
	struct semel_rabbit_assembly assembly;
};

/* ---- reading a stream without consuming it (stream.c) ---- */

struct semel_rabbit_probe {
	int64_t from;               /* SEMEL_RABBIT_FIRST, SEMEL_RABBIT_LAST, or an offset */
	int64_t count_from;         /* earlier ones are not counted */
	uint64_t limit;             /* at most this many are counted */
	struct semel_text event_id; /* to search for; data NULL: none */
	bool may_be_empty;          /* it is no error if no message arrives */
	int64_t first, last;        /* out: offsets that arrived; -1: none */
	bool first_has_id;          /* out: the first has an id as its property */
	uint64_t first_hash;        /* out: hash of that id */
	uint64_t count;             /* out */
	bool found;                 /* out */
	/* while it runs */
	uint64_t tag;
	bool expects_header, cancelled;
};

/* The type of a message without id and body that is ours, and no event. */
#define SEMEL_RABBIT_MARKER "semel.mark"
/* Where a stream is read from, instead of an offset. */
#define SEMEL_RABBIT_FIRST (-1)
#define SEMEL_RABBIT_LAST  (-2)

/* ---- the connection and its state ---- */

/* A subscription that is known to exist. */
struct semel_rabbit_known_subscription {
	char queue[SEMEL_RABBIT_NAME_SIZE];
	uint32_t partitions;
	uint32_t tier; /* tiers up to this exist */
};

struct semel_rabbit_tier_state {
	char *queue;
	uint64_t count;           /* when last counted, and what was added since */
	int64_t added_ms;         /* the last time we added something */
	int64_t missing_until_ms; /* steady: it did not exist; no query before this */
};

struct semel_rabbit {
	struct semel_broker broker;
	const struct semel_rabbit_library *library;
	const struct semel_env *env;
	struct semel_rabbit_settings settings;
	const struct semel_offset_store *offset_store; /* of streams; NULL: none */
	char address[320]; /* for messages: "amqp://user@host:5672/vhost" */

	amqp_connection_state_t connection;
	int fd;
	void *tls_session;    /* NULL: no TLS */
	bool tls_wants_read;  /* the last write has to wait for the peer, not for the socket */
	int ready_fd;         /* an eventfd: something arrived that the socket no longer shows */
	bool ready_signalled; /* ready_fd is signalled */
	struct semel_wake *wake;
	bool open_channels[SEMEL_RABBIT_ASSIGNMENTS];
	bool lost;      /* the connection broke: nothing is written or read any more */
	bool is_second; /* the settings belong to the first connection */
	char blocked[128];
	int64_t heartbeat_ms, sent_ms, heard_ms;
	struct {
		pthread_t thread;
		pthread_mutex_t mutex;   /* held while the connection is used */
		struct semel_wake *wake; /* ends the thread's sleep */
		bool running;
	} heartbeat;

	struct {
		char *data;
		size_t at, length, capacity; /* written up to at */
	} output;
	size_t frame_max;
	struct semel_arena *scratch;
	struct semel_buffer header_text;

	struct semel_rabbit_window window;
	struct semel_rabbit_assembly returned; /* on the channel of publishing */
	char returned_text[160];
	char **topics; /* whose exchanges are declared */
	size_t topic_count;

	/* A consumer's second connection; NULL: not needed so far. */
	struct semel_rabbit *publisher;
	struct {
		uint64_t tag;        /* of the last message */
		bool waiting;        /* for its confirm */
		semel_status status; /* the broker's answer */
		char reason[160];
	} requeue;
	struct semel_rabbit_known_subscription *known; /* to which events are requeued */
	size_t known_count;
	struct semel_rabbit_tier_state *tiers;
	size_t tier_count;
	uint64_t in_transit; /* left a tier and have not arrived here yet */
	int64_t transit_until_ms;
	char *bind;               /* of the subscription; NULL: all events */
	int64_t bind_at_ms;       /* steady: the bindings are made again */
	bool bind_refused;        /* the last time, that was not permitted */
	int64_t missing_asked_ms; /* steady: when missing tiers were last queried again */

	struct semel_rabbit_assignment *assignments;
	uint32_t assignment_count;
	uint32_t quota; /* how many assignments we may own, where streams are shared; 0: all */
	uint32_t prefetch, partitions;
	size_t budget;         /* most bytes that are kept; one delivery always is */
	size_t average_size;   /* of deliveries; 0: none has arrived */
	uint32_t size_samples; /* samples of the average */
	bool is_unwatched;     /* the socket is not watched, because nothing more is read */
	struct semel_rabbit_probe *probe; /* the running probe; NULL: none */
	struct {
		uint16_t channel; /* an answer is awaited there; 0: no answer */
		uint32_t pending; /* unanswered requests on the channel of control */
		uint64_t ready;
		uint32_t consumers;
		semel_status status; /* other than OK: see why */
		semel_error why;
	} count_request;
	char *scope;
	char members[SEMEL_RABBIT_NAME_SIZE]; /* the queue that counts them; "": none */
	int64_t balance_at_ms;
	struct semel_rabbit_unacked_list unacked;
};

extern const struct semel_broker_driver semel_rabbit_driver, semel_rabbit_tls_driver;

static inline struct semel_rabbit *semel_rabbit_of(struct semel_broker *broker)
{
	return (struct semel_rabbit *)broker;
}

static inline amqp_bytes_t semel_rabbit_bytes(struct semel_text text)
{
	return (amqp_bytes_t){ .len = text.length, .bytes = (void *)(uintptr_t)text.data };
}

static inline amqp_bytes_t semel_rabbit_string(const char *string)
{
	return semel_rabbit_bytes(semel_text_of(string));
}

static inline struct semel_text semel_rabbit_text(amqp_bytes_t bytes)
{
	return (struct semel_text){ bytes.bytes ? bytes.bytes : "", bytes.len };
}

#define SEMEL_RABBIT_NO_TABLE ((amqp_table_t){ 0 })
#define SEMEL_RABBIT_NO_BYTES ((amqp_bytes_t){ 0 })

/* ---- rabbitmq.c ---- */
/* A second connection to the same address, which must be freed before the first. */
semel_status semel_rabbit_open_second(const struct semel_rabbit *first,
				      struct semel_rabbit **second_out, semel_error *error);
/* Closes it; may be NULL. */
void semel_rabbit_free(struct semel_rabbit *rabbit);

/* ---- connection.c ---- */
semel_status semel_rabbit_connect(struct semel_rabbit *rabbit, semel_error *error);
void semel_rabbit_disconnect(struct semel_rabbit *rabbit);
/* The connection broke; code is one of the library's. OUTAGE. */
semel_status semel_rabbit_set_lost(struct semel_rabbit *rabbit, int code, semel_error *error);
/* OUTAGE: the connection broke earlier. */
semel_status semel_rabbit_error_lost(const struct semel_rabbit *rabbit, semel_error *error);
/* Opens one of the fixed channels unless it is open. */
semel_status semel_rabbit_open_channel(struct semel_rabbit *rabbit,
				       enum semel_rabbit_channel channel, semel_error *error);
/* Before a call of the library that waits: writes what is gathered. */
semel_status semel_rabbit_call_begin(struct semel_rabbit *rabbit, semel_error *error);
/* After such a call: the broker's answer. If the broker closed the channel, that is confirmed and
 * *closed_out (may be NULL) is set; NOT_FOUND and CONFIG then carry the broker's words. */
semel_status semel_rabbit_call_end(struct semel_rabbit *rabbit, uint16_t channel, bool *closed_out,
				   semel_error *error);
/* A call on the channel of control: begins it, opening the channel if necessary; and ends it. */
semel_status semel_rabbit_control_begin(struct semel_rabbit *rabbit, semel_error *error);
semel_status semel_rabbit_control_end(struct semel_rabbit *rabbit, semel_error *error);
/* Closes the channel, and drops those of its frames that the library still holds: they would be
 * taken for frames of the next opening. */
semel_status semel_rabbit_close_channel(struct semel_rabbit *rabbit, uint16_t channel,
					semel_error *error);
/* The broker closed the channel: confirms that, and sets the error. */
semel_status semel_rabbit_channel_closed(struct semel_rabbit *rabbit, uint16_t channel,
					 const amqp_channel_close_t *close, semel_error *error);
/* Wakes a sleeper if something has arrived that the socket no longer shows. */
void semel_rabbit_signal_ready(struct semel_rabbit *rabbit);

/* Bytes that were written; 0: the socket is full, or tls_wants_read; -1: the connection is
 * broken. */
ssize_t semel_rabbit_tls_write(struct semel_rabbit *rabbit, const char *data, size_t length);

/* ---- write.c ---- */
/* A message to be sent. */
struct semel_rabbit_outgoing {
	uint16_t channel;
	struct semel_text exchange, key; /* where it is published */
	const struct semel_event *event;
	const struct semel_publish_metadata *metadata;
	bool keeps_routing_key; /* the event's own routing key travels as a header */
	bool omits_lane;        /* it arrived without a lane, and must reach the same queue again */
	const char *reason;     /* why it was given up; NULL: it was not */
};
/* SEMEL_OK: it will be sent. INVALID, TOO_LARGE: it cannot be put into frames. */
semel_status semel_rabbit_write_message(struct semel_rabbit *rabbit,
					const struct semel_rabbit_outgoing *outgoing,
					semel_error *error);
semel_status semel_rabbit_write_ack(struct semel_rabbit *rabbit, uint16_t channel, uint64_t tag,
				    bool multiple, semel_error *error);
/* False: out of memory. */
bool semel_rabbit_write_heartbeat(struct semel_rabbit *rabbit);
/* Writes as much as the socket accepts. */
semel_status semel_rabbit_flush(struct semel_rabbit *rabbit, semel_error *error);
/* Writes all, waiting at most wait_ms. */
semel_status semel_rabbit_flush_all(struct semel_rabbit *rabbit, int64_t wait_ms,
				    semel_error *error);
/* May one more message be sent now? */
bool semel_rabbit_has_capacity(const struct semel_rabbit *rabbit);
/* Bytes that wait to be written. */
size_t semel_rabbit_unsent(const struct semel_rabbit *rabbit);

/* ---- heartbeat.c ---- */
/* Sends one when nothing was sent for half the agreed time. OUTAGE when the broker has been silent
 * for too long. */
semel_status semel_rabbit_check_heartbeat(struct semel_rabbit *rabbit, semel_error *error);
bool semel_rabbit_heartbeat_init(struct semel_rabbit *rabbit);
/* Called once the connection is open. If no thread can be started, only the owner sends
 * heartbeats. */
void semel_rabbit_heartbeat_start(struct semel_rabbit *rabbit);
void semel_rabbit_heartbeat_stop(struct semel_rabbit *rabbit);
void semel_rabbit_heartbeat_free(struct semel_rabbit *rabbit);
/* Around every function of the driver. unlock returns the status that it is given. */
void semel_rabbit_lock(struct semel_broker *broker);
semel_status semel_rabbit_unlock(struct semel_broker *broker, semel_status status);

/* ---- read.c ---- */
/* Takes the frames that have arrived, until the unacked list is full; waits at most wait_ms for the
 * first. Writes what is gathered, and checks the heartbeat. */
semel_status semel_rabbit_pump(struct semel_rabbit *rabbit, int64_t wait_ms, semel_error *error);
/* The same, even if the unacked list is full. */
semel_status semel_rabbit_pump_all(struct semel_rabbit *rabbit, int64_t wait_ms,
				   semel_error *error);

/* ---- unacked.c ---- */
/* For a delivery that is arriving. NULL: out of memory. */
struct semel_rabbit_unacked *semel_rabbit_unacked_new(struct semel_rabbit *rabbit);
struct semel_arena *semel_rabbit_unacked_arena(const struct semel_rabbit_unacked *unacked);
void semel_rabbit_unacked_grew(struct semel_rabbit *rabbit, struct semel_rabbit_unacked *unacked,
			       size_t bytes);
/* Frees a delivery that is not in the list. */
void semel_rabbit_unacked_free(struct semel_rabbit *rabbit, struct semel_rabbit_unacked *unacked);
void semel_rabbit_unacked_list_add(struct semel_rabbit *rabbit,
				   struct semel_rabbit_unacked *unacked);
/* Removes the delivery from the list, and frees it. */
void semel_rabbit_unacked_list_remove(struct semel_rabbit *rabbit,
				      struct semel_rabbit_unacked *unacked);
/* Drops all deliveries of an assignment that was closed. */
void semel_rabbit_unacked_list_drop(struct semel_rabbit *rabbit, uint32_t assignment);
/* No delivery counts as fetched any more. */
void semel_rabbit_unacked_list_rewind(struct semel_rabbit *rabbit);
/* The first delivery after this one (NULL: the first of all) that may be fetched; those of a queue
 * that is being released may not. NULL: none. */
struct semel_rabbit_unacked *semel_rabbit_unacked_list_next(
	struct semel_rabbit *rabbit, const struct semel_rabbit_unacked *behind);
/* Is so much kept that nothing more is read? */
bool semel_rabbit_unacked_list_is_full(const struct semel_rabbit *rabbit);
void semel_rabbit_unacked_list_free(struct semel_rabbit *rabbit);

/* ---- publish.c ---- */
bool semel_rabbit_window_new(struct semel_rabbit_window *window, uint32_t size);
void semel_rabbit_window_free(struct semel_rabbit_window *window);
semel_broker_publish_fn semel_rabbit_publish;
semel_broker_poll_fn semel_rabbit_poll;
semel_broker_blocked_fn semel_rabbit_blocked;
void semel_rabbit_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple, bool nacked);
/* The event of this id was returned; text says from where. */
void semel_rabbit_event_returned(struct semel_rabbit *rabbit, struct semel_text id,
				 const char *text);
/* The broker closed the channel of publishing, because of an event or of the setup. */
semel_status semel_rabbit_publish_closed(struct semel_rabbit *rabbit,
					 const amqp_channel_close_t *close, semel_error *error);

/* ---- names.c ---- */
#define SEMEL_RABBIT_TIER_COUNT 12u

/* The queues of a scope for a topic, and what brings events to them. */
struct semel_rabbit_subscription {
	const char *scope, *topic, *bind;
	uint32_t partitions;  /* 1: one queue S.T, reached through the default exchange;
				 more: S.T.1 …, reached through the exchange S.T */
	int64_t delay_max_ms; /* tiers up to this */
};
/* "S.T", followed by suffix and number; number 0: by neither. CONFIG: the name would be too
 * long. */
semel_status semel_rabbit_make_name(const struct semel_rabbit_subscription *subscription,
				    const char *suffix, uint32_t number,
				    char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error);
/* number 0: the only queue. */
semel_status semel_rabbit_queue_name(const struct semel_rabbit_subscription *subscription,
				     uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
				     semel_error *error);
/* A queue that is read; number, from 1 on, is part of the name only if there are several. */
semel_status semel_rabbit_partition_name(const struct semel_rabbit_subscription *subscription,
					 uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
					 semel_error *error);
/* The queue with copies of dead letters. */
semel_status semel_rabbit_parked_name(const struct semel_rabbit_subscription *subscription,
				      char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error);
semel_status semel_rabbit_tier_name(const struct semel_rabbit_subscription *subscription,
				    uint32_t tier, char name_out[SEMEL_RABBIT_NAME_SIZE],
				    semel_error *error);
/* The shortest tier, numbered from 1, that is long enough; if none is, the longest tier. */
uint32_t semel_rabbit_tier_for(int64_t delay_ms);
int64_t semel_rabbit_tier_ms(uint32_t tier);
semel_broker_remove_fn semel_rabbit_remove;

/* ---- topology.c ---- */
/* Set: nothing is declared, differences are reported. NULL: declare. */
struct semel_rabbit_comparison {
	semel_difference_callback report;
	void *user;
};
semel_status semel_rabbit_declare_topic(struct semel_rabbit *rabbit, const char *topic,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error);
semel_status semel_rabbit_declare_subscription(struct semel_rabbit *rabbit,
					       const struct semel_rabbit_subscription *subscription,
					       const struct semel_rabbit_comparison *comparison,
					       semel_error *error);
/* For a subscription that exists: declares the topic's exchange, and what brings its events to the
 * queues. */
semel_status semel_rabbit_bind_subscription(struct semel_rabbit *rabbit,
					    const struct semel_rabbit_subscription *subscription,
					    semel_error *error);
/* The tiers up to the subscription's longest delay. */
semel_status semel_rabbit_declare_tiers(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					semel_error *error);
/* Consumes a queue that exists as long as it has consumers. */
semel_status semel_rabbit_join(struct semel_rabbit *rabbit, const char *queue, semel_error *error);
/* The number of queues that the subscription has; 0: it does not exist. */
semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error);

/* ---- assignment.c ---- */
semel_status semel_rabbit_assignment_open(struct semel_rabbit *rabbit, uint32_t at,
					  semel_error *error);
/* Waits until the queue has applied the acks that were sent. */
semel_status semel_rabbit_assignment_await_acks(struct semel_rabbit *rabbit, uint32_t at,
						semel_error *error);
/* The assignment's channel was closed, by the broker or by us: its unacked deliveries are no longer
 * ours. */
void semel_rabbit_assignment_reset(struct semel_rabbit *rabbit, uint32_t at);
/* A delivery with this tag begins to arrive. False: out of memory. */
bool semel_rabbit_assignment_add_tag(struct semel_rabbit_assignment *assignment, uint64_t tag);
/* The delivery has arrived. */
void semel_rabbit_assignment_add_unacked(struct semel_rabbit_assignment *assignment,
					 struct semel_rabbit_unacked *unacked);
/* Flags a delivery as acked; semel_rabbit_assignment_send_acks sends the acks. */
void semel_rabbit_assignment_ack(struct semel_rabbit *rabbit, uint32_t at, uint64_t tag);
semel_status semel_rabbit_assignment_send_acks(struct semel_rabbit *rabbit, uint32_t at,
					       semel_error *error);
/* How many deliveries are not acked. */
uint64_t semel_rabbit_assignment_count_unacked(const struct semel_rabbit_assignment *assignment);
/* How many messages are ready in the queue; every delivery before this count has arrived and has a
 * tag here. */
semel_status semel_rabbit_assignment_count_ready(struct semel_rabbit *rabbit, uint32_t at,
						 uint64_t *ready_out, semel_error *error);
/* Releases the queues of a partitioned subscription that exceed this consumer's quota. */
semel_status semel_rabbit_balance(struct semel_rabbit *rabbit, semel_error *error);

/* ---- stream.c ---- */
/* May this consumer read the stream, and from where? mine_out false: another consumer reads it, or
 * it would exceed the quota. */
semel_status semel_rabbit_stream_acquire(struct semel_rabbit *rabbit, uint32_t at, bool *mine_out,
					 int64_t *from_out, semel_error *error);
/* The stream is no longer read here. */
void semel_rabbit_stream_release(struct semel_rabbit *rabbit, uint32_t at);
/* Called before the stream is opened again, so that what was acked ahead of others is not delivered
 * again. */
void semel_rabbit_stream_remember_acked(struct semel_rabbit_assignment *assignment);
/* The header of a delivery was read. */
void semel_rabbit_stream_received(struct semel_rabbit_assignment *assignment,
				  struct semel_rabbit_unacked *unacked, bool is_marker);
/* A stream that nothing was ever written to cannot be distinguished from one that is slow to
 * answer. So each has a marker of ours in it. */
semel_status semel_rabbit_stream_write_marker(struct semel_rabbit *rabbit, const char *queue,
					      semel_error *error);
/* What waits in the stream of an assignment, unacked deliveries included. */
semel_status semel_rabbit_stream_backlog(struct semel_rabbit *rabbit, uint32_t at,
					 uint64_t *waiting_out, semel_error *error);
/* For an idle reader. OUTAGE: nothing arrives although the stream has something. */
semel_status semel_rabbit_stream_check(struct semel_rabbit *rabbit, uint32_t at,
				       semel_error *error);
/* Reads a stream of any scope, from where the scope has read. Without an event_id it counts. */
semel_status semel_rabbit_stream_probe(struct semel_rabbit *rabbit,
				       const struct semel_rabbit_subscription *subscription,
				       uint32_t number, struct semel_rabbit_probe *probe,
				       semel_error *error);
amqp_field_value_t semel_rabbit_stream_offset(int64_t from);
/* A frame of the channel of probes. */
void semel_rabbit_probe_frame(struct semel_rabbit *rabbit, const amqp_frame_t *frame);

/* ---- message.c ---- */
/* Reads into an event that has its topic and routing key already. *tier_out: the tier queue that
 * the message left last; data NULL: none. False: out of memory. */
bool semel_rabbit_properties_read(const amqp_basic_properties_t *properties, bool is_stream,
				  struct semel_wire_reading *reading, struct semel_text *tier_out);
/* The offset among a message's headers; -1: none. */
int64_t semel_rabbit_offset_of(const amqp_basic_properties_t *properties);
bool semel_rabbit_is_marker(const amqp_basic_properties_t *properties, uint64_t body_size);

/* ---- consume.c ---- */
semel_broker_subscribe_fn semel_rabbit_subscribe;
semel_broker_fetch_fn semel_rabbit_fetch;
semel_broker_ack_fn semel_rabbit_ack;
semel_broker_count_in_flight_fn semel_rabbit_count_in_flight;
semel_broker_rewind_fn semel_rabbit_rewind;
semel_broker_compare_fn semel_rabbit_compare;

/* ---- requeue.c ---- */
semel_broker_requeue_fn semel_rabbit_requeue;
semel_broker_publish_dead_letter_fn semel_rabbit_publish_dead_letter;
/* Keeps the publisher's connection alive, or closes it when it is lost. */
void semel_rabbit_maintain_publisher(struct semel_rabbit *rabbit);
/* Publishes a message over the publisher, and waits for its confirm. BUSY while the broker is
 * blocked. */
semel_status semel_rabbit_send_confirmed(struct semel_rabbit *rabbit,
					 const struct semel_rabbit_outgoing *outgoing,
					 semel_error *error);
/* What the broker answered about the message that waits for its confirm. */
void semel_rabbit_requeue_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple,
				    bool nacked);
void semel_rabbit_requeue_returned(struct semel_rabbit *rabbit, const char *text);

/* ---- inspect.c ---- */
/* Messages ready in a queue. NOT_FOUND. BUSY: the unacked list is full, so the answer cannot be
 * waited for. consumers_out may be NULL. */
semel_status semel_rabbit_count(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
				uint32_t *consumers_out, semel_error *error);
/* The same over another channel; rabbit->count_request has the answer. NOT_FOUND and CONFIG: the
 * broker has closed the channel. */
semel_status semel_rabbit_request_count(struct semel_rabbit *rabbit, uint16_t channel,
					const char *queue, semel_error *error);
void semel_rabbit_count_received(struct semel_rabbit *rabbit, uint16_t channel,
				 const amqp_queue_declare_ok_t *ok);
/* The channel was closed. */
void semel_rabbit_count_failed(struct semel_rabbit *rabbit, uint16_t channel, semel_status status,
			       const char *why);
semel_broker_backlog_fn semel_rabbit_backlog;
semel_broker_next_due_fn semel_rabbit_next_due;
semel_broker_find_event_fn semel_rabbit_find_event;
/* A tier got one more message, which will arrive later. */
void semel_rabbit_tier_added(struct semel_rabbit *rabbit, const char *queue);
/* A message that was in this tier has arrived. */
void semel_rabbit_tier_arrived(struct semel_rabbit *rabbit, struct semel_text queue);

/* ---- examine.c ---- */
semel_broker_examine_fn semel_rabbit_examine;
/* Reports the nodes, as the management plugin describes them. */
void semel_rabbit_examine_nodes(struct semel_rabbit *rabbit,
				const struct semel_examination *examination);
semel_broker_examine_bindings_fn semel_rabbit_examine_bindings;

#endif
