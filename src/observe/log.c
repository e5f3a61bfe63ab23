/* SPDX-License-Identifier: Apache-2.0 */
/* A repeated line is omitted and counted (log_limit.h).
 *
 * One line is one write of at most PIPE_BUF bytes, so lines of several processes on one pipe do not
 * mix. If a line would be too long its texts are cut, not its end. */
#include "observe/log.h"

#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text.h"
#include "base/time.h"
#include "observe/log_limit.h"
#include "observe/metrics.h"

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = PIPE_BUF, LEVEL_COUNT = SEMEL_LOG_ERROR + 1 };
enum { END_ROOM = 32 };      /* for the count of omitted lines, and the end of the line */
enum { MESSAGE_LIMIT = 96 }; /* fits an entry of the limiter, even if every byte is escaped */
enum { NOT_SET_UP = -1, LEVEL_BITS = 3, AS_JSON = 4 };

static const char *const level_names[LEVEL_COUNT] = { "debug", "info", "warn", "error" };

/* The level and AS_JSON in one number, so that any thread can read both. */
static atomic_int settings = NOT_SET_UP;
static atomic_bool clears_first;

static semel_status wrong_value(const char *variable, const char *value, const char *choices,
				semel_error *error)
{
	return semel_error_set(error, SEMEL_CONFIG, "%s=%.60s is not valid: use one of %s",
			       variable, value, choices);
}

static semel_status read_level(int *level, semel_error *error)
{
	const char *value = getenv("SEMEL_LOG_LEVEL");
	if (!value || semel_string_is_blank(value))
		return SEMEL_OK;
	for (int i = 0; i < LEVEL_COUNT; i++) {
		if (strcmp(value, level_names[i]) == 0) {
			*level = i;
			return SEMEL_OK;
		}
	}
	return wrong_value("SEMEL_LOG_LEVEL", value, "debug, info, warn, error", error);
}

static semel_status read_format(int *format, semel_error *error)
{
	const char *value = getenv("SEMEL_LOG");
	if (!value || semel_string_is_blank(value))
		*format = isatty(STDERR_FILENO) ? 0 : AS_JSON;
	else if (strcmp(value, "json") == 0)
		*format = AS_JSON;
	else if (strcmp(value, "text") == 0)
		*format = 0;
	else
		return wrong_value("SEMEL_LOG", value, "text, json", error);
	return SEMEL_OK;
}

/* An invalid value is an error, and the default stays in force. */
semel_status semel_log_setup(enum semel_log_level level, semel_error *error)
{
	int chosen_level = (int)level, format = AS_JSON;
	semel_status level_status = read_level(&chosen_level, error);
	semel_status format_status = read_format(&format, level_status == SEMEL_OK ? error : NULL);
	atomic_store(&settings, chosen_level | format);
	return level_status != SEMEL_OK ? level_status : format_status;
}

static int current_settings(void)
{
	int now = atomic_load_explicit(&settings, memory_order_relaxed);
	if (now != NOT_SET_UP)
		return now;
	semel_status ignored = semel_log_setup(SEMEL_LOG_WARN, NULL);
	(void)ignored; /* a library has nowhere to report it */
	return atomic_load(&settings);
}

bool semel_log_is_enabled(enum semel_log_level level)
{
	return (int)level >= (current_settings() & LEVEL_BITS);
}

/* One row per text field, in the order in which they are printed. */
static const struct text_field {
	const char *name;
	size_t offset;
} text_fields[] = {
	{ "messageId", offsetof(struct semel_log_fields, message_id) },
	{ "correlationId", offsetof(struct semel_log_fields, correlation_id) },
	{ "exchange", offsetof(struct semel_log_fields, exchange) },
	{ "topic", offsetof(struct semel_log_fields, topic) },
	{ "routingKey", offsetof(struct semel_log_fields, routing_key) },
	{ "queue", offsetof(struct semel_log_fields, queue) },
	{ "consumer", offsetof(struct semel_log_fields, consumer) },
	{ "dedupStatus", offsetof(struct semel_log_fields, dedup_status) },
	{ "ackDecision", offsetof(struct semel_log_fields, ack_decision) },
	{ "service", offsetof(struct semel_log_fields, service) },
	{ "detail", offsetof(struct semel_log_fields, detail) },
	{ "error", offsetof(struct semel_log_fields, error) },
};

enum { TEXT_FIELD_COUNT = sizeof(text_fields) / sizeof(text_fields[0]) };

static const char *field_text(const struct semel_log_fields *fields, size_t at)
{
	const char *text;
	memcpy(&text, (const char *)fields + text_fields[at].offset, sizeof(text));
	return text;
}

/* At most limit bytes of the string, without half a character at the end. */
static struct semel_text cut(const char *string, size_t limit)
{
	struct semel_text text = semel_text_from(string, strnlen(string, limit));
	if (text.length < limit)
		return text;
	while (text.length > 0 && ((unsigned char)string[text.length] & 0xC0) == 0x80)
		text.length--;
	return text;
}

struct line {
	struct semel_buffer *buffer;
	size_t text_limit;
	bool json;
};

static void put_name(const struct line *line, const char *name)
{
	if (line->json)
		semel_buffer_printf(line->buffer, ",\"%s\":", name);
	else
		semel_buffer_printf(line->buffer, " %s=", name);
}

static bool is_plain_word(struct semel_text text)
{
	for (size_t i = 0; i < text.length; i++)
		if (text.data[i] <= ' ' || text.data[i] > '~' || strchr("\"\\=", text.data[i]))
			return false;
	return text.length > 0;
}

static void put_text(const struct line *line, const char *name, const char *string)
{
	struct semel_text text = cut(string, line->text_limit);
	put_name(line, name);
	if (line->json || !is_plain_word(text))
		semel_buffer_json(line->buffer, text);
	else
		semel_buffer_append(line->buffer, text.data, text.length);
}

static void put_number(const struct line *line, const char *name, int64_t number)
{
	put_name(line, name);
	semel_buffer_printf(line->buffer, "%lld", (long long)number);
}

static void put_fields(const struct line *line, const struct semel_log_fields *fields)
{
	for (size_t i = 0; i < TEXT_FIELD_COUNT; i++)
		if (field_text(fields, i))
			put_text(line, text_fields[i].name, field_text(fields, i));
	if (fields->has_position) {
		put_number(line, "partition", fields->partition);
		if (fields->offset >= 0)
			put_number(line, "offset", fields->offset);
	}
	if (fields->delivery_tag > 0)
		put_number(line, "deliveryTag", fields->delivery_tag);
	if (fields->redelivered) {
		put_name(line, "redelivered");
		semel_buffer_string(line->buffer, "true");
	}
	if (fields->attempt > 0)
		put_number(line, "attempt", fields->attempt);
}

/* On a terminal, nothing in a message may move the cursor or break the line. */
static void put_message(const struct line *line, const char *message)
{
	struct semel_text text = cut(message, line->text_limit);
	if (line->json) {
		semel_buffer_json(line->buffer, text);
		return;
	}
	for (size_t i = 0; i < text.length; i++) {
		semel_byte c = text.data[i];
		if (c < 0x20 || c == 0x7f)
			c = ' ';
		semel_buffer_append(line->buffer, &c, 1);
	}
}

/* Returns where the rest of the line begins, after the time. */
static size_t put_time(const struct line *line)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(semel_now_ms(semel_env_system()), time);
	semel_buffer_clear(line->buffer);
	semel_buffer_printf(line->buffer, line->json ? "{\"time\":\"%s\"," : "%s ", time);
	return line->buffer->length;
}

static void put_rest(const struct line *line, enum semel_log_level level, const char *message,
		     const struct semel_log_fields *fields)
{
	semel_buffer_printf(line->buffer, line->json ? "\"level\":\"%s\",\"msg\":" : "%-5s ",
			    level_names[level]);
	put_message(line, message);
	if (fields)
		put_fields(line, fields);
}

/* Formats a line that is short enough for one write. Returns where the rest of the line begins. */
static size_t put_line(struct line *line, enum semel_log_level level, const char *message,
		       const struct semel_log_fields *fields)
{
	/* With the smallest limit any line fits, even if every byte is escaped. */
	static const size_t text_limits[] = { 1024, 256, 48 };
	size_t rest = 0;
	for (size_t i = 0; i < sizeof(text_limits) / sizeof(text_limits[0]); i++) {
		line->text_limit = text_limits[i];
		rest = put_time(line);
		put_rest(line, level, message, fields);
		if (line->buffer->length + END_ROOM <= LINE_MAX_BYTES)
			break;
	}
	return rest;
}

void semel_log_clear_line_first(bool wipe)
{
	atomic_store(&clears_first, wipe);
}

static void write_line(const struct line *line, uint32_t omitted)
{
	if (omitted > 0)
		put_number(line, "omitted", omitted);
	semel_buffer_string(line->buffer, line->json ? "}\n" : "\n");
	if (line->buffer->failed)
		return;
	ssize_t written = 0;
	if (atomic_load(&clears_first))
		written = write(STDERR_FILENO, SEMEL_LOG_CLEAR_LINE, strlen(SEMEL_LOG_CLEAR_LINE));
	written += write(STDERR_FILENO, line->buffer->data, line->buffer->length);
	(void)written; /* there is nowhere to report it */
}

/* ---- repeats ------------------------------------------------------------------------------- */

static pthread_mutex_t limiter_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct semel_log_limiter limiter;

static uint64_t hash_of(const char *data, size_t length)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < length; i++)
		hash = (hash ^ (unsigned char)data[i]) * UINT64_C(0x100000001b3);
	return hash | 1;
}

/* The line after its time; if it is too long to be remembered, without its fields. */
static void remember_text(struct semel_log_limit_entry *entry, const struct line *line, size_t rest,
			  enum semel_log_level level, const char *message)
{
	struct semel_buffer shortened = { 0 };
	const struct semel_buffer *source = line->buffer;
	if (line->buffer->length - rest >= sizeof(entry->text)) {
		put_rest(&(struct line){ &shortened, MESSAGE_LIMIT, line->json }, level, message,
			 NULL);
		source = &shortened;
		rest = 0;
	}
	if (!source->failed && source->length - rest < sizeof(entry->text))
		memcpy(entry->text, source->data + rest, source->length - rest);
	semel_buffer_free(&shortened);
}

static bool is_admitted(const struct line *line, size_t rest, enum semel_log_level level,
			const char *message, uint32_t *omitted_out)
{
	struct semel_log_limit_entry entry = { 0 };
	if (line->buffer->failed)
		return true;
	entry.hash = hash_of(line->buffer->data + rest, line->buffer->length - rest);
	remember_text(&entry, line, rest, level, message);
	if (entry.text[0] == '\0') /* out of memory: what is not counted is written */
		return true;
	pthread_mutex_lock(&limiter_mutex);
	bool admitted = semel_log_limiter_admit(&limiter, &entry,
						semel_steady_ms(semel_env_system()), omitted_out);
	pthread_mutex_unlock(&limiter_mutex);
	if (!admitted)
		semel_series_add(semel_series(SEMEL_METRIC_LOG_OMITTED, NULL, NULL), 1);
	return admitted;
}

/* Writes the counts of lines that stopped repeating before their counts were written. */
static void write_overdue(struct line *line, bool all)
{
	struct semel_log_limit_entry entry;
	for (;;) {
		pthread_mutex_lock(&limiter_mutex);
		bool any = semel_log_limiter_take_overdue(
			&limiter, semel_steady_ms(semel_env_system()), all, &entry);
		pthread_mutex_unlock(&limiter_mutex);
		if (!any)
			return;
		put_time(line);
		semel_buffer_string(line->buffer, entry.text);
		write_line(line, entry.omitted);
	}
}

void semel_log_flush(void)
{
	struct semel_buffer buffer = { 0 };
	struct line line = { .buffer = &buffer, .json = (current_settings() & AS_JSON) != 0 };
	write_overdue(&line, true);
	semel_buffer_free(&buffer);
}

/* A line about one event is never counted as a repeat: each decision has its own line. */
void semel_log(enum semel_log_level level, const char *message,
	       const struct semel_log_fields *fields)
{
	int now = current_settings();
	if ((int)level < (now & LEVEL_BITS))
		return;
	struct semel_buffer buffer = { 0 };
	struct line line = { .buffer = &buffer, .json = (now & AS_JSON) != 0 };
	bool single = level == SEMEL_LOG_DEBUG ||
		      (fields && (fields->message_id || fields->ack_decision));
	uint32_t omitted = 0;
	if (!single)
		write_overdue(&line, false);
	size_t rest = put_line(&line, level, message, fields);
	if (single || is_admitted(&line, rest, level, message, &omitted))
		write_line(&line, omitted);
	semel_buffer_free(&buffer);
}

void semel_log_detail(enum semel_log_level level, const char *message, const char *format, ...)
{
	if (!semel_log_is_enabled(level))
		return;
	char detail[SEMEL_ERROR_TEXT_MAX + 256];
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(detail, sizeof(detail), format, arguments);
	va_end(arguments);
	semel_log(level, message,
		  &(struct semel_log_fields){ .detail = length >= 0 ? detail : NULL });
}
