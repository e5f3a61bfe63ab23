/* SPDX-License-Identifier: Apache-2.0 */
/* Observation: logs, metrics and spans of this process.
 *
 * To change here: this room uses base only. It may know the words of the domain (fields, the
 * names of metrics), never its rules; no function here waits for anything but its own mutex.
 *
 * Structured logs on stderr: text on a terminal, otherwise one JSON object per line.
 * SEMEL_LOG=text|json, SEMEL_LOG_LEVEL=debug|info|warn|error. Payloads are never logged.
 * Of equal lines, three are written in ten seconds; the next one written says how many were
 * omitted. Lines about one event, and debug lines, are all written.
 * Any thread can log; one line is one write. In a library only warnings and errors are written,
 * unless the environment says otherwise. */
#ifndef SEMEL_OBSERVE_LOG_H
#define SEMEL_OBSERVE_LOG_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_log_level { SEMEL_LOG_DEBUG, SEMEL_LOG_INFO, SEMEL_LOG_WARN, SEMEL_LOG_ERROR };

/* Fields that are not set (NULL, 0, false) are left out. */
struct semel_log_fields {
	const char *message_id, *correlation_id, *exchange, *topic, *routing_key, *queue, *consumer;
	const char *dedup_status, *ack_decision, *error;
	const char *service; /* of `semel run`: "relay", "subscription billing" */
	const char *detail;  /* what else varies: an address, counts */
	int32_t partition;
	int64_t offset;
	bool has_position; /* partition and offset are set; offset -1: no offset */
	int64_t delivery_tag;
	bool redelivered;
	uint32_t attempt;
};

/* Reads the environment; level is the default. CONFIG if a value is not valid. */
semel_status semel_log_setup(enum semel_log_level level, semel_error *error);
bool semel_log_is_enabled(enum semel_log_level level);
void semel_log(enum semel_log_level level, const char *message,
	       const struct semel_log_fields *fields);
/* Writes the counts of omitted lines that are not written yet. Call this before the process
 * ends. */
void semel_log_flush(void);
/* For a terminal where something was drawn in the line that the next log line will use. */
#define SEMEL_LOG_CLEAR_LINE "\r\033[K"
void semel_log_clear_line_first(bool wipe);
/* message is a constant; what varies is the detail, formatted as by printf. */
void semel_log_detail(enum semel_log_level level, const char *message, const char *format, ...)
	SEMEL_PRINTF(3, 4);

#endif
