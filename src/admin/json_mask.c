/* SPDX-License-Identifier: Apache-2.0 */
/* A path is a small automaton: bit n says that n of its steps lead to the current value. Entering a
 * member advances the bits, so the work for a member is bounded by the number of paths, whatever
 * its depth and however often ".." occurs in them. */
#include "admin/json_mask.h"

#include "base/arena.h"
#include "base/json.h"
#include "event/event.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX   512 /* as semel_json_is_valid */
#define ARENA_BLOCK ((size_t)4 * 1024)

/* ---- reading paths --------------------------------------------------------------------------- */

/* Reads "['name']", "[3]" or "[*]". Returns what follows the bracket; NULL: not valid. Terminates
 * the name in place. */
static char *read_bracket(char *at, struct semel_mask_step *step)
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

/* Reads the step that begins at at. *sign is the dot or bracket before it. Sets *sign to the one
 * before the next step, which is read first because terminating the name overwrites it. */
static char *read_step(char *at, char *sign, struct semel_mask_step *step)
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

bool semel_mask_path_read(const char *text, struct semel_mask_path *path_out)
{
	size_t length = strlen(text);

	*path_out = (struct semel_mask_path){ .count = 0 };
	if (length >= sizeof path_out->text || *text != '$')
		return false;
	memcpy(path_out->text, text, length + 1);
	char sign = path_out->text[1], *at = sign ? path_out->text + 2 : path_out->text + 1;
	while (sign) {
		if ((sign != '.' && sign != '[') || path_out->count == SEMEL_MASK_STEPS_MAX)
			return false;
		at = read_step(at, &sign, &path_out->steps[path_out->count++]);
		if (!at)
			return false;
	}
	return true;
}

bool semel_mask_path_name(const char *name, struct semel_mask_path *path_out)
{
	size_t length = strlen(name);

	*path_out = (struct semel_mask_path){ .count = 1, .caseless = true };
	if (length == 0 || length >= sizeof path_out->text)
		return false;
	memcpy(path_out->text, name, length + 1);
	path_out->steps[0].name = path_out->text;
	return true;
}

/* ---- skipping over valid JSON ---------------------------------------------------------------- */

static bool is_blank(unsigned char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const unsigned char *skip_blanks(const unsigned char *at, const unsigned char *end)
{
	while (at < end && is_blank(*at))
		at++;
	return at;
}

/* Returns the position after the string that begins here. */
static const unsigned char *skip_string(const unsigned char *at, const unsigned char *end)
{
	for (at++; at < end && *at != '"'; at++)
		at += *at == '\\';
	return at < end ? at + 1 : end;
}

/* Returns the position after the number or literal that begins here. */
static const unsigned char *skip_word(const unsigned char *at, const unsigned char *end)
{
	while (at < end && !is_blank(*at) && *at != ',' && *at != '}' && *at != ']')
		at++;
	return at;
}

static bool opens(unsigned char c)
{
	return c == '{' || c == '[';
}

static bool closes(unsigned char c)
{
	return c == '}' || c == ']';
}

static struct semel_text text_between(const unsigned char *from, const unsigned char *to)
{
	return semel_text_from(from, (size_t)(to - from));
}

/* ---- masking --------------------------------------------------------------------------------- */

/* The bits of the paths at one level; bit n: n steps have led here. */
typedef uint16_t bits[SEMEL_MASK_PATHS_MAX];

struct masking {
	const struct semel_mask *mask;
	const unsigned char *at, *end;
	const unsigned char *copied; /* everything before it is in out */
	semel_hidden_callback callback;
	void *user;
	struct semel_buffer *out;
	struct semel_arena *arena; /* of strings without their escapes */
	bool failed;
	size_t depth; /* number of open containers */
	size_t next[DEPTH_MAX + 1];
	bool is_object[DEPTH_MAX + 1];
	bits active[DEPTH_MAX + 2]; /* active[depth]: of the innermost open container */
};

/* The string that the token stands for; valid until the next one is read. */
static struct semel_text read_string(struct masking *masking, const unsigned char *from,
				     const unsigned char *to)
{
	if (!memchr(from, '\\', (size_t)(to - from)))
		return text_between(from + 1, to - 1);
	semel_arena_reset(masking->arena);
	struct semel_text text = semel_json_unquote(text_between(from, to), masking->arena);
	masking->failed = masking->failed || !text.data;
	return text;
}

/* Reports each hidden value, and skips it. */
static void skip_hidden(struct masking *masking)
{
	const unsigned char *at = masking->at, *end = masking->end;
	size_t depth = 0;

	do {
		const unsigned char *from = at;
		if (*at == '"') {
			at = skip_string(at, end);
			struct semel_text text = read_string(masking, from, at);
			if (text.data)
				masking->callback(text, SEMEL_HIDDEN_TEXT, masking->user);
		} else if (opens(*at) || closes(*at)) {
			depth = opens(*at) ? depth + 1 : depth - 1;
			at++;
		} else if (*at == ',' || *at == ':') {
			at++;
		} else {
			at = skip_word(at, end);
			masking->callback(text_between(from, at),
					  *from == '-' || (*from >= '0' && *from <= '9')
						  ? SEMEL_HIDDEN_NUMBER
						  : SEMEL_HIDDEN_TEXT,
					  masking->user);
		}
		at = depth > 0 ? skip_blanks(at, end) : at;
	} while (depth > 0 && at < end);
	masking->at = at;
}

static void hide_value(struct masking *masking)
{
	const unsigned char *from = masking->at;

	semel_buffer_append(masking->out, masking->copied, (size_t)(from - masking->copied));
	semel_buffer_string(masking->out, "\"" SEMEL_HIDDEN "\"");
	skip_hidden(masking);
	masking->copied = masking->at;
}

/* Where the value is: under a name (data NULL: none), or at an index of an array. */
struct location {
	struct semel_text name;
	size_t at;
};

static bool matches_step(const struct semel_mask_path *path, const struct semel_mask_step *step,
			 const struct location *location)
{
	if (step->any)
		return true;
	if (!location->name.data || step->index)
		return !location->name.data && step->index && step->at == location->at;
	return path->caseless ? semel_text_equals_caseless(location->name, step->name)
			      : semel_text_equals_string(location->name, step->name);
}

/* Advances the bits of a path by one location. True: its last step leads there. */
static bool move_bits(const struct semel_mask_path *path, uint16_t now,
		      const struct location *location, uint16_t *next_out)
{
	bool ends = false;

	*next_out = 0;
	for (size_t i = 0; i < path->count; i++) {
		const struct semel_mask_step *step = &path->steps[i];
		if (!(now >> i & 1))
			continue;
		if (step->deep)
			*next_out |= (uint16_t)(1U << i);
		if (!matches_step(path, step, location))
			continue;
		ends = ends || i + 1 == path->count;
		if (i + 1 < path->count)
			*next_out |= (uint16_t)(1U << (i + 1));
	}
	return ends;
}

static bool is_hidden(struct masking *masking, const struct location *location)
{
	const uint16_t *now = masking->active[masking->depth];
	uint16_t *next = masking->active[masking->depth + 1];
	bool ends = false;

	for (size_t i = 0; i < masking->mask->count; i++)
		ends = move_bits(&masking->mask->paths[i], now[i], location, &next[i]) || ends;
	return ends;
}

/* Reads the name of the member at this position; the value follows. */
static struct semel_text read_name(struct masking *masking)
{
	const unsigned char *from = masking->at, *end = masking->end;
	const unsigned char *to = skip_string(from, end);

	masking->at = skip_blanks(skip_blanks(to, end) + 1, end);
	return read_string(masking, from, to);
}

static void enter(struct masking *masking)
{
	masking->depth++;
	masking->next[masking->depth] = 0;
	masking->is_object[masking->depth] = *masking->at++ == '{';
}

/* Masks a member of the open container, or the whole text if none is open. */
static void mask_value(struct masking *masking, bool is_root)
{
	size_t depth = masking->depth;
	struct location location = { .at = is_root ? 0 : masking->next[depth]++ };

	if (!is_root && masking->is_object[depth])
		location.name = read_name(masking);
	if (masking->failed)
		return;
	if (!is_root && is_hidden(masking, &location))
		hide_value(masking);
	else if (opens(*masking->at))
		enter(masking);
	else if (*masking->at == '"')
		masking->at = skip_string(masking->at, masking->end);
	else
		masking->at = skip_word(masking->at, masking->end);
}

static void mask_members(struct masking *masking)
{
	mask_value(masking, true);
	while (masking->depth > 0 && !masking->failed) {
		masking->at = skip_blanks(masking->at, masking->end);
		if (masking->at == masking->end)
			return;
		if (closes(*masking->at)) {
			masking->depth--;
			masking->at++;
		} else if (*masking->at == ',') {
			masking->at++;
		} else {
			mask_value(masking, false);
		}
	}
}

bool semel_mask_apply(const struct semel_mask *mask, struct semel_text json,
		      semel_hidden_callback callback, void *user, struct semel_buffer *out)
{
	struct masking *masking = calloc(1, sizeof *masking);
	struct semel_arena *arena = semel_arena_new(ARENA_BLOCK);
	const unsigned char *begin = (const void *)json.data;
	bool done = masking && arena, whole = false;

	if (done) {
		masking->mask = mask;
		masking->callback = callback;
		masking->user = user;
		masking->out = out;
		masking->arena = arena;
		masking->end = begin + json.length;
		masking->at = masking->copied = skip_blanks(begin, masking->end);
		for (size_t i = 0; i < mask->count; i++) {
			masking->active[1][i] = 1;
			whole = whole || mask->paths[i].count == 0;
		}
		if (whole)
			hide_value(masking);
		else
			mask_members(masking);
		semel_buffer_append(out, masking->copied, (size_t)(masking->end - masking->copied));
		done = !masking->failed && !out->failed;
	}
	semel_arena_free(arena);
	free(masking);
	return done;
}
