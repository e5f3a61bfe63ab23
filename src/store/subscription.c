/* SPDX-License-Identifier: Apache-2.0 */
/* Which scopes should have received an event: for replay, verify and doctor. */
#include "store/subscription.h"

#include "base/error.h"
#include "base/json.h"

#include <jansson.h>
#include <string.h>

semel_status semel_subscriptions_read(semel_store *store, struct semel_arena *arena,
				      struct semel_subscription_row **rows_out, uint32_t *count_out,
				      semel_error *error)
{
	*rows_out = semel_arena_alloc(arena, sizeof(**rows_out) * SEMEL_SUBSCRIPTIONS_MAX);
	if (!*rows_out)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for subscriptions");
	return store->driver->upkeep->subscription_list(store, arena, *rows_out,
							SEMEL_SUBSCRIPTIONS_MAX, count_out, error);
}

const struct semel_subscription_row *semel_subscription_find(
	const struct semel_subscription_row *rows, uint32_t count, const char *scope)
{
	for (uint32_t i = 0; i < count; i++)
		if (semel_text_equal(rows[i].scope, semel_text_of(scope)))
			return &rows[i];
	return NULL;
}

static bool copy_topics(const json_t *array, struct semel_arena *arena,
			struct semel_topics *topics_out)
{
	size_t count = json_array_size(array);
	topics_out->names = semel_arena_alloc(arena, sizeof(char *) * (count + 1));
	if (!topics_out->names)
		return false;
	for (size_t i = 0; i < count; i++) {
		const json_t *item = json_array_get(array, i);
		if (!json_is_string(item))
			return false;
		struct semel_text name = semel_json_string(item);
		topics_out->names[i] =
			semel_text_to_string(semel_arena_text(arena, name.data, name.length));
		if (!topics_out->names[i])
			return false;
	}
	topics_out->names[count] = NULL;
	topics_out->count = count;
	return true;
}

semel_status semel_subscription_topics(const struct semel_subscription_row *row,
				       struct semel_arena *arena, struct semel_topics *topics_out,
				       semel_error *error)
{
	json_t *array = json_loadb(semel_text_chars(row->topics), row->topics.length, 0, NULL);
	bool copied = json_is_array(array) && copy_topics(array, arena, topics_out);
	json_decref(array);
	if (!copied)
		return semel_error_set(
			error, SEMEL_INTERNAL,
			"the topics of subscription %s are not a JSON array of strings: %s",
			semel_text_shown(row->scope), semel_text_shown(row->topics));
	return SEMEL_OK;
}

bool semel_topics_has(const struct semel_topics *topics, struct semel_text topic)
{
	for (size_t i = 0; i < topics->count; i++)
		if (semel_text_equal(semel_text_of(topics->names[i]), topic))
			return true;
	return false;
}

bool semel_topics_add(struct semel_topics *topics, struct semel_text topic,
		      struct semel_arena *arena)
{
	if (semel_topics_has(topics, topic) || semel_text_has_nul(topic))
		return true; /* no event is sent to a topic with a NUL byte */
	const char **names = semel_arena_alloc(arena, sizeof(char *) * (topics->count + 2));
	const char *name = semel_text_string(semel_arena_text(arena, topic.data, topic.length));
	if (!names || !name)
		return false;
	if (topics->count > 0)
		memcpy(names, topics->names, sizeof(char *) * topics->count);
	names[topics->count++] = name;
	names[topics->count] = NULL;
	topics->names = names;
	return true;
}

struct collection {
	struct semel_topics *topics;
	struct semel_arena *arena;
	bool failed;
};

static void add_topic(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms, void *user)
{
	struct collection *collection = user;
	(void)since_ms;
	(void)removed_at_ms;
	if (!semel_topics_add(collection->topics, topic, collection->arena))
		collection->failed = true;
}

semel_status semel_subscription_all_topics(semel_store *store,
					   const struct semel_subscription_row *row,
					   struct semel_arena *arena,
					   struct semel_topics *topics_out, semel_error *error)
{
	struct collection collection = { topics_out, arena, false };
	semel_status status = semel_subscription_topics(row, arena, topics_out, error);
	if (status != SEMEL_OK)
		return status;
	status = store->driver->upkeep->subscription_topics(store, row->scope, add_topic,
							    &collection, error);
	if (collection.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for topics");
	return status;
}

static void add_published(struct semel_text topic, void *user)
{
	add_topic(topic, 0, 0, user);
}

semel_status semel_topics_read_published(semel_store *store, struct semel_arena *arena,
					 struct semel_topics *topics_out, semel_error *error)
{
	struct collection collection = { topics_out, arena, false };
	*topics_out = (struct semel_topics){ 0 };
	semel_status status =
		store->driver->outbox->topics_each(store, add_published, &collection, error);
	if (collection.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for topics");
	return status;
}

const char *semel_topics_suggest(const struct semel_topics *topics, const char *topic)
{
	if (topics->count == 0 || semel_topics_has(topics, semel_text_of(topic)))
		return NULL;
	return semel_text_nearest(topic, topics->names, topics->count);
}

/* ---- binding patterns ------------------------------------------------------------------------ */

/* As for a shell's star: the position of the last # is remembered, and the # takes one more word
 * each time the rest does not match. */

/* The remaining words of a text; over: none remains. */
struct words {
	const char *at, *end;
	bool over;
};

static struct words words_of(struct semel_text text)
{
	return (struct words){ .at = semel_text_chars(text),
			       .end = semel_text_chars(text) + text.length };
}

static struct semel_text first_word(const struct words *words)
{
	const char *dot = memchr(words->at, '.', (size_t)(words->end - words->at));
	const char *end = dot ? dot : words->end;
	return semel_text_from(words->at, (size_t)(end - words->at));
}

static struct words rest_of(struct words words)
{
	const char *dot = memchr(words.at, '.', (size_t)(words.end - words.at));
	return (struct words){ .at = dot ? dot + 1 : words.end, .end = words.end, .over = !dot };
}

bool semel_pattern_matches(struct semel_text pattern, struct semel_text key)
{
	struct words expected = words_of(pattern), given = words_of(key);
	struct words behind = expected, retry = given; /* after the last # */
	bool any = false;

	while (!given.over) {
		struct semel_text word =
			expected.over ? semel_text_of(NULL) : first_word(&expected);
		if (!expected.over && semel_text_equal(word, SEMEL_TEXT("#"))) {
			behind = expected = rest_of(expected);
			retry = given;
			any = true;
		} else if (!expected.over && (semel_text_equal(word, SEMEL_TEXT("*")) ||
					      semel_text_equal(word, first_word(&given)))) {
			expected = rest_of(expected);
			given = rest_of(given);
		} else if (any) {
			given = retry = rest_of(retry);
			expected = behind;
		} else {
			return false;
		}
	}
	while (!expected.over && semel_text_equal(first_word(&expected), SEMEL_TEXT("#")))
		expected = rest_of(expected);
	return expected.over;
}
