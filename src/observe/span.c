/* SPDX-License-Identifier: Apache-2.0 */
#include "observe/span.h"

#include "base/uuid.h"
#include "observe/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char digits[] = "0123456789abcdef";

static int digit(char character)
{
	const char *at = character ? strchr(digits, character) : NULL;

	return at ? (int)(at - digits) : -1;
}

static bool read_hex(const char *text, uint8_t *bytes_out, size_t count)
{
	bool any = false;

	for (size_t i = 0; i < count; i++) {
		int high = digit(text[2 * i]), low = high < 0 ? -1 : digit(text[2 * i + 1]);
		if (low < 0)
			return false;
		bytes_out[i] = (uint8_t)(high * 16 + low);
		any = any || bytes_out[i] != 0;
	}
	return any;
}

static char *write_hex(char *out, const uint8_t *bytes, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		*out++ = digits[bytes[i] >> 4];
		*out++ = digits[bytes[i] & 15];
	}
	return out;
}

bool semel_traceparent_parse(struct semel_text text, struct semel_span_context *context_out)
{
	const char *at = semel_text_chars(text);
	uint8_t flags = 0;

	/* Later versions may be longer; the known fields have the same positions. */
	if (!at || text.length < SEMEL_TRACEPARENT_SIZE - 1 || at[2] != '-' || at[35] != '-' ||
	    at[52] != '-' || memcmp(at, "ff", 2) == 0 || digit(at[0]) < 0 || digit(at[1]) < 0 ||
	    (text.length > SEMEL_TRACEPARENT_SIZE - 1 &&
	     (memcmp(at, "00", 2) == 0 || at[55] != '-')))
		return false;
	if (!read_hex(at + 3, context_out->trace, 16) || !read_hex(at + 36, context_out->span, 8))
		return false;
	if (digit(at[53]) < 0 || digit(at[54]) < 0)
		return false;
	flags = (uint8_t)digit(at[54]);
	context_out->sampled = flags & 1;
	return true;
}

void semel_traceparent_format(const struct semel_span_context *context,
			      char out[SEMEL_TRACEPARENT_SIZE])
{
	memcpy(out, "00-", 3);
	char *at = write_hex(out + 3, context->trace, 16);
	*at++ = '-';
	at = write_hex(at, context->span, 8);
	memcpy(at, context->sampled ? "-01" : "-00", 4);
}

static void random_bytes(const struct semel_env *env, uint8_t *out, size_t count)
{
	for (size_t i = 0; i < count; i += 8) {
		uint64_t chance = semel_random(env) | 1; /* never all zero */
		memcpy(out + i, &chance, 8);
	}
}

/* Which part of new traces is sampled, in parts of 2^32. */
static uint64_t sample_ratio(void)
{
	const char *sampler = getenv("OTEL_TRACES_SAMPLER");
	const char *argument = getenv("OTEL_TRACES_SAMPLER_ARG");
	const uint64_t all = UINT64_C(1) << 32;

	if (!sampler)
		return all;
	if (strstr(sampler, "always_off"))
		return 0;
	if (!strstr(sampler, "traceidratio") || !argument)
		return all;
	double ratio = strtod(argument, NULL);
	return ratio >= 1 ? all : ratio <= 0 ? 0 : (uint64_t)(ratio * (double)all);
}

struct semel_span_context semel_trace_begin(const struct semel_env *env)
{
	struct semel_span_context context = { 0 };
	uint32_t chance;

	random_bytes(env, context.trace, 16);
	random_bytes(env, context.span, 8);
	memcpy(&chance, context.trace + 4, sizeof chance);
	context.sampled = chance < sample_ratio();
	return context;
}

struct semel_span_context semel_span_context_of(struct semel_text traceparent,
						struct semel_text event_id)
{
	struct semel_span_context context = { 0 };
	char hex[33] = "";
	size_t length = 0;

	if (semel_traceparent_parse(traceparent, &context))
		return context;
	context = (struct semel_span_context){ 0 };
	for (size_t i = 0; i < event_id.length && length < 32; i++)
		if (event_id.data[i] != '-')
			hex[length++] =
				(char)(event_id.data[i] | 0x20); /* digits stay as they are */
	context.sampled = length == 32 && read_hex(hex, context.trace, 16);
	return context;
}

struct semel_span semel_span_make(const char *name, enum semel_span_kind kind,
				  const struct semel_span_context *parent,
				  const struct semel_env *env)
{
	struct semel_span span = {
		.name = name, .kind = kind, .parent = *parent, .began_ms = semel_now_ms(env)
	};

	span.ended_ms = span.began_ms;
	random_bytes(env, span.id, 8);
	return span;
}

struct semel_span_context semel_span_as_parent(const struct semel_span *span)
{
	struct semel_span_context context = span->parent;

	memcpy(context.span, span->id, 8);
	return context;
}

static struct semel_span_attribute *attribute(struct semel_span *span, const char *name)
{
	if (span->attribute_count == SEMEL_SPAN_ATTRIBUTES_MAX)
		return NULL;
	struct semel_span_attribute *next = &span->attributes[span->attribute_count++];
	next->name = name;
	return next;
}

void semel_span_text(struct semel_span *span, const char *name, struct semel_text value)
{
	struct semel_span_attribute *next = attribute(span, name);

	if (next)
		snprintf(next->text, sizeof next->text, "%.*s", (int)value.length,
			 semel_text_shown_or(value, ""));
}

void semel_span_number(struct semel_span *span, const char *name, int64_t value)
{
	struct semel_span_attribute *next = attribute(span, name);

	if (!next)
		return;
	next->number = value;
	next->is_monitoring = true;
}

void semel_span_end(const struct semel_span *span)
{
	if (span->parent.sampled)
		semel_export_add(span);
}
