/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in place: one pass over the bytes, no tree, no recursion.
 *
 * The validator is a small state machine: what may come next, and one bit per nesting level for
 * object or array. The walk relies on the validator. */
#include "base/json.h"

#include "base/buffer.h"

#include <stdint.h>
#include <string.h>

enum { DEPTH_MAX = 512 };

enum expect {
	EXPECT_VALUE,
	EXPECT_VALUE_OR_CLOSE, /* after [ */
	EXPECT_NAME,
	EXPECT_NAME_OR_CLOSE, /* after { */
	EXPECT_SEPARATOR      /* after a value: comma, closing bracket, or the end */
};

struct scan {
	const unsigned char *at, *end;
	enum expect expect;
	unsigned depth;
	uint64_t is_object[DEPTH_MAX / 64];
};

static bool is_blank(unsigned char c)
{
	return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static bool is_digit(unsigned char c)
{
	return c >= '0' && c <= '9';
}

static int hex_digit(unsigned char c)
{
	if (is_digit(c))
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* True when one of the eight bytes is a quote, a backslash, a control character or not ASCII. A
 * false alarm only costs time. */
static bool has_special(uint64_t word)
{
	const uint64_t ones = UINT64_C(0x0101010101010101), highs = UINT64_C(0x8080808080808080);
	uint64_t quote = word ^ ones * '"', backslash = word ^ ones * '\\';
	uint64_t found = word | (quote - ones) | (backslash - ones) | (word - ones * 0x20);
	return (found & highs) != 0;
}

static bool is_plain(unsigned char c)
{
	return c >= 0x20 && c < 0x80 && c != '"' && c != '\\';
}

static const unsigned char *skip_plain(const unsigned char *at, const unsigned char *end)
{
	uint64_t word;
	while ((size_t)(end - at) >= sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		if (has_special(word))
			break;
		at += sizeof(word);
	}
	while (at < end && is_plain(*at))
		at++;
	return at;
}

/* The four digits after \u, or -1. */
static int32_t read_code_unit(const unsigned char *at, const unsigned char *end)
{
	if (end - at < 6 || at[0] != '\\' || at[1] != 'u')
		return -1;
	int32_t unit = 0;
	for (int i = 2; i < 6; i++) {
		int digit = hex_digit(at[i]);
		if (digit < 0)
			return -1;
		unit = unit * 16 + digit;
	}
	return unit;
}

/* The character of one \u escape, or of two that are a surrogate pair; -1 if it is invalid. */
static int32_t read_unicode_escape(const unsigned char *at, const unsigned char *end,
				   size_t *length_out)
{
	int32_t first = read_code_unit(at, end);
	*length_out = 6;
	if (first < 0xD800 || first > 0xDFFF)
		return first;
	int32_t second = read_code_unit(at + 6, end);
	*length_out = 12;
	if (first > 0xDBFF || second < 0xDC00 || second > 0xDFFF)
		return -1;
	return 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
}

static bool scan_escape(struct scan *scan, bool is_name)
{
	if (scan->end - scan->at >= 2 && scan->at[1] != '\0' && strchr("\"\\/bfnrt", scan->at[1])) {
		scan->at += 2;
		return true;
	}
	size_t length;
	int32_t character = read_unicode_escape(scan->at, scan->end, &length);
	if (character < 0 || (character == 0 && is_name))
		return false;
	scan->at += length;
	return true;
}

static bool scan_string(struct scan *scan, bool is_name)
{
	scan->at++;
	for (;;) {
		scan->at = skip_plain(scan->at, scan->end);
		if (scan->at == scan->end || *scan->at < 0x20)
			return false;
		if (*scan->at == '"') {
			scan->at++;
			return true;
		}
		if (*scan->at == '\\') {
			if (!scan_escape(scan, is_name))
				return false;
			continue;
		}
		size_t length = semel_utf8_length(scan->at, (size_t)(scan->end - scan->at));
		if (length == 0)
			return false;
		scan->at += length;
	}
}

static bool scan_digits(struct scan *scan)
{
	const unsigned char *from = scan->at;
	while (scan->at < scan->end && is_digit(*scan->at))
		scan->at++;
	return scan->at > from;
}

static bool scan_character(struct scan *scan, unsigned char c)
{
	if (scan->at == scan->end || *scan->at != c)
		return false;
	scan->at++;
	return true;
}

static bool scan_number(struct scan *scan)
{
	scan_character(scan, '-');
	if (!scan_character(scan, '0') && !scan_digits(scan))
		return false;
	if (scan_character(scan, '.') && !scan_digits(scan))
		return false;
	if (!scan_character(scan, 'e') && !scan_character(scan, 'E'))
		return true;
	if (!scan_character(scan, '+'))
		scan_character(scan, '-');
	return scan_digits(scan);
}

static bool scan_word(struct scan *scan, const char *word)
{
	for (; *word; word++, scan->at++)
		if (scan->at == scan->end || *scan->at != (unsigned char)*word)
			return false;
	return true;
}

static bool open_container(struct scan *scan, bool is_object)
{
	if (scan->depth == DEPTH_MAX)
		return false;
	uint64_t bit = UINT64_C(1) << scan->depth % 64;
	uint64_t *bits = &scan->is_object[scan->depth / 64];
	*bits = is_object ? *bits | bit : *bits & ~bit;
	scan->depth++;
	scan->at++;
	scan->expect = is_object ? EXPECT_NAME_OR_CLOSE : EXPECT_VALUE_OR_CLOSE;
	return true;
}

static bool in_object(const struct scan *scan)
{
	unsigned level = scan->depth - 1;
	return scan->is_object[level / 64] >> level % 64 & 1;
}

static bool scan_value(struct scan *scan)
{
	scan->expect = EXPECT_SEPARATOR;
	switch (*scan->at) {
	case '{':
		return open_container(scan, true);
	case '[':
		return open_container(scan, false);
	case '"':
		return scan_string(scan, false);
	case 't':
		return scan_word(scan, "true");
	case 'f':
		return scan_word(scan, "false");
	case 'n':
		return scan_word(scan, "null");
	default:
		return scan_number(scan);
	}
}

static void skip_blanks(struct scan *scan)
{
	while (scan->at < scan->end && is_blank(*scan->at))
		scan->at++;
}

static bool scan_name(struct scan *scan)
{
	if (*scan->at != '"' || !scan_string(scan, true))
		return false;
	skip_blanks(scan);
	scan->expect = EXPECT_VALUE;
	return scan_character(scan, ':');
}

static bool close_container(struct scan *scan)
{
	if (scan->depth == 0 || *scan->at != (in_object(scan) ? '}' : ']'))
		return false;
	scan->depth--;
	scan->at++;
	scan->expect = EXPECT_SEPARATOR;
	return true;
}

static bool scan_separator(struct scan *scan)
{
	if (scan->depth > 0 && *scan->at == ',') {
		scan->at++;
		scan->expect = in_object(scan) ? EXPECT_NAME : EXPECT_VALUE;
		return true;
	}
	return close_container(scan);
}

static bool scan_next(struct scan *scan)
{
	switch (scan->expect) {
	case EXPECT_VALUE_OR_CLOSE:
		return close_container(scan) || scan_value(scan);
	case EXPECT_NAME_OR_CLOSE:
		return close_container(scan) || scan_name(scan);
	case EXPECT_VALUE:
		return scan_value(scan);
	case EXPECT_NAME:
		return scan_name(scan);
	case EXPECT_SEPARATOR:
	default:
		return scan_separator(scan);
	}
}

/* The scan stops at the error. */
static bool scan_document(struct scan *scan)
{
	for (;;) {
		skip_blanks(scan);
		if (scan->at == scan->end)
			return scan->expect == EXPECT_SEPARATOR && scan->depth == 0;
		if (!scan_next(scan))
			return false;
	}
}

static struct scan scan_begin(struct semel_text text)
{
	const unsigned char *at = (const unsigned char *)semel_text_shown_or(text, "");
	return (struct scan){ .at = at, .end = at + text.length, .expect = EXPECT_VALUE };
}

bool semel_json_is_valid(struct semel_text text)
{
	struct scan scan = scan_begin(text);
	return scan_document(&scan);
}

size_t semel_json_error_at(struct semel_text text)
{
	struct scan scan = scan_begin(text);
	if (scan_document(&scan))
		return text.length;
	return (size_t)(scan.at - (const unsigned char *)text.data);
}

static const char *pass_blanks(const char *at, const char *end)
{
	while (at < end && is_blank((unsigned char)*at))
		at++;
	return at;
}

char semel_json_first(struct semel_text json)
{
	size_t at = 0;
	while (at < json.length && is_blank(json.data[at]))
		at++;
	return at < json.length ? (char)json.data[at] : '\0';
}

static const char *pass_string(const char *at, const char *end)
{
	for (at++; at < end && *at != '"'; at++)
		if (*at == '\\')
			at++;
	return at < end ? at + 1 : end;
}

/* In valid JSON the brackets are balanced, so counting them is enough. */
static const char *pass_value(const char *at, const char *end)
{
	size_t depth = 0;
	while (at < end) {
		char c = *at;
		if (c == '"') {
			at = pass_string(at, end);
			if (depth == 0)
				return at;
			continue;
		}
		if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_blank((unsigned char)c)))
			return at;
		at++;
		if (c == '{' || c == '[')
			depth++;
		else if ((c == '}' || c == ']') && --depth == 0)
			return at;
	}
	return end;
}

struct semel_json_walk semel_json_walk(struct semel_text object)
{
	const char *end = object.data ? semel_text_chars(object) + object.length : NULL;
	const char *at = pass_blanks(semel_text_chars(object), end);
	if (at == end || *at != '{')
		return (struct semel_json_walk){ end, end };
	return (struct semel_json_walk){ at + 1, end };
}

bool semel_json_next(struct semel_json_walk *walk, struct semel_text *name_out,
		     struct semel_text *value_out)
{
	const char *end = walk->end, *at = pass_blanks(walk->at, end);
	if (at < end && *at == ',')
		at = pass_blanks(at + 1, end);
	if (at == end || *at != '"')
		return false;
	const char *name_end = pass_string(at, end);
	*name_out = semel_text_from(at, (size_t)(name_end - at));

	at = pass_blanks(name_end, end);
	if (at < end && *at == ':')
		at = pass_blanks(at + 1, end);
	walk->at = pass_value(at, end);
	*value_out = semel_text_from(at, (size_t)(walk->at - at));
	return true;
}

static char *write_utf8(char *to, int32_t character)
{
	uint32_t c = (uint32_t)character;
	if (c < 0x80) {
		*to++ = (char)c;
		return to;
	}
	if (c < 0x800) {
		*to++ = (char)(0xC0 | c >> 6);
	} else {
		if (c < 0x10000) {
			*to++ = (char)(0xE0 | c >> 12);
		} else {
			*to++ = (char)(0xF0 | c >> 18);
			*to++ = (char)(0x80 | (c >> 12 & 0x3F));
		}
		*to++ = (char)(0x80 | (c >> 6 & 0x3F));
	}
	*to++ = (char)(0x80 | (c & 0x3F));
	return to;
}

/* Writes the character of one escape; *from moves past the escape. */
static char *write_escape(char *to, const char **from, const char *end)
{
	static const char letters[] = "bfnrt", meanings[] = "\b\f\n\r\t";
	char letter = (*from)[1];
	if (letter != 'u') {
		const char *found = strchr(letters, letter);
		*to++ = found ? meanings[found - letters] : letter;
		*from += 2;
		return to;
	}
	size_t length;
	int32_t character = read_unicode_escape((const unsigned char *)*from,
						(const unsigned char *)end, &length);
	*from += length;
	return write_utf8(to, character);
}

struct semel_text semel_json_unquote(struct semel_text token, struct semel_arena *arena)
{
	const char *from = semel_text_chars(token) + 1,
		   *end = semel_text_chars(token) + token.length - 1;
	size_t length = (size_t)(end - from);
	if (!memchr(from, '\\', length))
		return semel_arena_text(arena, from, length);

	char *text = semel_arena_alloc(arena, length + 1), *to = text;
	if (!text)
		return (struct semel_text){ NULL, length };
	while (from < end) {
		if (*from == '\\')
			to = write_escape(to, &from, end);
		else
			*to++ = *from++;
	}
	*to = '\0';
	return semel_text_from(text, (size_t)(to - text));
}

/* Names with escapes are rare, but they are compared by their unescaped text too. */
static bool is_named(struct semel_text token, struct semel_text name, struct semel_arena *arena)
{
	const char *inside = semel_text_chars(token) + 1;
	size_t length = token.length - 2;
	if (memchr(inside, '\\', length))
		return semel_text_equal(semel_json_unquote(token, arena), name);
	return length == name.length && memcmp(inside, name.data, length) == 0;
}

struct semel_text semel_json_member(struct semel_text object, const char *name,
				    struct semel_arena *arena)
{
	struct semel_json_walk walk = semel_json_walk(object);
	struct semel_text name_text = semel_text_of(name), token, value, found = { NULL, 0 };
	while (semel_json_next(&walk, &token, &value))
		if (is_named(token, name_text, arena))
			found = value;
	if (!found.data || *found.data != '"')
		return (struct semel_text){ NULL, 0 };
	return semel_json_unquote(found, arena);
}

struct semel_text semel_json_with(struct semel_text object, const char *name,
				  struct semel_text value, struct semel_arena *arena)
{
	struct semel_buffer buffer = { 0 };
	struct semel_json_walk walk = semel_json_walk(object);
	struct semel_text name_text = semel_text_of(name), token, member;
	semel_buffer_append(&buffer, "{", 1);
	while (semel_json_next(&walk, &token, &member)) {
		if (is_named(token, name_text, arena))
			continue;
		if (buffer.length > 1)
			semel_buffer_append(&buffer, ",", 1);
		semel_buffer_append(&buffer, token.data, token.length);
		semel_buffer_append(&buffer, ":", 1);
		semel_buffer_append(&buffer, member.data, member.length);
	}
	if (value.data) {
		if (buffer.length > 1)
			semel_buffer_append(&buffer, ",", 1);
		semel_buffer_json(&buffer, name_text);
		semel_buffer_append(&buffer, ":", 1);
		semel_buffer_json(&buffer, value);
	}
	semel_buffer_append(&buffer, "}", 1);

	struct semel_text with = { NULL, 0 };
	if (!buffer.failed)
		with = semel_arena_text(arena, buffer.data, buffer.length);
	semel_buffer_free(&buffer);
	return with;
}
