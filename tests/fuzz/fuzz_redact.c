/* SPDX-License-Identifier: Apache-2.0 */
/* A dead letter of headers, payload (a line each) and reason (the rest), as the context shows it:
 * valid JSON, all members there but for those that are hidden, and a reason that repeats none of
 * them. */
#include "admin/redact.h"
#include "base/json.h"
#include "event/event.h"

#include "fuzz.h"

#include <jansson.h>
#include <strings.h>

static const char *const paths[] = { "$.card",  "$..pin",        "$.list[0]", "$.items[*].n",
				     "$.*.*.x", "headers.token", NULL };

/* Of the store's rules, which need a store. */
const char *semel_dead_status_name(enum semel_dead_status status)
{
	return status == SEMEL_DEAD_DISCARDED ? "DISCARDED" : "PENDING";
}

struct letter {
	struct semel_text headers, payload;
	const char *reason;
};

/* ---- the reference: what is hidden, in a tree -------------------------------------------------
 */

/* Calls of itself are as deep as jansson reads. */
static void check_value(const json_t *value, const char *reason, struct semel_text unescaped)
{
	struct semel_text text = { NULL, 0 };
	char number[32];
	const char *name;
	const json_t *child;
	size_t at;

	if (json_is_string(value))
		text = semel_text_from(json_string_value(value), json_string_length(value));
	if (json_is_integer(value)) {
		snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
		text = semel_text_of(number);
	}
	if (text.length >= 4 && !semel_text_is_blank(text) &&
	    !semel_text_equals_string(text, SEMEL_HIDDEN)) {
		PROMISE(!semel_text_find(semel_text_of(reason), text));
		PROMISE(!semel_text_find(unescaped, text));
	}
	json_array_foreach(value, at, child)
	{
		check_value(child, reason, unescaped);
	}
	json_object_foreach((json_t *)(uintptr_t)value, name, child)
	{
		check_value(child, reason, unescaped);
	}
}

struct reference {
	const char *reason; /* NULL: it is not shown */
	struct semel_text unescaped;
};

static void hide_member(const struct reference *reference, json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	if (!value)
		return;
	if (reference->reason)
		check_value(value, reference->reason, reference->unescaped);
	json_object_set_new(object, name, json_string(SEMEL_HIDDEN));
}

static void hide_pins(const struct reference *reference, json_t *value)
{
	const char *name;
	json_t *child;
	size_t at;

	hide_member(reference, value, "pin");
	json_array_foreach(value, at, child)
	{
		hide_pins(reference, child);
	}
	json_object_foreach(value, name, child)
	{
		hide_pins(reference, child);
	}
}

/* Every child, of a list or an object. */
static void each_child(const struct reference *reference, json_t *value,
		       void (*request)(const struct reference *reference, json_t *child))
{
	const char *name;
	json_t *child;
	size_t at;

	json_array_foreach(value, at, child)
	{
		request(reference, child);
	}
	json_object_foreach(value, name, child)
	{
		request(reference, child);
	}
}

static void hide_n(const struct reference *reference, json_t *value)
{
	hide_member(reference, value, "n");
}

static void hide_x(const struct reference *reference, json_t *value)
{
	hide_member(reference, value, "x");
}

static void hide_below(const struct reference *reference, json_t *value)
{
	each_child(reference, value, hide_x);
}

static void hide_payload(const struct reference *reference, json_t *payload)
{
	json_t *list = json_object_get(payload, "list");

	each_child(reference, payload, hide_below);
	each_child(reference, json_object_get(payload, "items"), hide_n);
	hide_pins(reference, payload);
	if (json_array_size(list) > 0) {
		if (reference->reason)
			check_value(json_array_get(list, 0), reference->reason,
				    reference->unescaped);
		json_array_set_new(list, 0, json_string(SEMEL_HIDDEN));
	}
	hide_member(reference, payload, "card");
}

static void hide_headers(const struct reference *reference, json_t *headers)
{
	const char *name;
	json_t *value;
	void *next;

	json_object_foreach_safe(headers, next, name, value)
	{
		if (strcasecmp(name, "token") == 0)
			hide_member(reference, headers, name);
	}
}

/* ---- the promise ------------------------------------------------------------------------------
 */

static json_t *load(struct semel_text text, size_t flags)
{
	return text.length > 0 ? json_loadb(semel_text_chars(text), text.length,
					    JSON_DECODE_ANY | JSON_ALLOW_NUL | flags, NULL)
			       : NULL;
}

/* What the reason stands for, if it is the inside of a JSON string. */
static struct semel_text unescape(const char *reason, struct semel_arena *arena)
{
	struct semel_buffer quoted = { 0 };
	struct semel_text text = { NULL, 0 };

	semel_buffer_printf(&quoted, "\"%s\"", reason);
	struct semel_text token =
		semel_arena_text(arena, semel_buffer_text(&quoted).data, quoted.length);
	semel_buffer_free(&quoted);
	if (semel_json_is_valid(token))
		text = semel_json_unquote(token, arena);
	return text;
}

/* Numbers beyond all bounds, and names that stand twice, are not for the reference. */
static void compare(const json_t *record, const char *name, json_t *wanted,
		    void (*hide)(const struct reference *reference, json_t *value),
		    const struct reference *reference)
{
	if (!wanted)
		return;
	hide(reference, wanted);
	PROMISE(json_equal(json_object_get(record, name), wanted));
}

static bool is_hidden(const json_t *value)
{
	return json_is_string(value) && strcmp(json_string_value(value), SEMEL_HIDDEN) == 0;
}

static void check_shown(const struct letter *letter, const json_t *shown, struct semel_arena *arena)
{
	const json_t *record = json_object_get(shown, "eventRecord");
	json_t *payload = load(letter->payload, JSON_REJECT_DUPLICATES);
	json_t *headers = load(letter->headers, JSON_REJECT_DUPLICATES);
	bool quiet = is_hidden(json_object_get(shown, "failureReason"));
	const struct reference reference = { .reason = quiet ? NULL : letter->reason,
					     .unescaped = unescape(letter->reason, arena) };

	if (letter->payload.length > 0 && !semel_json_is_valid(letter->payload))
		PROMISE(is_hidden(json_object_get(record, "payload")));
	if (semel_json_is_valid(letter->payload))
		compare(record, "payload", payload, hide_payload, &reference);
	if (json_is_object(headers) && semel_json_is_valid(letter->headers))
		compare(record, "headers", headers, hide_headers, &reference);
	else if (letter->headers.length > 0 && !json_is_object(json_object_get(record, "headers")))
		PROMISE(is_hidden(json_object_get(record, "headers")));
	json_decref(payload);
	json_decref(headers);
}

static void show(const struct letter *letter, struct semel_arena *arena)
{
	struct semel_redaction *redaction = NULL;
	struct semel_buffer text = { 0 };
	const struct semel_event event = { .content_type = SEMEL_TEXT_CONST("application/json"),
					   .headers = letter->headers,
					   .payload = letter->payload };
	const semel_dead_letter dead = { .event = &event,
					 .failure_reason = letter->reason,
					 .discard_reason = letter->reason };

	PROMISE(semel_redaction_new(paths, &redaction, NULL) == SEMEL_OK);
	PROMISE(semel_redaction_write_json(redaction, &dead, true, &text) == SEMEL_OK);
	PROMISE(semel_json_is_valid(semel_buffer_text(&text)));
	json_t *shown = load(semel_buffer_text(&text), 0);
	if (shown)
		check_shown(letter, shown, arena);
	json_decref(shown);
	semel_buffer_free(&text);
	semel_redaction_free(redaction);
}

/* The line that begins at *at, ended in place. */
static struct semel_text take_line(char **at, const char *end)
{
	char *from = *at, *stop = memchr(from, '\n', (size_t)(end - from));

	if (!stop) {
		*at += end - from;
		return semel_text_from(from, (size_t)(end - from));
	}
	*stop = '\0';
	*at = stop + 1;
	return semel_text_from(from, (size_t)(stop - from));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 4096)
		return 0;
	char *copy = fuzz_copy(data, size), *at = copy;
	struct semel_arena *arena = semel_arena_new(4096);
	struct letter letter = { .headers = take_line(&at, copy + size) };

	letter.payload = take_line(&at, copy + size);
	letter.reason = at;
	show(&letter, arena);
	semel_arena_free(arena);
	free(copy);
	return 0;
}
