/* SPDX-License-Identifier: Apache-2.0 */
/* One rule for both URLs: an option overrides the environment, the environment the config file, and
 * the config file the default. The environment can name a file with the URL, which keeps a password
 * out of the environment. */
#include "cli/arguments/settings.h"

#include "base/error.h"
#include "base/text.h"
#include "base/url.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define URL_SIZE 4096

/* One of the two URLs, with what differs between them. */
struct setting {
	const char *option, *variable, *file_variable;
	const char *scheme; /* of the default, for error messages */
};

static const struct setting store_setting = { "store", "SEMEL_STORE", "SEMEL_STORE_FILE",
					      "sqlite" };
static const struct setting broker_setting = { "broker", "SEMEL_BROKER", "SEMEL_BROKER_FILE",
					       "local" };

static semel_status copy(const char *text, char **copy_out, semel_error *error)
{
	*copy_out = strdup(text);
	return *copy_out ? SEMEL_OK : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

static semel_status read_url_file(const struct setting *setting, const char *path, char **url_out,
				  semel_error *error)
{
	char text[URL_SIZE];
	FILE *file = fopen(path, "re");
	if (!file)
		return semel_error_set(error, SEMEL_CONFIG,
				       "cannot read %s, named by %s: %s (it must hold one URL)",
				       path, setting->file_variable, strerror(errno));
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	text[strcspn(text, "\r\n")] = '\0';
	if (semel_string_is_blank(text))
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s, named by %s, is empty (it must hold one URL)", path,
				       setting->file_variable);
	return copy(text, url_out, error);
}

static bool has_scheme(const char *url)
{
	size_t length = 0;
	while (isalnum((unsigned char)url[length]) ||
	       (length > 0 && strchr("+-.", url[length]) && url[length] != '\0'))
		length++;
	return length > 1 && url[length] == ':';
}

static semel_status check_url(const struct setting *setting, const char *url, const char *from,
			      semel_error *error)
{
	if (url && has_scheme(url))
		return SEMEL_OK;
	semel_status status = strncmp(from, "--", 2) == 0 ? SEMEL_USAGE : SEMEL_CONFIG;
	if (semel_string_is_blank(url))
		return semel_error_set(error, status, "%s is empty (for example: %s:%s.db)", from,
				       setting->scheme, "semel");
	char shown[URL_SIZE];
	if (!semel_url_redact(url, shown, sizeof shown))
		return semel_error_set(error, status,
				       "%s has no scheme (for example: %s:semel.db; the value "
				       "is not shown because it may contain a password)",
				       from, setting->scheme);
	return semel_error_set(error, status, "%s \"%s\" has no scheme (for a file: %s:%s)", from,
			       shown, setting->scheme, shown);
}

/* In a handler the default could be a different database than the consumer's, which was not passed
 * to it: no relay would publish what is written there. */
static semel_status take_default(const struct semel_args *args, const struct setting *setting,
				 char **url_out, semel_error *error)
{
	const char *withheld = getenv("SEMEL_WITHHELD");
	if (setting != &store_setting || !withheld || !*withheld)
		return copy(semel_args_text(args, setting->option), url_out, error);
	return semel_error_set(
		error, SEMEL_CONFIG,
		"no store given: %.40s is not passed to this handler (give --store, or "
		"start the consumer with --pass-env %.40s)",
		withheld, withheld);
}

static semel_status resolve(const struct semel_args *args, const struct setting *setting,
			    const char *from_config, char **url_out, semel_error *error)
{
	char option[32];
	snprintf(option, sizeof option, "--%s", setting->option);
	const char *from = option;
	const char *variable = getenv(setting->variable);
	const char *file = getenv(setting->file_variable);
	semel_status status = SEMEL_OK;
	if (semel_args_has(args, setting->option)) {
		status = copy(semel_args_text(args, setting->option), url_out, error);
	} else if (variable && *variable) {
		from = setting->variable;
		status = copy(variable, url_out, error);
	} else if (file && *file) {
		from = setting->file_variable;
		status = read_url_file(setting, file, url_out, error);
	} else if (from_config) {
		from = setting->option;
		status = copy(from_config, url_out, error);
	} else {
		status = take_default(args, setting, url_out, error);
	}
	if (status != SEMEL_OK)
		return status;
	return check_url(setting, *url_out, from, error);
}

static semel_status fill_from_config(struct semel_args *args, const struct semel_config *config,
				     semel_error *error)
{
	const struct semel_section *section = NULL;
	switch (semel_args_command(args)->config_part) {
	case SEMEL_CONFIG_PART_RELAY:
		section = &config->relay;
		break;
	case SEMEL_CONFIG_PART_SUBSCRIPTION:
		section = semel_config_subscription(config, semel_args_text(args, "scope"));
		break;
	case SEMEL_CONFIG_PART_ADMIN:
		section = &config->admin;
		break;
	case SEMEL_CONFIG_PART_NONE:
		break;
	}
	return section ? semel_config_fill(section, args, error) : SEMEL_OK;
}

semel_status semel_settings_resolve(struct semel_args *args, struct semel_settings *settings_out,
				    semel_error *error)
{
	*settings_out = (struct semel_settings){ 0 };
	const char *path = semel_args_text(args, "config");
	const char *variable = getenv("SEMEL_CONFIG");
	if (!path && variable && *variable)
		path = variable;
	semel_status status = semel_config_read(path, &settings_out->config, error);
	if (status != SEMEL_OK)
		return status;
	const struct semel_config *config = settings_out->config;
	status = resolve(args, &store_setting, config->store, &settings_out->store, error);
	if (status != SEMEL_OK)
		return status;
	status = resolve(args, &broker_setting, config->broker, &settings_out->broker, error);
	if (status != SEMEL_OK)
		return status;
	return fill_from_config(args, config, error);
}

void semel_settings_free(struct semel_settings *settings)
{
	semel_config_free(settings->config);
	free(settings->store);
	free(settings->broker);
}
