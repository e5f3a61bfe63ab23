/* SPDX-License-Identifier: Apache-2.0 */
/* Declaring one entity (a queue or an exchange) or one binding at the broker, or comparing it.
 *
 * Declaring is repeatable. What exists and differs is explained, never changed.
 */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#include <stdio.h>
#include <string.h>

/* ---- arguments ------------------------------------------------------------------------------- */

void semel_rabbit_add_text(struct semel_rabbit_arguments *arguments, const char *name,
			   const char *value)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_UTF8,
						 .value.bytes = semel_rabbit_string(value) } };
}

void semel_rabbit_add_number(struct semel_rabbit_arguments *arguments, const char *name,
			     int64_t value)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_I64,
						 .value.i64 = value } };
}

void semel_rabbit_add_true(struct semel_rabbit_arguments *arguments, const char *name)
{
	arguments->entries[arguments->count++] =
		(amqp_table_entry_t){ .key = semel_rabbit_string(name),
				      .value = { .kind = AMQP_FIELD_KIND_BOOLEAN,
						 .value.boolean = 1 } };
}

static amqp_table_t table_of(struct semel_rabbit_arguments *arguments)
{
	return (amqp_table_t){ .num_entries = arguments->count, .entries = arguments->entries };
}

/* ---- entities -------------------------------------------------------------------------------- */

/* "… inequivalent arg 'x-y' for queue 'q' in vhost '/': received A but current is B" */
static bool explain(const struct semel_rabbit_entity *entity, const char *words, char *text_out,
		    size_t size)
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
	bool partitions = strncmp(argument, "x-dead-letter-exchange'",
				  strlen("x-dead-letter-exchange'")) == 0;
	snprintf(text_out, size,
		 "the %s %s exists with another %.*s: the broker has %.*s, semel needs %.*s "
		 "(nothing was changed: make the settings agree%s, or delete the %s once it is "
		 "empty)",
		 entity->kind, entity->name, (int)strcspn(argument, "'"), argument,
		 (int)current_length, current, (int)(theirs - ours), ours,
		 partitions ? ", above all the number of partitions" : "", entity->kind);
	return true;
}

semel_status semel_rabbit_declare(struct semel_rabbit *rabbit,
				  const struct semel_rabbit_entity *entity, bool passive,
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

/* Does it exist as an earlier version declared it? If not, why says what differs even from that. */
static bool is_older(struct semel_rabbit *rabbit, const struct semel_rabbit_entity *entity,
		     semel_error *why)
{
	struct semel_rabbit_entity older = *entity;
	older.arguments = entity->older;
	return entity->older && semel_rabbit_declare(rabbit, &older, false, why) == SEMEL_OK;
}

static semel_status create(struct semel_rabbit *rabbit, const struct semel_rabbit_entity *entity,
			   semel_error *error)
{
	semel_error why = { 0 };
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_status status = semel_rabbit_declare(rabbit, entity, false, &why);
	if (status == SEMEL_OK || (status == SEMEL_CONFIG && is_older(rabbit, entity, &why)))
		return SEMEL_OK;
	if (status == SEMEL_CONFIG && explain(entity, why.text, text, sizeof(text)))
		return semel_error_set(error, status, "%s", text);
	return semel_error_set(error, status, "cannot declare the %s %s: %s", entity->kind,
			       entity->name, why.text);
}

/* What exists is declared once more: that changes nothing, and shows a difference. */
static semel_status compare(struct semel_rabbit *rabbit, const struct semel_rabbit_entity *entity,
			    const struct semel_rabbit_comparison *comparison, semel_error *error)
{
	char text[SEMEL_ERROR_TEXT_MAX];
	semel_error why = { 0 };
	semel_status status = semel_rabbit_declare(rabbit, entity, true, &why);
	if (status == SEMEL_NOT_FOUND) {
		snprintf(text, sizeof(text), "the %s %s is missing", entity->kind, entity->name);
		comparison->report(text, comparison->user);
		return SEMEL_OK;
	}
	if (status == SEMEL_OK)
		status = semel_rabbit_declare(rabbit, entity, false, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	if (status == SEMEL_CONFIG && is_older(rabbit, entity, &why))
		snprintf(text, sizeof(text),
			 "the queue %s was made by an earlier version, without x-delivery-limit: "
			 "an event that is redelivered too often is dropped where a policy, or "
			 "RabbitMQ 4, has such a limit (let it drain, delete the queue, and run "
			 "semel topology apply)",
			 entity->name);
	else if (status != SEMEL_CONFIG || !explain(entity, why.text, text, sizeof(text)))
		snprintf(text, sizeof(text), "cannot declare the %s %.255s: %.700s", entity->kind,
			 entity->name, why.text);
	if (status != SEMEL_CONFIG)
		return semel_error_set(error, status, "%s", text);
	comparison->report(text, comparison->user);
	return SEMEL_OK;
}

semel_status semel_rabbit_ensure_entity(struct semel_rabbit *rabbit,
					const struct semel_rabbit_entity *entity,
					const struct semel_rabbit_comparison *comparison,
					semel_error *error)
{
	return comparison ? compare(rabbit, entity, comparison, error)
			  : create(rabbit, entity, error);
}

/* ---- bindings -------------------------------------------------------------------------------- */

semel_status semel_rabbit_ensure_binding(struct semel_rabbit *rabbit,
					 struct semel_rabbit_binding *binding,
					 const struct semel_rabbit_comparison *comparison,
					 semel_error *error)
{
	const struct semel_rabbit_library *library = rabbit->library;
	const amqp_bytes_t from = semel_rabbit_string(binding->from);
	const amqp_bytes_t to = semel_rabbit_string(binding->to);
	const amqp_bytes_t key = semel_rabbit_string(binding->key);
	if (comparison)
		return SEMEL_OK; /* bindings cannot be asked for */
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
