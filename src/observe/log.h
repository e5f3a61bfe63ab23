/* SPDX-License-Identifier: Apache-2.0 */
/* Observation: logs, metrics and spans of this process.
 *
 * To change here: this room uses base only. It may know the words of the domain (fields, the
 * names of metrics), never its rules; no function here waits for anything but its own mutex.
 *
 * Structured logs on stderr: text on a terminal, one JSON object per line otherwise.
 * SEMEL_LOG=text|json, SEMEL_LOG_LEVEL=debug|info|warn|error. Payloads are never logged. Of equal
 * lines three are written in ten seconds; the next one says how many were omitted.
 * Lines about one event, and those for debugging, are all written.
 * Any thread; one line is one write. In a library only warnings and errors are written, unless the
 * environment says otherwise. */
#ifndef SEMEL_OBSERVE_LOG_H
#define SEMEL_OBSERVE_LOG_H

#include <semel/status.h>

#include <stdbool.h>
#include <stdint.h>

enum semel_log_level { SEMEL_LOG_DEBUG, SEMEL_LOG_INFO, SEMEL_LOG_WARN, SEMEL_LOG_ERROR };

/* What is not set (NULL, 0, false) is left out. */
struct semel_log_fields {
	const char *message_id, *correlation_id, *exchange, *topic, *routing_key, *queue, *consumer;
	const char *dedup_status, *ack_decision, *error;
	const char *service; /* of `semel run`: "relay", "subscription billing" */
	const char *detail;  /* what else varies: an address, counts */
	int32_t partition;
	int64_t offset;
	bool has_position; /* partition and offset count; offset -1: none */
	int64_t delivery_tag;
	bool redelivered;
	uint32_t attempt;
};

/* Reads the environment; level is the default. CONFIG on a wrong value. */
semel_status semel_log_setup(enum semel_log_level level, semel_error *error);
bool semel_log_is_enabled(enum semel_log_level level);
void semel_log(enum semel_log_level level, const char *message,
	       const struct semel_log_fields *fields);
/* Writes the counts of omitted lines that were not written so far; before the process ends. */
void semel_log_flush(void);
/* On a terminal something may be drawn in the line where the next one is to be. */
#define SEMEL_LOG_CLEAR_LINE "\r\033[K"
void semel_log_clear_line_first(bool wipe);
/* The message is a constant; what varies is the detail, as in printf. */
void semel_log_detail(enum semel_log_level level, const char *message, const char *format, ...)
	SEMEL_PRINTF(3, 4);

#endif
