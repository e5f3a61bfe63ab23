/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a command, on standard output. It may be a terminal, so control characters in
 * texts from outside are made visible (semel_buffer_visible). */
#ifndef SEMEL_CLI_PROCESS_OUTPUT_H
#define SEMEL_CLI_PROCESS_OUTPUT_H

#include "base/buffer.h"

#include <semel/status.h>

/* All of it, or nothing when there was no memory for it. Frees the buffer. error may be NULL. */
semel_status semel_output_print(struct semel_buffer *buffer, semel_error *error);
/* The same of a string that stays the caller's. */
semel_status semel_output_write(const char *string, semel_error *error);

#endif
