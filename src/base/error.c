/* SPDX-License-Identifier: Apache-2.0 */
/* The one list of statuses: name, class (which decides the policy), exit code of the program, and
 * the sentence that is used when there are no details. Also fills the caller's semel_error: a text
 * that is too long is cut between characters, so that it stays printable. */
#include "base/error.h"

#include "base/text.h"

#include <semel/version.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sysexits.h>

enum { EX_DONE = 0, EX_FOUND = 1 };

struct row {
	const char *name;
	semel_class class;
	int exit_code;
	const char *sentence;
};

static const struct row rows[SEMEL_STATUS_COUNT] = {
	[SEMEL_OK] = { "ok", SEMEL_CLASS_OK, EX_DONE, "done" },
	[SEMEL_INVALID] = { "invalid", SEMEL_CLASS_REJECT, EX_DATAERR,
			    "invalid argument or value" },
	[SEMEL_TOO_LARGE] = { "too-large", SEMEL_CLASS_REJECT, EX_DATAERR,
			      "the event exceeds a limit" },
	[SEMEL_DUPLICATE_ID] = { "duplicate-id", SEMEL_CLASS_REJECT, EX_DATAERR,
				 "an event with this id is in the outbox already" },
	[SEMEL_CONTRACT] = { "contract", SEMEL_CLASS_REJECT, EX_DATAERR,
			     "the delivery is not a valid event (no id, or it cannot be parsed)" },
	[SEMEL_NO_TRANSACTION] = { "no-transaction", SEMEL_CLASS_BUG, EX_SOFTWARE,
				   "no transaction is open (begin one on this connection first)" },
	[SEMEL_NOT_FOUND] = { "not-found", SEMEL_CLASS_REJECT, EX_DATAERR, "not found" },
	[SEMEL_NOT_PENDING] = { "not-pending", SEMEL_CLASS_REJECT, EX_DATAERR,
				"the dead letter was replayed or discarded already" },
	[SEMEL_REPLAY_LIMIT] = { "replay-limit", SEMEL_CLASS_REJECT, EX_DATAERR,
				 "the dead letter was replayed as often as allowed" },
	[SEMEL_HANDLER_RETRY] = { "handler-retry", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
				  "the handler requested a retry" },
	[SEMEL_HANDLER_REJECT] = { "handler-reject", SEMEL_CLASS_REJECT, EX_DATAERR,
				   "the handler rejected the event" },
	[SEMEL_NACKED] = { "nacked", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
			   "the broker refused the event" },
	[SEMEL_UNROUTABLE] = { "unroutable", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
			       "the broker has no route for this event" },
	[SEMEL_FULL] = { "full", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
			 "the window of unconfirmed events is full" },
	[SEMEL_HELD] = { "held", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
			 "an earlier event of its aggregate was refused" },
	[SEMEL_BUSY] = { "busy", SEMEL_CLASS_OUTAGE, EX_TEMPFAIL,
			 "another process held the lock for too long (try again)" },
	[SEMEL_LEASE_LOST] = { "lease-lost", SEMEL_CLASS_OUTAGE, EX_TEMPFAIL,
			       "the lease was lost to another owner" },
	[SEMEL_OUTAGE] = { "outage", SEMEL_CLASS_OUTAGE, EX_UNAVAILABLE,
			   "the store, the broker or a dependency is unavailable" },
	[SEMEL_STORAGE_FULL] = { "storage-full", SEMEL_CLASS_OUTAGE, EX_TEMPFAIL,
				 "no space left on device (free disk space, then try again)" },
	[SEMEL_NOT_A_DATABASE] = { "not-a-database", SEMEL_CLASS_REJECT, EX_DATAERR,
				   "the file is not a database" },
	[SEMEL_NO_SCHEMA] = { "no-schema", SEMEL_CLASS_REJECT, EX_CONFIG,
			      "the tables are missing (run: semel init)" },
	[SEMEL_SCHEMA_NEWER] = { "schema-newer", SEMEL_CLASS_REJECT, EX_CONFIG,
				 "the tables were created by a newer version of Semel (upgrade "
				 "Semel)" },
	[SEMEL_CONFIG] = { "config", SEMEL_CLASS_REJECT, EX_CONFIG, "a setting is not valid" },
	[SEMEL_USAGE] = { "usage", SEMEL_CLASS_BUG, EX_USAGE, "the command line is not valid" },
	[SEMEL_NOT_FINISHED] = { "not-finished", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
				 "the time limit was reached before the work was finished (try "
				 "again)" },
	[SEMEL_PROBLEM_FOUND] = { "problem-found", SEMEL_CLASS_REJECT, EX_FOUND,
				  "the check found a problem" },
	[SEMEL_STOPPED] = { "stopped", SEMEL_CLASS_REJECT, EX_DONE, "stopped on request" },
	[SEMEL_INTERNAL] = { "internal", SEMEL_CLASS_BUG, EX_SOFTWARE,
			     "internal error, or out of memory" },
	[SEMEL_STALLED] = { "stalled", SEMEL_CLASS_RETRY, EX_TEMPFAIL,
			    "the partition accepts no events now; the event is not the cause" },
};

/* A number that is not a status can only come from a bug. */
static const struct row *row_of(semel_status status)
{
	unsigned at = (unsigned)status;
	return &rows[at < SEMEL_STATUS_COUNT ? at : SEMEL_INTERNAL];
}

const char *semel_status_name(semel_status status)
{
	return row_of(status)->name;
}

const char *semel_status_sentence(semel_status status)
{
	return row_of(status)->sentence;
}

semel_class semel_status_class(semel_status status)
{
	return row_of(status)->class;
}

int semel_status_exit_code(semel_status status)
{
	return row_of(status)->exit_code;
}

/* The version that was linked, for programs that compare it with their headers. */
const char *semel_version(void)
{
	return SEMEL_VERSION;
}

/* ---- the caller's error -----------------------------------------------------------------------
 */

/* Only a text that fills its buffer was cut; its last character may then be incomplete. */
static void drop_cut_character(char *text, size_t size)
{
	size_t length = strlen(text);
	if (length + 1 < size)
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
