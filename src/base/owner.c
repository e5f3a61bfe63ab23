/* SPDX-License-Identifier: Apache-2.0 */
/* Names of owners, and whether an owner's process has ended.
 *
 * A process id is valid only within one boot and one process namespace, and ids are reused: so the
 * name contains boot, namespace and the start time of the process. If any of it cannot be read, it
 * is not certain that the owner is dead, and it counts as alive. */
#include "base/owner.h"

#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MACHINE_SIZE = 48, BOOT_ID_LENGTH = 36 };

/* The start of a small file as a string; false when there is none. */
static bool read_start(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t length = read(fd, text, size - 1);
	close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';
	return true;
}

/* /proc may be that of another process namespace, where process ids differ from ours. */
static bool proc_is_ours(void)
{
	char link[32], own[32];
	ssize_t length = readlink("/proc/self", link, sizeof(link) - 1);
	if (length <= 0)
		return false;
	link[length] = '\0';
	snprintf(own, sizeof(own), "%ld", (long)getpid());
	return strcmp(link, own) == 0;
}

/* "boot-namespace", without the boot id's own hyphens. */
static bool machine_name(char name_out[MACHINE_SIZE])
{
	char boot[BOOT_ID_LENGTH + 1];
	struct stat pid_namespace;
	if (!proc_is_ours() || !read_start("/proc/sys/kernel/random/boot_id", boot, sizeof(boot)) ||
	    stat("/proc/self/ns/pid", &pid_namespace) != 0)
		return false;
	char *to = name_out;
	for (const char *from = boot; *from; from++)
		if (*from != '-' && *from != '\n')
			*to++ = *from;
	snprintf(to, (size_t)(name_out + MACHINE_SIZE - to), "-%u", (unsigned)pid_namespace.st_ino);
	return true;
}

struct process {
	char state;
	long threads;
	unsigned long long start_time;
};

/* The second field is the program's name, which may contain any character; the last ')' ends it. */
static bool read_process(long pid, struct process *process_out)
{
	char path[64], text[1024];
	snprintf(path, sizeof(path), "/proc/%ld/stat", pid);
	if (!read_start(path, text, sizeof(text)))
		return false;
	char *at = strrchr(text, ')');
	if (!at || at[1] != ' ' || at[2] == '\0')
		return false;
	process_out->state = at[2];
	at += 2;
	for (int field = 3; field < 22; field++) {
		at = strchr(at, ' ');
		if (!at)
			return false;
		at++;
		if (field + 1 == 20)
			process_out->threads = strtol(at, NULL, 10);
	}
	process_out->start_time = strtoull(at, NULL, 10);
	return true;
}

void semel_owner_make(const struct semel_env *env, char owner_out[SEMEL_OWNER_SIZE])
{
	char machine[MACHINE_SIZE];
	struct process self = { 0 };
	if (!machine_name(machine) || !read_process((long)getpid(), &self))
		strcpy(machine, "unknown");
	snprintf(owner_out, SEMEL_OWNER_SIZE, "%s:%ld:%llu:%012llx", machine, (long)getpid(),
		 self.start_time, (unsigned long long)semel_random(env) & UINT64_C(0xFFFFFFFFFFFF));
}

/* The number up to the next colon; the cursor moves past it. */
static bool read_number(const char **cursor, long long max, long long *number_out)
{
	char digits[24];
	size_t length = strcspn(*cursor, ":");
	if ((*cursor)[length] != ':' || length >= sizeof(digits))
		return false;
	memcpy(digits, *cursor, length);
	digits[length] = '\0';
	*cursor += length + 1;
	return semel_text_to_int64(digits, 1, max, number_out);
}

bool semel_owner_is_dead(const char *owner)
{
	char machine[MACHINE_SIZE];
	if (!owner || !machine_name(machine))
		return false;
	size_t length = strlen(machine);
	if (strncmp(owner, machine, length) != 0 || owner[length] != ':')
		return false;
	const char *cursor = owner + length + 1;
	long long pid, start_time;
	if (!read_number(&cursor, INT_MAX, &pid) || !read_number(&cursor, LLONG_MAX, &start_time))
		return false;

	/* /proc may hide the processes of other users; the kernel's own answer is complete. */
	if (kill((pid_t)pid, 0) != 0 && errno == ESRCH)
		return true;
	struct process process = { 0 };
	if (!read_process((long)pid, &process))
		return false;
	if (process.start_time != (unsigned long long)start_time)
		return true;
	/* If only the main thread has ended, it is a zombie too while the other threads run. */
	return (process.state == 'Z' || process.state == 'X') && process.threads <= 1;
}

bool semel_owner_is_gone(const char *owner, int64_t expires_at_ms, int64_t now_ms)
{
	return expires_at_ms <= now_ms || semel_owner_is_dead(owner);
}
