/* SPDX-License-Identifier: Apache-2.0 */
/* The results of a command, on standard output. It may be a terminal, so control characters in
 * texts from outside are made visible (semel_buffer_visible). */
#ifndef SEMEL_CLI_PROCESS_OUTPUT_H
#define SEMEL_CLI_PROCESS_OUTPUT_H

#include "base/buffer.h"

#include <semel/status.h>

/* Prints the whole buffer, or nothing if it ran out of memory. Frees it. error may be NULL. */
semel_status semel_output_print(struct semel_buffer *buffer, semel_error *error);
/* The same for a string, which still belongs to the caller. */
semel_status semel_output_write(const char *string, semel_error *error);

#endif
