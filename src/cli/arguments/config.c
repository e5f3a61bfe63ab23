/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the YAML by the tables of the command line: a key is the name of an option, a value is one
 * that the option accepts. Every error names the file, the line and the nearest valid key. */
#include "cli/arguments/config.h"

#include "cli/arguments/adopt.h"

#include "base/buffer.h"
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "base/url.h"
#include "cli/arguments/admin_options.h"
#include "cli/arguments/delivery_options.h"
#include "cli/arguments/yaml_bounds.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define KEYS_MAX   64
#define SHOWN_SIZE 128

struct reading {
	const char *path;
	yaml_document_t *document;
	struct semel_config *config;
	semel_error *error;
};

/* A key of the first level, and the function that reads its value. */
struct key {
	const char *name;
	semel_status (*read)(struct reading *reading, const yaml_node_t *value);
};

/* A bare 14, meant as days but read as seconds, would remove everything, so a unit is required. */
const struct semel_option semel_retention_rows[] = {
	{ .name = "outbox",
	  .kind = SEMEL_OPTION_DURATION,
	  .min = 1,
	  .unit_needed = true,
	  .default_value = "14d",
	  .help = "how long published events are kept for a replay" },
	{ .name = "inbox",
	  .kind = SEMEL_OPTION_DURATION,
	  .min = 1,
	  .unit_needed = true,
	  .default_value = "30d",
	  .help = "how long the ids of processed events are kept; at least as long as outbox" },
	{ .name = "dead-letters",
	  .kind = SEMEL_OPTION_DURATION,
	  .min = 1,
	  .unit_needed = true,
	  .default_value = "168h",
	  .help = "how long dead letters are kept" },
	{ 0 },
};

static const struct semel_option upcaster_options[] = {
	{ .name = "from", .kind = SEMEL_OPTION_TEXT, .required = true },
	{ .name = "to", .kind = SEMEL_OPTION_TEXT, .required = true },
	{ .name = "sql", .kind = SEMEL_OPTION_TEXT, .excludes = "step" },
	{ .name = "exec", .kind = SEMEL_OPTION_TEXT, .excludes = "step" },
	{ 0 },
};

/* ---- errors ---------------------------------------------------------------------------------- */

static int line_of(const yaml_node_t *node)
{
	return (int)node->start_mark.line + 1;
}

static semel_status config_error(const struct reading *reading, int line, const char *format, ...)
	SEMEL_PRINTF(3, 4);

static semel_status config_error(const struct reading *reading, int line, const char *format, ...)
{
	char text[SEMEL_ERROR_TEXT_MAX];
	va_list list;
	va_start(list, format);
	vsnprintf(text, sizeof text, format, list);
	va_end(list);
	return semel_error_set(reading->error, SEMEL_CONFIG, "%s:%d: %s", reading->path, line,
			       text);
}

static semel_status no_memory(semel_error *error)
{
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the config file");
}

static semel_status unknown_key(const struct reading *reading, const yaml_node_t *node,
				const char *const *known, size_t count)
{
	char shown[SHOWN_SIZE];
	const char *name =
		semel_word_redact((const char *)node->data.scalar.value, shown, sizeof shown);
	const char *nearest = semel_text_nearest(name, known, count);
	if (nearest)
		return config_error(reading, line_of(node), "unknown key \"%s\" (did you mean %s?)",
				    name, nearest);
	struct semel_buffer all = { 0 };
	for (size_t i = 0; i < count; i++)
		semel_buffer_printf(&all, "%s%s", i ? ", " : "", known[i]);
	semel_status status =
		config_error(reading, line_of(node), "unknown key \"%s\" (known keys: %s)", name,
			     all.data ? all.data : "");
	semel_buffer_free(&all);
	return status;
}

/* ---- walking the tree ------------------------------------------------------------------------ */

static bool is_null(const yaml_node_t *node)
{
	if (node->type != YAML_SCALAR_NODE || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
		return false;
	const char *value = (const char *)node->data.scalar.value;
	return !*value || strcmp(value, "~") == 0 || strcmp(value, "null") == 0;
}

static semel_status scalar(const struct reading *reading, const yaml_node_t *node,
			   const char **value_out)
{
	*value_out = (const char *)node->data.scalar.value;
	if (node->type != YAML_SCALAR_NODE)
		return config_error(reading, line_of(node),
				    "expected a single value, found a list or a mapping");
	if (strlen(*value_out) != node->data.scalar.length)
		return config_error(reading, line_of(node), "value contains a NUL byte");
	return SEMEL_OK;
}

typedef semel_status (*pair_visitor)(struct reading *reading, const yaml_node_t *key,
				     const yaml_node_t *value, void *user);

static semel_status each_pair(struct reading *reading, const yaml_node_t *node, pair_visitor visit,
			      void *user)
{
	if (is_null(node))
		return SEMEL_OK;
	if (node->type != YAML_MAPPING_NODE)
		return config_error(reading, line_of(node),
				    "expected a mapping (KEY: VALUE lines)");
	yaml_node_pair_t *pair = node->data.mapping.pairs.start;
	for (; pair < node->data.mapping.pairs.top; pair++) {
		const yaml_node_t *key = yaml_document_get_node(reading->document, pair->key);
		const yaml_node_t *value = yaml_document_get_node(reading->document, pair->value);
		const char *name = NULL;
		semel_status status = scalar(reading, key, &name);
		if (status != SEMEL_OK)
			return status;
		status = visit(reading, key, value, user);
		if (status != SEMEL_OK)
			return status;
	}
	return SEMEL_OK;
}

typedef semel_status (*item_visitor)(struct reading *reading, const yaml_node_t *item, void *user);

/* A single value is read as a list of one. */
static semel_status each_item(struct reading *reading, const yaml_node_t *node, item_visitor visit,
			      void *user)
{
	if (node->type != YAML_SEQUENCE_NODE)
		return visit(reading, node, user);
	semel_status status = SEMEL_OK;
	yaml_node_item_t *item = node->data.sequence.items.start;
	for (; status == SEMEL_OK && item < node->data.sequence.items.top; item++)
		status = visit(reading, yaml_document_get_node(reading->document, *item), user);
	return status;
}

/* ---- sections: keys by a table of options ---------------------------------------------------- */

static struct semel_setting *find_setting(const struct semel_section *section, const char *name)
{
	for (size_t i = 0; i < section->count; i++)
		if (strcmp(section->settings[i].name, name) == 0)
			return &section->settings[i];
	return NULL;
}

static struct semel_setting *add_setting(struct semel_section *section, const char *name)
{
	size_t size = (section->count + 1) * sizeof *section->settings;
	struct semel_setting *grown = realloc(section->settings, size);
	if (!grown)
		return NULL;
	section->settings = grown;
	struct semel_setting *setting = &grown[section->count];
	*setting = (struct semel_setting){ .name = strdup(name) };
	if (!setting->name)
		return NULL;
	section->count++;
	return setting;
}

static bool add_value(struct semel_setting *setting, const char *value)
{
	char **grown = realloc(setting->values, (setting->count + 1) * sizeof *grown);
	if (!grown)
		return false;
	setting->values = grown;
	grown[setting->count] = strdup(value);
	return grown[setting->count++] != NULL;
}

/* The key of a section that is being read. */
struct entry {
	const struct semel_option *option;
	struct semel_setting *setting;
};

static semel_status read_item(struct reading *reading, const yaml_node_t *node, void *user)
{
	const struct entry *entry = user;
	const char *value = NULL;
	semel_status status = scalar(reading, node, &value);
	if (status != SEMEL_OK)
		return status;
	const struct semel_option *option = entry->option;
	char what[256] = "true or false", shown[SHOWN_SIZE];
	bool good = option->kind == SEMEL_OPTION_FLAG
			    ? strcmp(value, "true") == 0 || strcmp(value, "false") == 0
			    : semel_option_accepts(option, value, what, sizeof what);
	if (!good)
		return config_error(
			reading, line_of(node), "invalid value \"%s\" for %s (expected %s)",
			semel_word_redact(value, shown, sizeof shown), option->name, what);
	return add_value(entry->setting, value) ? SEMEL_OK : no_memory(reading->error);
}

static void free_section(struct semel_section *section);
static semel_status read_section(struct reading *reading, const yaml_node_t *node,
				 const struct semel_option *options, struct semel_section *section);

/* Converts {from, to, sql|exec} to the form that --upcast takes. */
static semel_status read_upcaster(struct reading *reading, const yaml_node_t *node, void *user)
{
	const struct entry *entry = user;
	struct semel_section step = { 0 };
	struct semel_buffer text = { 0 };
	semel_status status = read_section(reading, node, upcaster_options, &step);
	if (status != SEMEL_OK)
		goto free_step;
	const char *sql = semel_section_text(&step, "sql");
	const char *exec = semel_section_text(&step, "exec");
	if (!sql && !exec) {
		status = config_error(reading, line_of(node), "an upcaster needs sql or exec");
		goto free_step;
	}
	semel_buffer_printf(&text, "%s=%s:%s:%s", semel_section_text(&step, "from"),
			    semel_section_text(&step, "to"), sql ? "sql" : "exec",
			    sql ? sql : exec);
	if (text.failed || !add_value(entry->setting, text.data))
		status = no_memory(reading->error);

free_step:
	semel_buffer_free(&text);
	free_section(&step);
	return status;
}

/* Keys whose name or form differs from the option's: lists read better in the plural. */
static const struct alias {
	const char *key, *option;
	item_visitor read;
} aliases[] = {
	{ "topics", "topic", read_item },
	{ "upcasters", "upcast", read_upcaster },
};

static const struct alias *find_alias(const char *key, const char *option)
{
	for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
		if ((key && strcmp(aliases[i].key, key) == 0) ||
		    (option && strcmp(aliases[i].option, option) == 0))
			return &aliases[i];
	return NULL;
}

static const struct semel_option *option_of_key(const struct semel_option *options, const char *key)
{
	const struct alias *alias = find_alias(key, NULL);
	const struct semel_option *option = semel_option_find(options, alias ? alias->option : key);
	return option && !option->command_line_only ? option : NULL;
}

static semel_status unknown_option_key(const struct reading *reading, const yaml_node_t *key,
				       const struct semel_option *options)
{
	const char *known[KEYS_MAX];
	size_t count = 0;
	for (; options->name && count < KEYS_MAX; options++) {
		const struct alias *alias = find_alias(NULL, options->name);
		if (!options->command_line_only)
			known[count++] = alias ? alias->key : options->name;
	}
	return unknown_key(reading, key, known, count);
}

struct target {
	const struct semel_option *options;
	struct semel_section *section;
};

static semel_status read_key(struct reading *reading, const yaml_node_t *key,
			     const yaml_node_t *value, void *user)
{
	const struct target *target = user;
	const char *name = (const char *)key->data.scalar.value;
	const struct semel_option *option = option_of_key(target->options, name);
	if (!option)
		return unknown_option_key(reading, key, target->options);
	if (find_setting(target->section, option->name))
		return config_error(reading, line_of(key), "duplicate key %s (keep one)", name);
	struct entry entry = { option, add_setting(target->section, option->name) };
	if (!entry.setting)
		return no_memory(reading->error);
	const struct alias *alias = find_alias(name, NULL);
	if (option->kind == SEMEL_OPTION_MULTI)
		return each_item(reading, value, alias ? alias->read : read_item, &entry);
	return read_item(reading, value, &entry);
}

static semel_status check_section(const struct reading *reading, const struct semel_option *options,
				  const struct semel_section *section)
{
	for (const struct semel_option *option = options; option->name; option++) {
		const struct semel_setting *setting = find_setting(section, option->name);
		const struct alias *alias = find_alias(NULL, option->name);
		if (option->required && (!setting || setting->count == 0))
			return config_error(reading, section->line, "missing key %s",
					    alias ? alias->key : option->name);
		for (const struct semel_option *other = option + 1;
		     setting && option->excludes && other->name; other++)
			if (other->excludes && strcmp(other->excludes, option->excludes) == 0 &&
			    find_setting(section, other->name))
				return config_error(reading, section->line,
						    "%s and %s are mutually exclusive (use one)",
						    option->name, other->name);
	}
	return SEMEL_OK;
}

static semel_status read_section(struct reading *reading, const yaml_node_t *node,
				 const struct semel_option *options, struct semel_section *section)
{
	section->line = line_of(node);
	struct target target = { options, section };
	semel_status status = each_pair(reading, node, read_key, &target);
	if (status != SEMEL_OK)
		return status;
	return check_section(reading, options, section);
}

/* ---- the keys of the file -------------------------------------------------------------------- */

static semel_status read_url(struct reading *reading, const yaml_node_t *value, char **url_out)
{
	const char *text = NULL;
	semel_status status = scalar(reading, value, &text);
	if (status != SEMEL_OK)
		return status;
	char shown[SHOWN_SIZE];
	semel_url_redact(text, shown, sizeof shown);
	if (!strchr(text, ':'))
		return config_error(reading, line_of(value),
				    "\"%s\" is not a URL (for example: sqlite:shop.db or "
				    "local:broker.db)",
				    shown);
	*url_out = strdup(text);
	return *url_out ? SEMEL_OK : no_memory(reading->error);
}

static semel_status read_store(struct reading *reading, const yaml_node_t *value)
{
	return read_url(reading, value, &reading->config->store);
}

static semel_status read_broker(struct reading *reading, const yaml_node_t *value)
{
	return read_url(reading, value, &reading->config->broker);
}

static semel_status read_relay(struct reading *reading, const yaml_node_t *value)
{
	reading->config->has_relay = true;
	return read_section(reading, value, semel_relay_rows, &reading->config->relay);
}

static semel_status read_adopt(struct reading *reading, const yaml_node_t *value)
{
	reading->config->has_adopt = true;
	return read_section(reading, value, semel_adopt_rows, &reading->config->adopt);
}

static semel_status read_admin(struct reading *reading, const yaml_node_t *value)
{
	reading->config->has_admin = true;
	return read_section(reading, value, semel_admin_rows, &reading->config->admin);
}

static semel_status read_subscription(struct reading *reading, const yaml_node_t *item, void *user)
{
	(void)user;
	struct semel_config *config = reading->config;
	size_t size = (config->subscription_count + 1) * sizeof *config->subscriptions;
	struct semel_section *grown = realloc(config->subscriptions, size);
	if (!grown)
		return no_memory(reading->error);
	config->subscriptions = grown;
	struct semel_section *section = &grown[config->subscription_count];
	*section = (struct semel_section){ 0 };
	config->subscription_count++;
	semel_status status = read_section(reading, item, semel_consume_rows, section);
	if (status != SEMEL_OK)
		return status;
	const char *scope = semel_section_text(section, "scope");
	if (semel_config_subscription(config, scope) != section)
		return config_error(reading, section->line,
				    "duplicate scope %s (each subscription needs its own scope)",
				    scope);
	return SEMEL_OK;
}

static semel_status read_subscriptions(struct reading *reading, const yaml_node_t *value)
{
	if (is_null(value))
		return SEMEL_OK;
	if (value->type != YAML_SEQUENCE_NODE)
		return config_error(reading, line_of(value),
				    "subscriptions must be a list (of items - scope: NAME)");
	return each_item(reading, value, read_subscription, NULL);
}

static int64_t retention_ms(const struct semel_section *section, const char *name)
{
	const char *text = semel_section_text(section, name);
	int64_t duration_ms = 0;
	if (!text)
		text = semel_option_find(semel_retention_rows, name)->default_value;
	return semel_duration_parse(text, &duration_ms) ? duration_ms : 0;
}

static void set_retention(struct semel_config *config, const struct semel_section *section)
{
	config->retention = (struct semel_retention){
		.outbox_ms = retention_ms(section, "outbox"),
		.inbox_ms = retention_ms(section, "inbox"),
		.dead_ms = retention_ms(section, "dead-letters"),
	};
}

static semel_status read_retention(struct reading *reading, const yaml_node_t *value)
{
	reading->config->has_retention = true;
	struct semel_section section = { 0 };
	semel_status status = read_section(reading, value, semel_retention_rows, &section);
	if (status != SEMEL_OK)
		goto free_section;
	set_retention(reading->config, &section);

free_section:
	free_section(&section);
	return status;
}

static const struct key file_keys[] = {
	{ "store", read_store }, { "broker", read_broker },
	{ "relay", read_relay }, { "subscriptions", read_subscriptions },
	{ "admin", read_admin }, { "retention", read_retention },
	{ "adopt", read_adopt },
};
#define FILE_KEYS (sizeof file_keys / sizeof *file_keys)

static semel_status read_file_key(struct reading *reading, const yaml_node_t *key,
				  const yaml_node_t *value, void *user)
{
	bool *seen = user;
	const char *name = (const char *)key->data.scalar.value;
	const char *known[FILE_KEYS];
	for (size_t i = 0; i < FILE_KEYS; i++) {
		known[i] = file_keys[i].name;
		if (strcmp(known[i], name) != 0)
			continue;
		if (seen[i])
			return config_error(reading, line_of(key), "duplicate key %s (keep one)",
					    name);
		seen[i] = true;
		return file_keys[i].read(reading, value);
	}
	return unknown_key(reading, key, known, FILE_KEYS);
}

/* ---- the file -------------------------------------------------------------------------------- */

static semel_status load(struct reading *reading, yaml_parser_t *parser,
			 yaml_document_t *document_out)
{
	if (yaml_parser_load(parser, document_out))
		return SEMEL_OK;
	return config_error(reading, (int)parser->problem_mark.line + 1, "invalid YAML: %s",
			    parser->problem ? parser->problem : "unreadable");
}

/* A second document would be ignored, so it is refused. */
static semel_status refuse_more(struct reading *reading, yaml_parser_t *parser)
{
	yaml_document_t document;
	semel_status status = load(reading, parser, &document);
	if (status != SEMEL_OK)
		return status;
	const yaml_node_t *root = yaml_document_get_root_node(&document);
	if (root)
		status = config_error(reading, line_of(root),
				      "a second document begins here, and only one is read "
				      "(remove the line --- and join them)");
	yaml_document_delete(&document);
	return status;
}

static semel_status read_document(struct reading *reading, yaml_parser_t *parser)
{
	yaml_document_t document;
	semel_status status = load(reading, parser, &document);
	if (status != SEMEL_OK)
		return status;
	reading->document = &document;
	const yaml_node_t *root = yaml_document_get_root_node(&document);
	bool seen[FILE_KEYS] = { false };
	if (root)
		status = each_pair(reading, root, read_file_key, seen);
	reading->document = NULL;
	yaml_document_delete(&document);
	if (status != SEMEL_OK || !root)
		return status;
	return refuse_more(reading, parser);
}

static semel_status read_text(struct reading *reading, struct semel_text text)
{
	struct semel_yaml_problem problem = semel_yaml_check(text);
	if (problem.what)
		return config_error(reading, problem.line, "%s%s%s",
				    problem.is_bound ? "" : "invalid YAML: ", problem.what,
				    problem.is_bound ? " (the config file was not loaded)" : "");
	yaml_parser_t parser;
	if (!yaml_parser_initialize(&parser))
		return no_memory(reading->error);
	yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.length);
	semel_status status = read_document(reading, &parser);
	yaml_parser_delete(&parser);
	return status;
}

/* Stops reading once the bound is exceeded. */
static semel_status read_bytes(struct reading *reading, FILE *file, struct semel_buffer *bytes)
{
	char chunk[4096];
	size_t got = 0;
	while (bytes->length <= SEMEL_YAML_SIZE_MAX &&
	       (got = fread(chunk, 1, sizeof chunk, file)) > 0)
		semel_buffer_append(bytes, chunk, got);
	if (ferror(file))
		return semel_error_set(reading->error, SEMEL_CONFIG,
				       "cannot read the config file %s: %s", reading->path,
				       strerror(errno));
	if (bytes->length > SEMEL_YAML_SIZE_MAX)
		return semel_error_set(reading->error, SEMEL_CONFIG,
				       "the config file %s is larger than 1 MiB", reading->path);
	return bytes->failed ? no_memory(reading->error) : SEMEL_OK;
}

static semel_status read_file(struct reading *reading)
{
	FILE *file = fopen(reading->path, "re");
	if (!file)
		return semel_error_set(reading->error, SEMEL_CONFIG,
				       "cannot read the config file %s: %s", reading->path,
				       strerror(errno));
	struct semel_buffer bytes = { 0 };
	semel_status status = read_bytes(reading, file, &bytes);
	fclose(file);
	if (status != SEMEL_OK)
		goto free_bytes;
	status = read_text(reading, semel_buffer_text(&bytes));
free_bytes:
	semel_buffer_free(&bytes);
	return status;
}

/* Parses the text; if its data is NULL, reads the file at path. path NULL: the defaults. */
static semel_status read_config(const char *path, struct semel_text text,
				struct semel_config **config_out, semel_error *error)
{
	*config_out = NULL;
	struct semel_config *config = calloc(1, sizeof *config);
	if (!config)
		return no_memory(error);
	set_retention(config, &(struct semel_section){ 0 });
	struct reading reading = { .path = path, .config = config, .error = error };
	semel_status status = SEMEL_OK;
	if (path)
		config->path = strdup(path);
	if (path && !config->path)
		status = no_memory(error);
	else if (path)
		status = text.data ? read_text(&reading, text) : read_file(&reading);
	if (status != SEMEL_OK) {
		semel_config_free(config);
		return status;
	}
	*config_out = config;
	return SEMEL_OK;
}

semel_status semel_config_read(const char *path, struct semel_config **config_out,
			       semel_error *error)
{
	return read_config(path, (struct semel_text){ NULL, 0 }, config_out, error);
}

semel_status semel_config_parse(const char *name, struct semel_text text,
				struct semel_config **config_out, semel_error *error)
{
	return read_config(name, text, config_out, error);
}

semel_status semel_config_fill(const struct semel_section *section, struct semel_args *args,
			       semel_error *error)
{
	for (size_t i = 0; i < section->count; i++) {
		const struct semel_setting *setting = &section->settings[i];
		if (!semel_args_fill(args, setting->name, (const char *const *)setting->values,
				     setting->count))
			return no_memory(error);
	}
	return SEMEL_OK;
}

const struct semel_section *semel_config_subscription(const struct semel_config *config,
						      const char *scope)
{
	for (size_t i = 0; scope && i < config->subscription_count; i++) {
		const char *other = semel_section_text(&config->subscriptions[i], "scope");
		if (other && strcmp(other, scope) == 0)
			return &config->subscriptions[i];
	}
	return NULL;
}

const char *semel_section_text(const struct semel_section *section, const char *name)
{
	const struct semel_setting *setting = find_setting(section, name);
	return setting && setting->count > 0 ? setting->values[0] : NULL;
}

static void free_section(struct semel_section *section)
{
	for (size_t i = 0; i < section->count; i++) {
		for (size_t j = 0; j < section->settings[i].count; j++)
			free(section->settings[i].values[j]);
		free(section->settings[i].values);
		free(section->settings[i].name);
	}
	free(section->settings);
}

void semel_config_free(struct semel_config *config)
{
	if (!config)
		return;
	for (size_t i = 0; i < config->subscription_count; i++)
		free_section(&config->subscriptions[i]);
	free(config->subscriptions);
	free_section(&config->relay);
	free_section(&config->admin);
	free_section(&config->adopt);
	free(config->store);
	free(config->broker);
	free(config->path);
	free(config);
}
