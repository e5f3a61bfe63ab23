/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/redact.h"

#include "admin/json_mask.h"
#include "admin/overlap.h"
#include "base/error.h"
#include "base/json.h"
#include "event/event.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HEADERS "headers."
#define REASONS "reasons"

struct semel_redaction {
	struct semel_mask payload, headers;
	bool reasons; /* hides every free text */
};

/* ---- reading paths --------------------------------------------------------------------------- */

static bool is_header(const char *text)
{
	return strncmp(text, HEADERS, strlen(HEADERS)) == 0;
}

static bool read_path(const char *text, struct semel_mask_path *path_out)
{
	return is_header(text) ? semel_mask_path_name(text + strlen(HEADERS), path_out)
			       : semel_mask_path_read(text, path_out);
}

bool semel_redaction_path_is_valid(const char *text)
{
	struct semel_mask_path path;

	return strcmp(text, REASONS) == 0 || read_path(text, &path);
}

static semel_status add_path(struct semel_redaction *redaction, const char *text,
			     semel_error *error)
{
	struct semel_mask *mask = is_header(text) ? &redaction->headers : &redaction->payload;

	if (strcmp(text, REASONS) == 0) {
		redaction->reasons = true;
		return SEMEL_OK;
	}
	if (mask->count == SEMEL_MASK_PATHS_MAX)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"too many paths to hide: \"%.100s\" is beyond the limit of %d", text,
			SEMEL_MASK_PATHS_MAX);
	if (!read_path(text, &mask->paths[mask->count]))
		return semel_error_set(error, SEMEL_CONFIG,
				       "\"%.100s\" is not a path to hide (for example: "
				       "$.card.number)",
				       text);
	mask->count++;
	return SEMEL_OK;
}

semel_status semel_redaction_new(const char *const *paths, struct semel_redaction **redaction_out,
				 semel_error *error)
{
	*redaction_out = NULL;
	if (!paths || !paths[0])
		return SEMEL_OK;
	struct semel_redaction *redaction = calloc(1, sizeof *redaction);
	if (!redaction)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the redaction");
	for (size_t i = 0; paths[i]; i++) {
		semel_status status = add_path(redaction, paths[i], error);
		if (status != SEMEL_OK) {
			free(redaction);
			return status;
		}
	}
	*redaction_out = redaction;
	return SEMEL_OK;
}

void semel_redaction_free(struct semel_redaction *redaction)
{
	free(redaction);
}

/* ---- free texts ------------------------------------------------------------------------------ */

/* The texts that may quote what is hidden. */
enum { FAILURE, DISCARD, TEXTS };

struct hiding {
	struct semel_overlap *overlaps[TEXTS]; /* NULL: no such text */
	struct semel_buffer payload, headers;
	bool with_payload;
	bool failed; /* out of memory: nothing may be shown */
};

static void add_text(struct hiding *hiding, size_t which, const char *text)
{
	if (!text)
		return;
	hiding->overlaps[which] = semel_overlap_new(semel_text_of(text));
	hiding->failed = hiding->failed || !hiding->overlaps[which];
}

static void compare_hidden(struct semel_text value, enum semel_hidden_kind kind, void *user)
{
	const struct hiding *hiding = user;

	for (size_t i = 0; i < TEXTS; i++) {
		struct semel_overlap *overlap = hiding->overlaps[i];
		if (overlap && kind == SEMEL_HIDDEN_NUMBER)
			semel_overlap_compare_number(overlap, value);
		else if (overlap)
			semel_overlap_compare(overlap, value);
	}
}

/* Something is hidden that cannot be read, so any text may quote it. */
static void doubt_texts(struct hiding *hiding)
{
	for (size_t i = 0; i < TEXTS; i++)
		if (hiding->overlaps[i])
			semel_overlap_doubt(hiding->overlaps[i]);
}

static const char *shown_text(const struct hiding *hiding, size_t which, const char *text)
{
	const struct semel_overlap *overlap = hiding->overlaps[which];

	return overlap && semel_overlap_is_found(overlap) ? SEMEL_HIDDEN : text;
}

const char *semel_redaction_text(const struct semel_redaction *redaction, const char *words)
{
	return redaction && words && words[0] ? SEMEL_HIDDEN : words;
}

const char *semel_redaction_error(const struct semel_redaction *redaction, semel_status status,
				  const char *words)
{
	switch (status) {
	case SEMEL_NACKED:
	case SEMEL_UNROUTABLE:
	case SEMEL_STALLED:
	case SEMEL_TOO_LARGE:
	case SEMEL_CONTRACT:
	case SEMEL_HANDLER_RETRY:
	case SEMEL_HANDLER_REJECT:
		return semel_redaction_text(redaction, words);
	default:
		return words;
	}
}

/* ---- the event ------------------------------------------------------------------------------- */

/* Can paths be followed in the payload? In one that is not declared as JSON, a bare number or
 * string may be anything. */
static bool can_be_followed(const struct semel_event *event)
{
	if (!semel_json_is_valid(event->payload))
		return false;
	char first = semel_json_first(event->payload);
	return semel_event_is_json(event) || first == '{' || first == '[';
}

static void hide_payload(const struct semel_redaction *redaction, struct hiding *hiding,
			 struct semel_event *event)
{
	if (!event->payload.data || event->payload.length == 0 || redaction->payload.count == 0)
		return;
	if (can_be_followed(event)) {
		if (!semel_mask_apply(&redaction->payload, event->payload, compare_hidden, hiding,
				      &hiding->payload))
			hiding->failed = true;
		event->payload = semel_buffer_text(&hiding->payload);
		return;
	}
	doubt_texts(hiding);
	event->payload = semel_event_is_json(event) ? SEMEL_TEXT("\"" SEMEL_HIDDEN "\"")
						    : SEMEL_TEXT(SEMEL_HIDDEN);
}

static void hide_headers(const struct semel_redaction *redaction, struct hiding *hiding,
			 struct semel_event *event)
{
	if (!event->headers.data || event->headers.length == 0 || redaction->headers.count == 0)
		return;
	if (semel_json_is_valid(event->headers) && semel_json_first(event->headers) == '{') {
		if (!semel_mask_apply(&redaction->headers, event->headers, compare_hidden, hiding,
				      &hiding->headers))
			hiding->failed = true;
		event->headers = semel_buffer_text(&hiding->headers);
		return;
	}
	doubt_texts(hiding);
	event->headers = SEMEL_TEXT("\"" SEMEL_HIDDEN "\"");
}

/* For members of a dead letter that are copies of headers. */
static const char *shown_header(const struct semel_redaction *redaction, const char *name,
				const char *value)
{
	for (size_t i = 0; i < redaction->headers.count; i++)
		if (strcasecmp(redaction->headers.paths[i].text, name) == 0)
			return semel_redaction_text(redaction, value);
	return value;
}

/* Is the reason our own text about an event that breaks the contract? It quotes only names. */
static bool is_own_text(const semel_dead_letter *letter)
{
	semel_error error = { .status = SEMEL_OK };

	return letter->failure_reason && semel_event_check(letter->event, &error) != SEMEL_OK &&
	       strcmp(error.text, letter->failure_reason) == 0;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_all(const semel_dead_letter *letter, bool with_payload, struct semel_buffer *text)
{
	semel_dead_letter shown = *letter;
	struct semel_event event = *letter->event;

	if (!with_payload)
		event.payload = (struct semel_text){ 0 };
	shown.event = &event;
	semel_dead_letter_to_json(&shown, text);
}

static void write_redacted(const struct semel_redaction *redaction, struct hiding *hiding,
			   const semel_dead_letter *letter, struct semel_buffer *text)
{
	semel_dead_letter shown = *letter;
	struct semel_event event = *letter->event;

	hide_payload(redaction, hiding, &event);
	hide_headers(redaction, hiding, &event);
	if (redaction->reasons)
		doubt_texts(hiding);
	if (!hiding->with_payload)
		event.payload = (struct semel_text){ 0 };
	shown.event = &event;
	if (redaction->reasons || !is_own_text(letter))
		shown.failure_reason = shown_text(hiding, FAILURE, letter->failure_reason);
	shown.discard_reason = shown_text(hiding, DISCARD, letter->discard_reason);
	shown.saga_id = shown_header(redaction, "sagaId", letter->saga_id);
	shown.correlation_id = shown_header(redaction, "correlationId", letter->correlation_id);
	if (!hiding->failed)
		semel_dead_letter_to_json(&shown, text);
}

semel_status semel_redaction_write_json(const struct semel_redaction *redaction,
					const semel_dead_letter *letter, bool with_payload,
					struct semel_buffer *text)
{
	struct hiding hiding = { .with_payload = with_payload };

	if (!redaction) {
		write_all(letter, with_payload, text);
		return SEMEL_OK;
	}
	add_text(&hiding, FAILURE, letter->failure_reason);
	add_text(&hiding, DISCARD, letter->discard_reason);
	if (!hiding.failed)
		write_redacted(redaction, &hiding, letter, text);
	for (size_t i = 0; i < TEXTS; i++)
		semel_overlap_free(hiding.overlaps[i]);
	semel_buffer_free(&hiding.payload);
	semel_buffer_free(&hiding.headers);
	return hiding.failed ? SEMEL_INTERNAL : SEMEL_OK;
}
