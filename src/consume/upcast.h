/* SPDX-License-Identifier: Apache-2.0 */
/* Upcasters: an old version of an event becomes the current one before the handler sees it, step by
 * step along a chain of types. */
#ifndef SEMEL_CONSUME_UPCAST_H
#define SEMEL_CONSUME_UPCAST_H

#include "store/store.h"

#include <semel/consumer.h>

struct semel_upcasters; /* a list; owned by the consumer */

enum semel_upcast_kind { SEMEL_UPCAST_C, SEMEL_UPCAST_SQL, SEMEL_UPCAST_EXEC };

struct semel_upcast_step {
	const char *from_type, *to_type;
	enum semel_upcast_kind kind;
	const char *target;      /* SQL expression that yields the new payload, or command line */
	semel_upcaster function; /* C */
	void *user;
};

struct semel_upcasters *semel_upcasters_new(void);
/* Variables that programs get although they are otherwise withheld. Not copied. */
void semel_upcasters_pass_env(struct semel_upcasters *upcasters, const char *const *names);
/* Copied. INVALID: blank types, two steps from one type, a cycle. */
semel_status semel_upcasters_add(struct semel_upcasters *upcasters,
				 const struct semel_upcast_step *step, semel_error *error);
/* "FROM=TO:sql:EXPRESSION" or "FROM=TO:exec:COMMAND". USAGE: the error shows the form. */
semel_status semel_upcasters_parse(struct semel_upcasters *upcasters, const char *specification,
				   semel_error *error);
/* Is there a newer version than this? */
bool semel_upcasters_has_step(const struct semel_upcasters *upcasters,
			      const struct semel_event *event);
/* The event in its newest version; texts in the arena. The id never changes. HANDLER_REJECT or
 * HANDLER_RETRY: a step said so, and the text names the step. HANDLER_REJECT also when a new
 * payload claims to be JSON and is not. */
semel_status semel_upcasters_apply(const struct semel_upcasters *upcasters, semel_store *store,
				   struct semel_event *event, struct semel_arena *arena,
				   semel_error *error);
void semel_upcasters_free(struct semel_upcasters *upcasters);

#endif
