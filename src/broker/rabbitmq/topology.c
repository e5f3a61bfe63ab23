/* SPDX-License-Identifier: Apache-2.0 */
/* What stands at the broker, by name:
 *
 *   topic T          durable topic exchange T
 *   subscription S   queue S.T, bound to T; single active consumer, quorum unless told otherwise
 *                    (a stream: with a mark of ours in it, see stream.c)
 *                    the exchange S.T.owner says whose it is
 *   its retries      queues S.T.retry.1 …: what lies there for the tier's time goes back to S.T
 *   what it gave up  a copy each in the queue S.T.parked, for a week; dead letters are the store's
 *   partitioned      queues S.T.1 … S.T.N behind the headers exchange S.T, which chooses by
 *                    semel-lane; what has none (foreign) goes to S.T.1
 *
 * - Declaring is repeatable. What is there and different is explained, never changed.
 * - The tiers are quorum queues with confirmed dead-lettering whatever the queue is: a retry must
 *   not be lost on its way back.
 * - A binding that brings events comes after everything that takes them.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARGUMENTS_MAX 8

/* Seconds. Doubling as the consumer's delays do, then coarser. */
static const int tiers[] = { 1, 2, 4, 8, 16, 32, 60, 300, 900, 3600, 21600, 86400 };

#define TIER_COUNT ((uint32_t)(sizeof(tiers) / sizeof(tiers[0])))
#define MINUTE_MS  60000
#define PARKED     ".parked"
#define OWNER      ".owner"
#define OWNED_BY   ".of-"
#define PARKED_MS  604800000 /* a week: as long as dead letters are kept */
#define PARKED_MAX 100000

#define DELIVERY_LIMIT 1000000 /* RabbitMQ 3 knows no word for none, and RabbitMQ 4 has 20 */

uint32_t semel_rabbit_tier_for(int64_t delay_ms)
{
	uint32_t tier = 1;
	while (tier < TIER_COUNT && semel_rabbit_tier_ms(tier) < delay_ms)
		tier++;
	return tier;
}

int64_t semel_rabbit_tier_ms(uint32_t tier)
{
	return (int64_t)tiers[tier - 1] * 1000;
}

/* ---- names ----------------------------------------------------------------------------------- */

static semel_status make_name(const struct semel_rabbit_home *home, const char *suffix,
			      uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
			      semel_error *error)
{
	char tail[32] = "";
	if (number > 0)
		snprintf(tail, sizeof(tail), "%s%u", suffix, number);
	int length = snprintf(name_out, SEMEL_RABBIT_NAME_SIZE, "%s.%s%s", home->scope, home->topic,
			      tail);
	if (length < 0 || length > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"the name of the queue for %s and %s would be longer than %d "
			"bytes (choose a shorter scope or topic)",
			home->scope, home->topic, SEMEL_RABBIT_NAME_MAX);
	return SEMEL_OK;
}

semel_status semel_rabbit_queue_name(const struct semel_rabbit_home *home, uint32_t number,
				     char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	return make_name(home, ".", number, name_out, error);
}

semel_status semel_rabbit_tier_name(const struct semel_rabbit_home *home, uint32_t tier,
				    char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	return make_name(home, ".retry.", tier, name_out, error);
}

semel_status semel_rabbit_parking_name(const struct semel_rabbit_home *home,
				       char name_out[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = make_name(home, "", 0, name_out, error);
	size_t length = status == SEMEL_OK ? strlen(name_out) : 0;
	if (length + strlen(PARKED) > SEMEL_RABBIT_NAME_MAX)
		return make_name(home, PARKED, 1, name_out, error); /* which tells */
	if (status == SEMEL_OK)
		memcpy(name_out + length, PARKED, sizeof(PARKED));
	return status;
}

/* ---- arguments ------------------------------------------------------------------------------- */

struct arguments {
	amqp_table_entry_t entries[ARGUMENTS_MAX];
	int count;
};

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

/* ---- things: queues and exchanges ------------------------------------------------------------ */

struct thing {
	const char *kind; /* "queue", "exchange" */
	const char *name;
	const char *type; /* of an exchange */
	struct arguments *arguments;
	struct arguments *older; /* as earlier versions made it; NULL: the same */
};

/* "… inequivalent arg 'x-y' for queue 'q' in vhost '/': received A but current is B" */
static bool explain(const struct thing *thing, const char *words, char *text_out, size_t size)
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
	/* A tier goes back to a queue, or to the exchange before several. */
	bool spread = strncmp(argument, "x-dead-letter-exchange'",
			      strlen("x-dead-letter-exchange'")) == 0;
	snprintf(text_out, size,
		 "the %s %s is there with another %.*s: the broker has %.*s, semel wants %.*s "
		 "(nothing was changed: make the settings agree%s, or delete the %s once it is "
		 "empty)",
		 thing->kind, thing->name, (int)strcspn(argument, "'"), argument,
		 (int)current_length, current, (int)(theirs - ours), ours,
		 spread ? ", the number of partitions first of all" : "", thing->kind);
	return true;
}

static semel_status declare_with(struct semel_rabbit *rabbit, const struct thing *thing,
				 struct arguments *arguments, bool passive, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	amqp_bytes_t name = semel_rabbit_string(thing->name);
	semel_status status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (thing->type)
		library->exchange_declare(rabbit->connection, SEMEL_RABBIT_CONTROL, name,
					  semel_rabbit_string(thing->type), passive, 1, 0, 0,
					  table_of(arguments));
	else
		library->queue_declare(rabbit->connection, SEMEL_RABBIT_CONTROL, name, passive, 1,
				       0, 0, table_of(arguments));
	return semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, error);
}

/* Is it there as an earlier version made it? If not, why says what differs even from that. */
static bool is_older(struct semel_rabbit *rabbit, const struct thing *thing, semel_error *why)
{
	return thing->older && declare_with(rabbit, thing, thing->older, false, why) == SEMEL_OK;
}

static semel_status make_thing(struct semel_rabbit *rabbit, const struct thing *thing,
			       semel_error *error)
{
	semel_error why = { 0 };
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_status status = declare_with(rabbit, thing, thing->arguments, false, &why);
	if (status == SEMEL_OK || (status == SEMEL_CONFIG && is_older(rabbit, thing, &why)))
		return SEMEL_OK;
	if (status == SEMEL_CONFIG && explain(thing, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "%s", text);
	return semel_error_set(error, status, "cannot declare the %s %s: %s", thing->kind,
			       thing->name, why.text);
}

/* Something that is there is declared once more: that changes nothing, and tells a difference. */
static semel_status compare_thing(struct semel_rabbit *rabbit, const struct thing *thing,
				  const struct semel_rabbit_survey *survey, semel_error *error)
{
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_error why = { 0 };
	semel_status status = declare_with(rabbit, thing, thing->arguments, true, &why);
	if (status == SEMEL_NOT_FOUND) {
		snprintf(text, sizeof(text), "the %s %s is missing", thing->kind, thing->name);
		survey->seen(text, survey->user);
		return SEMEL_OK;
	}
	if (status == SEMEL_OK)
		status = declare_with(rabbit, thing, thing->arguments, false, &why);
	if (status == SEMEL_CONFIG && is_older(rabbit, thing, &why))
		snprintf(text, sizeof(text),
			 "the queue %s was made by an earlier version, without x-delivery-limit: "
			 "an event that comes back too often is dropped where a policy, or "
			 "RabbitMQ 4, has such a limit (let it drain, delete the queue, and run "
			 "semel topology apply)",
			 thing->name);
	else if (status != SEMEL_CONFIG || !explain(thing, why.text, text, sizeof(text)))
		snprintf(text, sizeof(text), "cannot declare the %s %.255s: %.700s", thing->kind,
			 thing->name, why.text);
	if (status == SEMEL_CONFIG) {
		survey->seen(text, survey->user);
		return SEMEL_OK;
	}
	return status == SEMEL_OK ? SEMEL_OK : semel_error_set(error, status, "%s", text);
}

static semel_status need_thing(struct semel_rabbit *rabbit, const struct thing *thing,
			       const struct semel_rabbit_survey *survey, semel_error *error)
{
	return survey ? compare_thing(rabbit, thing, survey, error)
		      : make_thing(rabbit, thing, error);
}

struct binding {
	const char *from, *to, *key;
	bool to_exchange;
	struct arguments arguments;
};

static semel_status bind(struct semel_rabbit *rabbit, struct binding *binding,
			 const struct semel_rabbit_survey *survey, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	if (survey)
		return SEMEL_OK; /* bindings cannot be asked for */
	semel_status status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	if (binding->to_exchange)
		library->exchange_bind(
			rabbit->connection, SEMEL_RABBIT_CONTROL, semel_rabbit_string(binding->to),
			semel_rabbit_string(binding->from), semel_rabbit_string(binding->key),
			table_of(&binding->arguments));
	else
		library->queue_bind(
			rabbit->connection, SEMEL_RABBIT_CONTROL, semel_rabbit_string(binding->to),
			semel_rabbit_string(binding->from), semel_rabbit_string(binding->key),
			table_of(&binding->arguments));
	return semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, error);
}

/* ---- topics ---------------------------------------------------------------------------------- */

static semel_status declare_exchange(struct semel_rabbit *rabbit, const char *name,
				     const char *type, const char *alternate,
				     const struct semel_rabbit_survey *survey, semel_error *error)
{
	struct arguments arguments = { 0 };
	if (alternate)
		add_text(&arguments, "alternate-exchange", alternate);
	return need_thing(
		rabbit,
		&(struct thing){
			.kind = "exchange", .name = name, .type = type, .arguments = &arguments },
		survey, error);
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

/* Who has a queue. Scope and topic are one name, and another scope and topic may be the same one:
 * shop and billing.orders, shop.billing and orders. So an exchange of the queue's name, to which
 * nobody publishes, has the lengths of the two in the name of an alternate that is not there: the
 * broker refuses to declare it with another one. */
static semel_status mark_owner(struct semel_rabbit *rabbit, const char *queue,
			       const struct semel_rabbit_home *home,
			       const struct semel_rabbit_survey *survey, semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE + 32], owner[SEMEL_RABBIT_NAME_SIZE + 32],
		text[SEMEL_ERROR_TEXT_MAX];
	struct arguments arguments = { 0 };
	semel_error why = { 0 };
	snprintf(name, sizeof(name), "%s" OWNER, queue);
	snprintf(owner, sizeof(owner), "%s" OWNED_BY "%zu-%zu", queue, strlen(home->scope),
		 strlen(home->topic));
	if (strlen(owner) > SEMEL_RABBIT_NAME_MAX)
		return SEMEL_OK; /* nobody has two such names */
	add_text(&arguments, "alternate-exchange", owner);
	const struct thing mark = {
		.kind = "exchange", .name = name, .type = "fanout", .arguments = &arguments
	};
	semel_status status =
		survey ? declare_with(rabbit, &mark, &arguments, true, &why) : SEMEL_OK;
	if (status == SEMEL_NOT_FOUND)
		return SEMEL_OK; /* an earlier version has made the queue */
	if (status == SEMEL_OK)
		status = declare_with(rabbit, &mark, &arguments, false, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status != SEMEL_CONFIG || !explain_owner(queue, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "cannot declare the exchange %s: %s", name,
				       why.text);
	if (!survey)
		return semel_error_set(error, status, "%s", text);
	survey->seen(text, survey->user);
	return SEMEL_OK;
}

/* A quorum queue counts how often an event was delivered. Past its limit it is dropped, so the
 * limit is one that nothing reaches; and where a policy has a lower one, the event goes to the
 * parking queue, confirmed. */
static semel_status guard_queue(const struct semel_rabbit_home *home, struct arguments *arguments,
				char parking[SEMEL_RABBIT_NAME_SIZE], semel_error *error)
{
	semel_status status = semel_rabbit_parking_name(home, parking, error);
	add_number(arguments, "x-delivery-limit", DELIVERY_LIMIT);
	add_text(arguments, "x-dead-letter-exchange", "");
	add_text(arguments, "x-dead-letter-routing-key", parking);
	add_text(arguments, "x-dead-letter-strategy", "at-least-once");
	add_text(arguments, "x-overflow", "reject-publish");
	return status;
}

/* home NULL: one that is not consumed. */
static semel_status declare_queue(struct semel_rabbit *rabbit, const char *name,
				  const struct semel_rabbit_home *home,
				  const struct semel_rabbit_survey *survey, semel_error *error)
{
	struct arguments arguments = { 0 };
	char parking[SEMEL_RABBIT_NAME_SIZE];
	bool stream = home && rabbit->settings.stream;
	const char *kept_aside = rabbit->settings.stream ? "quorum" : rabbit->settings.queue_type;
	const char *type = home ? rabbit->settings.queue_type : kept_aside;
	bool guarded = home && strcmp(type, "quorum") == 0;
	semel_status status = SEMEL_OK;
	add_text(&arguments, "x-queue-type", type);
	if (home && rabbit->settings.single_active && !stream)
		add_true(&arguments, "x-single-active-consumer");
	struct arguments older = arguments;
	if (guarded)
		status = guard_queue(home, &arguments, parking, error);
	if (status == SEMEL_OK && home)
		status = mark_owner(rabbit, name, home, survey, error);
	if (status == SEMEL_OK)
		status = need_thing(rabbit,
				    &(struct thing){ .kind = "queue",
						     .name = name,
						     .arguments = &arguments,
						     .older = guarded ? &older : NULL },
				    survey, error);
	return status == SEMEL_OK && stream && !survey
		       ? semel_rabbit_stream_mark(rabbit, name, error)
		       : status;
}

/* An exchange and a queue of its name, for what no subscription takes. */
static semel_status declare_alternate(struct semel_rabbit *rabbit, const char *name,
				      const struct semel_rabbit_survey *survey, semel_error *error)
{
	struct binding binding = { .from = name, .to = name, .key = "" };
	semel_status status = declare_exchange(rabbit, name, "fanout", NULL, survey, error);
	if (status == SEMEL_OK)
		status = declare_queue(rabbit, name, NULL, survey, error);
	return status == SEMEL_OK ? bind(rabbit, &binding, survey, error) : status;
}

semel_status semel_rabbit_declare_topic(struct semel_rabbit *rabbit, const char *topic,
					const struct semel_rabbit_survey *survey,
					semel_error *error)
{
	const char *alternate = rabbit->settings.alternate_exchange;
	semel_status status = SEMEL_OK;
	if (strlen(topic) > SEMEL_RABBIT_NAME_MAX)
		return semel_error_set(error, SEMEL_CONFIG,
				       "a topic of more than %d bytes cannot be an exchange",
				       SEMEL_RABBIT_NAME_MAX);
	if (alternate)
		status = declare_alternate(rabbit, alternate, survey, error);
	return status == SEMEL_OK
		       ? declare_exchange(rabbit, topic, "topic", alternate, survey, error)
		       : status;
}

/* ---- subscriptions --------------------------------------------------------------------------- */

static semel_status declare_tier(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				 uint32_t tier, const struct semel_rabbit_survey *survey,
				 semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE], queue[SEMEL_RABBIT_NAME_SIZE];
	struct arguments arguments = { 0 };
	semel_status status = semel_rabbit_tier_name(home, tier, name, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_queue_name(home, 0, queue, error);
	if (status != SEMEL_OK)
		return status;
	add_text(&arguments, "x-queue-type", "quorum");
	add_number(&arguments, "x-message-ttl", semel_rabbit_tier_ms(tier));
	add_text(&arguments, "x-dead-letter-exchange", home->partitions > 1 ? queue : "");
	add_text(&arguments, "x-dead-letter-routing-key", queue);
	add_text(&arguments, "x-dead-letter-strategy", "at-least-once");
	add_text(&arguments, "x-overflow", "reject-publish");
	return need_thing(rabbit,
			  &(struct thing){ .kind = "queue", .name = name, .arguments = &arguments },
			  survey, error);
}

static semel_status declare_parking(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_home *home,
				    const struct semel_rabbit_survey *survey, semel_error *error)
{
	char name[SEMEL_RABBIT_NAME_SIZE];
	struct arguments arguments = { 0 };
	semel_status status = semel_rabbit_parking_name(home, name, error);
	if (status != SEMEL_OK)
		return status;
	add_text(&arguments, "x-queue-type", "quorum");
	add_number(&arguments, "x-message-ttl", PARKED_MS);
	add_number(&arguments, "x-max-length", PARKED_MAX);
	return need_thing(rabbit,
			  &(struct thing){ .kind = "queue", .name = name, .arguments = &arguments },
			  survey, error);
}

static semel_status survey_tiers(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
				 const struct semel_rabbit_survey *survey, semel_error *error)
{
	int64_t longest_ms = home->delay_max_ms > 0 ? home->delay_max_ms : MINUTE_MS;
	uint32_t last = semel_rabbit_tier_for(longest_ms);
	semel_status status = SEMEL_OK;
	for (uint32_t tier = 1; tier <= last && status == SEMEL_OK; tier++)
		status = declare_tier(rabbit, home, tier, survey, error);
	return status;
}

semel_status semel_rabbit_declare_tiers(struct semel_rabbit *rabbit,
					const struct semel_rabbit_home *home, semel_error *error)
{
	return survey_tiers(rabbit, home, NULL, error);
}

static semel_status bind_lanes(struct semel_rabbit *rabbit, const struct semel_rabbit_home *home,
			       uint32_t number, const struct semel_rabbit_survey *survey,
			       semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], queue[SEMEL_RABBIT_NAME_SIZE], lane_text[16];
	semel_status status = semel_rabbit_queue_name(home, 0, exchange, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_queue_name(home, number, queue, error);
	for (uint32_t lane = number - 1; lane < SEMEL_WIRE_LANES && status == SEMEL_OK;
	     lane += home->partitions) {
		struct binding binding = { .from = exchange, .to = queue, .key = "" };
		snprintf(lane_text, sizeof(lane_text), "%u", lane);
		add_text(&binding.arguments, "x-match", "all");
		add_text(&binding.arguments, "semel-lane", lane_text);
		status = bind(rabbit, &binding, survey, error);
	}
	return status;
}

static semel_status declare_partition(struct semel_rabbit *rabbit,
				      const struct semel_rabbit_home *home, uint32_t number,
				      const struct semel_rabbit_survey *survey, semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(home, number, queue, error);
	if (status == SEMEL_OK)
		status = declare_queue(rabbit, queue, home, survey, error);
	return status == SEMEL_OK ? bind_lanes(rabbit, home, number, survey, error) : status;
}

/* The alternate exchange takes what has no lane; its name tells the number of partitions, so that
 * another number is a difference the broker sees. */
typedef semel_status (*partition_made)(struct semel_rabbit *rabbit,
				       const struct semel_rabbit_home *home, uint32_t number,
				       const struct semel_rabbit_survey *survey,
				       semel_error *error);

static semel_status declare_spread(struct semel_rabbit *rabbit,
				   const struct semel_rabbit_home *home, partition_made make,
				   const struct semel_rabbit_survey *survey, semel_error *error)
{
	char exchange[SEMEL_RABBIT_NAME_SIZE], first[SEMEL_RABBIT_NAME_SIZE],
		rest[SEMEL_RABBIT_NAME_SIZE];
	semel_status status = semel_rabbit_queue_name(home, 0, exchange, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_queue_name(home, 1, first, error);
	if (status == SEMEL_OK)
		status = make_name(home, ".rest-of-", home->partitions, rest, error);
	if (status == SEMEL_OK)
		status = declare_exchange(rabbit, rest, "fanout", NULL, survey, error);
	if (status == SEMEL_OK)
		status = declare_exchange(rabbit, exchange, "headers", rest, survey, error);
	for (uint32_t number = 1; number <= home->partitions && status == SEMEL_OK; number++)
		status = make(rabbit, home, number, survey, error);
	if (status != SEMEL_OK)
		return status;
	struct binding of_rest = { .from = rest, .to = first, .key = "" };
	struct binding of_all = { .from = home->topic,
				  .to = exchange,
				  .key = home->bind ? home->bind : "#",
				  .to_exchange = true };
	status = bind(rabbit, &of_rest, survey, error);
	return status == SEMEL_OK ? bind(rabbit, &of_all, survey, error) : status;
}

semel_status semel_rabbit_declare_home(struct semel_rabbit *rabbit,
				       const struct semel_rabbit_home *home,
				       const struct semel_rabbit_survey *survey, semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	struct binding binding = { .from = home->topic,
				   .to = queue,
				   .key = home->bind ? home->bind : "#" };
	semel_status status = semel_rabbit_queue_name(home, 0, queue, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_declare_topic(rabbit, home->topic, survey, error);
	if (status == SEMEL_OK)
		status = survey_tiers(rabbit, home, survey, error);
	if (status == SEMEL_OK)
		status = declare_parking(rabbit, home, survey, error);
	if (status != SEMEL_OK)
		return status;
	if (home->partitions > 1)
		return declare_spread(rabbit, home, declare_partition, survey, error);
	status = declare_queue(rabbit, queue, home, survey, error);
	return status == SEMEL_OK ? bind(rabbit, &binding, survey, error) : status;
}

semel_status semel_rabbit_bind_home(struct semel_rabbit *rabbit,
				    const struct semel_rabbit_home *home, semel_error *error)
{
	char queue[SEMEL_RABBIT_NAME_SIZE];
	struct binding binding = { .from = home->topic,
				   .to = queue,
				   .key = home->bind ? home->bind : "#" };
	semel_status status = semel_rabbit_queue_name(home, 0, queue, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_declare_topic(rabbit, home->topic, NULL, error);
	if (status != SEMEL_OK)
		return status;
	return home->partitions > 1 ? declare_spread(rabbit, home, bind_lanes, NULL, error)
				    : bind(rabbit, &binding, NULL, error);
}

/* ---- looking --------------------------------------------------------------------------------- */

semel_status semel_rabbit_count(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
				uint32_t *consumers_out, semel_error *error)
{
	semel_status status = semel_rabbit_need_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status == SEMEL_OK)
		status = semel_rabbit_ask(rabbit, SEMEL_RABBIT_CONTROL, queue, error);
	if (status != SEMEL_OK)
		return status;
	*ready_out = rabbit->question.ready;
	if (consumers_out)
		*consumers_out = rabbit->question.consumers;
	return SEMEL_OK;
}

semel_status semel_rabbit_join(struct semel_rabbit *rabbit, const char *queue, semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const uint16_t channel = SEMEL_RABBIT_MEMBERS;
	semel_status status = semel_rabbit_need_channel(rabbit, channel, error);
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

semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error)
{
	struct semel_rabbit_home home = { .scope = scope, .topic = topic };
	char queue[SEMEL_RABBIT_NAME_SIZE];
	uint64_t ready;
	*partitions_out = 0;
	for (uint32_t number = 0; number <= SEMEL_WIRE_LANES; number++) {
		semel_status status = semel_rabbit_queue_name(&home, number, queue, error);
		if (status == SEMEL_OK)
			status = semel_rabbit_count(rabbit, queue, &ready, NULL, error);
		if (status == SEMEL_OK && number == 0) {
			*partitions_out = 1;
			return SEMEL_OK;
		}
		if (status == SEMEL_NOT_FOUND && number > 0)
			return SEMEL_OK;
		if (status != SEMEL_OK && status != SEMEL_NOT_FOUND)
			return status;
		*partitions_out = number;
	}
	return SEMEL_OK;
}
