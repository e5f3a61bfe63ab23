/* SPDX-License-Identifier: Apache-2.0 */
/* Small functions on texts. None depends on the locale. */
#include "base/text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Names and options are short; longer words have no near candidate. */
enum { NEAREST_WORD_MAX = 63 };

static bool is_space(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

bool semel_text_is_blank(struct semel_text text)
{
	for (size_t i = 0; text.data && i < text.length; i++)
		if (!is_space((char)text.data[i]))
			return false;
	return true;
}

bool semel_string_is_blank(const char *string)
{
	return semel_text_is_blank(semel_text_of(string));
}

/* The second byte has narrower bounds after E0, ED, F0 and F4: no overlong form, no surrogate,
 * nothing above U+10FFFF. */
size_t semel_utf8_length(const unsigned char *at, size_t left)
{
	if (left == 0)
		return 0;
	unsigned char first = at[0];
	if (first < 0x80)
		return 1;
	size_t length = first < 0xC2   ? 0
			: first < 0xE0 ? 2
			: first < 0xF0 ? 3
			: first < 0xF5 ? 4
				       : 0;
	if (length == 0 || length > left)
		return 0;
	unsigned char low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
	unsigned char high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
	if (at[1] < low || at[1] > high)
		return 0;
	for (size_t i = 2; i < length; i++)
		if ((at[i] & 0xC0) != 0x80)
			return 0;
	return length;
}

bool semel_text_is_utf8(struct semel_text text)
{
	const unsigned char *bytes = (const void *)text.data;
	size_t at = 0;
	while (at < text.length) {
		uint64_t word;
		if (text.length - at >= sizeof(word)) {
			memcpy(&word, bytes + at, sizeof(word));
			if ((word & UINT64_C(0x8080808080808080)) == 0) {
				at += sizeof(word);
				continue;
			}
		}
		size_t length = semel_utf8_length(bytes + at, text.length - at);
		if (length == 0)
			return false;
		at += length;
	}
	return true;
}

bool semel_text_has_control(struct semel_text text)
{
	for (size_t i = 0; i < text.length; i++) {
		semel_byte c = text.data[i];
		if (c < 0x20 || c == 0x7f)
			return true;
	}
	return false;
}

static bool is_token_character(char c)
{
	if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
		return true;
	return c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL;
}

bool semel_text_is_token(struct semel_text text)
{
	for (size_t i = 0; i < text.length; i++)
		if (!is_token_character((char)text.data[i]))
			return false;
	return text.length > 0;
}

static char lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool semel_text_equals_caseless(struct semel_text text, const char *string)
{
	if (!text.data || text.length != strlen(string))
		return false;
	for (size_t i = 0; i < text.length; i++)
		if (lower((char)text.data[i]) != lower(string[i]))
			return false;
	return true;
}

/* Insertions, deletions, replacements and swapped neighbours count one each. Both words are at most
 * NEAREST_WORD_MAX long. */
static size_t edit_distance(const char *left, size_t left_length, const char *right,
			    size_t right_length)
{
	size_t rows[3][NEAREST_WORD_MAX + 1];
	size_t *before = rows[0], *last = rows[1], *now = rows[2];
	for (size_t j = 0; j <= right_length; j++)
		last[j] = j;
	for (size_t i = 1; i <= left_length; i++) {
		now[0] = i;
		for (size_t j = 1; j <= right_length; j++) {
			char a = lower(left[i - 1]), b = lower(right[j - 1]);
			size_t best = last[j - 1] + (a != b);
			if (last[j] + 1 < best)
				best = last[j] + 1;
			if (now[j - 1] + 1 < best)
				best = now[j - 1] + 1;
			bool swapped = i > 1 && j > 1 && a == lower(right[j - 2]) &&
				       lower(left[i - 2]) == b;
			if (swapped && before[j - 2] + 1 < best)
				best = before[j - 2] + 1;
			now[j] = best;
		}
		size_t *free_row = before;
		before = last;
		last = now;
		now = free_row;
	}
	return last[right_length];
}

const char *semel_text_nearest(const char *word, const char *const *candidates, size_t count)
{
	size_t length = strlen(word);
	if (length == 0 || length > NEAREST_WORD_MAX)
		return NULL;
	const char *nearest = NULL;
	size_t nearest_distance = length < 3 ? 2 : 2 + length / 3; /* a candidate must be nearer */
	for (size_t i = 0; i < count; i++) {
		size_t candidate_length = strlen(candidates[i]);
		if (candidate_length > NEAREST_WORD_MAX)
			continue;
		size_t distance = edit_distance(word, length, candidates[i], candidate_length);
		/* Replacing every letter is no resemblance. */
		if (distance < nearest_distance && distance < candidate_length) {
			nearest_distance = distance;
			nearest = candidates[i];
		}
	}
	return nearest;
}

bool semel_string_is_repeated(const char *const *strings, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (strcmp(strings[i], strings[at]) == 0)
			return true;
	return false;
}

bool semel_text_to_int64(const char *string, long long min, long long max, long long *number_out)
{
	if (!string || !((*string >= '0' && *string <= '9') || *string == '-'))
		return false; /* strtoll would take blanks and a plus */
	char *end;
	errno = 0;
	long long number = strtoll(string, &end, 10);
	if (errno != 0 || end == string || *end != '\0' || number < min || number > max)
		return false;
	*number_out = number;
	return true;
}
