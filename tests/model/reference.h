/* SPDX-License-Identifier: Apache-2.0 */
/* The promise, as a user would check it, in as few words as possible:
 *
 * 1. An effect is applied once, and once more for each request to run it again.
 * 2. An event that is dead, in doubt, discarded or done runs again only on request.
 * 3. With at-most-once, an event is run at most once, and once more for each request.
 * 4. Effects of a key are applied in the order in which its events were committed.
 * 5. At rest every committed event is done, a dead letter, parked behind a pending one, or reported
 *    by `verify`, and what verify prints heals it.
 * 6. The system comes to rest.
 *
 * If settings change, or differ between two parties that run at the same time, the weaker promise
 * holds from then on. An event that the broker refuses is a dead letter of the relay for every
 * subscription; what waits behind it in the outbox is parked. A row of the outbox that is deleted
 * before it was published counts as never committed; one that is deleted later is no longer
 * reported by verify, but still arrives.
 *
 * The reference knows what was committed, what was requested and what was removed by force. It
 * judges what the tables contain (struct seen), not how the library got there.
 */
#ifndef SEMEL_TESTS_MODEL_REFERENCE_H
#define SEMEL_TESTS_MODEL_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { EVENTS_MAX = 24, SCOPES = 2 };

/* How a subscription is run, as far as the promise depends on it. */
struct terms {
	bool once_at_most; /* a run is not repeated unless it is requested */
	bool may_lose;     /* … and a crash may leave it without its effect */
	bool tracked;      /* claims are kept */
	bool in_order;     /* a failed event holds back later ones */
	bool whole_topic;  /* … of all aggregates */
};

enum claim { CLAIM_NONE, CLAIM_OPEN, CLAIM_DONE, CLAIM_FAILED };
enum letter { LETTER_NONE, LETTER_PENDING, LETTER_REPLAYED, LETTER_DISCARDED };
/* The row in the outbox. NONE: it no longer exists. */
enum row { ROW_NONE, ROW_NEW, ROW_PUBLISHED, ROW_FAILED };

/* What the tables contain about an event at a subscription. */
struct seen {
	enum claim claim;
	enum letter letter;
	unsigned replays;    /* of the dead letter */
	bool settled;        /* REPLAYED, and processed since */
	bool parked;         /* parked behind another event */
	bool behind_pending; /* parked, and a hold of its key has a pending dead letter as head */
	unsigned effects;
	int64_t first; /* position of its first effect among all effects; 0: none */
	enum row row;
	enum letter refused; /* the relay's dead letter of it */
	bool behind_refused; /* NEW, and set aside behind an event whose dead letter is pending */
};

/* What was requested, and what was done by force. */
struct asked {
	unsigned runs;        /* of the handler */
	unsigned replays;     /* of its dead letter: the highest number that was started */
	unsigned times;       /* how many replays were started */
	unsigned answered;    /* of these: how many its dead letter counts */
	unsigned again;       /* requests to reprocess */
	unsigned interrupted; /* runs that the store rolled back under a living consumer */
	bool given_up;        /* discarded or expired: no event waits for it any more */
	bool excused;         /* copies were removed, or it was run again: order is not checked */
};

struct event {
	int aggregate, topic;
	bool committed;
	char id[40];
};

struct reference {
	int count; /* of events, whether committed or not */
	struct event events[EVENTS_MAX];
	struct asked asked[SCOPES][EVENTS_MAX];
};

/* The functions that return a text return NULL, or which part of the promise is broken. */

/* Call this when the handler runs; seen is what was committed before. */
const char *reference_run(struct reference *reference, int scope, int event,
			  const struct terms *terms, const struct seen *seen);
/* Checks 1 and 4. Call this after every step. */
const char *reference_effects(struct reference *reference, int scope, const struct terms *terms,
			      const struct seen *seen);
/* What is promised if some parties run by the first terms and others by the second. */
struct terms terms_weaker(const struct terms *some, const struct terms *others);
/* For 5: is this event accounted for in the tables? */
bool reference_accounted(const struct terms *terms, const struct seen *seen);

#endif
