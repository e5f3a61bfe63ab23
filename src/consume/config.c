/* SPDX-License-Identifier: Apache-2.0 */
#include "consume/config.h"

#include "base/defaults.h"
#include "base/error.h"
#include "broker/broker.h"

#include <stdlib.h>
#include <string.h>

static const semel_consumer_options defaults = {
	.store = "sqlite:semel.db",
	.broker = "local:semel-broker.db",
	.attempts = 5,
	.immediate = 2,
	.first_delay_ms = 1000,
	.delay_max_ms = 60000,
	.batch = 500,
	.prefetch_bytes = SEMEL_PREFETCH_BYTES,
	.concurrency = 1,
	.timeout_ms = 30000,
	.lease_ms = 5000,
	.strict_wait_ms = 30000,
};

static void complete(semel_consumer_options *options)
{
	SEMEL_OR_DEFAULT(options, defaults, store);
	SEMEL_OR_DEFAULT(options, defaults, broker);
	SEMEL_OR_DEFAULT(options, defaults, attempts);
	SEMEL_OR_DEFAULT(options, defaults, immediate);
	SEMEL_OR_DEFAULT(options, defaults, first_delay_ms);
	SEMEL_OR_DEFAULT(options, defaults, delay_max_ms);
	SEMEL_OR_DEFAULT(options, defaults, batch);
	SEMEL_OR_DEFAULT(options, defaults, prefetch_bytes);
	SEMEL_OR_DEFAULT(options, defaults, concurrency);
	SEMEL_OR_DEFAULT(options, defaults, timeout_ms);
	SEMEL_OR_DEFAULT(options, defaults, lease_ms);
	SEMEL_OR_DEFAULT(options, defaults, strict_wait_ms);
}

semel_status semel_consumer_config_check(const semel_consumer_options *options, semel_error *error)
{
	if (semel_string_is_blank(options->scope))
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope is blank; name the subscription, e.g. billing");
	if (strcmp(options->scope, "relay") == 0)
		return semel_error_set(error, SEMEL_INVALID,
				       "the scope \"relay\" is reserved; choose another");
	if (!options->topics || !options->topics[0])
		return semel_error_set(error, SEMEL_INVALID,
				       "no topic is named; name one, e.g. order.events");
	for (size_t i = 0; options->topics[i]; i++)
		if (semel_string_is_blank(options->topics[i]))
			return semel_error_set(error, SEMEL_INVALID, "a topic is blank");
	if (options->order == SEMEL_ORDER_STRICT && options->guarantee == SEMEL_AT_LEAST_ONCE)
		return semel_error_set(error, SEMEL_CONFIG,
				       "strict order needs a record of processed events, and "
				       "at-least-once keeps none; choose effectively-once");
	if (options->order == SEMEL_ORDER_TOTAL && options->poison == SEMEL_POISON_PARK_KEY)
		return semel_error_set(error, SEMEL_CONFIG,
				       "total order cannot park a key aside; choose the poison "
				       "policy block (stop at the failed event) or skip");
	return SEMEL_OK;
}

/* ---- copies ---------------------------------------------------------------------------------- */

void semel_list_free(char **list)
{
	for (size_t i = 0; list && list[i]; i++)
		free(list[i]);
	free(list);
}

char **semel_list_copy(const char *const *list, size_t length)
{
	char **copy = calloc(length + 1, sizeof *copy);

	for (size_t i = 0; copy && i < length; i++) {
		copy[i] = strdup(list[i]);
		if (!copy[i]) {
			semel_list_free(copy);
			return NULL;
		}
	}
	return copy;
}

static size_t list_length(const char *const *list)
{
	size_t length = 0;

	while (list && list[length])
		length++;
	return length;
}

/* NULL stays NULL. False: no memory. */
static bool copy_string(const char *from, char **to)
{
	*to = from ? strdup(from) : NULL;
	return *to || !from;
}

static bool copy_text(const char *from, struct semel_text *to)
{
	char *copy = NULL;
	bool copied = copy_string(from, &copy);

	if (copy)
		*to = semel_text_from(copy, strlen(copy));
	return copied;
}

bool semel_consumer_config_copy(struct semel_consumer_config *config,
				const semel_consumer_options *options)
{
	config->options = *options;
	complete(&config->options);
	config->topics = semel_list_copy(options->topics, list_length(options->topics));
	return config->topics && copy_string(config->options.store, &config->store_url) &&
	       copy_string(config->options.broker, &config->broker_url) &&
	       copy_text(options->scope, &config->scope) &&
	       copy_text(options->handler_version, &config->handler_version) &&
	       copy_string(options->dedup_header, &config->dedup_header) &&
	       copy_string(options->id_header, &config->id_header) &&
	       copy_string(options->bind, &config->bind);
}

void semel_consumer_config_clear(struct semel_consumer_config *config)
{
	semel_list_free(config->topics);
	free(config->dedup_header);
	free(config->id_header);
	free(config->bind);
	free((char *)(uintptr_t)config->handler_version.data);
	free((char *)(uintptr_t)config->scope.data);
	free(config->store_url);
	free(config->broker_url);
}

/* ---- policies -------------------------------------------------------------------------------- */

bool semel_config_claims(const struct semel_consumer_config *config)
{
	return config->options.guarantee != SEMEL_AT_LEAST_ONCE;
}

bool semel_config_runs_once(const struct semel_consumer_config *config)
{
	return config->options.guarantee == SEMEL_AT_MOST_ONCE ||
	       (config->options.claim == SEMEL_CLAIM_SEPARATE && semel_config_claims(config));
}
