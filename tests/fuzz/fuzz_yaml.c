/* SPDX-License-Identifier: Apache-2.0 */
/* Config files of any bytes: what is taken holds values that its options accept; what is refused
 * says in which line and why; and nothing is nested, or repeated, beyond the bounds. */
#include "cli/arguments/admin_options.h"
#include "cli/arguments/adopt.h"
#include "cli/arguments/config.h"
#include "cli/arguments/delivery_options.h"
#include "cli/arguments/yaml_bounds.h"

#include "fuzz.h"

#include <yaml.h>

#define NAME "f"

/* Their files serve and adopt, too; a row of each kind is enough here. */
const struct semel_option semel_admin_rows[] = {
	{ .name = "listen", .kind = SEMEL_OPTION_TEXT },
	{ .name = "redact", .kind = SEMEL_OPTION_MULTI },
	{ 0 },
};
const struct semel_option semel_adopt_rows[] = {
	{ .name = "table", .kind = SEMEL_OPTION_TEXT, .required = true },
	{ 0 },
};

static void check_section(const struct semel_section *section, const struct semel_option *options)
{
	for (size_t i = 0; i < section->count; i++) {
		const struct semel_setting *setting = &section->settings[i];
		const struct semel_option *option = semel_option_find(options, setting->name);
		PROMISE(option && !option->command_line_only);
		PROMISE(setting->count <= SEMEL_YAML_NODES_MAX);
		PROMISE(setting->count <= 1 || option->kind == SEMEL_OPTION_MULTI);
		for (size_t j = 0; j < setting->count; j++) {
			char what[256];
			PROMISE(option->kind == SEMEL_OPTION_FLAG ||
				semel_option_accepts(option, setting->values[j], what,
						     sizeof what));
		}
	}
}

static void check_config(const struct semel_config *config)
{
	check_section(&config->relay, semel_relay_rows);
	check_section(&config->admin, semel_admin_rows);
	check_section(&config->adopt, semel_adopt_rows);
	for (size_t i = 0; i < config->subscription_count; i++) {
		const struct semel_section *section = &config->subscriptions[i];
		const char *scope = semel_section_text(section, "scope");
		check_section(section, semel_consume_rows);
		PROMISE(scope && semel_config_subscription(config, scope) == section);
		PROMISE(semel_section_text(section, "topic"));
	}
	PROMISE(config->retention.outbox_ms > 0 && config->retention.inbox_ms > 0 &&
		config->retention.dead_ms > 0);
}

/* The lines of the text, as many as there can be at most. */
static long count_lines(struct semel_text text)
{
	long lines = 1;
	for (size_t i = 0; i < text.length; i++)
		lines += text.data[i] == '\n' || text.data[i] == '\r' || text.data[i] >= 0x80;
	return lines;
}

static void check_refusal(struct semel_text text, semel_status status, const semel_error *error)
{
	PROMISE(status == SEMEL_CONFIG && error->status == SEMEL_CONFIG);
	PROMISE(strncmp(error->text, NAME ":", 2) == 0);
	char *end = NULL;
	long line = strtol(error->text + 2, &end, 10);
	PROMISE(line >= 1 && line <= count_lines(text) + 1);
	PROMISE(strncmp(end, ": ", 2) == 0 && end[2] != '\0');
}

/* What passes the check can be made a tree that keeps the bounds. */
static void check_bounds(struct semel_text text)
{
	struct semel_yaml_problem problem = semel_yaml_check(text);
	yaml_parser_t parser;
	yaml_document_t document;
	if (problem.what) {
		PROMISE(problem.line >= 1);
		return;
	}
	PROMISE(yaml_parser_initialize(&parser));
	yaml_parser_set_input_string(&parser, text.data, text.length);
	if (yaml_parser_load(&parser, &document)) {
		PROMISE(document.nodes.top - document.nodes.start <= SEMEL_YAML_NODES_MAX);
		yaml_document_delete(&document);
	}
	yaml_parser_delete(&parser);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = fuzz_copy(data, size);
	struct semel_text text = semel_text_from(copy, size);
	struct semel_config *config = NULL;
	semel_error error = { 0 };
	check_bounds(text);
	semel_status status = semel_config_parse(NAME, text, &config, &error);
	PROMISE((status == SEMEL_OK) == (config != NULL));
	if (config)
		check_config(config);
	else
		check_refusal(text, status, &error);
	semel_config_free(config);
	free(copy);
	return 0;
}
