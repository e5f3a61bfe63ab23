/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded reading: input that is too large is refused before memory is used for all of it. */
#include "cli/arguments/input.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((size_t)1024 * 1024)

static ssize_t read_some(int fd, void *data, size_t size)
{
	ssize_t got = read(fd, data, size);
	while (got < 0 && errno == EINTR)
		got = read(fd, data, size);
	return got;
}

static semel_status too_large(const char *what, size_t max, semel_error *error)
{
	return semel_error_set(error, SEMEL_TOO_LARGE,
			       "%s is larger than %zu MiB (keep large data elsewhere and send a "
			       "reference to it)",
			       what, max / MIB);
}

static semel_status unreadable(const char *what, semel_error *error)
{
	return semel_error_set(error, SEMEL_INVALID, "cannot read %s: %s", what, strerror(errno));
}

static semel_status read_all(int fd, const char *name, size_t max, struct semel_buffer *buffer,
			     semel_error *error)
{
	struct stat status;
	if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > (off_t)max)
		return too_large(name, max, error);
	char chunk[SEMEL_LINES_CHUNK];
	for (;;) {
		ssize_t got = read_some(fd, chunk, sizeof chunk);
		if (got < 0)
			return unreadable(name, error);
		if (got == 0)
			break;
		semel_buffer_append(buffer, chunk, (size_t)got);
		if (buffer->length > max)
			return too_large(name, max, error);
	}
	semel_buffer_string(buffer, "");
	return buffer->failed ? semel_error_set(error, SEMEL_INTERNAL, "out of memory for %s", name)
			      : SEMEL_OK;
}

semel_status semel_input_read(const char *path, size_t max, struct semel_buffer *buffer,
			      semel_error *error)
{
	if (strcmp(path, "-") == 0)
		return read_all(STDIN_FILENO, "standard input", max, buffer, error);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return unreadable(path, error);
	semel_status status = read_all(fd, path, max, buffer, error);
	close(fd);
	return status;
}

/* False: the input has ended, or reading failed (failed_out). */
static bool refill(struct semel_lines *lines, bool *failed_out)
{
	if (lines->at < lines->filled)
		return true;
	ssize_t got = lines->ended ? 0 : read_some(lines->fd, lines->chunk, sizeof lines->chunk);
	lines->at = 0;
	lines->filled = got > 0 ? (size_t)got : 0;
	lines->ended = got <= 0;
	*failed_out = got < 0;
	return got > 0;
}

semel_status semel_lines_next(struct semel_lines *lines, struct semel_text *line_out,
			      semel_error *error)
{
	*line_out = (struct semel_text){ 0 };
	semel_buffer_clear(&lines->line);
	bool failed = false, any = false, complete = false;
	lines->number++;
	while (!complete && refill(lines, &failed)) {
		const char *start = lines->chunk + lines->at;
		size_t rest = lines->filled - lines->at;
		const char *end = memchr(start, '\n', rest);
		size_t length = end ? (size_t)(end - start) : rest;
		semel_buffer_append(&lines->line, start, length);
		lines->at += length + (end ? 1 : 0);
		any = true;
		complete = end != NULL;
		if (lines->line.length > lines->max)
			return too_large("it", lines->max, error);
	}
	if (failed)
		return unreadable("standard input", error);
	semel_buffer_string(&lines->line, "");
	if (lines->line.failed)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a line");
	if (any)
		*line_out = semel_buffer_text(&lines->line);
	return SEMEL_OK;
}
