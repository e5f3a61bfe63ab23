/* SPDX-License-Identifier: Apache-2.0 */
/* The RabbitMQ broker's inside, shared by the files of this folder.
 *
 * One connection (a consumer that retries has two, see requeue.c), a channel for each concern:
 * publishing (with confirms), requeueing (with confirms, one at a time), control (declaring and
 * counting), and one for each queue consumed, so that a queue can be let go of by itself. What is
 * sent without waiting (messages, acks, heartbeats) is gathered in `out` and written when the
 * socket takes it; calls that wait for an answer are the library's, and `out` is written to its end
 * before each of them.
 *
 * connection.c (open, close, errors)  write.c (out)  read.c (frames in)  publish.c (the window)
 * settings.c (the URL)  topology.c (names, declaring)  share.c (one queue consumed)
 * stage.c (what is not acked)  stream.c (a queue that is a log)  probe.c (looking into such a one)
 * examine.c, management.c (for semel doctor)
 * ask.c (counting while deliveries come)
 * consume.c (subscribe, fetch, ack)  requeue.c (to one subscription)  look.c (backlog)
 * beat.c (heartbeats by a thread, and the lock that keeps it from the rest)
 */
#ifndef SEMEL_BROKER_RABBITMQ_RABBITMQ_H
#define SEMEL_BROKER_RABBITMQ_RABBITMQ_H

#include "base/buffer.h"
#include "broker/broker.h"
#include "broker/rabbitmq/library.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define SEMEL_RABBIT_NAME_MAX  255 /* AMQP's short strings */
#define SEMEL_RABBIT_NAME_SIZE (SEMEL_RABBIT_NAME_MAX + 1)

enum semel_rabbit_channel {
	SEMEL_RABBIT_PUBLISH = 1,
	SEMEL_RABBIT_REQUEUE,
	SEMEL_RABBIT_CONTROL,
	SEMEL_RABBIT_MEMBERS, /* who else consumes a partitioned subscription */
	SEMEL_RABBIT_PROBE,   /* to look into a stream; open for one look */
	SEMEL_RABBIT_SHARES   /* this and the following: one per queue consumed */
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
	int64_t partitions;  /* of subscriptions; 0: not named */
};

/* Reads the URL; CONFIG tells what is wrong, and never shows the password. */
semel_status semel_rabbit_settings_read(const struct semel_rabbit_library *library,
					const struct semel_url *url,
					struct semel_rabbit_settings *settings_out,
					semel_error *error);
void semel_rabbit_settings_free(struct semel_rabbit_settings *settings);

/* ---- the window of unanswered events (publish.c) ---- */

struct semel_rabbit_slot {
	const struct semel_event *event;
	struct semel_publish_metadata metadata;
	void *token;
	uint64_t aggregate; /* its hash */
	uint64_t tag;       /* of its confirm; 0: not on the wire */
	semel_status status;
	struct semel_rabbit_slot *next;           /* in the list it is in */
	struct semel_rabbit_slot *before, *after; /* on the wire, by tag */
	struct semel_rabbit_slot *behind, *last;  /* later ones of its aggregate; the last of them
						     is known by the first */
	struct semel_rabbit_slot *neighbour;      /* in the bucket of its hash */
	bool returned;
	char reason[160];
};

struct semel_rabbit_list {
	struct semel_rabbit_slot *first, *last;
};

struct semel_rabbit_window {
	struct semel_rabbit_slot *slots;
	struct semel_rabbit_slot **buckets; /* the first unanswered event of each aggregate */
	size_t bucket_count;                /* a power of two */
	struct semel_rabbit_list unused, ready, done;
	struct semel_rabbit_slot *oldest, *newest; /* on the wire */
	uint64_t last_tag;
};

/* ---- deliveries (stage.c, share.c, consume.c) ---- */

struct semel_rabbit_shelf;

/* A delivery that has arrived and was not acked; in the stage. */
struct semel_rabbit_parcel {
	struct semel_rabbit_parcel *before, *after;
	struct semel_rabbit_shelf *shelf; /* where its memory is */
	struct semel_delivery delivery;
	size_t size; /* of all that */
	uint32_t share;
	bool out;      /* in the caller's hands */
	bool needless; /* a mark of our own, or settled before the stream was opened again */
};

struct semel_rabbit_stage {
	struct semel_rabbit_parcel *first, *last; /* by arrival */
	struct semel_rabbit_parcel *next;         /* all before it are in the caller's hands */
	uint32_t waiting;                         /* those that are not */
	uint32_t seen;                            /* of them, when last fetched */
	size_t bytes;                             /* of all, and of those that are arriving */
	struct semel_rabbit_shelf *shelf, *spare;
};

/* A message that is arriving frame by frame. */
struct semel_rabbit_assembly {
	bool expects_header;
	uint64_t body_left;
	char *body_at;
	struct semel_rabbit_parcel *parcel; /* NULL: nobody wants it (returned) */
};

/* One queue that we consume. */
struct semel_rabbit_share {
	char *queue;
	const char *topic;
	int32_t partition;
	bool open;          /* its channel is, and we are its consumer */
	bool leaving;       /* it goes to another consumer as soon as nothing of it is in hand */
	bool active;        /* something has come since it was opened */
	uint16_t epoch;     /* counts openings: what came before cannot be acked any more */
	uint32_t handed;    /* fetched and not acked */
	uint32_t told;      /* acks sent since it was opened, or since all of them were settled */
	uint32_t questions; /* without an answer, on its channel */
	uint64_t first;     /* the tag of acked[start] */
	uint8_t *acked;     /* by tag, since the oldest unacked one */
	struct semel_rabbit_parcel **parcels; /* likewise; NULL: acked, or arriving */
	size_t start, length, capacity;
	struct {                  /* of a stream */
		int64_t *offsets; /* as acked: by tag */
		int64_t next;     /* after the last one that came; -1: none did */
		int64_t seen;     /* after the last one that came before it was opened again */
		int64_t *settled; /* ascending; acked ahead of others before it was opened again */
		size_t settled_count;
		bool needless;     /* some are acked that nobody fetched */
		int64_t ask_at_ms; /* steady: another one reads it; not asked again before this */
		int64_t still_at, still_ms; /* nothing has come since: next, and since when */
		bool behind;                /* there was something to come at the last check */
	} log;
	struct semel_rabbit_assembly assembly;
};

/* ---- looking into a stream (probe.c) ---- */

struct semel_rabbit_probe {
	int64_t from;             /* SEMEL_RABBIT_FIRST, SEMEL_RABBIT_LAST, or an offset */
	int64_t count_from;       /* those before it are not counted */
	uint64_t limit;           /* so many are counted at most */
	struct semel_text wanted; /* data set: an id to look for */
	bool may_be_empty;        /* nothing may come at all */
	int64_t first, last;      /* out: offsets that came; -1: none did */
	bool first_named;         /* out: the first has an id as its property */
	uint64_t first_hash;      /* out: of that */
	uint64_t count;           /* out */
	bool found;               /* out */
	/* while it runs */
	uint64_t tag;
	bool expects_header, gone;
};

/* The type of a message without id and body that is ours, and no event. */
#define SEMEL_RABBIT_MARK  "semel.mark"
#define SEMEL_RABBIT_FIRST (-1)
#define SEMEL_RABBIT_LAST  (-2)

/* ---- the whole ---- */

/* A subscription that we know to be there. */
struct semel_rabbit_known_home {
	char queue[SEMEL_RABBIT_NAME_SIZE];
	uint32_t partitions;
	uint32_t tier; /* tiers up to this are there */
};

struct semel_rabbit_tier_note {
	char *queue;
	uint64_t count;           /* when last seen, and what was added since */
	int64_t added_ms;         /* the last time we added something */
	int64_t missing_until_ms; /* it was not there; not asked again before this (steady) */
};

struct semel_rabbit {
	struct semel_broker broker;
	const struct semel_rabbit_library *library;
	const struct semel_env *env;
	struct semel_rabbit_settings settings;
	const struct semel_offset_store *offset_store; /* of the streams' offsets; NULL: none */
	char place[320]; /* for messages: "amqp://user@host:5672/vhost" */

	amqp_connection_state_t connection;
	int fd, bell_fd; /* the bell: something has arrived that the socket no longer shows */
	bool rung;
	struct semel_wake *wake;
	bool open_channels[SEMEL_RABBIT_SHARES];
	bool lost;      /* the connection broke: no more talking */
	bool is_beside; /* the settings are another's */
	char blocked[128];
	int64_t heartbeat_ms, sent_ms, heard_ms;
	struct {
		pthread_t thread;
		pthread_mutex_t line;   /* held by whoever uses the connection */
		struct semel_wake *bed; /* where the thread sleeps */
		bool running;
	} beater;

	struct {
		char *data;
		size_t at, length, capacity; /* written up to at */
	} out;
	size_t frame_max;
	struct semel_arena *scratch;
	struct semel_buffer header_text;

	struct semel_rabbit_window window;
	struct semel_rabbit_assembly returned; /* on the channel of publishing */
	char returned_text[160];
	char **topics; /* exchanges that are declared */
	size_t topic_count;

	struct semel_rabbit *outlet; /* a consumer's second connection; NULL: not needed yet */
	struct {
		struct semel_rabbit_assembly returned;
		uint64_t tag;        /* of the last one */
		bool waiting;        /* for its confirm */
		semel_status status; /* what the broker said */
		char reason[160];
	} requeue;
	struct semel_rabbit_known_home *homes; /* that are declared, for requeueing */
	size_t home_count;
	struct semel_rabbit_tier_note *tiers;
	size_t tier_count;
	uint64_t in_transit; /* left a tier, not arrived yet */
	int64_t transit_until_ms;
	char *bind;               /* of the subscription; NULL: all events */
	int64_t bind_at_ms;       /* steady: the bindings are made again */
	bool bind_refused;        /* and were not allowed the last time */
	int64_t missing_asked_ms; /* steady: tiers that were missing were asked for again */

	struct semel_rabbit_share *shares;
	uint32_t share_count;
	uint32_t part; /* of the shares that is ours, where streams are shared; 0: all */
	uint32_t prefetch, partitions;
	size_t budget;                    /* bytes that are kept at most; one delivery always is */
	size_t usual_size;                /* of deliveries; 0: none has come yet */
	uint32_t sized;                   /* so many of them tell it */
	bool unwatched;                   /* the socket, while nothing more is read from it */
	struct semel_rabbit_probe *probe; /* at work; NULL: none */
	struct {
		uint16_t channel; /* an answer is awaited there; 0: none is */
		uint32_t open;    /* without an answer, on the channel of control */
		uint64_t ready;
		uint32_t consumers;
		semel_status status; /* other than OK: why says more */
		semel_error why;
	} question;
	char *scope;
	char members[SEMEL_RABBIT_NAME_SIZE]; /* the queue that counts them; "": none */
	int64_t balance_at_ms;
	struct semel_rabbit_stage stage;
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
/* One more connection to the same place, which must be freed before the first. */
semel_status semel_rabbit_open_beside(const struct semel_rabbit *first,
				      struct semel_rabbit **beside_out, semel_error *error);
/* Closes it; may be NULL. */
void semel_rabbit_free(struct semel_rabbit *rabbit);

/* ---- connection.c ---- */
semel_status semel_rabbit_connect(struct semel_rabbit *rabbit, semel_error *error);
void semel_rabbit_disconnect(struct semel_rabbit *rabbit);
/* The connection is gone; code is one of the library's. */
semel_status semel_rabbit_lost(struct semel_rabbit *rabbit, int code, semel_error *error);
/* Opens one of the fixed channels unless it is open. */
semel_status semel_rabbit_need_channel(struct semel_rabbit *rabbit,
				       enum semel_rabbit_channel channel, semel_error *error);
/* Before a call of the library that waits: writes what is gathered. */
semel_status semel_rabbit_call_begin(struct semel_rabbit *rabbit, semel_error *error);
/* After it: what the broker answered. A closed channel is confirmed, and closed_out (may be NULL)
 * tells; NOT_FOUND and CONFIG then carry the broker's words. */
semel_status semel_rabbit_call_end(struct semel_rabbit *rabbit, uint16_t channel, bool *closed_out,
				   semel_error *error);
/* Closes it, and drops its frames that the library still holds: they would be taken for those of
 * its next opening. */
semel_status semel_rabbit_close_channel(struct semel_rabbit *rabbit, uint16_t channel,
					semel_error *error);
/* The channel was closed by the broker: confirms that, and sets the error. */
semel_status semel_rabbit_closed(struct semel_rabbit *rabbit, uint16_t channel,
				 const amqp_channel_close_t *close, semel_error *error);
/* Something has arrived that the socket no longer shows: wakes a sleeper. */
void semel_rabbit_ring(struct semel_rabbit *rabbit);

/* ---- write.c ---- */
struct semel_rabbit_post {
	uint16_t channel;
	struct semel_text exchange, key; /* of the message's way */
	const struct semel_event *event;
	const struct semel_publish_metadata *metadata;
	bool keeps_key;     /* the event's own routing key travels as a header */
	bool keeps_no_lane; /* it came without one, and must find the same queue again */
	const char *reason; /* why it was given up; NULL: it was not */
};
/* INVALID when it cannot be put into frames; SEMEL_OK: it will be sent. */
semel_status semel_rabbit_post(struct semel_rabbit *rabbit, const struct semel_rabbit_post *post,
			       semel_error *error);
semel_status semel_rabbit_send_ack(struct semel_rabbit *rabbit, uint16_t channel, uint64_t tag,
				   bool multiple, semel_error *error);
/* Writes what the socket takes. */
semel_status semel_rabbit_flush(struct semel_rabbit *rabbit, semel_error *error);
/* Writes all, waiting at most wait_ms. */
semel_status semel_rabbit_flush_all(struct semel_rabbit *rabbit, int64_t wait_ms,
				    semel_error *error);
/* One more message may be sent now. */
bool semel_rabbit_has_room(const struct semel_rabbit *rabbit);
/* Bytes that wait to be written. */
size_t semel_rabbit_unsent(const struct semel_rabbit *rabbit);
/* A heartbeat, when nothing was sent for half the agreed time. */
semel_status semel_rabbit_send_beat(struct semel_rabbit *rabbit, semel_error *error);
/* The same, and OUTAGE when the broker has been silent for too long. */
semel_status semel_rabbit_beat(struct semel_rabbit *rabbit, semel_error *error);

/* ---- beat.c ---- */
bool semel_rabbit_beater_make(struct semel_rabbit *rabbit);
/* Once the connection is there. Without it (no thread to be had) the owner's own beats remain. */
void semel_rabbit_beater_start(struct semel_rabbit *rabbit);
void semel_rabbit_beater_stop(struct semel_rabbit *rabbit);
void semel_rabbit_beater_free(struct semel_rabbit *rabbit);
/* Around every function of the driver. leave gives the status through. */
void semel_rabbit_enter(struct semel_broker *broker);
semel_status semel_rabbit_leave(struct semel_broker *broker, semel_status status);

/* ---- read.c ---- */
/* Takes the frames that are there, until the stage is full; waits at most wait_ms for the first.
 * Writes what is gathered, keeps the heartbeat. */
semel_status semel_rabbit_pump(struct semel_rabbit *rabbit, int64_t wait_ms, semel_error *error);
/* The same, however much is kept already. */
semel_status semel_rabbit_pump_all(struct semel_rabbit *rabbit, int64_t wait_ms,
				   semel_error *error);

/* ---- ask.c ---- */
/* What is ready in the queue, and its consumers: rabbit->question has them. BUSY: the stage is
 * full. NOT_FOUND and CONFIG: the broker has closed the channel. */
semel_status semel_rabbit_ask(struct semel_rabbit *rabbit, uint16_t channel, const char *queue,
			      semel_error *error);
void semel_rabbit_answered(struct semel_rabbit *rabbit, uint16_t channel,
			   const amqp_queue_declare_ok_t *ok);
/* The channel was closed. */
void semel_rabbit_not_answered(struct semel_rabbit *rabbit, uint16_t channel, semel_status status,
			       const char *why);

/* ---- stage.c ---- */
/* One that is arriving. NULL: no memory. */
struct semel_rabbit_parcel *semel_rabbit_parcel_make(struct semel_rabbit *rabbit);
struct semel_arena *semel_rabbit_parcel_arena(const struct semel_rabbit_parcel *parcel);
void semel_rabbit_parcel_grew(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel,
			      size_t bytes);
/* One that is not in the line. */
void semel_rabbit_parcel_free(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel);
void semel_rabbit_stage_add(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel);
/* And frees it. */
void semel_rabbit_stage_remove(struct semel_rabbit *rabbit, struct semel_rabbit_parcel *parcel);
/* All of a share that was closed. */
void semel_rabbit_stage_forget(struct semel_rabbit *rabbit, uint32_t share);
/* Nothing is in the caller's hands any more. */
void semel_rabbit_stage_rewind(struct semel_rabbit *rabbit);
/* The first that may be handed out, behind that one (NULL: of all); those of a queue that is
 * leaving stay. NULL: none. */
struct semel_rabbit_parcel *semel_rabbit_stage_next(struct semel_rabbit *rabbit,
						    const struct semel_rabbit_parcel *behind);
/* So much is kept that nothing more is read. */
bool semel_rabbit_stage_is_full(const struct semel_rabbit *rabbit);
void semel_rabbit_stage_free(struct semel_rabbit *rabbit);

/* ---- deliver.c ---- */
/* The header of a message for the share: its event in the stage, but for the payload. */
semel_status semel_rabbit_deliver_header(struct semel_rabbit *rabbit,
					 struct semel_rabbit_share *share,
					 const amqp_basic_properties_t *properties,
					 uint64_t body_size, semel_error *error);
/* The method before it. */
semel_status semel_rabbit_deliver_begin(struct semel_rabbit *rabbit, uint32_t share,
					const amqp_basic_deliver_t *deliver, semel_error *error);
/* All of it is here. */
void semel_rabbit_deliver_end(struct semel_rabbit *rabbit, struct semel_rabbit_share *share);

/* ---- publish.c ---- */
bool semel_rabbit_window_make(struct semel_rabbit_window *window, uint32_t size);
void semel_rabbit_window_free(struct semel_rabbit_window *window);
semel_status semel_rabbit_publish(struct semel_broker *broker, const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, void *token,
				  semel_error *error);
semel_status semel_rabbit_poll(struct semel_broker *broker, int64_t wait_ms,
			       semel_outcome_callback seen, void *user, semel_error *error);
const char *semel_rabbit_blocked(struct semel_broker *broker);
void semel_rabbit_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple, bool nacked);
/* The event of this id came back; text says from where. */
void semel_rabbit_came_back(struct semel_rabbit *rabbit, struct semel_text id, const char *text);
/* The broker closed the channel of publishing: an event was at fault, or the setup is. */
semel_status semel_rabbit_publish_closed(struct semel_rabbit *rabbit,
					 const amqp_channel_close_t *close, semel_error *error);

/* ---- topology.c ---- */
/* Where a subscription's events lie: its queues, and the way to them. */
struct semel_rabbit_home {
	const char *scope, *topic, *bind;
	uint32_t partitions;  /* 1: one queue S.T, reached through the default exchange;
				 more: S.T.1 …, reached through the exchange S.T */
	int64_t delay_max_ms; /* tiers up to this */
};
/* How declaring goes about it. */
struct semel_rabbit_survey {
	semel_difference_callback seen; /* set: compare only, and tell */
	void *user;
};
semel_status semel_rabbit_declare_topic(struct semel_rabbit *rabbit, const char *topic,
					const struct semel_rabbit_survey *survey,
					semel_error *error);
semel_status semel_rabbit_declare_home(struct semel_rabbit *rabbit,
				       const struct semel_rabbit_home *home,
				       const struct semel_rabbit_survey *survey,
				       semel_error *error);
/* Of a home that is there: the topic's exchange, and what brings its events to the queues. */
semel_status semel_rabbit_bind_home(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_home *home, semel_error *error);
/* The tiers up to home's longest delay. */
semel_status semel_rabbit_declare_tiers(struct semel_rabbit *rabbit,
					const struct semel_rabbit_home *home, semel_error *error);
/* CONFIG when the names get too long. number 0: of the only queue. */
semel_status semel_rabbit_queue_name(const struct semel_rabbit_home *home, uint32_t number,
				     char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error);
/* Where copies of what it gave up lie. */
semel_status semel_rabbit_parking_name(const struct semel_rabbit_home *home,
				       char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error);
semel_status semel_rabbit_tier_name(const struct semel_rabbit_home *home, uint32_t tier,
				    char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error);
/* The tier, from 1 on, that is at least as long; the longest there is for more. */
uint32_t semel_rabbit_tier_for(int64_t delay_ms);
int64_t semel_rabbit_tier_ms(uint32_t tier);
/* Messages ready in a queue. NOT_FOUND. BUSY: not for one who consumes, and has enough in hand.
 * consumers_out may be NULL. */
semel_status semel_rabbit_count(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
				uint32_t *consumers_out, semel_error *error);
/* A queue that lives as long as it has consumers, of which we are one from now on. */
semel_status semel_rabbit_join(struct semel_rabbit *rabbit, const char *queue, semel_error *error);
/* 1, or as many queues as the subscription has; 0 when it is not there at all. */
semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error);

/* ---- share.c ---- */
semel_status semel_rabbit_share_open(struct semel_rabbit *rabbit, uint32_t at, semel_error *error);
/* Closes the channel: everything unacked goes back to the head of the queue, in order. */
semel_status semel_rabbit_share_close(struct semel_rabbit *rabbit, uint32_t at, semel_error *error);
/* Waits until the queue has settled the acks that were sent. */
semel_status semel_rabbit_share_settle(struct semel_rabbit *rabbit, uint32_t at,
				       semel_error *error);
/* The broker closed it, or it was closed: what is in hand of it is not ours any more. */
void semel_rabbit_share_forget(struct semel_rabbit *rabbit, uint32_t at);
/* A delivery with this tag has come. False: no memory. */
bool semel_rabbit_share_note(struct semel_rabbit_share *share, uint64_t tag);
/* Its parcel is whole. */
void semel_rabbit_share_keep(struct semel_rabbit_share *share, struct semel_rabbit_parcel *parcel);
/* Marks one as acked; semel_rabbit_share_send_acks tells the broker of those. */
void semel_rabbit_share_ack(struct semel_rabbit *rabbit, uint32_t at, uint64_t tag);
semel_status semel_rabbit_share_send_acks(struct semel_rabbit *rabbit, uint32_t at,
					  semel_error *error);
/* Delivered, and not acked. */
uint64_t semel_rabbit_share_unacked(const struct semel_rabbit_share *share);
/* Ready in its queue; every delivery before this count has arrived and is noted. */
semel_status semel_rabbit_share_count(struct semel_rabbit *rabbit, uint32_t at, uint64_t *ready_out,
				      semel_error *error);
/* Gives away what is more than this consumer's part of a partitioned subscription. */
semel_status semel_rabbit_balance(struct semel_rabbit *rabbit, semel_error *error);

/* ---- stream.c ---- */
/* May we read it, and from where? mine_out false: another one does, or it is not our part. */
semel_status semel_rabbit_stream_take(struct semel_rabbit *rabbit, uint32_t at, bool *mine_out,
				      int64_t *from_out, semel_error *error);
/* Nothing of it is read here any more. */
void semel_rabbit_stream_release(struct semel_rabbit *rabbit, uint32_t at);
/* It is opened again: what was acked ahead of others is not delivered once more. */
bool semel_rabbit_stream_remember(struct semel_rabbit_share *share);
/* The header of a delivery was read. */
void semel_rabbit_stream_seen(struct semel_rabbit_share *share, struct semel_rabbit_parcel *parcel,
			      bool marked);
/* A stream that nothing was ever written to cannot be told from one that is slow to answer. So each
 * has a mark of ours in it. */
semel_status semel_rabbit_stream_mark(struct semel_rabbit *rabbit, const char *queue,
				      semel_error *error);
/* What waits in the stream of a share, in hand included. */
semel_status semel_rabbit_stream_waiting(struct semel_rabbit *rabbit, uint32_t at,
					 uint64_t *waiting_out, semel_error *error);
/* For one who is idle: a reader that gets nothing although something is there is an OUTAGE. */
semel_status semel_rabbit_stream_check(struct semel_rabbit *rabbit, uint32_t at,
				       semel_error *error);
/* A stream of any scope. wanted: may be none; then found_out tells nothing. */
semel_status semel_rabbit_stream_look(struct semel_rabbit *rabbit,
				      const struct semel_rabbit_home *home, uint32_t number,
				      struct semel_rabbit_probe *probe, semel_error *error);
amqp_field_value_t semel_rabbit_stream_offset(int64_t from);

/* ---- probe.c ---- */
semel_status semel_rabbit_probe_run(struct semel_rabbit *rabbit, const char *queue,
				    struct semel_rabbit_probe *probe, semel_error *error);
semel_status semel_rabbit_probe_frame(struct semel_rabbit *rabbit, const amqp_frame_t *frame);

/* ---- message.c ---- */
/* Into reading, whose event has topic and routing key already. *tier_out: the queue that it left
 * last; data NULL: none. False: no memory. */
bool semel_rabbit_properties_read(const amqp_basic_properties_t *properties, bool is_stream,
				  struct semel_wire_reading *reading, struct semel_text *tier_out);
/* Among a message's headers; -1: none. */
int64_t semel_rabbit_offset_of(const amqp_basic_properties_t *properties);
bool semel_rabbit_is_mark(const amqp_basic_properties_t *properties, uint64_t body_size);

/* ---- consume.c ---- */
semel_status semel_rabbit_subscribe(struct semel_broker *broker,
				    const struct semel_subscribe_options *options,
				    semel_error *error);
semel_status semel_rabbit_fetch(struct semel_broker *broker, uint32_t max,
				struct semel_arena *arena, struct semel_delivery *deliveries_out,
				uint32_t *count_out, semel_error *error);
semel_status semel_rabbit_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			      size_t count, semel_error *error);
uint64_t semel_rabbit_count_in_flight(struct semel_broker *broker);
semel_status semel_rabbit_rewind(struct semel_broker *broker, semel_error *error);
semel_status semel_rabbit_compare(struct semel_broker *broker,
				  const struct semel_subscribe_options *options,
				  semel_difference_callback seen, void *user, semel_error *error);

/* ---- rebind.c ---- */
/* Now and then: makes bindings again that somebody has taken away. */
semel_status semel_rabbit_rebind(struct semel_rabbit *rabbit, semel_error *error);

/* ---- requeue.c ---- */
semel_status semel_rabbit_requeue(struct semel_broker *broker, const char *scope,
				  const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, int64_t delay_ms,
				  semel_error *error);
/* Keeps the outlet alive, or lets go of it when it is lost. */
void semel_rabbit_tend_outlet(struct semel_rabbit *rabbit);
semel_status semel_rabbit_publish_dead_letter(struct semel_broker *broker,
					      const struct semel_dead_letter_copy *letter,
					      semel_error *error);
/* A message of ours that is ready to go, by the outlet. BUSY as above. */
semel_status semel_rabbit_send_confirmed(struct semel_rabbit *rabbit,
					 const struct semel_rabbit_post *post, semel_error *error);
/* What the broker said of the one under way. */
void semel_rabbit_requeue_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple,
				    bool nacked);
void semel_rabbit_requeue_came_back(struct semel_rabbit *rabbit, const char *text);

/* ---- look.c ---- */
semel_status semel_rabbit_backlog(struct semel_broker *broker, const char *scope,
				  const char *const *topics, struct semel_backlog *backlog_out,
				  semel_error *error);
semel_status semel_rabbit_next_due(struct semel_broker *broker, const char *scope,
				   const char *const *topics, int64_t *due_ms_out,
				   semel_error *error);
semel_status semel_rabbit_find_event(struct semel_broker *broker, const char *scope,
				     const char *const *topics, const char *event_id,
				     bool *waiting_out, semel_error *error);
/* A tier got one more; it will arrive later. */
void semel_rabbit_tier_added(struct semel_rabbit *rabbit, const char *queue);
/* One has arrived that had been in this tier. */
void semel_rabbit_tier_arrived(struct semel_rabbit *rabbit, struct semel_text queue);

/* ---- examine.c, management.c ---- */
semel_status semel_rabbit_examine(const struct semel_url *url,
				  const struct semel_examination *examination);
void semel_rabbit_examine_nodes(struct semel_rabbit *rabbit,
				const struct semel_examination *examination);
void semel_rabbit_examine_bindings(struct semel_broker *broker,
				   const struct semel_subscribe_options *options,
				   const struct semel_examination *examination);

/* ---- remove.c ---- */
semel_status semel_rabbit_remove(struct semel_broker *broker, const char *topic,
				 const char *const *scopes, semel_error *error);

#endif
