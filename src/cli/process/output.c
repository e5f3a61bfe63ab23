/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/process/output.h"

#include "base/error.h"

#include <stdio.h>

static semel_status write_visible(struct semel_text text, semel_error *error)
{
	struct semel_buffer visible = { 0 };
	semel_buffer_visible(&visible, text);
	bool failed = visible.failed;
	if (!failed && visible.length > 0)
		fwrite(visible.data, 1, visible.length, stdout);
	semel_buffer_free(&visible);
	return failed ? semel_error_set(error, SEMEL_INTERNAL, "out of memory") : SEMEL_OK;
}

semel_status semel_output_print(struct semel_buffer *buffer, semel_error *error)
{
	semel_status status = buffer->failed
				      ? semel_error_set(error, SEMEL_INTERNAL, "out of memory")
				      : write_visible(semel_buffer_text(buffer), error);
	semel_buffer_free(buffer);
	return status;
}

semel_status semel_output_write(const char *string, semel_error *error)
{
	return write_visible(semel_text_of(string), error);
}
