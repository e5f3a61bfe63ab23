/* SPDX-License-Identifier: Apache-2.0 */
/* The sample of a config file, made from the same tables that the reader goes by: what is not in
 * them cannot be in the sample, and nothing is missing from it. */
#include "cli/arguments/admin_options.h"
#include "cli/arguments/adopt.h"
#include "cli/arguments/config.h"
#include "cli/arguments/delivery_options.h"

#include <string.h>

#define WIDTH 78

/* A sentence, wrapped behind "# ". */
static void explain(struct semel_buffer *text, const char *indent, const char *sentence)
{
	size_t used = 0;

	while (*sentence) {
		size_t length = strcspn(sentence, " ");
		if (used == 0 || used + 1 + length > WIDTH) {
			semel_buffer_printf(text, "%s%s#", used ? "\n" : "", indent);
			used = strlen(indent) + 1;
		}
		semel_buffer_printf(text, " %.*s", (int)length, sentence);
		used += 1 + length;
		sentence += length + strspn(sentence + length, " ");
	}
	semel_buffer_string(text, "\n");
}

static const char *example_of(const struct semel_option *option)
{
	if (option->default_value)
		return option->default_value;
	if (option->kind == SEMEL_OPTION_FLAG)
		return "true";
	return option->argument ? option->argument : "…";
}

static void choices_of(struct semel_buffer *text, const char *indent,
		       const struct semel_option *option)
{
	if (option->kind != SEMEL_OPTION_CHOICE)
		return;
	semel_buffer_printf(text, "%s# one of", indent);
	for (size_t i = 0; option->choices[i]; i++)
		semel_buffer_printf(text, "%s %s", i ? "," : "", option->choices[i]);
	semel_buffer_string(text, "\n");
}

/* Commented out: what stands there holds without it. */
static void keys(struct semel_buffer *text, const char *indent, const struct semel_option *options)
{
	for (; options->name; options++) {
		if (options->command_line_only)
			continue;
		explain(text, indent, options->help ? options->help : options->name);
		choices_of(text, indent, options);
		semel_buffer_printf(text,
				    options->kind == SEMEL_OPTION_MULTI ? "%s# %s: [\"%s\"]\n"
									: "%s# %s: \"%s\"\n",
				    indent, options->name, example_of(options));
	}
}

void semel_config_sample(struct semel_buffer *text)
{
	semel_buffer_string(text,
			    "# A config file of semel, with every key. What is commented out shows "
			    "its default,\n# or what it would look like. Durations: 500ms, 30s, "
			    "5m, 24h, 14d.\n\n"
			    "store: sqlite:semel.db          # or postgres://app@db/shop\n"
			    "broker: local:semel-broker.db   # or amqp://user@mq/\n\n"
			    "# Present: run a relay.\nrelay:\n");
	keys(text, "  ", semel_relay_rows);
	semel_buffer_string(text, "\n# One subscription each.\nsubscriptions:\n"
				  "  - scope: audit\n    topics: [order.events]\n"
				  "    exec: \"cat >>audit.log; echo >>audit.log\"\n");
	keys(text, "    ", semel_consume_rows);
	semel_buffer_string(text, "\n# Present: the admin server.\nadmin:\n");
	keys(text, "  ", semel_admin_rows);
	semel_buffer_string(text, "\n# Present: rows of this table, in Debezium's layout, become "
				  "events (postgres:// only).\n# adopt:\n");
	keys(text, "  ", semel_adopt_rows);
	semel_buffer_string(text, "\n# Present: old rows are pruned every hour.\nretention:\n");
	keys(text, "  ", semel_retention_rows);
}
