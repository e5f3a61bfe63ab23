/* SPDX-License-Identifier: Apache-2.0 */
/* `semel top`: the numbers of the admin page in a terminal. */
#include "cli/commands/top/top.h"
#include "admin/dashboard.h"
#include "base/env.h"
#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/admin_options.h"
#include "cli/process/signals.h"
#include "store/store.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define GRACE_MS 10000
#define ENTER    "\033[?1049h\033[?25l"
#define LEAVE    "\033[?25h\033[?1049l"

/* ---- the terminal, by escape sequences that every terminal understands ----------------------- */

static struct termios saved;
static bool keys; /* the keyboard mode was changed too */

/* Until leave_terminal the terminal shows the alternate screen without a cursor, and keys are read
 * without waiting for a newline. False: stdout is not a terminal. */
static bool enter_terminal(void)
{
	struct termios ours;

	if (!isatty(STDOUT_FILENO))
		return false;
	keys = tcgetattr(STDIN_FILENO, &saved) == 0;
	if (keys) {
		ours = saved;
		ours.c_lflag &= (tcflag_t) ~(ICANON | ECHO);
		ours.c_cc[VMIN] = 0;
		ours.c_cc[VTIME] = 0;
		ours.c_cc[VSUSP] = _POSIX_VDISABLE; /* a stopped program would leave the shell on
						       the alternate screen */
		keys = tcsetattr(STDIN_FILENO, TCSANOW, &ours) == 0;
	}
	fputs(ENTER, stdout);
	fflush(stdout);
	return true;
}

static void leave_terminal(void)
{
	fputs(LEAVE, stdout);
	fflush(stdout);
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &saved);
}

struct size {
	int columns, rows;
};

static struct size size_of_terminal(void)
{
	struct winsize size = { 0 };

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
		return (struct size){ .columns = 80, .rows = 24 };
	return (struct size){ .columns = size.ws_col, .rows = size.ws_row };
}

/* How many bytes of the line fit the width; continuation bytes take no column. */
static size_t bytes_within(const char *line, size_t length, int columns)
{
	size_t at = 0;
	int used = 0;

	for (; at < length; at++) {
		if (((unsigned char)line[at] & 0xC0) == 0x80)
			continue;
		if (used == columns)
			break;
		used++;
	}
	return at;
}

/* Shows as many lines as fit, each cut to the width. */
static void show_lines(const char *lines, struct size size)
{
	fputs("\033[H", stdout);
	for (int row = 0; row < size.rows && *lines; row++) {
		size_t length = strcspn(lines, "\n");
		size_t shown = bytes_within(lines, length, size.columns);
		printf("%s%.*s\033[K", row > 0 ? "\r\n" : "", (int)shown, lines);
		lines += length + (lines[length] == '\n');
	}
	fputs("\033[J", stdout);
	fflush(stdout);
}

/* Does not wait. */
static bool is_quit_pressed(void)
{
	char pressed[64];
	bool quit = false;

	while (keys) {
		ssize_t count = read(STDIN_FILENO, pressed, sizeof pressed);
		if (count <= 0)
			break;
		quit = quit || memchr(pressed, 'q', (size_t)count) ||
		       memchr(pressed, 'Q', (size_t)count);
	}
	return quit;
}

/* ---- the command ----------------------------------------------------------------------------- */

static int resized = -1; /* an eventfd that SIGWINCH writes to */

static void note_size(int number)
{
	uint64_t one = 1;
	ssize_t written = write(resized, &one, sizeof one);

	(void)number;
	(void)written; /* if it fails, one is still unread, which is enough */
}

static void stop(void *wake)
{
	semel_wake_notify(wake);
}

/* Waits until the interval is over. False: q or a signal has ended it. A new size is drawn at
 * once. */
static bool wait_interval(struct semel_wake *wake, int64_t interval_ms, const char *lines)
{
	const struct semel_env *env = semel_env_system();
	int64_t until_ms = semel_steady_ms(env) + interval_ms;

	for (;;) {
		uint64_t sizes = 0;
		int64_t left_ms = until_ms - semel_steady_ms(env);
		if (semel_wake_is_notified(wake) || is_quit_pressed())
			return false;
		if (left_ms <= 0)
			return true;
		semel_wake_sleep(wake, left_ms);
		if (read(resized, &sizes, sizeof sizes) > 0)
			show_lines(lines, size_of_terminal());
	}
}

static void show_until_end(struct semel_dashboard_reader *reader, struct semel_wake *wake,
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
			show_lines(lines.data, size_of_terminal());
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
	if (!enter_terminal())
		goto close_resized;
	semel_wake_watch_fd(wake, resized);
	if (isatty(STDIN_FILENO))
		semel_wake_watch_fd(wake, STDIN_FILENO);
	sigaction(SIGWINCH, &action, NULL);
	semel_signals_watch(stop, wake, GRACE_MS);
	show_until_end(reader, wake, semel_args_duration_ms(invocation->args, "interval"));
	semel_signals_forget();
	signal(SIGWINCH, SIG_DFL);
	leave_terminal();

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
	return drawn ? SEMEL_OK
		     : semel_error_set(&invocation->error, SEMEL_INTERNAL, "out of memory");
}

/* When the numbers are shown once, an unreachable store is an error; on a terminal it may become
 * reachable. */
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
	.group = SEMEL_GROUP_OPERATE,
	.summary = "show waiting events, lags and dead letters in a terminal",
	.options = options,
	.details =
		"The numbers of the admin server's page: the outbox, every subscription with its "
		"lag and how fast it changes, dead letters, and why the system is not ready. They "
		"are read from store and broker; no server has to run. If the output is not a "
		"terminal, or with --json, they are printed once.",
	.examples = examples,
};
