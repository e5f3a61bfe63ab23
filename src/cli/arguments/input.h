/* SPDX-License-Identifier: Apache-2.0 */
/* Bounded reading of a file or stdin, as a whole or line by line. Input that is too large is
 * refused as soon as the bound is passed. */
#ifndef SEMEL_CLI_ARGUMENTS_INPUT_H
#define SEMEL_CLI_ARGUMENTS_INPUT_H

#include "base/buffer.h"

#include <semel/status.h>
#include <stdint.h>

/* Appends the file to buffer; path "-": stdin. INVALID if it cannot be read, TOO_LARGE if it is
 * larger than max. */
semel_status semel_input_read(const char *path, size_t max, struct semel_buffer *buffer,
			      semel_error *error);

#define SEMEL_LINES_CHUNK 65536

/* The caller sets fd and max, zeroes the rest, and frees line at the end. */
struct semel_lines {
	int fd;
	size_t max;      /* of one line */
	uint64_t number; /* of the line last returned, from 1 */
	struct semel_buffer line;
	size_t at, filled; /* in chunk */
	bool ended;
	char chunk[SEMEL_LINES_CHUNK];
};

/* Reads the next line, without its newline; it is valid until the next call. data NULL: no more
 * lines. TOO_LARGE, or INVALID if the input cannot be read. */
semel_status semel_lines_next(struct semel_lines *lines, struct semel_text *line_out,
			      semel_error *error);

#endif
