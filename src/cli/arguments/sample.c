/* SPDX-License-Identifier: Apache-2.0 */
/* The sample of a config file, written from the tables by which config files are parsed: it has
 * every key, and no other. */
#include "cli/arguments/admin_options.h"
#include "cli/arguments/adopt.h"
#include "cli/arguments/config.h"
#include "cli/arguments/delivery_options.h"

#include <string.h>

#define WIDTH 78

/* A sentence, wrapped after "# ". */
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
	for (const struct semel_choice *choice = option->choices; choice->name; choice++)
		semel_buffer_printf(text, "%s#   %s: %s\n", indent, choice->name, choice->meaning);
}

/* Commented out, with the default as the value. */
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
			    "# Config file of semel with every key. A key that is commented out "
			    "shows its default,\n# or an example. Durations: 500ms, 30s, 5m, "
			    "24h, 14d.\n\n"
			    "store: sqlite:semel.db          # or postgres://app@db/shop\n"
			    "broker: local:semel-broker.db   # or amqp://user@mq/\n\n"
			    "# If present: run a relay.\nrelay:\n");
	keys(text, "  ", semel_relay_rows);
	semel_buffer_string(text, "\n# One entry for each subscription.\nsubscriptions:\n"
				  "  - scope: audit\n    topics: [order.events]\n"
				  "    exec: \"cat >>audit.log; echo >>audit.log\"\n");
	keys(text, "    ", semel_consume_rows);
	semel_buffer_string(text, "\n# If present: run the admin server.\nadmin:\n");
	keys(text, "  ", semel_admin_rows);
	semel_buffer_string(text,
			    "\n# If present: rows of this table, in Debezium's layout, become "
			    "events (postgres:// only).\n# adopt:\n");
	keys(text, "  ", semel_adopt_rows);
	semel_buffer_string(text, "\n# If present: old rows are pruned every hour.\nretention:\n");
	keys(text, "  ", semel_retention_rows);
}
