/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/required_subscriptions.h"

#include "base/error.h"
#include "base/time.h"

#include <stdlib.h>
#include <string.h>

struct semel_subscribe_options semel_declaration_of(const char *scope, const char *const *topics)
{
	return (struct semel_subscribe_options){ .scope = scope,
						 .topics = topics,
						 .prefetch = 1,
						 .lease_ms = 1000,
						 .declare_only = true };
}

static const struct semel_setting *setting_of(const struct semel_section *section, const char *name)
{
	for (size_t i = 0; i < section->count; i++)
		if (strcmp(section->settings[i].name, name) == 0)
			return &section->settings[i];
	return NULL;
}

/* The caller frees the list; the names belong to the config. */
static const char **topics_of(const struct semel_section *section)
{
	const struct semel_setting *topic = setting_of(section, "topic");
	size_t count = topic ? topic->count : 0;
	const char **topics = calloc(count + 1, sizeof(topics[0]));
	for (size_t i = 0; topics && i < count; i++)
		topics[i] = topic->values[i];
	return topics;
}

semel_status semel_required_subscriptions_read(const struct semel_config *config,
					       struct semel_required_subscriptions *required_out,
					       semel_error *error)
{
	*required_out = (struct semel_required_subscriptions){
		.all = calloc(config->subscription_count + 1, sizeof(required_out->all[0])),
	};
	for (size_t i = 0; required_out->all && i < config->subscription_count; i++) {
		const struct semel_section *section = &config->subscriptions[i];
		const char *partitions = semel_section_text(section, "partitions");
		const char *delay_max = semel_section_text(section, "delay-max");
		const char **topics = topics_of(section);
		if (!topics)
			return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
		struct semel_subscribe_options *options = &required_out->all[required_out->count++];
		*options = semel_declaration_of(semel_section_text(section, "scope"), topics);
		options->partitions = partitions ? (uint32_t)strtoul(partitions, NULL, 10) : 0;
		options->bind = semel_section_text(section, "bind");
		options->inbox_ms = config->retention.inbox_ms;
		if (delay_max)
			(void)semel_duration_parse(delay_max, &options->delay_max_ms);
	}
	return required_out->all ? SEMEL_OK
				 : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

void semel_required_subscriptions_free(struct semel_required_subscriptions *required)
{
	for (size_t i = 0; i < required->count; i++)
		free((void *)(uintptr_t)required->all[i].topics);
	free(required->all);
}
