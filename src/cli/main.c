/* SPDX-License-Identifier: Apache-2.0 */
/* The program: parses the command line, resolves the settings, runs one command, and turns its
 * status into a line on stderr and an exit code.
 *
 * The room: arguments/ parses the command line, the environment and the config file by their
 * tables, and writes help and docs from them; commands/ has a file per command, with its options
 * and its row in commands/table.c; plays/ has what demo, drill and bench run in a sandbox; process/
 * has what belongs to the process: signals, output, progress, the service manager. A file here
 * includes seams and rules, but no driver and no library of a database or broker.
 *
 * To change here: a command or an option is a row of a table; parser, help, man pages, completion
 * and docs follow. Rules of delivery belong to the rooms below, not to a command. Names of
 * commands, options, members of --json and exit codes are a contract and stay. */
#include "base/error.h"
#include "base/sqlite_memory.h"
#include "cli/arguments/help.h"
#include "cli/arguments/secrets.h"
#include "cli/arguments/settings.h"
#include "cli/process/output.h"
#include "cli/process/signals.h"
#include "fault/failpoint.h"
#include "observe/log.h"
#include "observe/span.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <semel/version.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPANS_WAIT_MS      2000 /* how long to wait for a collector at exit */
#define THREAD_STACK_BYTES ((size_t)8 * 1024 * 1024)

/* If stderr were closed, a database file could get its descriptor, and messages would be written
 * into it. */
static void open_missing_descriptors(void)
{
	int fd = open("/dev/null", O_RDWR);
	while (fd >= 0 && fd <= STDERR_FILENO)
		fd = open("/dev/null", O_RDWR);
	if (fd > STDERR_FILENO)
		close(fd);
}

static semel_status print_help(const struct semel_command *command, semel_error *error)
{
	struct semel_buffer buffer = { 0 };
	semel_help_text(command, &buffer);
	return semel_output_print(&buffer, error);
}

static semel_status run_command(struct semel_args *args, semel_error *error)
{
	const struct semel_command *command = semel_args_command(args);
	struct semel_settings settings = { 0 };
	semel_status status = SEMEL_OK;
	if (!command || command->subcommands)
		return semel_args_check(args, error);
	if (semel_option_find(command->options, "grace"))
		semel_signals_expect();
	status = semel_settings_resolve(args, &settings, error);
	if (status != SEMEL_OK)
		goto free_settings;
	status = semel_args_check(args, error);
	if (status != SEMEL_OK)
		goto free_settings;

	struct semel_invocation invocation = {
		.args = args,
		.store = settings.store,
		.broker = settings.broker,
		.config = settings.config,
		.json = semel_option_find(command->options, "json") &&
			semel_args_flag(args, "json"),
	};
	if (semel_option_find(command->options, "grace"))
		semel_secrets_warn(&invocation);
	status = command->run(&invocation);
	*error = invocation.error;

free_settings:
	semel_settings_free(&settings);
	return status;
}

static semel_status run(int argc, char **argv, semel_error *error)
{
	semel_status status = semel_log_setup(SEMEL_LOG_INFO, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_failpoints_arm(getenv("SEMEL_FAILPOINT"), error);
	if (status != SEMEL_OK)
		return status;
	struct semel_args *args = NULL;
	status = semel_args_parse(argc, argv, semel_commands, &args, error);
	if (status != SEMEL_OK)
		return status;
	if (semel_args_flag(args, "help"))
		status = print_help(semel_args_command(args), error);
	else if (semel_args_flag(args, "version"))
		printf("semel %s\n", semel_version());
	else
		status = run_command(args, error);
	semel_args_free(args);
	return status;
}

/* Has the reader of stdout closed it? If an earlier write failed, errno no longer has the reason.
 */
static bool is_reader_gone(void)
{
	struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
	return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* It is not an error if the reader has closed our stdout; a full disk is one. */
static semel_status finish_output(semel_status status, semel_error *error)
{
	errno = 0;
	bool failed = fflush(stdout) != 0 || ferror(stdout);
	if (!failed || errno == EPIPE || status != SEMEL_OK || (errno == 0 && is_reader_gone()))
		return status;
	return semel_error_set(error,
			       errno == ENOSPC || errno == 0 ? SEMEL_STORAGE_FULL : SEMEL_OUTAGE,
			       "cannot write to standard output: %s",
			       errno ? strerror(errno) : "part of the output was lost");
}

/* Prints one line, whatever control characters the text has. */
static void print_error(const semel_error *error, semel_status status)
{
	char line[SEMEL_ERROR_TEXT_MAX];
	struct semel_buffer visible = { 0 };
	snprintf(line, sizeof line, "%s",
		 error->text[0] ? error->text : semel_status_sentence(status));
	for (char *at = line; *at; at++)
		if ((unsigned char)*at < ' ' || *at == 0x7f)
			*at = ' ';
	semel_buffer_visible(&visible, semel_text_of(line));
	fprintf(stderr, "semel: %s\n", visible.failed ? line : visible.data);
	semel_buffer_free(&visible);
}

/* Makes the allocator return the memory of a large batch to the system at once. */
static void limit_memory(void)
{
	mallopt(M_MMAP_THRESHOLD, 64 * 1024);
	mallopt(M_TRIM_THRESHOLD, 128 * 1024);
	semel_sqlite_limit_memory();
}

/* librabbitmq parses nested tables in headers by recursion, and one frame can need 3 MiB of stack.
 * Where the stack size is unlimited, a thread would get only 2 MiB. */
static void enlarge_stacks(void)
{
	pthread_attr_t attributes;
	size_t size = 0;
	pthread_attr_init(&attributes);
	if (pthread_attr_getstacksize(&attributes, &size) == 0 && size < THREAD_STACK_BYTES &&
	    pthread_attr_setstacksize(&attributes, THREAD_STACK_BYTES) == 0)
		(void)pthread_setattr_default_np(&attributes);
	pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv)
{
	static semel_error error; /* large, so not on the stack */
	open_missing_descriptors();
	limit_memory();
	enlarge_stacks();
	signal(SIGPIPE, SIG_IGN);
	semel_secrets_disable_core();
	semel_status status = run(argc, semel_secrets_hide(argc, argv), &error);
	semel_spans_flush(SPANS_WAIT_MS);
	semel_log_flush();
	if (status == SEMEL_STOPPED)
		status = SEMEL_OK;
	status = finish_output(status, &error);
	if (status != SEMEL_OK && status != SEMEL_PROBLEM_FOUND)
		print_error(&error, status);
	return semel_status_exit_code(status);
}
