/* SPDX-License-Identifier: Apache-2.0 */
/* What is declared at the broker, by name:
 *
 *   topic T          durable topic exchange T
 *   subscription S   queue S.T, bound to T; single active consumer, quorum unless set otherwise
 *                    (a stream: with a marker of ours in it, see stream.c)
 *                    the exchange S.T.owner says which scope and topic it belongs to
 *   its retries      queues S.T.retry.1 …: a message that was there for the tier's time goes back
 *                    to S.T
 *   its dead letters a copy each in the queue S.T.parked, for a week; the letters are in the store
 *   partitioned      queues S.T.1 … S.T.N, fed by the headers exchange S.T, which chooses by
 *                    semel-lane; a message without one (foreign) goes to S.T.1
 *
 * - The tiers are quorum queues with confirmed dead-lettering, whatever type the queue has: a retry
 *   must not be lost on its way back.
 * - A binding that brings events is declared after everything that receives them.
 * - Declaring can be repeated. An existing entity that differs is explained, never changed.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <string.h>

#define MINUTE_MS  60000
#define OWNER      ".owner"
#define OWNED_BY   ".of-"
#define PARKED_MS  604800000 /* a week: as long as dead letters are kept */
#define PARKED_MAX 100000

/* RabbitMQ 3 has no value for "no limit", and RabbitMQ 4 defaults to 20. */
#define DELIVERY_LIMIT 1000000

#define ARGUMENTS_MAX 8

struct arguments {
	amqp_table_entry_t entries[ARGUMENTS_MAX];
	int count;
};
/* A queue or an exchange. */
struct entity {
	const char *kind; /* "queue", "exchange" */
	const char *name;
	const char *type; /* of an exchange; NULL: a queue */
	struct arguments *arguments;
	struct arguments *older; /* of earlier versions; NULL: the same */
};

struct binding {
	const char *from, *to, *key;
	bool to_exchange;
	struct arguments arguments;
};

/* ---- arguments ------------------------------------------------------------------------------- */

/* name and value must outlive the arguments. */
static void add_text(struct arguments *arguments, const char *name, const char *value)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_UTF8,
						 .value.bytes = semel_rabbit_string(value) } };
}

static void add_number(struct arguments *arguments, const char *name, int64_t value)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_I64,
						 .value.i64 = value } };
}

static void add_true(struct arguments *arguments, const char *name)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_BOOLEAN,
						 .value.boolean = 1 } };
}

static amqp_table_t table_of(struct arguments *arguments)
{
	return (amqp_table_t){ .num_entries = arguments->count, .entries = arguments->entries };
}

/* ---- entities -------------------------------------------------------------------------------- */

/* "… inequivalent arg 'x-y' for queue 'q' in vhost '/': received A but current is B" */
static bool explain(const struct entity *entity, const char *words, char *text_out, size_t size)
{
	const char *argument = strstr(words, "arg '"), *ours = strstr(words, "received ");
	const char *theirs = ours ? strstr(ours, " but current is ") : NULL;
	if (!argument || !theirs)
		return false;
	argument += strlen("arg '");
	const char *current = theirs + strlen(" but current is ");
	size_t current_length = strcspn(current, "(");
	while (current_length > 0 && current[current_length - 1] == ' ')
		current_length--;
	ours += strlen("received ");
	/* A tier sends back to a queue, or to the exchange before several queues. */
	bool partitions = strncmp(argument, "x-dead-letter-exchange'",
				  strlen("x-dead-letter-exchange'")) == 0;
	snprintf(text_out, size,
		 "the %s %s exists with another %.*s: the broker has %.*s, semel needs %.*s "
		 "(nothing was changed: make the settings agree%s, or delete the %s%s)",
		 entity->kind, entity->name, (int)strcspn(argument, "'"), argument,
		 (int)current_length, current, (int)(theirs - ours), ours,
		 partitions ? ", above all the number of partitions" : "", entity->kind,
		 strcmp(entity->kind, "queue") == 0 ? " once it is empty" : "");
	return true;
}

/* Sends the declaration; the status is the broker's answer. passive: NOT_FOUND instead of
 * creating. */
static semel_status declare(struct semel_rabbit *rabbit, const struct entity *entity, bool passive,
			    semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const amqp_table_t arguments = table_of(entity->arguments);
	amqp_bytes_t name = semel_rabbit_string(entity->name);
	semel_status status = semel_rabbit_control_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (entity->type)
		library->exchange_declare(rabbit->connection, SEMEL_RABBIT_CONTROL, name,
					  semel_rabbit_string(entity->type), passive, 1, 0, 0,
					  arguments);
	else
		library->queue_declare(rabbit->connection, SEMEL_RABBIT_CONTROL, name, passive, 1,
				       0, 0, arguments);
	return semel_rabbit_control_end(rabbit, error);
}

/* Does it exist as an earlier version declared it? If not, `why` says what differs even from
 * that. */
static bool is_older(struct semel_rabbit *rabbit, const struct entity *entity, semel_error *why)
{
	struct entity older = *entity;
	older.arguments = entity->older;
	return entity->older && declare(rabbit, &older, false, why) == SEMEL_OK;
}

static semel_status error_undeclared(const struct entity *entity, semel_status status,
				     const semel_error *why, semel_error *error)
{
	return semel_error_set(error, status, "cannot declare the %s %s: %s", entity->kind,
			       entity->name, why->text);
}

static semel_status create(struct semel_rabbit *rabbit, const struct entity *entity,
			   semel_error *error)
{
	semel_error why = { 0 };
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_status status = declare(rabbit, entity, false, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status != SEMEL_CONFIG)
		return error_undeclared(entity, status, &why, error);
	if (is_older(rabbit, entity, &why))
		return SEMEL_OK;
	if (explain(entity, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "%s", text);
	return error_undeclared(entity, status, &why, error);
}

/* Declares what exists once more, which changes nothing, and shows a difference. */
static semel_status declare_again(struct semel_rabbit *rabbit, const struct entity *entity,
				  semel_error *error)
{
	semel_status status = declare(rabbit, entity, true, error);
	if (status != SEMEL_OK)
		return status;
	return declare(rabbit, entity, false, error);
}

/* The entity exists, and was declared with other arguments. */
static void describe_difference(struct semel_rabbit *rabbit, const struct entity *entity,
				semel_error *why, char text_out[SEMEL_ERROR_TEXT_MAX])
{
	if (is_older(rabbit, entity, why))
		snprintf(text_out, SEMEL_ERROR_TEXT_MAX,
			 "the queue %s was declared by an earlier version, without "
			 "x-delivery-limit: an event that is redelivered too often is dropped "
			 "where a policy, or RabbitMQ 4, has such a limit (let it drain, delete "
			 "the queue, and run semel topology apply)",
			 entity->name);
	else if (!explain(entity, why->text, text_out, SEMEL_ERROR_TEXT_MAX))
		snprintf(text_out, SEMEL_ERROR_TEXT_MAX, "cannot declare the %s %.255s: %.700s",
			 entity->kind, entity->name, why->text);
}

static semel_status compare(struct semel_rabbit *rabbit, const struct entity *entity,
			    const struct semel_rabbit_comparison *comparison, semel_error *error)
{
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_error why = { 0 };
	semel_status status = declare_again(rabbit, entity, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status == SEMEL_NOT_FOUND)
		snprintf(text, sizeof(text), "the %s %s is missing", entity->kind, entity->name);
	else if (status == SEMEL_CONFIG)
		describe_difference(rabbit, entity, &why, text);
	else
		return error_undeclared(entity, status, &why, error);
	comparison->report(text, comparison->user);
	return SEMEL_OK;
}

static semel_status ensure_entity(struct semel_rabbit *rabbit, const struct entity *entity,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	return comparison ? compare(rabbit, entity, comparison, error)
			  : create(rabbit, entity, error);
}

/* ---- bindings -------------------------------------------------------------------------------- */

static semel_status ensure_binding(struct semel_rabbit *rabbit, struct binding *binding,
				   const struct semel_rabbit_comparison *comparison,
				   semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const amqp_bytes_t from = semel_rabbit_string(binding->from);
	const amqp_bytes_t to = semel_rabbit_string(binding->to);
	const amqp_bytes_t key = semel_rabbit_string(binding->key);
	if (comparison)
		return SEMEL_OK; /* bindings cannot be queried */
	semel_status status = semel_rabbit_control_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (binding->to_exchange)
		library->exchange_bind(rabbit->connection, SEMEL_RABBIT_CONTROL, to, from, key,
				       table_of(&binding->arguments));
	else
		library->queue_bind(rabbit->connection, SEMEL_RABBIT_CONTROL, to, from, key,
				    table_of(&binding->arguments));
	return semel_rabbit_control_end(rabbit, error);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static semel_status declare_exchange(struct semel_rabbit *rabbit, const char *name,
				     const char *type, const char *alternate,
				     const struct semel_rabbit_comparison *comparison,
				     semel_error *error)
{
	struct arguments arguments = { 0 };
	const struct entity exchange = {
		.kind = "exchange", .name = name, .type = type, .arguments = &arguments
	};
	if (alternate)
		add_text(&arguments, "alternate-exchange", alternate);
	return ensure_entity(rabbit, &exchange, comparison, error);
}

/* "… but current is the value 'S.T.of-4-20' of type 'longstr'" */
static bool explain_owner(const char *queue, const char *words, char *text_out, size_t size)
{
	const char *current = strstr(words, " but current is ");
	const char *of = current ? strstr(current, OWNED_BY) : NULL;
	for (const char *next = of; next; next = strstr(next + 1, OWNED_BY))
		of = next;
	size_t scope = 0, topic = 0;
	if (!of || sscanf(of + strlen(OWNED_BY), "%4zu-%4zu", &scope, &topic) != 2 ||
	    scope + 1 + topic > strlen(queue))
		return false;
	snprintf(text_out, size,
		 "the queue %s belongs to the scope %.*s and its topic %.*s, and would get the "
		 "events of both subscriptions (choose another scope, or another topic)",
		 queue, (int)scope, queue, (int)topic, queue + scope + 1);
	return true;
}

/* Records which scope and topic a queue belongs to. The queue's name is made of both, and another
 * scope and topic may make the same name: shop and billing.orders, shop.billing and orders. So
 * there is an exchange named after the queue, to which nothing is published. Its alternate exchange
 * does not exist, and has the lengths of scope and topic in its name: the broker refuses to declare
 * the exchange with another alternate. */
static semel_status declare_owner(struct semel_rabbit *rabbit, const char *queue,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE + 32], owner[SEMEL_RABBIT_NAME_SIZE + 32],
		text[SEMEL_ERROR_TEXT_MAX];
	struct arguments arguments = { 0 };
	semel_error why = { 0 };
	snprintf(name, sizeof(name), "%s" OWNER, queue);
	snprintf(owner, sizeof(owner), "%s" OWNED_BY "%zu-%zu", queue, strlen(subscription->scope),
		 strlen(subscription->topic));
	if (strlen(owner) > SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK; /* two such names cannot exist */
	add_text(&arguments, "alternate-exchange", owner);
	const struct entity exchange = {
		.kind = "exchange", .name = name, .type = "fanout", .arguments = &arguments
	};
	semel_status status = comparison ? declare_again(rabbit, &exchange, &why)
					 : declare(rabbit, &exchange, false, &why);
	if (status == SEMEL_OK || (comparison && status == SEMEL_NOT_FOUND))
		return SEMEL_OK; /* not found: an earlier version has declared the queue */
	if (status != SEMEL_CONFIG || !explain_owner(queue, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "cannot declare the exchange %s: %s", name,
				       why.text);
	if (!comparison)
		return semel_error_set(error, status, "%s", text);
	comparison->report(text, comparison->user);
	return SEMEL_OK;
}

/* A quorum queue counts how often an event was delivered, and drops it past its limit. So we set a
 * limit that no event reaches; where a policy has a lower one, the event goes to the parked queue,
 * confirmed. */
static semel_status limit_deliveries(const struct semel_rabbit_subscription *subscription,
				     struct arguments *arguments,
				     char parked[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_parked_name(subscription, parked, error);
	if (status != SEMEL_OK)
		return status;
	add_number(arguments, "x-delivery-limit", DELIVERY_LIMIT);
	add_text(arguments, "x-dead-letter-exchange", "");
	add_text(arguments, "x-dead-letter-routing-key", parked);
	add_text(arguments, "x-dead-letter-strategy", "at-least-once");
	add_text(arguments, "x-overflow", "reject-publish");
	return SEMEL_OK;
}

/* Declares a queue that is not consumed. */
static semel_status declare_plain_queue(struct semel_rabbit *rabbit, const char *name,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	struct arguments arguments = { 0 };
	const struct entity queue = { .kind = "queue", .name = name, .arguments = &arguments };
	add_text(&arguments, "x-queue-type",
		 rabbit->settings.stream ? "quorum" : rabbit->settings.queue_type);
	return ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_queue(struct semel_rabbit *rabbit, const char *name,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	const struct semel_rabbit_settings *settings = &rabbit->settings;
	struct arguments arguments = { 0 };
	char parked[SEMEL_RABBIT_NAME_SIZE];
	bool limits = strcmp(settings->queue_type, "quorum") == 0;
	add_text(&arguments, "x-queue-type", settings->queue_type);
	if (settings->single_active && !settings->stream)
		add_true(&arguments, "x-single-active-consumer");
	struct arguments older = arguments;
	const struct entity queue = { .kind = "queue",
				      .name = name,
				      .arguments = &arguments,
				      .older = limits ? &older : NULL };
	semel_status status =
		limits ? limit_deliveries(subscription, &arguments, parked, error) : SEMEL_OK;
	if (status != SEMEL_OK)
		return status;
	status = declare_owner(rabbit, name, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = ensure_entity(rabbit, &queue, comparison, error);
	if (status != SEMEL_OK || !settings->stream || comparison)
		return status;
	return semel_rabbit_stream_write_marker(rabbit, name, error);
}

/* An exchange and a queue of the same name, for what no subscription takes. */
static semel_status declare_alternate(struct semel_rabbit *rabbit, const char *name,
				      const struct semel_rabbit_comparison *comparison,
				      semel_error *error)
{
	struct binding binding = { .from = name, .to = name, .key = "" };
	semel_status status = declare_exchange(rabbit, name, "fanout", NULL, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_plain_queue(rabbit, name, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return ensure_binding(rabbit, &binding, comparison, error);
}

semel_status semel_rabbit_declare_topic(struct semel_rabbit *rabbit, const char *topic,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	const char *alternate = rabbit->settings.alternate_exchange;
	if (strlen(topic) > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the topic is longer than %d bytes, the limit for the name "
				       "of an exchange (choose a shorter one)",
				       SEMEL_RABBIT_NAME_MAX);
	if (alternate) {
		semel_status status = declare_alternate(rabbit, alternate, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return declare_exchange(rabbit, topic, "topic", alternate, comparison, error);
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static semel_status declare_tier(struct semel_rabbit *rabbit,
				 const struct semel_rabbit_subscription *subscription,
				 uint32_t tier, const struct semel_rabbit_comparison *comparison,
				 semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE], target[SEMEL_RABBIT_NAME_SIZE];
	struct arguments arguments = { 0 };
	const struct entity queue = { .kind = "queue", .name = name, .arguments = &arguments };
	semel_status status = semel_rabbit_tier_name(subscription, tier, name, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_queue_name(subscription, 0, target, error);
	if (status != SEMEL_OK)
		return status;
	add_text(&arguments, "x-queue-type", "quorum");
	add_number(&arguments, "x-message-ttl", semel_rabbit_tier_ms(tier));
	add_text(&arguments, "x-dead-letter-exchange", subscription->partitions > 1 ? target : "");
	add_text(&arguments, "x-dead-letter-routing-key", target);
	add_text(&arguments, "x-dead-letter-strategy", "at-least-once");
	add_text(&arguments, "x-overflow", "reject-publish");
	return ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_parked(struct semel_rabbit *rabbit,
				   const struct semel_rabbit_subscription *subscription,
				   const struct semel_rabbit_comparison *comparison,
				   semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	struct arguments arguments = { 0 };
	const struct entity queue = { .kind = "queue", .name = name, .arguments = &arguments };
	semel_status status = semel_rabbit_parked_name(subscription, name, error);
	if (status != SEMEL_OK)
		return status;
	add_text(&arguments, "x-queue-type", "quorum");
	add_number(&arguments, "x-message-ttl", PARKED_MS);
	add_number(&arguments, "x-max-length", PARKED_MAX);
	return ensure_entity(rabbit, &queue, comparison, error);
}

static semel_status declare_tiers(struct semel_rabbit *rabbit,
				  const struct semel_rabbit_subscription *subscription,
				  const struct semel_rabbit_comparison *comparison,
				  semel_error *error)
{
	int64_t longest_ms =
		subscription->delay_max_ms > 0 ? subscription->delay_max_ms : MINUTE_MS;
	uint32_t last = semel_rabbit_tier_for(longest_ms);
	for (uint32_t tier = 1; tier <= last; tier++) {
		semel_status status = declare_tier(rabbit, subscription, tier, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_declare_tiers(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					semel_error *error)
{
	return declare_tiers(rabbit, subscription, NULL, error);
}

static semel_status bind_lanes(struct semel_rabbit *rabbit,
			       const struct semel_rabbit_subscription *subscription,
			       uint32_t number, const struct semel_rabbit_comparison *comparison,
			       semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], queue[SEMEL_RABBIT_NAME_SIZE], lane_text[16];
	semel_status status = semel_rabbit_queue_name(subscription, 0, exchange, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_queue_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t lane = number - 1; lane < SEMEL_WIRE_LANES;
	     lane += subscription->partitions) {
		struct binding binding = { .from = exchange, .to = queue, .key = "" };
		snprintf(lane_text, sizeof(lane_text), "%u", lane);
		add_text(&binding.arguments, "x-match", "all");
		add_text(&binding.arguments, "semel-lane", lane_text);
		status = ensure_binding(rabbit, &binding, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

static semel_status declare_partition(struct semel_rabbit *rabbit,
				      const struct semel_rabbit_subscription *subscription,
				      uint32_t number,
				      const struct semel_rabbit_comparison *comparison,
				      semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_queue(rabbit, queue, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return bind_lanes(rabbit, subscription, number, comparison, error);
}

typedef semel_status (*partition_function)(struct semel_rabbit *rabbit,
					   const struct semel_rabbit_subscription *subscription,
					   uint32_t number,
					   const struct semel_rabbit_comparison *comparison,
					   semel_error *error);

/* The alternate exchange takes messages without a lane. Its name contains the number of partitions,
 * so that the broker finds another number as a difference. */
static semel_status declare_alternate_of_partitions(
	struct semel_rabbit *rabbit, const struct semel_rabbit_subscription *subscription,
	char rest_out[SEMEL_RABBIT_NAME_SIZE], const struct semel_rabbit_comparison *comparison,
	semel_error *error)
{
	semel_status status = semel_rabbit_make_name(subscription, ".rest-of-",
						     subscription->partitions, rest_out, error);
	if (status != SEMEL_OK)
		return status;
	return declare_exchange(rabbit, rest_out, "fanout", NULL, comparison, error);
}

static semel_status bind_partitioned(struct semel_rabbit *rabbit,
				     const struct semel_rabbit_subscription *subscription,
				     const char *exchange, const char *rest,
				     const struct semel_rabbit_comparison *comparison,
				     semel_error *error)
{
	char first[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 1, first, error);
	if (status != SEMEL_OK)
		return status;
	struct binding of_rest = { .from = rest, .to = first, .key = "" };
	status = ensure_binding(rabbit, &of_rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	struct binding of_all = { .from = subscription->topic,
				  .to = exchange,
				  .key = subscription->bind ? subscription->bind : "#",
				  .to_exchange = true };
	return ensure_binding(rabbit, &of_all, comparison, error);
}

static semel_status declare_partitioned(struct semel_rabbit *rabbit,
					const struct semel_rabbit_subscription *subscription,
					partition_function declare_each,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], rest[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, exchange, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_alternate_of_partitions(rabbit, subscription, rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_exchange(rabbit, exchange, "headers", rest, comparison, error);
	if (status != SEMEL_OK)
		return status;
	for (uint32_t number = 1; number <= subscription->partitions; number++) {
		status = declare_each(rabbit, subscription, number, comparison, error);
		if (status != SEMEL_OK)
			return status;
	}
	return bind_partitioned(rabbit, subscription, exchange, rest, comparison, error);
}

static semel_status bind_single(struct semel_rabbit *rabbit,
				const struct semel_rabbit_subscription *subscription,
				const char *queue, const struct semel_rabbit_comparison *comparison,
				semel_error *error)
{
	struct binding binding = { .from = subscription->topic,
				   .to = queue,
				   .key = subscription->bind ? subscription->bind : "#" };
	return ensure_binding(rabbit, &binding, comparison, error);
}

semel_status semel_rabbit_declare_subscription(struct semel_rabbit *rabbit,
					       const struct semel_rabbit_subscription *subscription,
					       const struct semel_rabbit_comparison *comparison,
					       semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_declare_topic(rabbit, subscription->topic, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_tiers(rabbit, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	status = declare_parked(rabbit, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	if (subscription->partitions > 1)
		return declare_partitioned(rabbit, subscription, declare_partition, comparison,
					   error);
	status = declare_queue(rabbit, queue, subscription, comparison, error);
	if (status != SEMEL_OK)
		return status;
	return bind_single(rabbit, subscription, queue, comparison, error);
}

semel_status semel_rabbit_bind_subscription(struct semel_rabbit *rabbit,
					    const struct semel_rabbit_subscription *subscription,
					    semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(subscription, 0, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_declare_topic(rabbit, subscription->topic, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return subscription->partitions > 1
		       ? declare_partitioned(rabbit, subscription, bind_lanes, NULL, error)
		       : bind_single(rabbit, subscription, queue, NULL, error);
}

/* ---- members and partitions ------------------------------------------------------------------ */

semel_status semel_rabbit_join(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const uint16_t channel = SEMEL_RABBIT_MEMBERS;
	semel_status status = semel_rabbit_open_channel(rabbit, channel, error);
	if (status != SEMEL_OK)
		return status;
	library->queue_declare(rabbit->connection, channel, semel_rabbit_string(queue), 0, 1, 0, 1,
			       SEMEL_RABBIT_NO_TABLE);
	status = semel_rabbit_call_end(rabbit, channel, NULL, error);
	if (status != SEMEL_OK)
		return status;
	library->basic_consume(rabbit->connection, channel, semel_rabbit_string(queue),
			       SEMEL_RABBIT_NO_BYTES, 0, 1, 0, SEMEL_RABBIT_NO_TABLE);
	return semel_rabbit_call_end(rabbit, channel, NULL, error);
}

/* OK: it exists; NOT_FOUND: it does not. number 0: the only queue. */
static semel_status check_queue(struct semel_rabbit *rabbit,
				const struct semel_rabbit_subscription *subscription,
				uint32_t number, semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	uint64_t ready;
	semel_status status = semel_rabbit_queue_name(subscription, number, queue, error);
	if (status != SEMEL_OK)
		return status;
	return semel_rabbit_count(rabbit, queue, &ready, NULL, error);
}

semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error)
{
	const struct semel_rabbit_subscription subscription = { .scope = scope, .topic = topic };
	*partitions_out = 0;
	semel_status status = check_queue(rabbit, &subscription, 0, error);
	if (status == SEMEL_OK)
		*partitions_out = 1;
	if (status != SEMEL_NOT_FOUND)
		return status;
	for (uint32_t number = 1; number <= SEMEL_WIRE_LANES; number++) {
		status = check_queue(rabbit, &subscription, number, error);
		if (status != SEMEL_OK)
			return status == SEMEL_NOT_FOUND ? SEMEL_OK : status;
		*partitions_out = number;
	}
	return SEMEL_OK;
}
