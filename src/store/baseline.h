/* SPDX-License-Identifier: Apache-2.0 */
/* What the same durable work costs when it is written by hand with the engine's own calls: the
 * limit that `semel bench` compares the library with.
 *
 * A baseline is an application's connection to a database with Semel's tables and two of its own,
 * bench_order and bench_invoice. The application publishes on it, by hand or through the library.
 * The baseline has one relay and one consumer, which handle no failures, each as durable as
 * Semel's.
 *
 * Optional. Threads: a baseline belongs to one thread. Errors: those of store.h.
 *
 * To change here: nothing that users run. Both sides must do the same work for the ratios to mean
 * anything: a change of the library's rows or commits is followed here. */
#ifndef SEMEL_STORE_BASELINE_H
#define SEMEL_STORE_BASELINE_H

#include <semel/event.h>
#include <semel/store.h>

#include <stdint.h>

#define SEMEL_BASELINE_TYPE    "order.placed.v1"
#define SEMEL_BASELINE_TOPIC   "order.events"
#define SEMEL_BASELINE_HEADERS "{\"correlationId\":\"checkout-7f3a\",\"producer\":\"shop\"}"
#define SEMEL_BASELINE_BATCH   500 /* of relay and consumer; the library's default */
/* The effect of an event, on both sides. */
#define SEMEL_BASELINE_EFFECT                                                                      \
	"INSERT INTO bench_invoice (event_id, order_id, total) VALUES (:id, :aggregate_id,"        \
	" json_extract(:payload, '$.total'))"

/* An order has three events, with those of a thousand other orders in between. */
#define SEMEL_BASELINE_ACTIVE_ORDERS    1000
#define SEMEL_BASELINE_EVENTS_PER_ORDER 3

struct semel_baseline;

struct semel_baseline_order {
	const char *id, *customer;
	int64_t total;
};

/* Creates the tables of Semel and of the application. */
typedef semel_status semel_baseline_open_fn(const char *url, struct semel_baseline **baseline_out,
					    semel_error *error);
/* baseline may be NULL. */
typedef void semel_baseline_close_fn(struct semel_baseline *baseline);
/* Adds count events to the outbox, numbered from first on, in one transaction, with the texts of
 * semel_bench_aggregate_id and semel_bench_payload. */
typedef semel_status semel_baseline_add_events_fn(struct semel_baseline *baseline, uint64_t first,
						  uint64_t count, semel_error *error);

typedef semel_status semel_baseline_begin_fn(struct semel_baseline *baseline, semel_error *error);
typedef semel_status semel_baseline_commit_fn(struct semel_baseline *baseline, semel_error *error);
typedef semel_status semel_baseline_insert_order_fn(struct semel_baseline *baseline,
						    const struct semel_baseline_order *order,
						    semel_error *error);
/* Inserts an event by hand, with an id and a time of its own. */
typedef semel_status semel_baseline_insert_event_fn(struct semel_baseline *baseline,
						    const semel_event_input *event,
						    semel_error *error);
/* The connection, as the library borrows it. */
typedef semel_tx semel_baseline_tx_fn(struct semel_baseline *baseline);

/* Opens the log that relay writes and consume reads: another database. Called once. */
typedef semel_status semel_baseline_open_log_fn(struct semel_baseline *baseline, const char *path,
						semel_error *error);
/* relay and consume work batch by batch until nothing is left. */
typedef semel_status semel_baseline_relay_fn(struct semel_baseline *baseline, semel_error *error);
typedef semel_status semel_baseline_consume_fn(struct semel_baseline *baseline, semel_error *error);

struct semel_baseline_functions {
	semel_baseline_open_fn *open;
	semel_baseline_close_fn *close;
	semel_baseline_add_events_fn *add_events;
	semel_baseline_begin_fn *begin;
	semel_baseline_commit_fn *commit;
	semel_baseline_insert_order_fn *insert_order;
	semel_baseline_insert_event_fn *insert_event;
	semel_baseline_tx_fn *tx;
	semel_baseline_open_log_fn *open_log;
	semel_baseline_relay_fn *relay;
	semel_baseline_consume_fn *consume;
};

#endif
