/* SPDX-License-Identifier: Apache-2.0 */
/* The folder has a unique name, and only that folder is ever removed. Children run one at a time;
 * an interrupt ends the running one, and the call returns NOT_FINISHED. */
#include "cli/plays/sandbox.h"

#include "base/buffer.h"
#include "base/child.h"
#include "base/error.h"
#include "cli/process/signals.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define ARENA_BLOCK    ((size_t)16 * 1024)
#define OUTPUT_MAX     ((size_t)4 * 1024 * 1024)
#define CHECK_EVERY_NS 2000000
#define GRACE_MS       10000
#define FAILPOINT_NAME "SEMEL_FAILPOINT"

/* ---- the folder ------------------------------------------------------------------------------ */

static semel_status make_folder(struct semel_sandbox *sandbox,
				const struct semel_sandbox_plan *plan, semel_error *error)
{
	const char *parent = plan->parent;
	if (!parent)
		parent = getenv("TMPDIR");
	if (!parent || !parent[0])
		parent = plan->fallback;
	char *whole = realpath(parent, NULL);
	int length = snprintf(sandbox->folder, sizeof sandbox->folder, "%s/%s",
			      whole ? whole : parent, plan->name ? plan->name : "semel-XXXXXX");
	free(whole);
	if (length < 0 || (size_t)length >= sizeof sandbox->folder) {
		sandbox->folder[0] = '\0';
		return semel_error_set(error, SEMEL_USAGE,
				       "the name of the temporary folder is too long");
	}
	if (plan->name ? mkdir(sandbox->folder, 0700) == 0 : mkdtemp(sandbox->folder) != NULL)
		return SEMEL_OK;
	int reason = errno;
	sandbox->folder[0] = '\0';
	return semel_error_set(error, SEMEL_OUTAGE, "cannot create a folder in %s: %s%s", parent,
			       strerror(reason),
			       plan->name ? "" : " (choose another one with --dir)");
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
	(void)status, (void)kind, (void)walk;
	(void)remove(path); /* what cannot be removed stays, with its folder */
	return 0;
}

void semel_sandbox_remove(const char *folder)
{
	nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* ---- children's environment ------------------------------------------------------------------ */

/* Adds NAME=value, unless value is NULL. */
static void set(struct semel_sandbox *sandbox, const char *name, const char *value, char **list,
		size_t *count)
{
	char *text = value ? semel_arena_printf(sandbox->arena, "%s=%s", name, value) : NULL;
	if (text)
		list[(*count)++] = text;
}

/* A child does not inherit settings of Semel: it has all of them on its command line, except the
 * URLs, which may hold passwords. It logs only errors, because its output is read after it has
 * ended, and exports no spans. */
static semel_status copy_environment(struct semel_sandbox *sandbox,
				     const struct semel_sandbox_plan *plan, semel_error *error)
{
	static char quiet[] = "SEMEL_LOG_LEVEL=error", untraced[] = "OTEL_SDK_DISABLED=true";
	size_t count = 0;
	while (environ && environ[count])
		count++;
	char **list = semel_arena_alloc(sandbox->arena, (count + 5) * sizeof *list);
	if (!list)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	size_t used = 0;
	for (size_t i = 0; i < count; i++)
		if (strncmp(environ[i], "SEMEL_", 6) != 0 && strncmp(environ[i], "OTEL_", 5) != 0)
			list[used++] = environ[i];
	list[used++] = quiet;
	list[used++] = untraced;
	set(sandbox, "SEMEL_STORE", plan->store, list, &used);
	set(sandbox, "SEMEL_BROKER", plan->broker, list, &used);
	list[used] = NULL;
	sandbox->environment = list;
	return SEMEL_OK;
}

static void report_interrupt(void *target)
{
	const struct semel_sandbox *sandbox = target;
	ssize_t written = write(sandbox->interrupt_fd, &(uint64_t){ 1 }, sizeof(uint64_t));
	(void)written; /* it is set already */
}

semel_status semel_sandbox_open(struct semel_sandbox *sandbox,
				const struct semel_sandbox_plan *plan, semel_error *error)
{
	*sandbox = (struct semel_sandbox){ .interrupt_fd = -1, .keep = plan->keep };
	sandbox->arena = semel_arena_new(ARENA_BLOCK);
	if (!sandbox->arena)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	sandbox->interrupt_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (sandbox->interrupt_fd < 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot create an eventfd: %s",
				       strerror(errno));
	semel_signals_watch(report_interrupt, sandbox, GRACE_MS);
	semel_status status = copy_environment(sandbox, plan, error);
	if (status != SEMEL_OK)
		return status;
	return make_folder(sandbox, plan, error);
}

void semel_sandbox_close(struct semel_sandbox *sandbox)
{
	if (sandbox->folder[0] && !sandbox->keep)
		semel_sandbox_remove(sandbox->folder);
	semel_signals_forget();
	if (sandbox->interrupt_fd >= 0)
		close(sandbox->interrupt_fd);
	semel_arena_free(sandbox->arena);
	*sandbox = (struct semel_sandbox){ .interrupt_fd = -1 };
}

const char *semel_sandbox_path(struct semel_sandbox *sandbox, const char *prefix, const char *name)
{
	return semel_arena_printf(sandbox->arena, "%s%s/%s", prefix, sandbox->folder, name);
}

semel_status semel_sandbox_check(const struct semel_sandbox *sandbox, semel_error *error)
{
	uint64_t count = 0;
	if (read(sandbox->interrupt_fd, &count, sizeof count) != (ssize_t)sizeof count)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_NOT_FINISHED, "interrupted");
}

/* ---- children -------------------------------------------------------------------------------- */

static void quote(struct semel_buffer *buffer, const char *word)
{
	semel_buffer_string(buffer, " '");
	for (; *word; word++)
		if (*word == '\'')
			semel_buffer_string(buffer, "'\\''");
		else
			semel_buffer_append(buffer, word, 1);
	semel_buffer_string(buffer, "'");
}

/* The shell is replaced by the program, so that the child's pid is the program's. */
static semel_status write_command(const struct semel_sandbox *sandbox, const char *const *words,
				  const char *failpoint, struct semel_buffer *command,
				  semel_error *error)
{
	char program[64];
	snprintf(program, sizeof program, "/proc/%ld/exe", (long)getpid());
	semel_buffer_string(command, "cd");
	quote(command, sandbox->folder);
	semel_buffer_string(command, " &&");
	if (failpoint) {
		semel_buffer_string(command, " " FAILPOINT_NAME "=");
		semel_buffer_string(command, failpoint);
		semel_buffer_string(command, " && export " FAILPOINT_NAME " &&");
	}
	semel_buffer_string(command, " exec");
	quote(command, program);
	for (; *words; words++)
		quote(command, *words);
	return command->failed ? semel_error_set(error, SEMEL_INTERNAL, "out of memory") : SEMEL_OK;
}

/* The kernel reports the peak only while the process lives, so the last value before its end is
 * used. */
static int64_t read_peak_kib(long pid)
{
	char name[64], line[256];
	snprintf(name, sizeof name, "/proc/%ld/status", pid);
	FILE *file = fopen(name, "re");
	long long kib = 0;
	while (file && fgets(line, sizeof line, file))
		if (sscanf(line, "VmHWM: %lld", &kib) == 1) // NOLINT(cert-err34-c): kernel's own
			break;
	if (file)
		fclose(file);
	return kib;
}

static semel_status await_exit(const struct semel_sandbox *sandbox, struct semel_child *child,
			       struct semel_sandbox_exit *end, semel_error *error)
{
	const struct timespec pause = { .tv_nsec = CHECK_EVERY_NS };
	while (!semel_child_has_exited(child)) {
		int64_t peak_kib = read_peak_kib((long)semel_child_pid(child));
		end->peak_kib = peak_kib > end->peak_kib ? peak_kib : end->peak_kib;
		semel_status status = semel_sandbox_check(sandbox, error);
		if (status != SEMEL_OK)
			return status;
		nanosleep(&pause, NULL);
	}
	const struct semel_child_communication rest = { .until_exit = true,
							.interrupt_fd = -1,
							.output_limit = OUTPUT_MAX };
	if (semel_child_communicate(child, &rest) != SEMEL_CHILD_EXITED)
		return semel_error_set(error, SEMEL_INTERNAL, "the output of a child is too large");
	struct semel_text output = semel_child_output(child);
	end->output =
		semel_arena_text(sandbox->arena, semel_text_shown_or(output, ""), output.length);
	end->exit_code = semel_child_exit_code(child);
	semel_child_stderr(child, end->error_output, sizeof end->error_output);
	return SEMEL_OK;
}

semel_status semel_sandbox_run(struct semel_sandbox *sandbox, const char *const *words,
			       const char *failpoint, struct semel_sandbox_exit *end_out,
			       semel_error *error)
{
	struct semel_buffer command = { 0 };
	struct semel_child *child = NULL;
	*end_out = (struct semel_sandbox_exit){ 0 };
	semel_status status = write_command(sandbox, words, failpoint, &command, error);
	if (status != SEMEL_OK)
		goto free_command;
	const struct semel_child_options plan = { .command = command.data,
						  .environment = sandbox->environment,
						  .capture = true };
	status = semel_child_start(&plan, &child, error);
	if (status != SEMEL_OK)
		goto free_command;
	status = await_exit(sandbox, child, end_out, error);
	semel_child_end(child, 0);
free_command:
	semel_buffer_free(&command);
	return status;
}
