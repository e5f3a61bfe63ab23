/* SPDX-License-Identifier: Apache-2.0 */
/* Is every committed event accounted for? The outbox against each scope: processed, a dead letter,
 * parked behind one, or still on its way; everything else is missing.
 *
 * Memory: some 64 bytes for each event that the outbox retains; inboxes are streamed. */
#ifndef SEMEL_PROOF_VERIFY_H
#define SEMEL_PROOF_VERIFY_H

#include "broker/broker.h"
#include "proof/consumers.h"
#include "store/store.h"

#define SEMEL_VERIFY_SAMPLES 20 /* ids that a report lists of one kind */

/* A count, and the first ids of it. */
struct semel_verify_finding {
	uint64_t count;
	struct semel_text ids[SEMEL_VERIFY_SAMPLES]; /* as many as there are, at most all places */
};

struct semel_verify_scope {
	struct semel_text scope, guarantee;
	bool tracked;       /* false: at-least-once keeps no record, and nothing can be said */
	uint64_t expected;  /* committed events that this scope has to see */
	uint64_t processed; /* of them; so are all below down to missing */
	uint64_t pending, discarded; /* dead letters */
	uint64_t parked;             /* behind a dead letter */
	uint64_t undelivered;        /* the relay gave them up; their dead letter is the relay's */
	uint64_t waiting; /* not published, at the broker, in a consumer's hands, or about to go on
			   */
	struct semel_verify_finding missing;
	int64_t missing_since_ms;           /* time of the oldest of them, or of one on its way */
	struct semel_verify_finding stuck;  /* wait, and nothing will ever move them */
	struct semel_verify_finding unread; /* of topics that it reads no more, from when it did */
	struct semel_text unread_topic;     /* the first of those */
	struct semel_consumers consumers;   /* those alive */
	bool paused;                        /* by a person */
	bool doubtful; /* the missing may be in a consumer's hands, where the broker sees nothing */
	struct semel_verify_finding doubled;  /* the same id twice */
	struct semel_verify_finding orphaned; /* processed, but never committed */
	uint64_t foreign; /* processed, of topics that this outbox does not write */
};

/* A topic that nobody reads. */
struct semel_verify_topic {
	struct semel_text topic;
	struct semel_text nearest; /* one that is read, with nearly this name; data NULL: none */
	uint64_t events;           /* published there */
};

struct semel_verify_report {
	uint64_t committed, published;
	uint64_t unpublished; /* NEW, on their way */
	uint64_t refused;     /* of them: the broker did not take them, and they are tried again */
	char last_refusal[256];                  /* why */
	uint64_t parked;                         /* NEW, behind one that the relay gave up */
	uint64_t failed;                         /* given up by the relay, and a dead letter */
	struct semel_verify_finding unexplained; /* given up by the relay without a dead letter */
	int64_t pruned_until_ms;  /* older events are beyond proof; 0: none were pruned */
	char broker_trouble[160]; /* why the broker could not be asked; empty: it could, or need not
				   */
	struct semel_verify_scope *scopes;
	size_t scope_count;
	struct semel_verify_topic *unread; /* looked for when no scope was named */
	size_t unread_count;
};

struct semel_verify_plan {
	semel_store *producer;
	semel_store *const *consumers;
	size_t consumer_count;
	const char *broker_url;       /* asked only when something is not settled; NULL: never */
	const char *const *scopes;    /* NULL-ended; empty: every subscription of the consumers */
	const char *const *elsewhere; /* NULL-ended: topics whose readers keep no record here */
	int64_t wait_ms;              /* so long events that are on their way may take to arrive */
	/* What is done just now, and of how much; may be NULL. */
	void (*progress)(const char *what, uint64_t count, void *user);
	void *user;
	const struct semel_env *env;
};

/* The report lives in the arena. INVALID: nobody knows a scope that was asked for. */
semel_status semel_verify_run(const struct semel_verify_plan *plan, struct semel_arena *arena,
			      struct semel_verify_report *report_out, semel_error *error);
/* Nothing missing, doubled, orphaned, stuck, unread, unexplained or waiting. */
bool semel_verify_scope_is_clean(const struct semel_verify_scope *scope);
bool semel_verify_is_clean(const struct semel_verify_report *report);

#endif
