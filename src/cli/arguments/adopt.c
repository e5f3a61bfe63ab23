/* SPDX-License-Identifier: Apache-2.0 */
/* The defaults are those of Debezium's outbox event router, so an empty section is enough for a
 * table that the router has read. */
#include "cli/arguments/adopt.h"

#include "base/buffer.h"
#include "base/error.h"
#include "base/url.h"
#include "cli/arguments/config.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

static const struct semel_choice header_kinds[] = {
	{ "router", "the headers that Debezium's router sends" },
	{ "all", "the router's headers and Semel's" },
	{ 0 },
};
static const struct semel_choice existing_kinds[] = {
	{ "skip", "they are not sent" },
	{ "send", "they become events" },
	{ 0 },
};

static bool is_placement(const char *value)
{
	return value[0] != '\0' && value[0] != ':' && value[strlen(value) - 1] != ':';
}

const struct semel_option semel_adopt_rows[] = {
	{ .name = "table",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "NAME",
	  .default_value = "outbox",
	  .help = "outbox table of another product; each row inserted there becomes an event" },
	{ .name = "id",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .default_value = "id",
	  .help = "column of the event's id; also sent as the header id" },
	{ .name = "route-by",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .default_value = "aggregatetype",
	  .help = "column of the aggregate's type, which selects the topic" },
	{ .name = "key",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .default_value = "aggregateid",
	  .help = "column of the aggregate's id: the key; its events stay in order" },
	{ .name = "type",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .default_value = "type",
	  .help = "column of the event's type; if there is no such column, the aggregate's type" },
	{ .name = "payload",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .default_value = "payload",
	  .help = "column of the payload: json, jsonb, text or bytea" },
	{ .name = "time",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "COLUMN",
	  .help = "column of the event's time: a timestamp, or milliseconds since 1970" },
	{ .name = "topic",
	  .kind = SEMEL_OPTION_TEXT,
	  .argument = "NAME",
	  .default_value = "outbox.event.${routedByValue}",
	  .help = "topic of the events; ${routedByValue} is replaced by the value of route-by" },
	{ .name = "header",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "COLUMN:NAME",
	  .is_valid = is_placement,
	  .expected = "COLUMN or COLUMN:NAME",
	  .help = "send this column as a header" },
	{ .name = "headers",
	  .kind = SEMEL_OPTION_CHOICE,
	  .argument = "WHICH",
	  .choices = header_kinds,
	  .default_value = "router",
	  .help = "on Kafka: which headers are sent" },
	{ .name = "existing",
	  .kind = SEMEL_OPTION_CHOICE,
	  .argument = "WHAT",
	  .choices = existing_kinds,
	  .default_value = "skip",
	  .help = "what happens to rows that are in the table when it is adopted" },
	{ 0 },
};

static const char *value_of(const struct semel_section *section, const char *name)
{
	const char *value = semel_section_text(section, name);
	return value ? value : semel_option_find(semel_adopt_rows, name)->default_value;
}

static void put(struct semel_buffer *text, const char *name, const char *value)
{
	if (!value)
		return;
	semel_buffer_json(text, semel_text_of(name));
	semel_buffer_string(text, ":");
	semel_buffer_json(text, semel_text_of(value));
	semel_buffer_string(text, ",");
}

/* placement: "type:eventType", or "type" if the column and the header have the same name. */
static void put_header(struct semel_buffer *text, const char *placement)
{
	size_t length = strcspn(placement, ":");
	const char *name = placement[length] ? placement + length + 1 : placement;
	semel_buffer_string(text, "{\"column\":");
	semel_buffer_json(text, semel_text_from(placement, length));
	semel_buffer_string(text, ",\"name\":");
	semel_buffer_json(text, semel_text_of(name));
	semel_buffer_string(text, "}");
}

/* Writes the settings from which the trigger is created: all but the table and its existing
 * rows. */
static void put_mapping(struct semel_buffer *text, const struct semel_section *section)
{
	static const char *const names[] = { "id",      "route-by", "key",   "type",
					     "payload", "time",     "topic", "headers" };
	semel_buffer_string(text, "{");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		put(text, names[i], value_of(section, names[i]));
	semel_buffer_string(text, "\"header\":[");
	for (size_t i = 0; i < section->count; i++) {
		const struct semel_setting *setting = &section->settings[i];
		for (size_t j = 0; strcmp(setting->name, "header") == 0 && j < setting->count;
		     j++) {
			semel_buffer_string(text, j > 0 ? "," : "");
			put_header(text, setting->values[j]);
		}
	}
	semel_buffer_string(text, "]}");
}

typedef semel_status (*adoption_use)(struct semel_invocation *invocation, semel_store *store,
				     const struct semel_adoption *adoption);

static semel_status with_adoption(struct semel_invocation *invocation, adoption_use use)
{
	const struct semel_section *section = &invocation->config->adopt;
	struct semel_buffer mapping = { 0 };
	semel_store *store = NULL;
	if (!invocation->config->has_adopt)
		return SEMEL_OK;
	semel_status status = semel_store_open(invocation->store, &store, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	put_mapping(&mapping, section);
	struct semel_adoption adoption = { .table = value_of(section, "table"),
					   .mapping = mapping.data,
					   .existing = strcmp(value_of(section, "existing"),
							      "send") == 0 };
	if (mapping.failed)
		status = semel_error_set(&invocation->error, SEMEL_INTERNAL, "out of memory");
	else if (!store->driver->outbox->adopt)
		status = semel_error_set(&invocation->error, SEMEL_CONFIG,
					 "adopt: only a postgres:// store can adopt another outbox "
					 "(remove the section)");
	else
		status = use(invocation, store, &adoption);
	semel_buffer_free(&mapping);
	semel_store_close(store);
	return status;
}

static semel_status make(struct semel_invocation *invocation, semel_store *store,
			 const struct semel_adoption *adoption)
{
	bool fresh = false;
	semel_status status =
		store->driver->outbox->adopt(store, adoption, &fresh, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	printf("%s the outbox %s: rows inserted there become events\n",
	       fresh ? "adopted" : "already adopted:", adoption->table);
	return SEMEL_OK;
}

static semel_status check(struct semel_invocation *invocation, semel_store *store,
			  const struct semel_adoption *adoption)
{
	return store->driver->outbox->check_adoption(store, adoption, &invocation->error);
}

semel_status semel_adopt_apply(struct semel_invocation *invocation)
{
	return with_adoption(invocation, make);
}

semel_status semel_adopt_check(struct semel_invocation *invocation)
{
	return with_adoption(invocation, check);
}
