/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/unread_topics.h"

#include "base/error.h"

#include <string.h>

struct search {
	const struct semel_ledger *ledger;
	struct semel_arena *arena;
	bool *read;         /* by number of a ledger's topic */
	const char **names; /* of subscribed topics, for the nearest */
	size_t name_count, name_capacity;
};

static void mark_read(struct search *search, struct semel_text topic)
{
	for (size_t i = 0; i < search->ledger->topic_count; i++)
		if (semel_text_equal(search->ledger->topics[i], topic))
			search->read[i] = true;
}

/* A topic that a scope dropped is reported with the scope. */
static void mark_topic(struct semel_text topic, int64_t since_ms, int64_t removed_at_ms, void *user)
{
	(void)since_ms;
	(void)removed_at_ms;
	mark_read(user, topic);
}

static bool add_name(struct search *search, const char *name)
{
	if (search->name_count == search->name_capacity) {
		size_t capacity = search->name_capacity ? search->name_capacity * 2 : 32;
		const char **bigger = semel_arena_alloc(search->arena, capacity * sizeof *bigger);
		if (!bigger)
			return false;
		if (search->name_count > 0)
			memcpy(bigger, search->names, search->name_count * sizeof *bigger);
		search->names = bigger;
		search->name_capacity = capacity;
	}
	search->names[search->name_count++] = name;
	return true;
}

static semel_status mark_subscription(struct search *search, semel_store *store,
				      const struct semel_subscription_row *row, semel_error *error)
{
	struct semel_topics topics = { 0 };
	semel_status status = semel_subscription_topics(row, search->arena, &topics, error);

	if (status != SEMEL_OK)
		return status;
	for (size_t i = 0; i < topics.count; i++) {
		mark_read(search, semel_text_of(topics.names[i]));
		if (!add_name(search, topics.names[i]))
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for topics");
	}
	return store->driver->upkeep->subscription_topics(store, row->scope, mark_topic, search,
							  error);
}

static semel_status mark_subscriptions(struct search *search,
				       const struct semel_store_subscriptions *known,
				       semel_error *error)
{
	for (uint32_t i = 0; i < known->count; i++) {
		semel_status status =
			mark_subscription(search, known->store, &known->rows[i], error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

/* Claims may come from the library, or by SQL, without a subscription. */
static semel_status is_claimed(const struct semel_verify_plan *plan, struct semel_text topic,
			       bool *claimed_out, semel_error *error)
{
	semel_status status = SEMEL_OK;

	*claimed_out = false;
	for (size_t i = 0; i < plan->consumer_count && status == SEMEL_OK && !*claimed_out; i++)
		status = plan->consumers[i]->driver->inbox->has_topic(plan->consumers[i], topic,
								      claimed_out, error);
	return status;
}

static uint64_t events_of(const struct semel_ledger *ledger, size_t topic)
{
	uint64_t count = 0;

	for (size_t i = 0; i < ledger->count; i++)
		count += ledger->entries[i].topic == topic &&
			 ledger->entries[i].status == SEMEL_LEDGER_PUBLISHED;
	return count;
}

static semel_status add_if_unread(const struct search *search, const struct semel_verify_plan *plan,
				  size_t number, struct semel_verify_report *report,
				  semel_error *error)
{
	struct semel_text topic = search->ledger->topics[number];
	uint64_t events = search->read[number] ? 0 : events_of(search->ledger, number);
	bool claimed = false;

	if (events == 0)
		return SEMEL_OK;
	semel_status status = is_claimed(plan, topic, &claimed, error);
	if (status != SEMEL_OK || claimed)
		return status;
	const char *nearest =
		semel_text_nearest(semel_text_shown(topic), search->names, search->name_count);
	report->unread[report->unread_count++] = (struct semel_verify_topic){
		.topic = semel_arena_text(search->arena, topic.data, topic.length),
		.nearest = semel_text_of(nearest),
		.events = events,
	};
	return SEMEL_OK;
}

semel_status semel_unread_topics_find(const struct semel_verify_plan *plan,
				      const struct semel_ledger *ledger,
				      const struct semel_store_subscriptions *known,
				      struct semel_arena *arena, struct semel_verify_report *report,
				      semel_error *error)
{
	struct search search = { .ledger = ledger, .arena = arena };
	semel_status status = SEMEL_OK;
	uint32_t subscriptions = 0;

	search.read = semel_arena_alloc(arena, ledger->topic_count + 1);
	report->unread =
		semel_arena_alloc(arena, (ledger->topic_count + 1) * sizeof *report->unread);
	if (!search.read || !report->unread)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for topics");
	memset(search.read, 0, ledger->topic_count + 1);
	for (size_t i = 0; plan->elsewhere && plan->elsewhere[i]; i++)
		mark_read(&search, semel_text_of(plan->elsewhere[i]));
	for (size_t i = 0; i < plan->consumer_count; i++) {
		status = mark_subscriptions(&search, &known[i], error);
		if (status != SEMEL_OK)
			return status;
		subscriptions += known[i].count;
	}
	for (size_t i = 0; subscriptions > 0 && i < ledger->topic_count && status == SEMEL_OK; i++)
		status = add_if_unread(&search, plan, i, report, error);
	return status;
}
