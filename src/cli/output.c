/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/output.h"

#include "base/error.h"

#include <stdio.h>

semel_status semel_output_print(struct semel_buffer *buffer, semel_error *error)
{
	bool failed = buffer->failed;
	if (!failed && buffer->length > 0)
		fwrite(buffer->data, 1, buffer->length, stdout);
	semel_buffer_free(buffer);
	return failed ? semel_error_set(error, SEMEL_INTERNAL, "no memory") : SEMEL_OK;
}
