/* SPDX-License-Identifier: Apache-2.0 */
/* The promise, as a user would check it, in as few words as possible:
 *
 * 1. An effect is applied once, and once more for each request to run it again.
 * 2. What is dead, in doubt, discarded or done runs again only on request.
 * 3. Where it is run at most once, it is run once for each time that it was asked for.
 * 4. Effects of a key are applied in the order in which its events were committed.
 * 5. When everything has come to rest, every committed event is done, a dead letter, parked behind
 *    one that is pending, or `verify` names it, and what it prints heals that.
 * 6. It comes to rest.
 *
 * Where settings change, or differ between two who run at once, the weaker promise holds from then
 * on. What the broker refuses is a dead letter of the relay, at every subscription; what waits
 * behind it in the outbox is parked. A row of the outbox that is deleted before it was published
 * was never committed; one that is deleted later is not reported by verify any more, and still
 * arrives.
 *
 * The reference knows what was committed, what was asked for and what was taken away by force. What
 * the tables contain (struct seen) is judged; how the library gets there is not its concern.
 */
#ifndef SEMEL_TESTS_MODEL_REFERENCE_H
#define SEMEL_TESTS_MODEL_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

enum { EVENTS_MAX = 24, SCOPES = 2 };

/* How a subscription is run, as far as the promise depends on it. */
struct terms {
	bool once_at_most; /* a run is never repeated unless it is asked for */
	bool may_lose;     /* … and a crash may leave it without its effect */
	bool tracked;      /* claims are kept */
	bool in_order;     /* a failed event holds back those behind it */
	bool whole_topic;  /* … of all aggregates */
};

enum claim { CLAIM_NONE, CLAIM_OPEN, CLAIM_DONE, CLAIM_FAILED };
enum letter { LETTER_NONE, LETTER_PENDING, LETTER_REPLAYED, LETTER_DISCARDED };
/* Of the outbox. NONE: it is not there any more. */
enum row { ROW_NONE, ROW_NEW, ROW_PUBLISHED, ROW_FAILED };

/* What the tables contain of an event at a subscription. */
struct seen {
	enum claim claim;
	enum letter letter;
	unsigned replays;    /* of the dead letter */
	bool settled;        /* REPLAYED: and processed since */
	bool parked;         /* kept behind another one */
	bool behind_pending; /* parked, and a hold of its key has a pending dead letter as head */
	unsigned effects;
	int64_t first; /* place of its first effect among all; 0: none */
	enum row row;
	enum letter refused; /* the relay's dead letter of it */
	bool behind_refused; /* NEW, and set aside behind an event whose dead letter is pending */
};

/* What was asked for, and done by force. */
struct asked {
	unsigned runs;        /* of the handler */
	unsigned replays;     /* of its dead letter: the highest number that was begun */
	unsigned times;       /* how often that was begun */
	unsigned answered;    /* of them, the last that its dead letter counts */
	unsigned again;       /* reprocess */
	unsigned interrupted; /* runs that the store rolled back under a living consumer */
	bool given_up;        /* discarded or expired: no event waits for it any more */
	bool excused; /* copies of it were taken away, or it was run again: order is undone */
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

/* Each returns NULL, or which part of the promise is broken. */

/* The handler is called; seen is what was committed before. */
const char *reference_run(struct reference *reference, int scope, int event,
			  const struct terms *terms, const struct seen *seen);
/* After every step: 1 and 4. */
const char *reference_effects(struct reference *reference, int scope, const struct terms *terms,
			      const struct seen *seen);
/* What is promised when some run by these terms, and some by those. */
struct terms terms_weaker(const struct terms *some, const struct terms *others);
/* Of 5: is this event accounted for in the tables? */
bool reference_accounted(const struct terms *terms, const struct seen *seen);

#endif
