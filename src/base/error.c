/* SPDX-License-Identifier: Apache-2.0 */
/* Filling the caller's semel_error. A text that is too long is cut between characters, so that it
 * stays printable. */
#include "base/error.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Only a text that fills its room was cut; then its last character may be half of one. */
static void drop_cut_character(char *text, size_t room)
{
	size_t length = strlen(text);
	if (length + 1 < room)
		return;
	size_t start = length;
	while (start > 0 && length - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80)
		start--;
	if (start > 0)
		start--;
	if (semel_utf8_length((const unsigned char *)text + start, length - start) == 0)
		text[start] = '\0';
}

#undef semel_error_set /* the analyzer's form is for callers */
semel_status semel_error_set(semel_error *error, semel_status status, const char *format, ...)
{
	if (!error)
		return status;
	char text[SEMEL_ERROR_TEXT_MAX]; /* an argument may be the old text itself */
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (length < 0)
		text[0] = '\0';
	drop_cut_character(text, sizeof(text));
	error->status = status;
	memcpy(error->text, text, strlen(text) + 1);
	return status;
}

semel_status semel_error_prefix(semel_error *error, const char *format, ...)
{
	if (!error)
		return SEMEL_INTERNAL;
	char text[SEMEL_ERROR_TEXT_MAX];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (length < 0)
		return error->status;
	size_t used = strlen(text);
	if (snprintf(text + used, sizeof(text) - used, ": %s", error->text) < 0)
		return error->status;
	drop_cut_character(text, sizeof(text));
	memcpy(error->text, text, strlen(text) + 1);
	return error->status;
}

void semel_error_clear(semel_error *error)
{
	if (!error)
		return;
	error->status = SEMEL_OK;
	error->text[0] = '\0';
}
