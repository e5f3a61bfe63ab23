/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded reading of a file or stdin, as a whole or line by line. Input that is too large is
 * refused as soon as the bound is passed. */
#ifndef SEMEL_CLI_ARGUMENTS_INPUT_H
#define SEMEL_CLI_ARGUMENTS_INPUT_H

#include "base/buffer.h"

#include <semel/status.h>
#include <stdint.h>

/* path "-": stdin. Appends to buffer. INVALID when it cannot be read, TOO_LARGE above max. */
semel_status semel_input_read(const char *path, size_t max, struct semel_buffer *buffer,
			      semel_error *error);

#define SEMEL_LINES_CHUNK 65536

/* Zeroed but for fd and max. Free line when done. */
struct semel_lines {
	int fd;
	size_t max;      /* of one line */
	uint64_t number; /* of the line last returned, from 1 */
	struct semel_buffer line;
	size_t at, filled; /* in chunk */
	bool ended;
	char chunk[SEMEL_LINES_CHUNK];
};

/* The next line without its end, valid until the next call; data NULL: there are no more.
 * TOO_LARGE, INVALID (cannot be read). */
semel_status semel_lines_next(struct semel_lines *lines, struct semel_text *line_out,
			      semel_error *error);

#endif
