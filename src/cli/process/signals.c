/* SPDX-License-Identifier: Apache-2.0 */
/* The handlers make only async-signal-safe calls. The grace period is an alarm, so it ends even if
 * every thread hangs. */
#include "cli/process/signals.h"

#include "base/child.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

static void (*stop_call)(void *target);
static _Atomic(void *) stop_target;
static unsigned grace_s;
static atomic_int signals_seen;
static atomic_int hangup_event = -1;

static void write_stderr(const char *text)
{
	ssize_t written = write(STDERR_FILENO, text, strlen(text));
	(void)written; /* there is no other way to report it */
}

/* Handlers' programs are killed too: their events are redelivered, and must not run twice at the
 * same time. */
_Noreturn static void exit_now(int code)
{
	semel_child_kill_all();
	_exit(code);
}

/* Without a target the work is over, and only closing remains. */
static void on_stop(int number)
{
	if (atomic_fetch_add(&signals_seen, 1) > 0)
		exit_now(128 + number);
	alarm(grace_s);
	void *target = atomic_load(&stop_target);
	if (target)
		stop_call(target);
}

/* No event has been fetched yet, so there is nothing to finish. */
static void on_stop_while_starting(int number)
{
	(void)number;
	exit_now(EX_OK);
}

static void on_grace_over(int number)
{
	(void)number;
	write_stderr(
		"semel: not finished within the grace period; events in flight are redelivered\n");
	exit_now(EX_TEMPFAIL);
}

static void on_hangup(int number)
{
	const uint64_t one = 1;
	int event = atomic_load(&hangup_event);

	(void)number;
	if (event < 0) /* logs go to stderr and the environment cannot change: nothing to reload */
		return;
	ssize_t written = write(event, &one, sizeof one);
	(void)written; /* if it fails, one is still unread, which is enough */
}

static void handle(int number, void (*handler)(int))
{
	struct sigaction action = { .sa_flags = SA_RESTART };
	action.sa_handler = handler;
	sigemptyset(&action.sa_mask);
	sigaction(number, &action, NULL);
}

void semel_signals_expect(void)
{
	handle(SIGHUP, on_hangup);
	handle(SIGTERM, on_stop_while_starting);
	handle(SIGINT, on_stop_while_starting);
}

void semel_signals_watch(void (*stop)(void *target), void *target, int64_t grace_ms)
{
	stop_call = stop;
	grace_s = (unsigned)((grace_ms + 999) / 1000);
	atomic_store(&signals_seen, 0);
	atomic_store(&stop_target, target);
	handle(SIGALRM, on_grace_over);
	handle(SIGHUP, on_hangup);
	handle(SIGTERM, on_stop);
	handle(SIGINT, on_stop);
}

void semel_signals_forget(void)
{
	atomic_store(&stop_target, NULL);
	atomic_store(&hangup_event, -1);
}

void semel_signals_watch_hangup(int event)
{
	atomic_store(&hangup_event, event);
}
