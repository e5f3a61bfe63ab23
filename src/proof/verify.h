/* SPDX-License-Identifier: Apache-2.0 */
/* The room proof/: what can be proven about events from the tables and the broker (verify, trace,
 * stuck, unread topics, live consumers), and retention. It only reads; only retention deletes
 * rows.
 *
 * To change here: a finding must be proven from what was read, in any order in which events can
 * move meanwhile; what is not proven counts as in transit. Repairs belong to src/repair.
 *
 * Verify: is every committed event accounted for? Compares the outbox with each scope: an event is
 * processed, a dead letter, parked behind one, or in transit; everything else is missing.
 *
 * Memory: about 64 bytes for each event that the outbox retains; inboxes are streamed. */
#ifndef SEMEL_PROOF_VERIFY_H
#define SEMEL_PROOF_VERIFY_H

#include "broker/broker.h"
#include "proof/consumers.h"
#include "store/store.h"

#define SEMEL_VERIFY_SAMPLES 20 /* ids that a report lists per finding */

/* A count, and the first of its ids. */
struct semel_verify_finding {
	uint64_t count;
	struct semel_text ids[SEMEL_VERIFY_SAMPLES]; /* min(count, SEMEL_VERIFY_SAMPLES) of them */
};

struct semel_verify_scope {
	struct semel_text scope, guarantee;
	bool tracked;       /* false: at-least-once keeps no claims, so nothing can be verified */
	uint64_t expected;  /* committed events that this scope has to process */
	uint64_t processed; /* of these; likewise all counts below, down to missing */
	uint64_t pending, discarded; /* dead letters */
	uint64_t parked;             /* behind a dead letter */
	uint64_t undelivered;        /* given up by the relay, which has their dead letter */
	uint64_t waiting; /* not published, at the broker, in flight at a consumer, or about to be
			     processed */
	struct semel_verify_finding missing;
	int64_t missing_since_ms;           /* time of the oldest of them, or of one in transit */
	struct semel_verify_finding stuck;  /* waiting, but nothing will ever move them */
	struct semel_verify_finding unread; /* not read before their topic was dropped */
	struct semel_text unread_topic;     /* the topic of the first of these */
	struct semel_consumers consumers;   /* live ones */
	bool paused;                        /* by an operator */
	bool doubtful; /* missing ones may be in flight at a consumer, which the broker does not
			  report */
	struct semel_verify_finding doubled;  /* the same id twice */
	struct semel_verify_finding orphaned; /* processed, but never committed */
	uint64_t foreign;                     /* processed, of topics that are not in this outbox */
};

/* A topic without a subscription. */
struct semel_verify_topic {
	struct semel_text topic;
	struct semel_text nearest; /* a subscribed topic with a similar name; data NULL: none */
	uint64_t events;           /* published there */
};

struct semel_verify_report {
	uint64_t committed, published;
	uint64_t unpublished;                    /* NEW, waiting for the relay */
	uint64_t refused;                        /* of them: refused by the broker, being retried */
	char last_refusal[256];                  /* the reason */
	uint64_t parked;                         /* NEW, behind an event that the relay gave up */
	uint64_t failed;                         /* given up by the relay, and a dead letter */
	struct semel_verify_finding unexplained; /* given up by the relay without a dead letter */
	int64_t pruned_until_ms; /* older events cannot be proven; 0: none were pruned */
	char broker_error[160];  /* why the broker could not be queried; empty: it was, or need not
				    be */
	struct semel_verify_scope *scopes;
	size_t scope_count;
	struct semel_verify_topic *unread; /* only when no scope was named */
	size_t unread_count;
};

struct semel_verify_plan {
	semel_store *producer;
	semel_store *const *consumers;
	size_t consumer_count;
	const char *broker_url;    /* queried only when an event is unsettled; NULL: never */
	const char *const *scopes; /* NULL-terminated; empty: every subscription of the consumers */
	const char *const
		*elsewhere; /* NULL-terminated: topics whose consumers have no subscription here */
	int64_t wait_ms;    /* how long to wait for events in transit */
	/* Called with what is being counted, and the count so far; may be NULL. */
	void (*progress)(const char *what, uint64_t count, void *user);
	void *user;
	const struct semel_env *env;
};

/* The report lives in the arena. INVALID: a named scope was not found. */
semel_status semel_verify_run(const struct semel_verify_plan *plan, struct semel_arena *arena,
			      struct semel_verify_report *report_out, semel_error *error);
/* True if nothing is missing, doubled, orphaned, stuck, unread, unexplained or waiting. */
bool semel_verify_scope_is_clean(const struct semel_verify_scope *scope);
bool semel_verify_is_clean(const struct semel_verify_report *report);

/* ---- what to do about each discrepancy (remedies.c) ------------------------------------------ */

/* The texts live until the call returns. */
struct semel_verify_remedy {
	const char *problem; /* "stuck", "missing", … */
	const char *scope;   /* NULL: it does not concern one scope */
	const char *text;    /* the problem, and what to do */
	const char
		*command; /* the command that resolves it; NULL: none that can be typed as it is */
};

typedef void (*semel_verify_remedy_callback)(const struct semel_verify_remedy *remedy, void *user);

/* Lists the remedies in the order of the report; a clean report has none. */
void semel_verify_list_remedies(const struct semel_verify_report *report, int64_t now_ms,
				semel_verify_remedy_callback callback, void *user);

#endif
