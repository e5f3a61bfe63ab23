/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/arguments/secrets.h"

#include "base/url.h"
#include "cli/arguments/config.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SHOWN_SIZE 4096
#define FAULT_SIZE 512
#define GROUPS_MAX 256

static bool were_on_command_line; /* set before any thread starts */

/* ---- the list of processes ------------------------------------------------------------------- */

static char *url_in(char *word)
{
	char *equals = strncmp(word, "--", 2) == 0 ? strchr(word, '=') : NULL;
	return equals ? equals + 1 : word;
}

/* Replaces the URL by its redacted form, in place. */
static void overwrite(char *url)
{
	char shown[SHOWN_SIZE];
	size_t capacity = strlen(url);
	semel_url_redact(url, shown, sizeof shown);
	size_t length = strlen(shown) < capacity ? strlen(shown) : capacity;
	memcpy(url, shown, length);
	memset(url + length, '\0', capacity - length);
}

char **semel_secrets_hide(int argc, char **argv)
{
	static char **copy;
	copy = calloc((size_t)argc + 1, sizeof *copy);
	if (!copy)
		return argv;
	for (int i = 0; i < argc; i++) {
		char *url = url_in(argv[i]);
		copy[i] = argv[i];
		if (i == 0 || !semel_url_has_secret(url) || !(copy[i] = strdup(argv[i]))) {
			copy[i] = argv[i];
			continue;
		}
		overwrite(url);
		were_on_command_line = true;
	}
	return copy;
}

/* ---- core files ------------------------------------------------------------------------------ */

/* With a limit of 0 the kernel writes no core file, but still pipes the core to a program if
 * core_pattern names one. With a limit of 1 it does neither. The hard limit is unchanged, so that a
 * handler can enable core files for itself. */
void semel_secrets_disable_core(void)
{
	const char *wanted = getenv("SEMEL_CORE");
	struct rlimit limit;
	if ((wanted && strcmp(wanted, "1") == 0) || getrlimit(RLIMIT_CORE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max == 0 ? 0 : 1;
	(void)setrlimit(RLIMIT_CORE, &limit);
}

/* ---- files ----------------------------------------------------------------------------------- */

struct fault {
	char text[FAULT_SIZE];   /* "/etc/semel/token can be read by every user" */
	char remedy[FAULT_SIZE]; /* the command that repairs it */
};

/* A service often reads a file that belongs to root through the file's group. */
static bool is_our_group(gid_t group)
{
	gid_t groups[GROUPS_MAX];
	int count = getgroups(GROUPS_MAX, groups);
	if (group == 0 || group == getegid())
		return true;
	for (int i = 0; i < count; i++)
		if (groups[i] == group)
			return true;
	return false;
}

/* True if only root, our user and a group of ours can read the file, and only root and our user can
 * change it; also true if there is no such file. */
static bool is_safe(const char *path, struct fault *fault_out)
{
	struct stat file;
	const char *fault = NULL;
	char repair[32] = "chmod 600";
	if (stat(path, &file) != 0 || !S_ISREG(file.st_mode))
		return true;
	if (file.st_uid != 0 && file.st_uid != geteuid()) {
		fault = "belongs to another user, who can change it";
		snprintf(repair, sizeof repair, "chown %u", (unsigned)geteuid());
	} else if (file.st_mode & S_IWOTH) {
		fault = "can be changed by every user";
	} else if (file.st_mode & S_IROTH) {
		fault = "can be read by every user";
	} else if (file.st_mode & S_IWGRP) {
		fault = "can be changed by its group";
		snprintf(repair, sizeof repair, "chmod g-w");
	} else if ((file.st_mode & S_IRGRP) && !is_our_group(file.st_gid)) {
		fault = "can be read by a group that this process is not in";
	}
	if (!fault)
		return true;
	if (repair[2] == 'm' /* not chown */ && (file.st_mode & S_IRGRP) &&
	    file.st_uid != geteuid() && is_our_group(file.st_gid))
		snprintf(repair, sizeof repair, "chmod 640"); /* its group is ours, and reads it */
	snprintf(fault_out->text, sizeof fault_out->text, "%.300s %s", path, fault);
	snprintf(fault_out->remedy, sizeof fault_out->remedy, "%s %.300s", repair, path);
	return false;
}

struct inspection {
	const struct semel_examination *examination; /* NULL: faults are logged */
	unsigned safe;
};

static void inspect_file(struct inspection *inspection, const char *path)
{
	struct fault fault;
	if (!path || !*path)
		return;
	if (is_safe(path, &fault)) {
		inspection->safe++;
		return;
	}
	if (inspection->examination) {
		semel_examination_report(inspection->examination, SEMEL_CHECK_SECRET_FILES,
					 SEMEL_SEVERITY_ADVICE, fault.text, fault.remedy);
		return;
	}
	char text[2 * FAULT_SIZE + 16];
	snprintf(text, sizeof text, "%s (run: %s)", fault.text, fault.remedy);
	semel_log(SEMEL_LOG_WARN, "a file with a secret is accessible to other users",
		  &(struct semel_log_fields){ .error = text });
}

static void inspect_environment(struct inspection *inspection)
{
	static const char *const names[] = { "SEMEL_STORE_FILE", "SEMEL_BROKER_FILE",
					     "SEMEL_KAFKA_PASSWORD_FILE",
					     "SEMEL_ADMIN_TOKEN_FILE" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		inspect_file(inspection, getenv(names[i]));
}

static void inspect_url(struct inspection *inspection, const char *text)
{
	static const char *const names[] = { "key", "ssl.key.location", "sasl.password-file",
					     "ssl.key.password-file" };
	struct semel_url url = { 0 };
	if (semel_url_parse(text, &url, NULL) == SEMEL_OK)
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			inspect_file(inspection, semel_url_param(&url, names[i]));
	semel_url_free(&url);
}

static bool has_secret(const struct semel_config *config)
{
	bool has = (config->store && semel_url_has_secret(config->store)) ||
		   (config->broker && semel_url_has_secret(config->broker));
	for (size_t i = 0; !has && i < config->subscription_count; i++) {
		const char *url = semel_section_text(&config->subscriptions[i], "http");
		has = url && semel_url_has_secret(url);
	}
	return has;
}

/* Inspects the file that an option of the admin server names, on the command line or in the config
 * file. */
static void inspect_option(struct inspection *inspection, const struct semel_invocation *invocation,
			   const char *name)
{
	const struct semel_command *command = semel_args_command(invocation->args);
	bool own = semel_option_find(command->options, name) != NULL;
	inspect_file(inspection, own ? semel_args_text(invocation->args, name)
				     : semel_section_text(&invocation->config->admin, name));
}

static void inspect_files(struct inspection *inspection, const struct semel_invocation *invocation)
{
	inspect_environment(inspection);
	inspect_url(inspection, invocation->store);
	inspect_url(inspection, invocation->broker);
	inspect_option(inspection, invocation, "token-file");
	inspect_option(inspection, invocation, "tls-key");
	if (invocation->config->path && has_secret(invocation->config))
		inspect_file(inspection, invocation->config->path);
}

void semel_secrets_warn(const struct semel_invocation *invocation)
{
	struct inspection inspection = { 0 };
	if (were_on_command_line)
		semel_log(SEMEL_LOG_WARN, "URL with a secret on the command line",
			  &(struct semel_log_fields){
				  .detail = "every local user could read it until Semel hid it "
					    "(use SEMEL_STORE_FILE, SEMEL_BROKER_FILE or "
					    "--config)" });
	inspect_files(&inspection, invocation);
}

void semel_secrets_examine(const struct semel_invocation *invocation,
			   const struct semel_examination *examination)
{
	struct inspection inspection = { .examination = examination };
	inspect_files(&inspection, invocation);
	if (inspection.safe > 0)
		semel_examination_fine(examination, SEMEL_CHECK_SECRET_FILES,
				       "%u file%s with secrets %s not accessible to other users",
				       inspection.safe, inspection.safe == 1 ? "" : "s",
				       inspection.safe == 1 ? "is" : "are");
}
