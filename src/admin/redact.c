/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/redact.h"

#include "base/error.h"
#include "base/json.h"
#include "event/event.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX  16
#define PATHS_MAX  64
#define PATH_SIZE  256
#define HEADERS    "headers."
#define HIDDEN     "[hidden]"
#define VALUE_MIN  4 /* shorter ones would be found everywhere */
#define VALUES_MAX 64

struct step {
	bool any;   /* "*" */
	bool deep;  /* "..": also further down */
	bool index; /* "[3]", whose number is */
	size_t at;
	const char *name; /* else; in the path's own copy */
};

struct path {
	char text[PATH_SIZE];
	struct step steps[STEPS_MAX];
	size_t count;
	const char *header; /* set: a header, and no steps */
};

struct semel_redaction {
	struct path paths[PATHS_MAX];
	size_t count;
};

/* ---- reading paths --------------------------------------------------------------------------- */

/* "['name']", "[3]", "[*]": what is behind the bracket; NULL: it does not fit. The name is ended in
 * place. */
static char *read_bracket(char *at, struct step *step)
{
	char quote = *at == '\'' || *at == '"' ? *at : '\0';
	char *end = quote ? strchr(at + 1, quote) : strchr(at, ']');

	if (!end || (quote && end[1] != ']') || end == at + (quote ? 1 : 0))
		return NULL;
	*end = '\0';
	if (quote) {
		step->name = at + 1;
		return end + 2;
	}
	step->any = strcmp(at, "*") == 0;
	step->index = !step->any;
	step->at = strtoul(at, NULL, 10);
	return step->any || strspn(at, "0123456789") == strlen(at) ? end + 1 : NULL;
}

/* The next step begins at *at, which is a dot or a bracket. Names before another one are ended by
 * it, so the sign is read first. */
static char *read_step(char *at, char *sign, struct step *step)
{
	if (*sign == '.' && *at == '.') {
		step->deep = true;
		at++;
	}
	if (*sign == '[' || (step->deep && *at == '[')) {
		at = read_bracket(*sign == '[' ? at : at + 1, step);
		*sign = at ? *at : '\0';
		return at && *at ? at + 1 : at;
	}
	size_t length = strcspn(at, ".[");
	if (length == 0)
		return NULL;
	*sign = at[length];
	at[length] = '\0';
	step->any = strcmp(at, "*") == 0;
	step->name = at;
	return at + length + (*sign ? 1 : 0);
}

static bool read_path(const char *text, struct path *path)
{
	size_t length = strlen(text);

	*path = (struct path){ .count = 0 };
	if (length >= sizeof path->text)
		return false;
	memcpy(path->text, text, length + 1);
	if (strncmp(text, HEADERS, strlen(HEADERS)) == 0) {
		path->header = path->text + strlen(HEADERS);
		return *path->header != '\0';
	}
	if (*text != '$')
		return false;
	char sign = path->text[1], *at = sign ? path->text + 2 : path->text + 1;
	while (sign) {
		if ((sign != '.' && sign != '[') || path->count == STEPS_MAX)
			return false;
		at = read_step(at, &sign, &path->steps[path->count++]);
		if (!at)
			return false;
	}
	return true;
}

bool semel_redaction_fits(const char *text)
{
	struct path path;

	return read_path(text, &path);
}

semel_status semel_redaction_make(const char *const *paths, struct semel_redaction **redaction_out,
				  semel_error *error)
{
	*redaction_out = NULL;
	if (!paths || !paths[0])
		return SEMEL_OK;
	struct semel_redaction *redaction = calloc(1, sizeof *redaction);
	if (!redaction)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the redaction");
	for (size_t i = 0; paths[i]; i++) {
		if (i == PATHS_MAX || !read_path(paths[i], &redaction->paths[i])) {
			free(redaction);
			return semel_error_set(error, SEMEL_CONFIG,
					       i == PATHS_MAX
						       ? "there are more than 64 paths to hide "
							 "before \"%.100s\""
						       : "\"%.100s\" is no path to hide (write "
							 "for example $.card.number)",
					       paths[i]);
		}
		redaction->count++;
	}
	*redaction_out = redaction;
	return SEMEL_OK;
}

void semel_redaction_free(struct semel_redaction *redaction)
{
	free(redaction);
}

/* ---- hiding ---------------------------------------------------------------------------------- */

struct hiding {
	struct semel_arena *arena;
	struct semel_text values[VALUES_MAX]; /* that were hidden */
	size_t count;
	bool failed; /* no memory: nothing may be shown */
};

static void keep_value(struct hiding *hiding, struct semel_text value)
{
	if (value.length < VALUE_MIN || hiding->count == VALUES_MAX)
		return;
	struct semel_text copy = semel_arena_text(hiding->arena, value.data, value.length);
	hiding->failed = hiding->failed || !copy.data;
	if (copy.data)
		hiding->values[hiding->count++] = copy;
}

static void keep_values(struct hiding *hiding, const json_t *value)
{
	const char *name;
	json_t *child;
	size_t at;

	if (json_is_string(value))
		keep_value(hiding,
			   semel_text_from(json_string_value(value), json_string_length(value)));
	if (json_is_number(value)) {
		char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
		keep_value(hiding, semel_text_of(text));
		free(text);
	}
	json_array_foreach(value, at, child)
	{
		keep_values(hiding, child);
	}
	json_object_foreach((json_t *)(uintptr_t)value, name, child)
	{
		keep_values(hiding, child);
	}
}

static json_t *hidden(struct hiding *hiding, const json_t *value)
{
	json_t *mark = json_string(HIDDEN);

	keep_values(hiding, value);
	hiding->failed = hiding->failed || !mark;
	return mark;
}

static void hide_in(struct hiding *hiding, json_t *value, const struct step *steps, size_t count);

/* What becomes of a child that the first step may mean. */
static json_t *visit_child(struct hiding *hiding, json_t *child, bool meant,
			   const struct step *steps, size_t count)
{
	if (meant && count == 1)
		return hidden(hiding, child);
	if (meant)
		hide_in(hiding, child, steps + 1, count - 1);
	if (steps->deep)
		hide_in(hiding, child, steps, count);
	return NULL;
}

static void hide_in(struct hiding *hiding, json_t *value, const struct step *steps, size_t count)
{
	for (size_t at = 0; at < json_array_size(value); at++) {
		bool meant = steps->any || (steps->index && steps->at == at);
		json_t *mark = visit_child(hiding, json_array_get(value, at), meant, steps, count);
		if (mark)
			json_array_set_new(value, at, mark);
	}
	for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at)) {
		bool meant = steps->any ||
			     (!steps->index && strcmp(steps->name, json_object_iter_key(at)) == 0);
		json_t *mark = visit_child(hiding, json_object_iter_value(at), meant, steps, count);
		if (mark)
			json_object_iter_set_new(value, at, mark);
	}
}

/* False: it cannot be followed, or there is no memory. */
static bool hide_members(const struct semel_redaction *redaction, struct hiding *hiding,
			 struct semel_text *payload)
{
	json_t *value = json_loadb(semel_text_chars(*payload), payload->length,
				   JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
	bool whole = false;

	for (size_t i = 0; value && i < redaction->count; i++) {
		const struct path *path = &redaction->paths[i];
		whole = whole || (!path->header && path->count == 0);
		if (path->count > 0)
			hide_in(hiding, value, path->steps, path->count);
	}
	if (value && whole)
		keep_values(hiding, value);
	char *text = value && !whole && !hiding->failed
			     ? json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(15))
			     : NULL;
	if (text)
		*payload = semel_arena_text(hiding->arena, text, strlen(text));
	free(text);
	json_decref(value);
	return text && payload->data;
}

static bool hides_members(const struct semel_redaction *redaction)
{
	for (size_t i = 0; i < redaction->count; i++)
		if (!redaction->paths[i].header)
			return true;
	return false;
}

static void hide_payload(const struct semel_redaction *redaction, struct hiding *hiding,
			 struct semel_event *event)
{
	if (!event->payload.data || event->payload.length == 0 || !hides_members(redaction))
		return;
	if (!hide_members(redaction, hiding, &event->payload))
		event->payload = semel_event_is_json(event) ? SEMEL_TEXT("\"" HIDDEN "\"")
							    : SEMEL_TEXT(HIDDEN);
}

/* Headers that are no object may hold anything, and are not shown. */
static void hide_headers(const struct semel_redaction *redaction, struct hiding *hiding,
			 struct semel_event *event)
{
	for (size_t i = 0; i < redaction->count; i++) {
		const char *name = redaction->paths[i].header;
		if (!name || !event->headers.data)
			continue;
		if (!semel_json_is_valid(event->headers)) {
			event->headers = SEMEL_TEXT("{}");
			continue;
		}
		struct semel_text value = semel_json_member(event->headers, name, hiding->arena);
		if (!value.data)
			continue;
		keep_value(hiding, value);
		event->headers =
			semel_json_with(event->headers, name, SEMEL_TEXT(HIDDEN), hiding->arena);
		if (!event->headers.data)
			event->headers = SEMEL_TEXT("{}");
	}
}

/* ---- showing --------------------------------------------------------------------------------- */

static const struct semel_text *value_at(const struct hiding *hiding, const char *text)
{
	const struct semel_text *longest = NULL;

	for (size_t i = 0; i < hiding->count; i++)
		if (strncmp(text, semel_text_chars(hiding->values[i]), hiding->values[i].length) ==
			    0 &&
		    (!longest || hiding->values[i].length > longest->length))
			longest = &hiding->values[i];
	return longest;
}

static void hide_words(const struct hiding *hiding, const char *reason, struct semel_buffer *text)
{
	while (*reason) {
		const struct semel_text *value = value_at(hiding, reason);
		if (value)
			semel_buffer_string(text, HIDDEN);
		else
			semel_buffer_append(text, reason, 1);
		reason += value ? value->length : 1;
	}
}

semel_status semel_redaction_show(const struct semel_redaction *redaction,
				  const semel_dead_letter *letter, struct semel_arena *arena,
				  struct semel_buffer *text)
{
	struct hiding hiding = { .arena = arena };
	struct semel_buffer reason = { 0 };

	if (!redaction) {
		semel_dead_letter_to_json(letter, text);
		return SEMEL_OK;
	}
	semel_dead_letter shown = *letter;
	struct semel_event event = *letter->event;
	hide_payload(redaction, &hiding, &event);
	hide_headers(redaction, &hiding, &event);
	shown.event = &event;
	if (letter->failure_reason && hiding.count > 0) {
		hide_words(&hiding, letter->failure_reason, &reason);
		shown.failure_reason = reason.failed || !reason.data ? HIDDEN : reason.data;
	}
	if (!hiding.failed)
		semel_dead_letter_to_json(&shown, text);
	semel_buffer_free(&reason);
	return hiding.failed ? SEMEL_INTERNAL : SEMEL_OK;
}
