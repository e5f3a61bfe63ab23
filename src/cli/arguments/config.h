/* SPDX-License-Identifier: Apache-2.0 */
/* The config file: YAML whose keys are the options of the commands, checked against their tables.
 * Without a file it holds the defaults. */
#ifndef SEMEL_CLI_ARGUMENTS_CONFIG_H
#define SEMEL_CLI_ARGUMENTS_CONFIG_H

#include "base/buffer.h"
#include "cli/arguments/command.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How long the rows of each table are kept. */
struct semel_retention {
	int64_t outbox_ms, inbox_ms, dead_ms;
};

/* One key of a section with its values, in the form of the option of the same name. */
struct semel_setting {
	char *name;
	char **values;
	size_t count;
};

struct semel_section {
	struct semel_setting *settings;
	size_t count;
	int line;
};

struct semel_config {
	char *path;           /* NULL: no file */
	char *store, *broker; /* NULL: not in the file */
	bool has_relay, has_admin, has_retention, has_adopt;
	struct semel_section relay;          /* as the options of relay */
	struct semel_section adopt;          /* an outbox of another product */
	struct semel_section *subscriptions; /* each as the options of consume */
	size_t subscription_count;
	struct semel_section admin;
	struct semel_retention retention; /* never zero: defaults for missing keys */
};

/* The keys of the section retention. */
extern const struct semel_option semel_retention_rows[];

/* path NULL: the defaults. CONFIG: the error names the file, the line and the nearest valid key. */
semel_status semel_config_read(const char *path, struct semel_config **config_out,
			       semel_error *error);
/* The same from a text; name is used in errors. */
semel_status semel_config_parse(const char *name, struct semel_text text,
				struct semel_config **config_out, semel_error *error);
/* Sets the options of args that the command line does not set. */
semel_status semel_config_fill(const struct semel_section *section, struct semel_args *args,
			       semel_error *error);
/* The subscription of this scope, or NULL. */
const struct semel_section *semel_config_subscription(const struct semel_config *config,
						      const char *scope);
/* NULL if the section does not have the key. */
const char *semel_section_text(const struct semel_section *section, const char *name);
void semel_config_free(struct semel_config *config);

#endif
