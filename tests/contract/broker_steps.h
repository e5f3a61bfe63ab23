/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that the tests of brokers have in common: open, publish, fetch, acknowledge, wait. Each
 * asserts that it worked. */
#ifndef SEMEL_TESTS_BROKER_STEPS_H
#define SEMEL_TESTS_BROKER_STEPS_H

#include "broker/broker.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STEPS_WINDOW    64
#define STEPS_FETCH_MAX 4096
#define STEPS_TOPIC     "order.events" /* unless it was named otherwise */

/* The test does not apply here; the test command prints the reason. */
#define STEPS_SKIP(why)                                                                            \
	do {                                                                                       \
		print_message("# why: %s\n", (why));                                               \
		skip();                                                                            \
	} while (0)

/* Events of the tests: "aggregate-number", with the number in the payload. */
struct steps_event {
	struct semel_event event;
	struct semel_publish_metadata metadata;
	char id[64], aggregate[32], payload[32];
	semel_status status; /* its outcome; SEMEL_NOT_FINISHED before */
	char reason[160];
};

/* Deliveries in the order in which they came. */
struct steps_batch {
	struct semel_arena *arena;
	struct semel_delivery deliveries[STEPS_FETCH_MAX];
	uint32_t count;
};

/* The machine's clock plus what steps_pass has added. */
const struct semel_env *steps_env(void);
void steps_pass(int64_t ms);
void steps_follow_env(bool follows);

/* A folder of its own for a broker's file, and the URL of it; parameters: "?…" or "". */
void steps_folder_make(const char *parameters, char *url_out, size_t size);
/* Removes the file and the folder. */
void steps_folder_drop(void);
/* The file in it. */
const char *steps_file(void);

struct semel_broker *steps_open(const char *url);
void steps_event_make(struct steps_event *event, const char *aggregate, int number);
void steps_offer(struct semel_broker *broker, struct steps_event *event);
/* Polls until every event offered has its outcome. */
void steps_confirm(struct semel_broker *broker, struct steps_event *events, size_t count);
/* Publishes first…last of an aggregate and sees them confirmed. */
void steps_publish(struct semel_broker *broker, const char *aggregate, int first, int last);

struct steps_subscription {
	const char *scope;
	uint32_t prefetch; /* 0: plenty */
	int64_t lease_ms;  /* 0: a long one */
	bool from_latest;
};
void steps_subscribe(struct semel_broker *broker, struct steps_subscription how);

struct steps_batch *steps_batch_new(void);
void steps_batch_free(struct steps_batch *batch);
/* One fetch of at most max, added to the haul; returns how many came. */
uint32_t steps_fetch(struct semel_broker *broker, uint32_t max, struct steps_batch *batch);
/* Fetches until the haul holds count; fails when they do not come within seconds. */
void steps_fetch_all(struct semel_broker *broker, uint32_t count, struct steps_batch *batch);
/* Fetches a while: nothing may come. */
void steps_fetch_nothing(struct semel_broker *broker);
void steps_ack_some(struct semel_broker *broker, const struct semel_delivery *deliveries,
		    size_t count);
void steps_ack(struct semel_broker *broker, const struct steps_batch *batch);
/* Opens, subscribes, fetches count and no more, acks, closes. */
void steps_consume(const char *url, const char *scope, uint32_t count);
/* In the haul, events of each aggregate stand with growing numbers and without gaps from first. */
void steps_assert_order(const struct steps_batch *batch, int first);
/* How often an event is in the haul. */
uint32_t steps_count(const struct steps_batch *batch, const char *aggregate, int number);

void steps_assert_same(struct semel_text left, struct semel_text right);
/* JSON objects with the same names and values in the same order; a broker may write them anew. */
void steps_assert_members(struct semel_text left, struct semel_text right);

/* Where the broker is shared with others, a topic of the test's own. */
void steps_name_topic(const char *topic);
/* The list of the one topic. */
const char *const *steps_topics(void);
struct semel_backlog steps_backlog(struct semel_broker *broker, const char *scope);
void steps_requeue(struct semel_broker *broker, const char *scope, const struct steps_event *event,
		   int64_t delay_ms);

/* Runs body in a child process; returns its id. A failed assertion ends it. */
int steps_fork(void (*body)(const char *url, int argument, int ready_fd), const char *url,
	       int argument, int *ready_fd_out);
/* Waits for the child's byte. */
void steps_await(int ready_fd);
/* Kills with -9 when kill is set; else it must end with 0. */
void steps_reap(int child, bool kill);

#endif
