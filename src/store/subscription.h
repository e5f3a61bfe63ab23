/* SPDX-License-Identifier: Apache-2.0 */
/* Subscriptions as the store keeps them: which scope reads which topics, since when. */
#ifndef SEMEL_STORE_SUBSCRIPTION_H
#define SEMEL_STORE_SUBSCRIPTION_H

#include "store/store.h"

#define SEMEL_SUBSCRIPTIONS_MAX 1000

struct semel_topics {
	const char **names; /* NULL-terminated */
	size_t count;
};

/* Reads all subscriptions into the arena. */
semel_status semel_subscriptions_read(semel_store *store, struct semel_arena *arena,
				      struct semel_subscription_row **rows_out, uint32_t *count_out,
				      semel_error *error);
/* NULL when none has this scope. */
const struct semel_subscription_row *semel_subscription_find(
	const struct semel_subscription_row *rows, uint32_t count, const char *scope);
/* The row's JSON array of topics as a list in the arena. INTERNAL when it is not an array. */
semel_status semel_subscription_topics(const struct semel_subscription_row *row,
				       struct semel_arena *arena, struct semel_topics *topics_out,
				       semel_error *error);
/* The same, with topics that the scope has read before: copies of their events may still be at the
 * broker. */
semel_status semel_subscription_all_topics(semel_store *store,
					   const struct semel_subscription_row *row,
					   struct semel_arena *arena,
					   struct semel_topics *topics_out, semel_error *error);
/* Adds a topic unless the list has it. False: out of memory. */
bool semel_topics_add(struct semel_topics *topics, struct semel_text topic,
		      struct semel_arena *arena);
/* Topics of the newest events of the outbox, in the arena. */
semel_status semel_topics_read_published(semel_store *store, struct semel_arena *arena,
					 struct semel_topics *topics_out, semel_error *error);
/* The topic with the nearest name, if the list does not have this one. NULL: it has, or none is
 * near. */
const char *semel_topics_suggest(const struct semel_topics *topics, const char *topic);
bool semel_topics_has(const struct semel_topics *topics, struct semel_text topic);
/* Does a binding pattern match this routing key, by the rules of AMQP's topic exchanges? Words are
 * separated by dots; * is one word, # any number of them. Pure. */
bool semel_pattern_matches(struct semel_text pattern, struct semel_text key);

#endif
