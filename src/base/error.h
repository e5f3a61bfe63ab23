/* SPDX-License-Identifier: Apache-2.0 */
/* Filling the caller's semel_error. */
#ifndef SEMEL_BASE_ERROR_H
#define SEMEL_BASE_ERROR_H

#include <semel/status.h>

/* Returns status, so that a caller can write: return semel_error_set(error, SEMEL_INVALID, "…").
 * error may be NULL. Texts are cut at SEMEL_ERROR_TEXT_MAX, never overrun. */
semel_status semel_error_set(semel_error *error, semel_status status, const char *format, ...)
	SEMEL_PRINTF(3, 4);
/* Puts "prefix: " before the existing text. Returns the status in error, or INTERNAL if error is
 * NULL. */
semel_status semel_error_prefix(semel_error *error, const char *format, ...) SEMEL_PRINTF(2, 3);
/* OK and an empty text. error may be NULL. */
void semel_error_clear(semel_error *error);

/* clang-tidy analyses one file at a time, and does not see that a failure is never SEMEL_OK. */
#ifdef __clang_analyzer__
#define semel_error_set(error, status, ...) (semel_error_set(error, status, __VA_ARGS__), (status))
#endif

#endif
