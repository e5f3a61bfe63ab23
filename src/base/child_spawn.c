/* SPDX-License-Identifier: Apache-2.0 */
/* Between fork and exec only async-signal-safe calls are made: other threads may have held any
 * lock. All signals are blocked around the fork, so that no handler of ours runs in the child. An
 * exec that failed is reported through a pipe that a successful one closes. */
#include "base/child_spawn.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

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

/* A process without stdin, stdout or stderr gets their numbers for its pipes; the child's dup2
 * would then overwrite one with another. */
static int above_the_standard_ones(int fd)
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
	int reading = above_the_standard_ones(ends[0]);
	int writing = above_the_standard_ones(ends[1]);
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

/* A file in memory, read from its beginning; there is no end of ours. */
static bool open_input(struct streams *streams, const struct semel_text *input)
{
	int fd = memfd_create("semel-input", MFD_CLOEXEC);
	if (fd < 0)
		return false;
	streams->theirs[INPUT] = above_the_standard_ones(fd);
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
	/* Ours are closed by exec anyway; this is for descriptors of the application. A kernel
	 * without it has nothing better. */
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
				       "the environment of the program is larger than the system "
				       "takes");
	return semel_error_set(error, SEMEL_OUTAGE, "cannot start the program: %s",
			       strerror(reason));
}

semel_status semel_child_spawn(const struct semel_child_options *plan,
			       struct semel_spawned *spawned_out, semel_error *error)
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
	*spawned_out = (struct semel_spawned){ pid, streams.ours[INPUT], streams.ours[OUTPUT],
					       streams.ours[ERRORS] };
	return SEMEL_OK;

close_streams:
	close_all(streams.theirs);
	close_all(streams.ours);
	return cannot_start(reason, error);
}
