/* SPDX-License-Identifier: Apache-2.0 */
/* One envelope per line on stdout. A line is written as a whole, under a lock that all instances
 * share, and directly to the descriptor: stdio would keep the rest of a failed write and write it
 * again. */
#include "base/error.h"
#include "base/sigpipe.h"
#include "consume/handler.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct print_handler {
	struct semel_outside outside;
	struct semel_buffer line;
	int64_t timeout_ms;
};

static pthread_mutex_t stdout_lock = PTHREAD_MUTEX_INITIALIZER;
static bool line_broken; /* a write failed in the middle of a line; under the lock */

static semel_status print_open(const struct semel_outside_options *options,
			       struct semel_outside **outside_out, semel_error *error)
{
	struct print_handler *handler = calloc(1, sizeof *handler);
	if (handler == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "out of memory for a handler");
	handler->outside.kind = &semel_outside_print;
	handler->timeout_ms = options->timeout_ms;
	*outside_out = &handler->outside;
	return SEMEL_OK;
}

/* Another process may have made the descriptor, which the terminal shares, non-blocking. */
static bool wait_until_writable(int64_t timeout_ms)
{
	struct pollfd writable = { .fd = STDOUT_FILENO, .events = POLLOUT };
	int wait_ms = timeout_ms > 0 && timeout_ms < 3600000 ? (int)timeout_ms : -1;
	int ready;
	do
		ready = poll(&writable, 1, wait_ms);
	while (ready < 0 && errno == EINTR);
	if (ready == 0)
		errno = ETIMEDOUT;
	return ready > 0;
}

static bool write_line(struct semel_text line, int64_t timeout_ms)
{
	size_t written = 0;
	while (written < line.length) {
		ssize_t put = write(STDOUT_FILENO, line.data + written, line.length - written);
		if (put >= 0)
			written += (size_t)put;
		else if (errno == EAGAIN && !wait_until_writable(timeout_ms))
			break;
		else if (errno != EAGAIN && errno != EINTR)
			break;
	}
	if (written > 0)
		line_broken = written < line.length;
	return written == line.length;
}

static bool print_line(struct print_handler *handler)
{
	struct semel_sigpipe sigpipe;
	semel_sigpipe_block(&sigpipe);
	pthread_mutex_lock(&stdout_lock);
	bool written = fflush(stdout) == 0 &&
		       (!line_broken || write_line(SEMEL_TEXT("\n"), handler->timeout_ms)) &&
		       write_line(semel_buffer_text(&handler->line), handler->timeout_ms);
	pthread_mutex_unlock(&stdout_lock);
	semel_sigpipe_restore(&sigpipe);
	return written;
}

static void print_run(struct semel_outside *outside, const struct semel_event *event,
		      uint32_t attempt, struct semel_outcome *outcome_out)
{
	struct print_handler *handler = (struct print_handler *)outside;
	(void)attempt;
	*outcome_out = (struct semel_outcome){ 0 };
	semel_buffer_clear(&handler->line);
	semel_event_to_json(event, &handler->line);
	semel_buffer_string(&handler->line, "\n");
	if (handler->line.failed) {
		semel_buffer_free(&handler->line);
		errno = ENOMEM;
	} else if (print_line(handler)) {
		return;
	}
	outcome_out->status = SEMEL_OUTAGE;
	outcome_out->is_over = errno == EPIPE; /* the reader closed the pipe, as head does */
	snprintf(outcome_out->reason, sizeof outcome_out->reason, "cannot write to stdout: %s",
		 strerror(errno));
}

static void print_close(struct semel_outside *outside)
{
	struct print_handler *handler = (struct print_handler *)outside;
	semel_buffer_free(&handler->line);
	free(handler);
}

const struct semel_outside_kind semel_outside_print = {
	.name = "print",
	.open = print_open,
	.run = print_run,
	.close = print_close,
};
