/* SPDX-License-Identifier: Apache-2.0 */
/* The window of events that the broker has not answered.
 *
 * - At most one event of an aggregate is sent and unanswered: a broker may refuse one and accept
 *   the next, so the next is sent only after the one before it was confirmed. The later ones form a
 *   chain after the first one, and the first one of each aggregate is in the buckets.
 * - An event is confirmed by an ack of its tag. A return arrives before the ack of the same event.
 * - After a refusal the rest of the chain is refused too, as HELD, when the refusal is reported.
 * - While the broker is blocked nothing is sent and nothing is late.
 * - When the broker closes the channel, it is unknown which events it accepted: those that did not
 *   cause it are sent again, in the order of each aggregate.
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

static void push(struct semel_rabbit_list *list, struct semel_rabbit_inflight *inflight)
{
	inflight->next = NULL;
	if (list->last)
		list->last->next = inflight;
	else
		list->first = inflight;
	list->last = inflight;
}

static void push_front(struct semel_rabbit_list *list, struct semel_rabbit_inflight *inflight)
{
	inflight->next = list->first;
	list->first = inflight;
	if (!list->last)
		list->last = inflight;
}

static struct semel_rabbit_inflight *pop(struct semel_rabbit_list *list)
{
	struct semel_rabbit_inflight *inflight = list->first;
	if (!inflight)
		return NULL;
	list->first = inflight->next;
	if (!list->first)
		list->last = NULL;
	inflight->next = NULL;
	return inflight;
}

bool semel_rabbit_window_new(struct semel_rabbit_window *window, uint32_t size)
{
	window->bucket_count = 16;
	while (window->bucket_count < (size_t)size * 2)
		window->bucket_count *= 2;
	window->entries = calloc(size, sizeof(window->entries[0]));
	window->buckets = calloc(window->bucket_count, sizeof(window->buckets[0]));
	for (uint32_t i = 0; window->entries && i < size; i++)
		push(&window->unused, &window->entries[i]);
	return window->entries && window->buckets;
}

void semel_rabbit_window_free(struct semel_rabbit_window *window)
{
	free(window->entries);
	free(window->buckets);
}

static struct semel_rabbit_inflight **bucket_of(struct semel_rabbit_window *window,
						uint64_t aggregate)
{
	return &window->buckets[aggregate & (window->bucket_count - 1)];
}

static struct semel_rabbit_inflight *first_of(struct semel_rabbit_window *window,
					      uint64_t aggregate)
{
	struct semel_rabbit_inflight *inflight = *bucket_of(window, aggregate);
	while (inflight && inflight->aggregate != aggregate)
		inflight = inflight->bucket_next;
	return inflight;
}

/* Replaces the first event of an aggregate in the buckets; with NULL: removes it. */
static void replace_first(struct semel_rabbit_window *window, struct semel_rabbit_inflight *first,
			  struct semel_rabbit_inflight *with)
{
	struct semel_rabbit_inflight **at = bucket_of(window, first->aggregate);
	while (*at != first)
		at = &(*at)->bucket_next;
	*at = with ? with : first->bucket_next;
	if (with) {
		with->bucket_next = first->bucket_next;
		with->aggregate_last =
			first->aggregate_last == first ? with : first->aggregate_last;
	}
	first->bucket_next = NULL;
}

static void remove_sent(struct semel_rabbit_window *window, struct semel_rabbit_inflight *inflight)
{
	if (inflight->before)
		inflight->before->after = inflight->after;
	else
		window->oldest = inflight->after;
	if (inflight->after)
		inflight->after->before = inflight->before;
	else
		window->newest = inflight->before;
	inflight->before = inflight->after = NULL;
	inflight->tag = 0;
}

static void add_sent(struct semel_rabbit_window *window, struct semel_rabbit_inflight *inflight)
{
	inflight->tag = ++window->last_tag;
	inflight->before = window->newest;
	inflight->after = NULL;
	if (window->newest)
		window->newest->after = inflight;
	else
		window->oldest = inflight;
	window->newest = inflight;
}

/* ---- outcomes -------------------------------------------------------------------------------- */

/* The next event of the aggregate may be sent once this one is confirmed. A refused one stays in
 * the buckets until the refusal is reported, so that an event that is offered meanwhile joins its
 * chain. */
static void finish(struct semel_rabbit_window *window, struct semel_rabbit_inflight *inflight,
		   semel_status status, const char *reason)
{
	inflight->status = status;
	if (reason != inflight->reason)
		snprintf(inflight->reason, sizeof(inflight->reason), "%.*s", REASON_MAX, reason);
	push(&window->done, inflight);
	if (status != SEMEL_OK)
		return;
	struct semel_rabbit_inflight *next = inflight->aggregate_next;
	replace_first(window, inflight, next);
	if (next)
		push(&window->ready, next);
	inflight->aggregate_next = NULL;
}

static void resolve(struct semel_rabbit_window *window, struct semel_rabbit_inflight *inflight,
		    bool nacked)
{
	remove_sent(window, inflight);
	if (nacked)
		finish(window, inflight, SEMEL_NACKED,
		       "the broker refused the event (nack): is a queue full (max-length with "
		       "reject-publish), or without a leader?");
	else if (inflight->returned)
		finish(window, inflight, SEMEL_UNROUTABLE, inflight->reason);
	else
		finish(window, inflight, SEMEL_OK, "");
}

void semel_rabbit_confirmed(struct semel_rabbit *rabbit, uint64_t tag, bool multiple, bool nacked)
{
	struct semel_rabbit_window *window = &rabbit->window;
	struct semel_rabbit_inflight *inflight = window->oldest;
	while (inflight && inflight->tag <= tag) {
		struct semel_rabbit_inflight *after = inflight->after;
		if (multiple || inflight->tag == tag)
			resolve(window, inflight, nacked);
		inflight = after;
	}
}

void semel_rabbit_event_returned(struct semel_rabbit *rabbit, struct semel_text id,
				 const char *text)
{
	struct semel_rabbit_inflight *inflight = rabbit->window.oldest;
	while (inflight && !semel_text_equal(inflight->event->id, id))
		inflight = inflight->after;
	if (!inflight)
		return;
	inflight->returned = true;
	snprintf(inflight->reason, sizeof(inflight->reason), "%s", text);
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
	semel_status status =
		semel_rabbit_channel_closed(rabbit, SEMEL_RABBIT_PUBLISH, close, &why);
	size_t too_large = refused_size(why.text);
	bool is_of_event = code == AMQP_NOT_FOUND ||
			   (code == AMQP_PRECONDITION_FAILED && too_large != SIZE_MAX);
	forget_topics(rabbit);
	rabbit->returned.expects_header = false;
	while (window->oldest) {
		struct semel_rabbit_inflight *inflight = window->oldest;
		remove_sent(window, inflight);
		inflight->returned = false;
		if (code == AMQP_NOT_FOUND && is_topic_of(inflight->event, why.text))
			finish(window, inflight, SEMEL_UNROUTABLE, why.text);
		else if (code == AMQP_PRECONDITION_FAILED &&
			 inflight->event->payload.length > too_large)
			finish(window, inflight, SEMEL_TOO_LARGE, why.text);
		else
			push(&window->ready, inflight);
	}
	return is_of_event ? SEMEL_OK : semel_error_set(error, status, "%s", why.text);
}

/* ---- sending --------------------------------------------------------------------------------- */

static bool is_declared(const struct semel_rabbit *rabbit, const char *topic)
{
	for (size_t i = 0; i < rabbit->topic_count; i++)
		if (strcmp(rabbit->topics[i], topic) == 0)
			return true;
	return false;
}

static semel_status ensure_topic(struct semel_rabbit *rabbit, const char *topic, semel_error *error)
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
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a topic");
	rabbit->topics[rabbit->topic_count++] = copy;
	return SEMEL_OK;
}

static semel_status write_event(struct semel_rabbit *rabbit, struct semel_rabbit_inflight *inflight,
				semel_error *error)
{
	const struct semel_event *event = inflight->event;
	const struct semel_rabbit_outgoing outgoing = { .channel = SEMEL_RABBIT_PUBLISH,
							.exchange = event->topic,
							.key = event->routing_key,
							.event = event,
							.metadata = &inflight->metadata };
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_PUBLISH, error);
	if (status != SEMEL_OK)
		return status;
	status = ensure_topic(rabbit, semel_text_string(event->topic), error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_write_message(rabbit, &outgoing, error);
}

/* A failure that concerns only this event is its outcome; otherwise the event is sent later. */
static semel_status handle_unsent(struct semel_rabbit *rabbit,
				  struct semel_rabbit_inflight *inflight, semel_status status,
				  const char *why, semel_error *error)
{
	struct semel_rabbit_window *window = &rabbit->window;
	bool is_of_exchange = status == SEMEL_CONFIG && !rabbit->lost;
	if (is_of_exchange) /* an operator can correct it; other topics are not affected */
		status = SEMEL_NACKED;
	if (is_of_exchange || status == SEMEL_TOO_LARGE || status == SEMEL_INVALID) {
		finish(window, inflight, status, why);
		return SEMEL_OK;
	}
	push_front(&window->ready, inflight);
	return semel_error_set(error, status, "%s", why);
}

static semel_status send_event(struct semel_rabbit *rabbit, struct semel_rabbit_inflight *inflight,
			       semel_error *error)
{
	struct semel_rabbit_window *window = &rabbit->window;
	size_t most = (size_t)rabbit->settings.max_message;
	semel_error why = { 0 };
	if (most > 0 && inflight->event->payload.length > most) {
		finish(window, inflight, SEMEL_TOO_LARGE,
		       "the payload is larger than max-message of the broker's URL");
		return SEMEL_OK;
	}
	semel_status status = write_event(rabbit, inflight, &why);
	if (status != SEMEL_OK)
		return handle_unsent(rabbit, inflight, status, why.text, error);
	add_sent(window, inflight);
	return semel_rabbit_unsent(rabbit) < FLUSH_BYTES ? SEMEL_OK
							 : semel_rabbit_flush(rabbit, error);
}

static semel_status send_ready(struct semel_rabbit *rabbit, semel_error *error)
{
	struct semel_rabbit_window *window = &rabbit->window;
	while (window->ready.first && !rabbit->blocked[0] && semel_rabbit_has_capacity(rabbit)) {
		semel_status status = send_event(rabbit, pop(&window->ready), error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_publish(struct semel_broker *broker, const struct semel_event *event,
				  const struct semel_publish_metadata *metadata, void *token,
				  semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	struct semel_rabbit_window *window = &rabbit->window;
	if (rabbit->lost)
		return semel_rabbit_error_lost(rabbit, error);
	if (!window->unused.first)
		return SEMEL_FULL;
	struct semel_rabbit_inflight *inflight = pop(&window->unused);
	uint64_t aggregate = semel_hash_aggregate(event->aggregate_type, event->aggregate_id);
	*inflight = (struct semel_rabbit_inflight){
		.event = event, .metadata = *metadata, .token = token, .aggregate = aggregate
	};
	struct semel_rabbit_inflight *first = first_of(window, aggregate);
	if (first) {
		first->aggregate_last->aggregate_next = inflight;
		first->aggregate_last = inflight;
		return SEMEL_OK;
	}
	inflight->aggregate_last = inflight;
	inflight->bucket_next = *bucket_of(window, aggregate);
	*bucket_of(window, aggregate) = inflight;
	push(&window->ready, inflight);
	return send_ready(rabbit, error);
}

/* ---- reporting ------------------------------------------------------------------------------- */

static void report_one(struct semel_rabbit_window *window, struct semel_rabbit_inflight *inflight,
		       semel_outcome_callback callback, void *user)
{
	struct semel_publish_outcome outcome = { .token = inflight->token,
						 .status = inflight->status };
	memcpy(outcome.reason, inflight->reason, sizeof(outcome.reason));
	push(&window->unused, inflight);
	callback(&outcome, user);
}

static void report(struct semel_rabbit_window *window, semel_outcome_callback callback, void *user)
{
	struct semel_rabbit_inflight *inflight;
	while ((inflight = pop(&window->done)) != NULL) {
		struct semel_rabbit_inflight *held = NULL;
		if (inflight->status != SEMEL_OK) {
			held = inflight->aggregate_next;
			replace_first(window, inflight, NULL);
		}
		report_one(window, inflight, callback, user);
		while (held) {
			struct semel_rabbit_inflight *after = held->aggregate_next;
			held->status = SEMEL_HELD;
			snprintf(held->reason, sizeof(held->reason),
				 "an earlier event of its aggregate was refused");
			report_one(window, held, callback, user);
			held = after;
		}
	}
}

static semel_status send_and_receive(struct semel_rabbit *rabbit, int64_t wait_ms,
				     semel_error *error)
{
	semel_status status = send_ready(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_pump(rabbit, rabbit->window.done.first ? 0 : wait_ms, error);
	if (status != SEMEL_OK)
		return status;
	status = send_ready(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_flush(rabbit, error);
}

semel_status semel_rabbit_poll(struct semel_broker *broker, int64_t wait_ms,
			       semel_outcome_callback callback, void *user, semel_error *error)
{
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_status status = send_and_receive(rabbit, wait_ms, error);
	if (rabbit->wake)
		semel_wake_watch_writable(rabbit->wake, rabbit->fd,
					  semel_rabbit_unsent(rabbit) > 0);
	report(&rabbit->window, callback, user);
	return status;
}

const char *semel_rabbit_blocked(struct semel_broker *broker)
{
	const struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	if (rabbit->publisher && rabbit->publisher->blocked[0])
		return rabbit->publisher->blocked;
	return rabbit->blocked[0] ? rabbit->blocked : NULL;
}
