/* SPDX-License-Identifier: Apache-2.0 */
/* Starts a child, feeds it and reads its output without deadlock, and ends it with its whole
 * process group.
 *
 * - Between fork and exec only async-signal-safe calls are made: other threads may have held any
 *   lock. All signals are blocked around the fork, so that none of our handlers runs in the child.
 *   A failed exec is reported through a pipe that a successful exec closes.
 * - Nothing blocks but one poll, on all streams at once.
 * - The exit of a child is detected without reaping it, so that its process id (and its group's) is
 *   not reused before the last signal was sent.
 * - A child has ended even if processes that it started (a daemon) still have its streams open.
 */
#include "base/child.h"

#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/sigpipe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHUNK            16384
#define CHUNKS_AT_A_TIME 128 /* so that a child that never stops writing cannot block us */
#define KILL_AFTER_MS    1000
#define POLL_INTERVAL_MS 10 /* where the kernel has no pidfd */
#define NO_DEADLINE      INT64_MAX
#define LIVING_MAX       256

/* Our ends of the streams, non-blocking. */
struct spawned {
	pid_t pid; /* also its process group */
	int input, output, errors;
};

struct semel_child {
	struct spawned streams;
	int pidfd; /* -1: the kernel has none */
	bool reaped;
	int wait_status;
	bool status_known;
	struct semel_buffer output;
	size_t line_length; /* of the line returned last; dropped by the next communication */
	bool line_returned;
	char stderr_tail[2 * SEMEL_CHILD_STDERR_MAX];
	size_t stderr_length;
	bool stderr_cut;
};

/* ---- starting ---------------------------------------------------------------------------------
 */

enum stream { INPUT, OUTPUT, ERRORS, REPORT, STREAM_COUNT };

struct streams {
	int ours[STREAM_COUNT];
	int theirs[STREAM_COUNT];
};

static void close_all(int fds[STREAM_COUNT])
{
	for (int i = 0; i < STREAM_COUNT; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* If this process has no stdin, stdout or stderr, its pipes get those descriptor numbers, and the
 * child's dup2 would overwrite one with another. */
static int fd_above_stdio(int fd)
{
	if (fd > STDERR_FILENO)
		return fd;
	int lifted = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	int saved = errno;
	close(fd);
	errno = saved;
	return lifted;
}

static bool open_stream(struct streams *streams, enum stream stream)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return false;
	int reading = fd_above_stdio(ends[0]);
	int writing = fd_above_stdio(ends[1]);
	streams->ours[stream] = stream == INPUT ? writing : reading;
	streams->theirs[stream] = stream == INPUT ? reading : writing;
	if (reading < 0 || writing < 0)
		return false;
	return stream == REPORT || fcntl(streams->ours[stream], F_SETFL, O_NONBLOCK) == 0;
}

static bool write_all(int fd, struct semel_text text)
{
	for (size_t written = 0; written < text.length;) {
		ssize_t put = write(fd, text.data + written, text.length - written);
		if (put < 0 && errno != EINTR)
			return false;
		written += put > 0 ? (size_t)put : 0;
	}
	return true;
}

/* A file in memory that the child reads from its beginning; we keep no end of it. */
static bool open_input(struct streams *streams, const struct semel_text *input)
{
	int fd = memfd_create("semel-input", MFD_CLOEXEC);
	if (fd < 0)
		return false;
	streams->theirs[INPUT] = fd_above_stdio(fd);
	return streams->theirs[INPUT] >= 0 && write_all(streams->theirs[INPUT], *input) &&
	       lseek(streams->theirs[INPUT], 0, SEEK_SET) == 0;
}

static bool open_streams(struct streams *streams, const struct semel_child_options *plan)
{
	for (int i = 0; i < STREAM_COUNT; i++)
		streams->ours[i] = streams->theirs[i] = -1;
	return (plan->input ? open_input(streams, plan->input) : open_stream(streams, INPUT)) &&
	       (!plan->capture || open_stream(streams, OUTPUT)) && open_stream(streams, ERRORS) &&
	       open_stream(streams, REPORT);
}

static void default_signals(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL };
	for (int number = 1; number < NSIG; number++)
		sigaction(number, &action, NULL); /* fails for KILL and STOP, as it should */
	sigset_t none;
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool connect_streams(const struct streams *streams)
{
	if (dup2(streams->theirs[INPUT], STDIN_FILENO) < 0)
		return false;
	if (streams->theirs[OUTPUT] >= 0 && dup2(streams->theirs[OUTPUT], STDOUT_FILENO) < 0)
		return false;
	if (dup2(streams->theirs[ERRORS], STDERR_FILENO) < 0)
		return false;
	/* Our own descriptors are closed by exec anyway; this is for those of the application. A
	 * kernel without close_range offers nothing better. */
	(void)close_range(STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
	return true;
}

_Noreturn static void become(const struct semel_child_options *plan, char *const *arguments,
			     const struct streams *streams, pid_t parent)
{
	setpgid(0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == parent && connect_streams(streams)) {
		default_signals();
		execve("/bin/sh", arguments, plan->environment);
	}
	int reason = errno;
	ssize_t written = write(streams->theirs[REPORT], &reason, sizeof reason);
	_exit(written == (ssize_t)sizeof reason ? 127 : 126);
}

static pid_t fork_quietly(const struct semel_child_options *plan, const struct streams *streams)
{
	char shell[] = "sh", option[] = "-c";
	char *arguments[] = { shell, option, NULL, NULL };
	memcpy(&arguments[2], &plan->command, sizeof plan->command); /* execve does not write */
	pid_t parent = getpid();
	sigset_t all, before;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid_t pid = fork();
	if (pid == 0)
		become(plan, arguments, streams, parent);
	int saved = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = saved;
	return pid;
}

/* 0, or the errno with which exec failed. */
static int read_report(int fd)
{
	int reason = 0;
	ssize_t got;
	do
		got = read(fd, &reason, sizeof reason);
	while (got < 0 && errno == EINTR);
	return got == (ssize_t)sizeof reason ? reason : 0;
}

/* The command is not in the message: it may have a password in it. */
static semel_status cannot_start(int reason, semel_error *error)
{
	if (reason == E2BIG)
		return semel_error_set(error, SEMEL_TOO_LARGE,
				       "the environment of the program exceeds the system's limit");
	return semel_error_set(error, SEMEL_OUTAGE, "cannot start the program: %s",
			       strerror(reason));
}

static semel_status spawn(const struct semel_child_options *plan, struct spawned *spawned_out,
			  semel_error *error)
{
	struct streams streams;
	int reason = 0;
	if (!open_streams(&streams, plan)) {
		reason = errno;
		goto close_streams;
	}
	pid_t pid = fork_quietly(plan, &streams);
	if (pid < 0) {
		reason = errno;
		goto close_streams;
	}
	close_all(streams.theirs);
	reason = read_report(streams.ours[REPORT]);
	if (reason != 0) {
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		goto close_streams;
	}
	close(streams.ours[REPORT]);
	*spawned_out = (struct spawned){ pid, streams.ours[INPUT], streams.ours[OUTPUT],
					 streams.ours[ERRORS] };
	return SEMEL_OK;

close_streams:
	close_all(streams.theirs);
	close_all(streams.ours);
	return cannot_start(reason, error);
}

/* The groups that semel_child_kill_all kills; 0: a free entry. Signal handlers read it. */
static _Atomic(pid_t) living[LIVING_MAX];

static void add_living(pid_t pid)
{
	for (size_t i = 0; i < LIVING_MAX; i++) {
		pid_t none = 0;
		if (atomic_compare_exchange_strong(&living[i], &none, pid))
			return;
	}
}

static void remove_living(pid_t pid)
{
	for (size_t i = 0; i < LIVING_MAX; i++) {
		pid_t mine = pid;
		if (atomic_compare_exchange_strong(&living[i], &mine, 0))
			return;
	}
}

void semel_child_kill_all(void)
{
	for (size_t i = 0; i < LIVING_MAX; i++) {
		pid_t pid = atomic_load(&living[i]);
		if (pid > 0)
			kill(-pid, SIGKILL);
	}
}

static int64_t steady_ms(void)
{
	return semel_steady_ms(semel_env_system());
}

static void close_stream(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

semel_status semel_child_start(const struct semel_child_options *plan,
			       struct semel_child **child_out, semel_error *error)
{
	struct semel_child *child = calloc(1, sizeof *child);
	if (child == NULL)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot start \"%s\": out of memory",
				       plan->command);
	semel_status status = spawn(plan, &child->streams, error);
	if (status != SEMEL_OK) {
		free(child);
		return status;
	}
	add_living(child->streams.pid);
	child->pidfd = pidfd_open(child->streams.pid, 0);
	*child_out = child;
	return SEMEL_OK;
}

/* ---- output ---------------------------------------------------------------------------------- */

static void append_stderr(struct semel_child *child, const char *data, size_t length)
{
	if (length > SEMEL_CHILD_STDERR_MAX) {
		data += length - SEMEL_CHILD_STDERR_MAX;
		length = SEMEL_CHILD_STDERR_MAX;
		child->stderr_length = 0;
		child->stderr_cut = true;
	}
	if (child->stderr_length + length > sizeof child->stderr_tail) {
		size_t drop = child->stderr_length - SEMEL_CHILD_STDERR_MAX;
		memmove(child->stderr_tail, child->stderr_tail + drop, SEMEL_CHILD_STDERR_MAX);
		child->stderr_length = SEMEL_CHILD_STDERR_MAX;
		child->stderr_cut = true;
	}
	memcpy(child->stderr_tail + child->stderr_length, data, length);
	child->stderr_length += length;
}

static void append_output(struct semel_child *child, const char *data, size_t length)
{
	semel_buffer_append(&child->output, data, length);
}

typedef void (*output_function)(struct semel_child *child, const char *data, size_t length);

static void read_from(struct semel_child *child, int *fd, output_function append)
{
	char chunk[CHUNK];
	for (int i = 0; i < CHUNKS_AT_A_TIME && *fd >= 0; i++) {
		ssize_t got = read(*fd, chunk, sizeof chunk);
		if (got > 0)
			append(child, chunk, (size_t)got);
		else if (got == 0 || (errno != EAGAIN && errno != EINTR))
			close_stream(fd);
		else if (errno == EAGAIN)
			return;
	}
}

static void read_all(struct semel_child *child)
{
	read_from(child, &child->streams.output, append_output);
	read_from(child, &child->streams.errors, append_stderr);
}

/* ---- its exit -------------------------------------------------------------------------------- */

/* True once the child has ended, whether or not it was reaped. */
static bool has_ended(const struct semel_child *child)
{
	siginfo_t info = { 0 };
	if (waitid(P_PID, (id_t)child->streams.pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
		return errno == ECHILD; /* the application ignores SIGCHLD, or waits for all */
	return info.si_pid != 0;
}

static void reap(struct semel_child *child)
{
	pid_t got;
	remove_living(child->streams.pid); /* before its number can be reused */
	do
		got = waitpid(child->streams.pid, &child->wait_status, 0);
	while (got < 0 && errno == EINTR);
	child->status_known = got == child->streams.pid;
	child->reaped = true;
}

pid_t semel_child_pid(const struct semel_child *child)
{
	return child->streams.pid;
}

bool semel_child_has_exited(struct semel_child *child)
{
	if (!child->reaped && has_ended(child))
		reap(child);
	return child->reaped;
}

int semel_child_exit_code(const struct semel_child *child)
{
	if (!child->status_known)
		return -1;
	if (WIFSIGNALED(child->wait_status))
		return 128 + WTERMSIG(child->wait_status);
	return WEXITSTATUS(child->wait_status);
}

void semel_child_describe_exit(const struct semel_child *child, char *text_out, size_t size)
{
	if (!child->status_known)
		snprintf(text_out, size, "exited with an unknown status");
	else if (WIFSIGNALED(child->wait_status))
		snprintf(text_out, size, "was killed by signal %d (%s)",
			 WTERMSIG(child->wait_status), strsignal(WTERMSIG(child->wait_status)));
	else
		snprintf(text_out, size, "exited with status %d", WEXITSTATUS(child->wait_status));
}

/* ---- the communication ----------------------------------------------------------------------- */

struct communication {
	const struct semel_child_communication *options;
	size_t fed;
	int64_t deadline_ms;
	bool interrupted;
};

static void feed(struct semel_child *child, struct communication *communication)
{
	struct semel_text input = communication->options->input;
	int *fd = &child->streams.input;
	while (*fd >= 0 && communication->fed < input.length) {
		ssize_t put = write(*fd, input.data + communication->fed,
				    input.length - communication->fed);
		if (put >= 0)
			communication->fed += (size_t)put;
		else if (errno == EAGAIN)
			return;
		else if (errno != EINTR)
			close_stream(fd); /* the child does not read the rest */
	}
	if (communication->options->until_exit)
		close_stream(fd);
}

static int wait_ms_until(const struct semel_child *child, int64_t deadline_ms)
{
	int64_t wait_ms = deadline_ms == NO_DEADLINE ? -1 : deadline_ms - steady_ms();
	if (deadline_ms != NO_DEADLINE && wait_ms < 0)
		wait_ms = 0;
	if (child->pidfd < 0 && (wait_ms < 0 || wait_ms > POLL_INTERVAL_MS))
		wait_ms = POLL_INTERVAL_MS;
	return (int)(wait_ms > 3600000 ? 3600000 : wait_ms);
}

static void wait_for_anything(struct semel_child *child, struct communication *communication)
{
	bool has_input = communication->fed < communication->options->input.length;
	struct pollfd waits[] = {
		{ .fd = has_input ? child->streams.input : -1, .events = POLLOUT },
		{ .fd = child->streams.output, .events = POLLIN },
		{ .fd = child->streams.errors, .events = POLLIN },
		{ .fd = child->pidfd, .events = POLLIN },
		{ .fd = communication->options->interrupt_fd, .events = POLLIN },
	};
	const nfds_t count = sizeof waits / sizeof *waits;
	if (poll(waits, count, wait_ms_until(child, communication->deadline_ms)) > 0)
		communication->interrupted = waits[count - 1].revents != 0;
}

static void drop_returned_line(struct semel_child *child)
{
	if (!child->line_returned)
		return;
	size_t length = child->line_length + 1;
	memmove(child->output.data, child->output.data + length, child->output.length - length);
	child->output.length -= length;
	child->line_returned = false;
}

static bool find_line(struct semel_child *child, const struct communication *communication)
{
	const struct semel_child_communication *options = communication->options;
	bool fed = communication->fed == options->input.length || child->streams.input < 0;
	if (options->until_exit || !fed || child->output.length == 0)
		return false;
	const char *end = memchr(child->output.data, '\n', child->output.length);
	if (end == NULL || (size_t)(end - child->output.data) > options->output_limit)
		return false;
	child->line_length = (size_t)(end - child->output.data);
	child->line_returned = true;
	return true;
}

static bool has_result(struct semel_child *child, const struct communication *communication,
		       bool ended, enum semel_child_result *result_out)
{
	if (child->output.failed)
		*result_out = SEMEL_CHILD_NO_MEMORY;
	else if (find_line(child, communication))
		*result_out = SEMEL_CHILD_LINE;
	else if (child->output.length > communication->options->output_limit)
		*result_out = SEMEL_CHILD_TOO_MUCH;
	else if (ended)
		*result_out = SEMEL_CHILD_EXITED;
	else if (communication->interrupted)
		*result_out = SEMEL_CHILD_INTERRUPTED;
	else if (steady_ms() >= communication->deadline_ms)
		*result_out = SEMEL_CHILD_TIMED_OUT;
	else
		return false;
	return true;
}

enum semel_child_result semel_child_communicate(struct semel_child *child,
						const struct semel_child_communication *options)
{
	struct communication communication = { .options = options, .deadline_ms = NO_DEADLINE };
	if (options->timeout_ms > 0)
		communication.deadline_ms = steady_ms() + options->timeout_ms;
	struct semel_sigpipe sigpipe;
	semel_sigpipe_block(&sigpipe);
	drop_returned_line(child);
	enum semel_child_result result;
	while (true) {
		/* Checked before reading: once the child has ended, all its output is in the
		 * pipes. */
		bool ended = child->reaped || has_ended(child);
		feed(child, &communication);
		read_all(child);
		if (has_result(child, &communication, ended, &result))
			break;
		wait_for_anything(child, &communication);
	}
	semel_sigpipe_restore(&sigpipe);
	if (result == SEMEL_CHILD_EXITED && !child->reaped)
		reap(child);
	return result;
}

struct semel_text semel_child_output(const struct semel_child *child)
{
	struct semel_text output = semel_buffer_text(&child->output);
	if (child->line_returned)
		output.length = child->line_length;
	return output;
}

static bool continues_a_character(char byte)
{
	return ((unsigned char)byte & 0xc0) == 0x80;
}

void semel_child_stderr(const struct semel_child *child, char *text_out, size_t size)
{
	const char *start = child->stderr_tail;
	const char *end = start + child->stderr_length;
	while (end > start && (end[-1] == '\0' || strchr(" \t\r\n", end[-1]) != NULL))
		end--;
	size_t length_max = size - 1;
	if (length_max > SEMEL_CHILD_STDERR_MAX)
		length_max = SEMEL_CHILD_STDERR_MAX;
	bool cut = child->stderr_cut;
	if ((size_t)(end - start) > length_max) {
		start = end - length_max;
		cut = true;
	}
	while (cut && start < end && continues_a_character(*start))
		start++;
	size_t length = (size_t)(end - start);
	for (size_t i = 0; i < length; i++)
		text_out[i] = start[i] == '\0' ? ' ' : start[i];
	text_out[length] = '\0';
}

void semel_child_clear_stderr(struct semel_child *child)
{
	child->stderr_length = 0;
	child->stderr_cut = false;
}

/* ---- ending ---------------------------------------------------------------------------------- */

static bool ends_within(struct semel_child *child, int64_t wait_ms)
{
	const struct semel_child_communication nothing = { .until_exit = true, .interrupt_fd = -1 };
	struct communication communication = { .options = &nothing,
					       .deadline_ms = steady_ms() + wait_ms };
	while (!has_ended(child)) {
		if (steady_ms() >= communication.deadline_ms)
			return false;
		read_all(child);
		semel_buffer_clear(&child->output);
		wait_for_anything(child, &communication);
	}
	return true;
}

static void end_group(struct semel_child *child, int64_t patience_ms)
{
	if (patience_ms > 0 && ends_within(child, patience_ms))
		return;
	kill(-child->streams.pid, SIGTERM);
	ends_within(child, KILL_AFTER_MS);
	/* Sent even if the child has ended: other processes of its group may still run. */
	kill(-child->streams.pid, SIGKILL);
}

void semel_child_end(struct semel_child *child, int64_t patience_ms)
{
	if (child == NULL)
		return;
	close_stream(&child->streams.input);
	if (!child->reaped) {
		end_group(child, patience_ms);
		reap(child);
	}
	close_stream(&child->streams.output);
	close_stream(&child->streams.errors);
	close_stream(&child->pidfd);
	semel_buffer_free(&child->output);
	free(child);
}
