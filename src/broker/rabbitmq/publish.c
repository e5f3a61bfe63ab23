/* SPDX-License-Identifier: Apache-2.0 */
/* The window of events that the broker has not answered for.
 *
 * - Of one aggregate at most one event is on the wire: a broker may refuse one and take the next,
 *   so the next is sent only after the one before it was confirmed. The later ones stand behind the
 *   first in a chain, and the first of each aggregate stands in the buckets.
 * - An event is confirmed by an ack of its tag. A return comes before the ack of the same event.
 * - After a refusal the chain behind is refused too, as HELD, when the refusal is reported.
 * - While the broker is blocked nothing is sent and nothing is late.
 * - When the broker closes the channel, nobody knows what it took: what is not at fault is sent
 *   again, in the order of each aggregate.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "event/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_MAX  159
#define FLUSH_BYTES (32 * 1024)

/* ---- lists ----------------------------------------------------------------------------------- */

static void push(struct semel_rabbit_list *list, struct semel_rabbit_slot *slot)
{
	slot->next = NULL;
	if (list->last)
		list->last->next = slot;
	else
		list->first = slot;
	list->last = slot;
}

static void push_front(struct semel_rabbit_list *list, struct semel_rabbit_slot *slot)
{
	slot->next = list->first;
	list->first = slot;
	if (!list->last)
		list->last = slot;
}

static struct semel_rabbit_slot *pop(struct semel_rabbit_list *list)
{
	struct semel_rabbit_slot *slot = list->first;
	if (!slot)
		return NULL;
	list->first = slot->next;
	if (!list->first)
		list->last = NULL;
	slot->next = NULL;
	return slot;
}

bool semel_rabbit_window_make(struct semel_rabbit_window *window, uint32_t size)
{
	window->bucket_count = 16;
	while (window->bucket_count < (size_t)size * 2)
		window->bucket_count *= 2;
	window->slots = calloc(size, sizeof(window->slots[0]));
	window->buckets = calloc(window->bucket_count, sizeof(window->buckets[0]));
	for (uint32_t i = 0; window->slots && i < size; i++)
		push(&window->unused, &window->slots[i]);
	return window->slots && window->buckets;
}

void semel_rabbit_window_free(struct semel_rabbit_window *window)
{
	free(window->slots);
	free(window->buckets);
}

static struct semel_rabbit_slot **bucket_of(struct semel_rabbit_window *window, uint64_t aggregate)
{
	return &window->buckets[aggregate & (window->bucket_count - 1)];
}

static struct semel_rabbit_slot *first_of(struct semel_rabbit_window *window, uint64_t aggregate)
{
	struct semel_rabbit_slot *slot = *bucket_of(window, aggregate);
	while (slot && slot->aggregate != aggregate)
		slot = slot->neighbour;
	return slot;
}

/* Takes the first of its aggregate out of the buckets; NULL: nothing stands in its place. */
static void replace_first(struct semel_rabbit_window *window, struct semel_rabbit_slot *first,
			  struct semel_rabbit_slot *with)
{
	struct semel_rabbit_slot **at = bucket_of(window, first->aggregate);
	while (*at != first)
		at = &(*at)->neighbour;
	*at = with ? with : first->neighbour;
	if (with) {
		with->neighbour = first->neighbour;
		with->last = first->last == first ? with : first->last;
	}
	first->neighbour = NULL;
}

static void unwire(struct semel_rabbit_window *window, struct semel_rabbit_slot *slot)
{
	if (slot->before)
		slot->before->after = slot->after;
	else
		window->oldest = slot->after;
	if (slot->after)
		slot->after->before = slot->before;
	else
		window->newest = slot->before;
	slot->before = slot->after = NULL;
	slot->tag = 0;
}

static void wire(struct semel_rabbit_window *window, struct semel_rabbit_slot *slot)
{
	slot->tag = ++window->last_tag;
	slot->before = window->newest;
	slot->after = NULL;
	if (window->newest)
		window->newest->after = slot;
	else
		window->oldest = slot;
	window->newest = slot;
}

/* ---- answers --------------------------------------------------------------------------------- */

/* The next of the aggregate may go once this one was taken. A refused one keeps its place until the
 * refusal is reported, so that what is offered meanwhile stands behind it. */
static void answer(struct semel_rabbit_window *window, struct semel_rabbit_slot *slot,
		   semel_status status, const char *reason)
{
	slot->status = status;
	if (reason != slot->reason)
		snprintf(slot->reason, sizeof(slot->reason), "%.*s", REASON_MAX, reason);
	if (status == SEMEL_OK) {
		struct semel_rabbit_slot *next = slot->behind;
		replace_first(window, slot, next);
		if (next)
			push(&window->ready, next);
		slot->behind = NULL;
	}
	push(&window->done, slot);
}

static void settle(struct semel_rabbit_window *window, struct semel_rabbit_slot *slot, bool nacked)
{
	unwire(window, slot);
	if (nacked)
		answer(window, slot, SEMEL_NACKED,
		       "the broker refused it (nack): is a queue full (max-length with "
		       "reject-publish), or without a leader?");
	else if (slot->returned)
		answer(window, slot, SEMEL_UNROUTABLE, slot->reason);
	else
		answer(window, slot, SEMEL_OK, "");
}

void semel_rabbit_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple, bool nacked)
{
	struct semel_rabbit_window *window = &rabbit->window;
	struct semel_rabbit_slot *slot = window->oldest;
	while (slot && slot->tag <= tag) {
		struct semel_rabbit_slot *after = slot->after;
		if (multiple || slot->tag == tag)
			settle(window, slot, nacked);
		slot = after;
	}
}

void semel_rabbit_came_back(struct semel_rabbit *rabbit, struct semel_text id, const char *text)
{
	struct semel_rabbit_slot *slot = rabbit->window.oldest;
	while (slot && !semel_text_equal(slot->event->id, id))
		slot = slot->after;
	if (!slot)
		return;
	slot->returned = true;
	snprintf(slot->reason, sizeof(slot->reason), "%s", text);
}

/* ---- a closed channel ------------------------------------------------------------------------ */

static bool is_topic_of(const struct semel_event *event, const char *text)
{
	char quoted[SEMEL_RABBIT_NAME_SIZE + 16];
	snprintf(quoted, sizeof(quoted), "exchange '%s'", semel_text_string(event->topic));
	return strstr(text, quoted) != NULL;
}

static void forget_topics(struct semel_rabbit *rabbit)
{
	while (rabbit->topic_count > 0)
		free(rabbit->topics[--rabbit->topic_count]);
}

/* "message size 200 is larger than configured max size 100" */
static size_t refused_size(const char *text)
{
	const char *words = strstr(text, "max size ");
	return words ? strtoull(words + strlen("max size "), NULL, 10) : SIZE_MAX;
}

semel_status semel_rabbit_publish_closed(struct semel_rabbit *rabbit,
					 const amqp_channel_close_t *close, semel_error *error)
{
	struct semel_rabbit_window *window = &rabbit->window;
	semel_error why = { 0 };
	uint16_t code = close->reply_code;
	semel_status status = semel_rabbit_closed(rabbit, SEMEL_RABBIT_PUBLISH, close, &why);
	size_t too_large = refused_size(why.text);
	bool of_an_event = code == AMQP_NOT_FOUND ||
			   (code == AMQP_PRECONDITION_FAILED && too_large != SIZE_MAX);
	forget_topics(rabbit);
	rabbit->returned.expects_header = false;
	while (window->oldest) {
		struct semel_rabbit_slot *slot = window->oldest;
		unwire(window, slot);
		slot->returned = false;
		if (code == AMQP_NOT_FOUND && is_topic_of(slot->event, why.text))
			answer(window, slot, SEMEL_UNROUTABLE, why.text);
		else if (code == AMQP_PRECONDITION_FAILED &&
			 slot->event->payload.length > too_large)
			answer(window, slot, SEMEL_TOO_LARGE, why.text);
		else
			push(&window->ready, slot);
	}
	return of_an_event ? SEMEL_OK : semel_error_set(error, status, "%s", why.text);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool is_declared(const struct semel_rabbit *rabbit, const char *topic)
{
	for (size_t i = 0; i < rabbit->topic_count; i++)
		if (strcmp(rabbit->topics[i], topic) == 0)
			return true;
	return false;
}

static semel_status need_topic(struct semel_rabbit *rabbit, const char *topic, semel_error *error)
{
	if (is_declared(rabbit, topic))
		return SEMEL_OK;
	semel_status status = semel_rabbit_declare_topic(rabbit, topic, NULL, error);
	if (status != SEMEL_OK)
		return status;
	char **topics =
		realloc(rabbit->topics, (rabbit->topic_count + 1) * sizeof(rabbit->topics[0]));
	if (topics)
		rabbit->topics = topics;
	char *copy = topics ? strdup(topic) : NULL;
	if (!copy)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a topic");
	rabbit->topics[rabbit->topic_count++] = copy;
	return SEMEL_OK;
}

static semel_status send_slot(struct semel_rabbit *rabbit, struct semel_rabbit_slot *slot,
			      semel_error *error)
{
	const struct semel_event *event = slot->event;
	size_t most = (size_t)rabbit->settings.max_message;
	semel_error why = { 0 };
	if (most > 0 && event->payload.length > most) {
		answer(&rabbit->window, slot, SEMEL_TOO_LARGE,
		       "the payload is larger than max-message of the broker's URL");
		return SEMEL_OK;
	}
	semel_status status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_PUBLISH, &why);
	if (status == SEMEL_OK)
		status = need_topic(rabbit, semel_text_string(event->topic), &why);
	if (status == SEMEL_CONFIG && !rabbit->lost) {
		/* Of this exchange, which a person can mend; other topics may go on. */
		answer(&rabbit->window, slot, SEMEL_NACKED, why.text);
		return SEMEL_OK;
	}
	if (status != SEMEL_OK) {
		push_front(&rabbit->window.ready, slot);
		return semel_error_set(error, status, "%s", why.text);
	}
	struct semel_rabbit_post post = { .channel = SEMEL_RABBIT_PUBLISH,
					  .exchange = event->topic,
					  .key = event->routing_key,
					  .event = event,
					  .metadata = &slot->metadata };
	status = semel_rabbit_post(rabbit, &post, &why);
	if (status == SEMEL_TOO_LARGE || status == SEMEL_INVALID) {
		answer(&rabbit->window, slot, status, why.text);
		return SEMEL_OK;
	}
	if (status != SEMEL_OK) {
		push_front(&rabbit->window.ready, slot);
		return semel_error_set(error, status, "%s", why.text);
	}
	wire(&rabbit->window, slot);
	return semel_rabbit_unsent(rabbit) < FLUSH_BYTES ? SEMEL_OK
							 : semel_rabbit_flush(rabbit, error);
}

static semel_status send_ready(struct semel_rabbit *rabbit, semel_error *error)
{
	struct semel_rabbit_window *window = &rabbit->window;
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK && window->ready.first && !rabbit->blocked[0] &&
	       semel_rabbit_has_room(rabbit))
		status = send_slot(rabbit, pop(&window->ready), error);
	return status;
}

semel_status semel_rabbit_publish(struct semel_broker *broker, const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, void *token,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_rabbit_window *window = &rabbit->window;
	if (rabbit->lost)
		return semel_error_set(error, SEMEL_OUTAGE, "the connection to %s is gone",
				       rabbit->place);
	if (!window->unused.first)
		return SEMEL_FULL;
	struct semel_rabbit_slot *slot = pop(&window->unused);
	uint64_t aggregate = semel_hash_aggregate(event->aggregate_type, event->aggregate_id);
	*slot = (struct semel_rabbit_slot){
		.event = event, .metadata = *metadata, .token = token, .aggregate = aggregate
	};
	struct semel_rabbit_slot *first = first_of(window, aggregate);
	if (first) {
		first->last->behind = slot;
		first->last = slot;
		return SEMEL_OK;
	}
	slot->last = slot;
	slot->neighbour = *bucket_of(window, aggregate);
	*bucket_of(window, aggregate) = slot;
	push(&window->ready, slot);
	return send_ready(rabbit, error);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void report_one(struct semel_rabbit_window *window, struct semel_rabbit_slot *slot,
		       semel_outcome_callback seen, void *user)
{
	struct semel_publish_outcome outcome = { .token = slot->token, .status = slot->status };
	memcpy(outcome.reason, slot->reason, sizeof(outcome.reason));
	push(&window->unused, slot);
	seen(&outcome, user);
}

static void report(struct semel_rabbit_window *window, semel_outcome_callback seen, void *user)
{
	struct semel_rabbit_slot *slot;
	while ((slot = pop(&window->done)) != NULL) {
		struct semel_rabbit_slot *held = NULL;
		if (slot->status != SEMEL_OK) {
			held = slot->behind;
			replace_first(window, slot, NULL);
		}
		report_one(window, slot, seen, user);
		while (held) {
			struct semel_rabbit_slot *behind = held->behind;
			held->status = SEMEL_HELD;
			snprintf(held->reason, sizeof(held->reason),
				 "waits behind an earlier event of its aggregate");
			report_one(window, held, seen, user);
			held = behind;
		}
	}
}

semel_status semel_rabbit_poll(struct semel_broker *broker, int64_t wait_ms,
			       semel_outcome_callback seen, void *user, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_rabbit_window *window = &rabbit->window;
	semel_status status = send_ready(rabbit, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_pump(rabbit, window->done.first ? 0 : wait_ms, error);
	if (status == SEMEL_OK)
		status = send_ready(rabbit, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_flush(rabbit, error);
	if (rabbit->wake)
		semel_wake_watch_writable(rabbit->wake, rabbit->fd,
					  semel_rabbit_unsent(rabbit) > 0);
	report(window, seen, user);
	return status;
}

const char *semel_rabbit_blocked(struct semel_broker *broker)
{
	const struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	if (rabbit->outlet && rabbit->outlet->blocked[0])
		return rabbit->outlet->blocked;
	return rabbit->blocked[0] ? rabbit->blocked : NULL;
}
