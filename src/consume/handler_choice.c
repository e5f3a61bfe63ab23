/* SPDX-License-Identifier: Apache-2.0 */
/* Which handler a consumer runs: one, chosen before it runs. */
#include "base/error.h"
#include "consume/consumer.h"

#include <stdlib.h>
#include <string.h>

static semel_status choose_kind(struct semel_consumer *consumer, enum semel_handler_kind kind,
				semel_error *error)
{
	if (consumer->handler.kind != SEMEL_HANDLER_NONE)
		return semel_error_set(error, SEMEL_INVALID,
				       "the consumer of %s has a handler already; it can have one "
				       "only",
				       semel_text_shown(consumer->config.scope));
	consumer->handler.kind = kind;
	return SEMEL_OK;
}

semel_status semel_consumer_handle(semel_consumer *consumer, semel_handler handler, void *user,
				   semel_error *error)
{
	if (!handler)
		return semel_error_set(error, SEMEL_INVALID, "the handler is NULL");
	consumer->handler.function = handler;
	consumer->handler.user = user;
	return choose_kind(consumer, SEMEL_HANDLER_FUNCTION, error);
}

semel_status semel_consumer_use_sql(semel_consumer *consumer, const char *const *statements,
				    size_t count, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_SQL, error);
	if (status != SEMEL_OK)
		return status;
	handler->statements = semel_list_copy(statements, count);
	handler->statement_count = count;
	if (!handler->statements)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the statements");
	return consumer->store->driver->inbox->effect_prepare(consumer->store, statements, count,
							      error);
}

semel_status semel_consumer_use_outside(semel_consumer *consumer,
					const struct semel_outside_kind *kind, const char *target,
					semel_error *error)
{
	semel_status status = choose_kind(consumer, SEMEL_HANDLER_OUTSIDE, error);
	if (status != SEMEL_OK)
		return status;
	consumer->handler.outside = kind;
	consumer->handler.target = target ? strdup(target) : NULL;
	return semel_dispatch_open(consumer, error);
}

semel_status semel_consumer_pass_env(semel_consumer *consumer, const char *const *names,
				     size_t count, semel_error *error)
{
	struct semel_consumer_handler *handler = &consumer->handler;

	semel_list_free(handler->passed);
	handler->passed = semel_list_copy(names, count);
	semel_upcasters_pass_env(handler->upcasters, (const char *const *)handler->passed);
	return handler->passed ? SEMEL_OK
			       : semel_error_set(error, SEMEL_INTERNAL, "no memory for a list");
}

struct semel_upcasters *semel_consumer_upcasters(semel_consumer *consumer)
{
	return consumer->handler.upcasters;
}

semel_status semel_consumer_upcast(semel_consumer *consumer, const char *from_type,
				   const char *to_type, semel_upcaster upcaster, void *user,
				   semel_error *error)
{
	struct semel_upcast_step step = { .from_type = from_type,
					  .to_type = to_type,
					  .kind = SEMEL_UPCAST_C,
					  .function = upcaster,
					  .user = user };

	return semel_upcasters_add(consumer->handler.upcasters, &step, error);
}

void semel_consumer_handler_clear(struct semel_consumer_handler *handler)
{
	semel_upcasters_free(handler->upcasters);
	semel_list_free(handler->statements);
	semel_list_free(handler->passed);
	free(handler->target);
}
