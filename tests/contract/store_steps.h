/* SPDX-License-Identifier: Apache-2.0 */
/* Steps that the tests of stores have in common. Each asserts that it worked. */
#ifndef SEMEL_TESTS_STORE_STEPS_H
#define SEMEL_TESTS_STORE_STEPS_H

#include "contract/store_suite.h"
#include "store/store.h"

/* cmocka wants these before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STORE_NOW  INT64_C(1763208000000) /* 2025-11-15T12:00:00Z, a Saturday */
#define STORE_WEEK INT64_C(604800000)
#define STORE_MAX  64

extern char store_url[STORE_SUITE_URL_SIZE];

#define assert_ok(status) assert_int_equal((status), SEMEL_OK)

/* The tables are there: store_url was initialised. */
semel_store *store_open_one(void);
void store_begin(semel_store *store);
void store_commit(semel_store *store);
semel_tx store_tx(semel_store *store);
/* In a transaction of its own. */
void store_execute(semel_store *store, const char *sql);

/* An order event of that id and aggregate id, at STORE_NOW; strings are not copied. */
struct semel_event store_event(const char *id, const char *aggregate);
/* Commits them; ids and aggregates in pairs, ended by NULL: "e1", "a", "e2", "b", NULL. */
void store_publish(semel_store *store, ...);

#define STORE_LANES_MAX 64

/* All lanes, in order. */
struct store_leases {
	struct semel_lease all[STORE_LANES_MAX];
	int32_t count;
};
struct store_leases store_leases(semel_store *store);

/* A relay's view of the store: it has all lanes, and sees their rows as one run. */
struct store_relay {
	semel_store *store;
	struct store_leases leases;
	struct semel_arena *arena;
	struct semel_outbox_row rows[STORE_MAX];
	int32_t lanes[STORE_MAX]; /* of the rows */
	struct semel_outbox_batch batch;
};
/* Takes the lanes over, whichever relay has them. */
void store_relay_open(struct store_relay *relay, semel_store *store, const char *owner);
void store_relay_close(struct store_relay *relay);
/* The lease of the lane that the row came from. */
struct semel_lease *store_relay_lease(struct store_relay *relay, uint32_t row);
/* The ids that come, joined by blanks; a held one in brackets. */
const char *store_relay_fetch(struct store_relay *relay, int64_t after_seq);
const char *store_relay_due(struct store_relay *relay, int64_t now_ms);
/* Marks the row with this id of the last batch. */
semel_status store_relay_mark(struct store_relay *relay, const char *id, struct semel_mark mark);
void store_relay_published(struct store_relay *relay, const char *id);
/* Refused until due_ms. */
void store_relay_retry(struct store_relay *relay, const char *id, int64_t due_ms);
void store_relay_parked(struct store_relay *relay, const char *id);
void store_relay_failed(struct store_relay *relay, const char *id, bool holds);

/* A claim of scope "billing", PROCESSED at once, of an event at STORE_NOW. */
struct semel_inbox_claim store_claim(const char *id);
/* In a transaction of its own. */
struct semel_claim_result store_claim_now(semel_store *store, struct semel_inbox_claim claim);
bool store_change_now(semel_store *store, struct semel_inbox_claim claim,
		      struct semel_inbox_change change);

/* A dead letter of scope "billing" after three attempts. */
struct semel_dead_letter_row store_dead(const char *entry_id, const struct semel_event *event);
/* Adds it in a transaction of its own; the entry id used stays valid until the next call. */
const char *store_add_dead_letter(semel_store *store, struct semel_dead_letter_row entry);

/* Runs body in that many processes at once; each must return true. */
void store_in_processes(int count, bool (*body)(int number));

/* The tests, by concept; store_suite_run runs them all. */
struct store_tests {
	const struct CMUnitTest *tests;
	size_t count;
};
extern const struct store_tests store_basic_tests, store_outbox_tests, store_relay_tests,
	store_inbox_tests, store_position_tests, store_dead_tests, store_keep_tests,
	store_presence_tests, store_waits_tests;

#endif
