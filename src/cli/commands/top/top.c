/* SPDX-License-Identifier: Apache-2.0 */
/* `semel top`: the numbers of the admin page in a terminal. */
#include "cli/commands/top/top.h"
#include "admin/dashboard_reader.h"
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/admin_options.h"
#include "cli/process/signals.h"
#include "store/store.h"

#include <signal.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define GRACE_MS 10000

static int resized = -1; /* an eventfd that SIGWINCH writes to */

static void note_size(int number)
{
	uint64_t one = 1;
	ssize_t written = write(resized, &one, sizeof one);

	(void)number;
	(void)written; /* one that was not read yet is enough */
}

static void stop(void *wake)
{
	semel_wake_notify(wake);
}

/* Until the interval is over, or a key or a signal ends it. A new size is drawn at once. */
static bool wait_interval(struct semel_wake *wake, int64_t interval_ms, const char *lines)
{
	const struct semel_env *env = semel_env_system();
	int64_t until_ms = semel_steady_ms(env) + interval_ms;

	for (;;) {
		uint64_t sizes = 0;
		int64_t left_ms = until_ms - semel_steady_ms(env);
		if (semel_wake_is_notified(wake) || semel_top_is_left())
			return false;
		if (left_ms <= 0)
			return true;
		semel_wake_sleep(wake, left_ms);
		if (read(resized, &sizes, sizeof sizes) > 0)
			semel_top_show(lines, semel_top_size());
	}
}

static void keep_showing(struct semel_dashboard_reader *reader, struct semel_wake *wake,
			 int64_t interval_ms)
{
	struct semel_buffer dashboards[2] = { 0 }, lines = { 0 };
	bool more = true;

	for (int at = 0; more; at = !at) {
		const struct semel_buffer *before = &dashboards[!at];
		semel_buffer_clear(&dashboards[at]);
		semel_buffer_clear(&lines);
		semel_dashboard_reader_write_json(reader, &dashboards[at]);
		if (!dashboards[at].failed)
			(void)semel_top_draw(before->data, dashboards[at].data, &lines);
		semel_buffer_string(&lines, "\nq: quit");
		if (!lines.failed)
			semel_top_show(lines.data, semel_top_size());
		more = wait_interval(wake, interval_ms, lines.failed ? "" : lines.data);
	}
	semel_buffer_free(&dashboards[0]);
	semel_buffer_free(&dashboards[1]);
	semel_buffer_free(&lines);
}

static semel_status show_on_terminal(struct semel_invocation *invocation,
				     struct semel_dashboard_reader *reader)
{
	struct sigaction action = { .sa_handler = note_size, .sa_flags = SA_RESTART };
	struct semel_wake *wake = NULL;
	semel_status status = semel_wake_new(&wake, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	resized = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (!semel_top_enter())
		goto close_resized;
	semel_wake_watch_fd(wake, resized);
	if (isatty(STDIN_FILENO))
		semel_wake_watch_fd(wake, STDIN_FILENO);
	sigaction(SIGWINCH, &action, NULL);
	semel_signals_watch(stop, wake, GRACE_MS);
	keep_showing(reader, wake, semel_args_duration_ms(invocation->args, "interval"));
	semel_signals_forget();
	signal(SIGWINCH, SIG_DFL);
	semel_top_leave();

close_resized:
	close(resized);
	semel_wake_free(wake);
	return status;
}

static semel_status show_once(struct semel_invocation *invocation,
			      struct semel_dashboard_reader *reader)
{
	struct semel_buffer dashboard = { 0 }, lines = { 0 };

	semel_dashboard_reader_write_json(reader, &dashboard);
	bool drawn = !dashboard.failed &&
		     (invocation->json || semel_top_draw(NULL, dashboard.data, &lines)) &&
		     !lines.failed;
	if (drawn && invocation->json)
		puts(dashboard.data);
	else if (drawn)
		fputs(lines.data, stdout);
	semel_buffer_free(&dashboard);
	semel_buffer_free(&lines);
	return drawn ? SEMEL_OK : semel_error_set(&invocation->error, SEMEL_INTERNAL, "no memory");
}

/* Once, an unreachable store is an error; on a terminal it may come back. */
static semel_status check_store(struct semel_invocation *invocation, bool once)
{
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, &invocation->error);

	semel_store_close(store);
	return once || status == SEMEL_CONFIG ? status : SEMEL_OK;
}

static semel_status run(struct semel_invocation *invocation)
{
	struct semel_admin_options options = semel_dashboard_options_read(invocation);
	struct semel_dashboard_reader *reader = NULL;
	bool once = invocation->json || !isatty(STDOUT_FILENO);
	semel_status status = check_store(invocation, once);
	if (status != SEMEL_OK)
		return status;
	status = semel_dashboard_reader_open(&options, &reader, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	status = once ? show_once(invocation, reader) : show_on_terminal(invocation, reader);
	semel_dashboard_reader_close(reader);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "interval",
	  .kind = SEMEL_OPTION_DURATION,
	  .command_line_only = true,
	  .argument = "DURATION",
	  .min = 1000,
	  .max = 3600000,
	  .default_value = "2s",
	  .help = "refresh the numbers this often" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel top", "until q or Ctrl-C" },
	{ "semel top --json", "print the numbers once, as the page receives them" },
	{ 0 },
};

const struct semel_command semel_command_top = {
	.name = "top",
	.run = run,
	.group = SEMEL_GROUP_CARE,
	.summary = "show waiting events, lags and dead letters in a terminal",
	.options = options,
	.details =
		"The numbers of the admin server's page: the outbox, every subscription with its "
		"lag and how fast it changes, dead letters, and why the system is not ready. They "
		"are read from store and broker; no server has to run. If the output is not a "
		"terminal, or with --json, they are printed once.",
	.examples = examples,
};
