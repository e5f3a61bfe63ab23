/* SPDX-License-Identifier: Apache-2.0 */
/* A process that outlives a killed drill, and clears its target. It has a session of its own, so
 * that signals to the drill's group do not reach it; it notices the end of the drill when the pipe
 * between them closes, and holds the lock of the folder until it is done. */
#include "base/error.h"
#include "base/wake.h"
#include "cli/plays/drill/target.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN_US 300000 /* the drill's children die with it, but take a moment */
#define PAUSE_US    1000000
#define TRIES       60

/* A reader of the drill's output must not wait for ours, nor a signal to the drill stop us. */
static void detach(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	setsid();
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		signal(signals[i], SIG_IGN);
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int target = STDIN_FILENO; fd >= 0 && target <= STDERR_FILENO; target++)
		dup2(fd, target);
}

static void clear_target(struct semel_drill_target *target, const char *folder)
{
	semel_error error = { 0 };
	semel_sleep_us(CHILDREN_US);
	semel_status status = semel_drill_target_clear(target, &error);
	for (int i = 1; i < TRIES && status != SEMEL_OK; i++) {
		semel_sleep_us(PAUSE_US);
		status = semel_drill_target_clear(target, &error);
	}
	if (status == SEMEL_OK) /* else the next drill tries again */
		semel_sandbox_remove(folder);
}

static void await_drill_exit(struct semel_drill_target target, const char *folder, int pipe_fd)
{
	char word = 0;
	ssize_t got = 0;
	detach();
	while ((got = read(pipe_fd, &word, 1)) < 0 && errno == EINTR)
		;
	if (got == 0)
		clear_target(&target, folder);
}

semel_status semel_drill_watcher_start(const struct semel_drill_target *target, const char *folder,
				       struct semel_drill_watcher *watcher_out, semel_error *error)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot make a pipe: %s",
				       strerror(errno));
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[1]);
		await_drill_exit(*target, folder, ends[0]);
		_exit(0);
	}
	close(ends[0]);
	if (pid < 0) {
		close(ends[1]);
		return semel_error_set(error, SEMEL_OUTAGE, "cannot start a process: %s",
				       strerror(errno));
	}
	*watcher_out = (struct semel_drill_watcher){ .pid = (int)pid, .pipe_fd = ends[1] };
	return SEMEL_OK;
}

void semel_drill_watcher_stop(struct semel_drill_watcher *watcher)
{
	if (watcher->pid == 0)
		return;
	ssize_t written = write(watcher->pipe_fd, "d", 1);
	(void)written; /* it has ended already */
	close(watcher->pipe_fd);
	while (waitpid(watcher->pid, NULL, 0) < 0 && errno == EINTR)
		;
	watcher->pid = 0;
}
