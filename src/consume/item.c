/* SPDX-License-Identifier: Apache-2.0 */
/* Makes items and changes their states. */
#include "consume/item.h"

#include "base/error.h"
#include "base/uuid.h"
#include "consume/consumer.h"

static void fill_claim(const struct semel_consumer *consumer, struct semel_item *item)
{
	bool finished = semel_consumer_is_same_tx(consumer) ||
			consumer->config.options.guarantee == SEMEL_AT_MOST_ONCE;

	item->claim = (struct semel_inbox_claim){
		.scope = consumer->config.scope,
		.event_id = item->delivery->event.id,
		.topic = item->delivery->event.topic,
		.key = item->business_key,
		.handler_version = consumer->config.handler_version,
		.event_time_ms = item->delivery->event.time_ms,
		.partition = item->delivery->partition,
		.offset = item->delivery->offset,
		.status = finished ? SEMEL_INBOX_PROCESSED : SEMEL_INBOX_CLAIMED,
		.owner = finished ? NULL : consumer->owner,
		.replay = item->replay,
	};
}

static semel_status take_business_key(const struct semel_consumer *consumer,
				      struct semel_item *item, struct semel_arena *arena,
				      semel_error *error)
{
	const char *header = consumer->config.dedup_header;
	struct semel_text key = semel_event_header(&item->delivery->event, header, arena);

	if (semel_text_is_blank(key))
		return semel_error_set(
			error, SEMEL_CONTRACT,
			"header %s is missing, and the subscription deduplicates by it", header);
	item->business_key = key;
	return semel_event_check_storable(header, key, error);
}

static semel_status check_contract(const struct semel_consumer *consumer, struct semel_item *item,
				   struct semel_arena *arena, semel_error *error)
{
	semel_status status = semel_event_check(&item->delivery->event, error);

	if (status != SEMEL_OK || !consumer->config.dedup_header)
		return status;
	return take_business_key(consumer, item, arena, error);
}

/* A broken event gets no claim and no retry, but waits for its turn in the order. */
static void inspect(const struct semel_consumer *consumer, struct semel_item *item,
		    struct semel_arena *arena)
{
	semel_error contract_error = { .status = SEMEL_OK };

	item->broken = check_contract(consumer, item, arena, &contract_error);
	if (item->broken != SEMEL_OK)
		item->reason = semel_arena_printf(arena, "%s", contract_error.text);
}

struct semel_item *semel_items_new(const struct semel_consumer *consumer,
				   struct semel_delivery *deliveries, uint32_t count,
				   struct semel_arena *arena)
{
	bool total = consumer->config.options.order == SEMEL_ORDER_TOTAL;
	int64_t received_ms = semel_steady_ms(consumer->env);
	struct semel_item *items = semel_arena_alloc(arena, count * sizeof *items);
	if (!items)
		return NULL;

	for (uint32_t i = 0; i < count; i++) {
		struct semel_event *event = &deliveries[i].event;
		if (consumer->config.id_header && semel_text_is_blank(event->id))
			event->id = semel_event_header(event, consumer->config.id_header, arena);
		items[i] = (struct semel_item){
			.delivery = &deliveries[i],
			.replay = deliveries[i].metadata.replay,
			.runs = deliveries[i].metadata.attempt,
			.received_ms = received_ms,
		};
		inspect(consumer, &items[i], arena);
		if (items[i].broken != SEMEL_OK)
			semel_event_make_storable(event, arena); /* for its dead letter */
		items[i].event = *event;
		items[i].key = semel_hold_key_of(event, total ? SEMEL_HOLD_BY_TOPIC
							      : SEMEL_HOLD_BY_AGGREGATE);
		if (!total && semel_text_is_blank(event->aggregate_type))
			items[i].key.id = SEMEL_TEXT(""); /* a blank type would mean a topic */
		fill_claim(consumer, &items[i]);
	}
	return items;
}

bool semel_item_has_same_key(const struct semel_item *left, const struct semel_item *right)
{
	return semel_text_equal(left->key.id, right->key.id) &&
	       semel_text_equal(left->key.type, right->key.type);
}

bool semel_item_is_settled(const struct semel_item *item)
{
	return item->state >= SEMEL_ITEM_DONE;
}

bool semel_item_can_hold(const struct semel_item *item)
{
	return !semel_text_is_blank(item->delivery->event.id) && !semel_text_is_blank(item->key.id);
}

struct semel_dead_letter_row semel_item_entry(const struct semel_consumer *consumer,
					      const struct semel_item *item,
					      char entry_id_out[SEMEL_UUID_SIZE])
{
	semel_uuid_make(consumer->env, entry_id_out);
	return (struct semel_dead_letter_row){
		.entry_id = semel_text_of(entry_id_out),
		.event = item->delivery->event,
		.scope = consumer->config.scope,
		.failed_at_ms = semel_now_ms(consumer->env),
		.partition = item->delivery->partition,
		.offset = item->delivery->offset,
		.attempts = item->runs,
		.replay_count = item->replay,
		.status = SEMEL_DEAD_PENDING,
	};
}

/* Parks the item behind the head; in strict order behind its own predecessor, if it names one. */
semel_status semel_item_park(struct semel_consumer *consumer, struct semel_item *item,
			     struct semel_text behind, semel_error *error)
{
	bool strict = consumer->config.options.order == SEMEL_ORDER_STRICT;
	struct semel_text previous = item->delivery->metadata.previous;
	char entry_id[SEMEL_UUID_SIZE];
	struct semel_dead_letter_row entry = semel_item_entry(consumer, item, entry_id);

	entry.parked_behind = strict && previous.data ? previous : behind;
	entry.reason = SEMEL_TEXT("waits behind an earlier event of its aggregate");
	return consumer->store->driver->dead_letters->parked_add(
		consumer->store->driver->tx(consumer->store), &entry, error);
}

bool semel_items_have_deferred(const struct semel_item *items, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].state == SEMEL_ITEM_DEFERRED)
			return true;
	return false;
}

bool semel_item_is_behind_deferred(const struct semel_item *items, uint32_t at)
{
	for (uint32_t i = 0; i < at && !items[at].may_overtake; i++)
		if (items[i].state == SEMEL_ITEM_DEFERRED &&
		    semel_item_has_same_key(&items[i], &items[at]))
			return true;
	return false;
}

/* ---- moving ---------------------------------------------------------------------------------- */

/* The state of the event that corresponds to this state of its copy. */
static enum semel_state state_of(const struct semel_item *item, enum semel_item_state state)
{
	switch (state) {
	case SEMEL_ITEM_ADMITTED:
		return SEMEL_STATE_CLAIMED;
	case SEMEL_ITEM_DONE:
	case SEMEL_ITEM_DUPLICATE:
		return SEMEL_STATE_DONE;
	case SEMEL_ITEM_RETRYING:
		return item->entry_id.data || item->stored ? SEMEL_STATE_PARKED
							   : SEMEL_STATE_RETRYING;
	case SEMEL_ITEM_DEAD:
		return item->in_doubt ? SEMEL_STATE_IN_DOUBT : SEMEL_STATE_DEAD;
	case SEMEL_ITEM_PARKED:
		return SEMEL_STATE_PARKED;
	case SEMEL_ITEM_UNDECIDED:
	case SEMEL_ITEM_DEFERRED:
	case SEMEL_ITEM_SUPERSEDED:
		break;
	}
	return SEMEL_STATE_RECEIVED;
}

void semel_item_move(struct semel_item *item, enum semel_item_state to)
{
	enum semel_state from_state = state_of(item, item->state), to_state = state_of(item, to);

	/* A superseded copy does not change the state of its event. */
	if (to != SEMEL_ITEM_SUPERSEDED &&
	    semel_state_check(from_state, to_state, SEMEL_BY_CONSUMER, NULL) != SEMEL_OK)
		item->illegal = true;
	item->state = to;
}

void semel_item_reset(struct semel_item *item)
{
	item->state = SEMEL_ITEM_UNDECIDED;
}

semel_status semel_items_check(const struct semel_item *items, uint32_t count, semel_error *error)
{
	for (uint32_t i = 0; i < count; i++)
		if (items[i].illegal)
			return semel_error_set(
				error, SEMEL_INTERNAL,
				"event %s made a transition that docs/states.md does not list; the "
				"batch is rolled back (a bug in semel: please report it)",
				semel_text_shown(items[i].delivery->event.id));
	return SEMEL_OK;
}
