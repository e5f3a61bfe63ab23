/* SPDX-License-Identifier: Apache-2.0 */
/* The text becomes three sets: every sequence of four letters or digits, every sequence of one to
 * three, and its words of one to three. A set has one bit per possible member (36 to the fourth:
 * 210 kB), so it is exact, and a value is compared in one pass over its bytes. */
#include "admin/overlap.h"

#include "base/buffer.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RUN        4
#define SIGNS      36U
#define RUNS       (SIGNS * SIGNS * SIGNS * SIGNS)
#define SHORTS     (SIGNS + SIGNS * SIGNS + SIGNS * SIGNS * SIGNS)
#define TEXT_MAX   ((size_t)64 * 1024)
#define PASSES     3    /* escapes within escapes */
#define REALS_MAX  4096 /* each is compared in several notations, which is expensive */
#define HEX_MIN    8
#define BASE64_MIN 8
#define ENOUGH     2    /* so many characters beyond ASCII in a row are not accidental */
#define BEYOND     0x80 /* stands for any character that is not ASCII */

struct semel_overlap {
	uint64_t runs[RUNS / 64 + 1];
	uint64_t parts[SHORTS / 64 + 1]; /* sequences of one to three */
	uint64_t words[SHORTS / 64 + 1];
	bool beyond_ascii; /* in the text itself, or with its escapes undone */
	bool decoded_text; /* has base64 or hexadecimal digits that decode to such characters */
	size_t reals;      /* how many were compared */
	bool found;
};

static void set_bit(uint64_t *bits, uint32_t at)
{
	bits[at / 64] |= UINT64_C(1) << at % 64;
}

static bool has_bit(const uint64_t *bits, uint32_t at)
{
	return bits[at / 64] >> at % 64 & 1;
}

/* The value of a letter or digit, 0 to 35; otherwise -1. */
static int sign_of(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'Z' ? c - 'A' + 10 : -1;
}

static int hex_of(unsigned char c)
{
	int sign = sign_of(c);

	return sign < 16 ? sign : -1;
}

/* ---- letters and digits in a row ------------------------------------------------------------- */

struct run {
	uint32_t key; /* the last four letters or digits */
	size_t count;
};

static void add_sign(struct run *run, int sign)
{
	run->key = (run->key * SIGNS + (uint32_t)sign) % RUNS;
	run->count++;
}

/* The index of the last one to three letters or digits among all sequences of that length. */
static uint32_t short_key(uint32_t key, size_t length)
{
	if (length == 1)
		return key % SIGNS;
	if (length == 2)
		return SIGNS + key % (SIGNS * SIGNS);
	return SIGNS + SIGNS * SIGNS + key % (SIGNS * SIGNS * SIGNS);
}

/* ---- words -----------------------------------------------------------------------------------
 */

enum kind { KIND_NONE, KIND_DIGIT, KIND_LOWER, KIND_UPPER };

static enum kind kind_of(unsigned char c)
{
	if (c >= '0' && c <= '9')
		return KIND_DIGIT;
	if (c >= 'a' && c <= 'z')
		return KIND_LOWER;
	return c >= 'A' && c <= 'Z' ? KIND_UPPER : KIND_NONE;
}

struct words {
	struct run run; /* of the current word */
	enum kind last;
};

/* A word ends at a character that is neither letter nor digit, between letters and digits, and
 * before a capital that follows a small letter ("sizeXL"). Returns the length of the word that c
 * ends; 0: none. */
static size_t end_word(struct words *words, unsigned char c, uint32_t *key_out)
{
	enum kind kind = kind_of(c);
	bool goes_on = kind == words->last || (words->last == KIND_UPPER && kind == KIND_LOWER);
	size_t length = goes_on ? 0 : words->run.count;

	*key_out = words->run.key;
	if (!goes_on)
		words->run = (struct run){ 0 };
	if (kind != KIND_NONE)
		add_sign(&words->run, sign_of(c));
	words->last = kind;
	return length;
}

/* ---- reading the text ------------------------------------------------------------------------ */

static void note_plain(struct semel_overlap *overlap, const unsigned char *text, size_t length)
{
	struct run run = { 0 };
	struct words words = { 0 };
	uint32_t word = 0;

	for (size_t i = 0; i <= length; i++) {
		unsigned char c = i < length ? text[i] : '\0';
		size_t ended = end_word(&words, c, &word);
		if (ended > 0 && ended < RUN)
			set_bit(overlap->words, short_key(word, ended));
		overlap->beyond_ascii = overlap->beyond_ascii || c >= BEYOND;
		if (sign_of(c) < 0)
			continue;
		add_sign(&run, sign_of(c));
		if (run.count >= RUN)
			set_bit(overlap->runs, run.key);
		for (size_t part = 1; part < RUN && part <= run.count; part++)
			set_bit(overlap->parts, short_key(run.key, part));
	}
}

/* The bytes that base64 or hexadecimal digits decode to. Most words decode to nothing meaningful,
 * so a byte that cannot be text ends the sequence; otherwise every long reason would resemble some
 * value. */
struct decoded {
	struct run run;
	unsigned expected; /* continuation bytes still expected */
	unsigned beyond;   /* characters beyond ASCII in a row */
};

static void end_row(struct decoded *decoded)
{
	*decoded = (struct decoded){ 0 };
}

/* Returns how many characters beyond ASCII are now in a row. */
static unsigned add_beyond(struct decoded *decoded, unsigned char c)
{
	if (decoded->expected > 0 && c < 0xC0) {
		decoded->beyond += --decoded->expected == 0;
		return decoded->beyond;
	}
	bool begins = c >= 0xC2 && c <= 0xF4;
	if (decoded->expected > 0 || !begins)
		end_row(decoded);
	if (begins)
		decoded->expected = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
	return 0;
}

/* True: there are now at least four letters and digits in a row. */
static bool add_decoded(struct decoded *decoded, unsigned char c)
{
	bool is_blank = c == '\0' || c == '\t' || c == '\n' || c == '\r';

	if (decoded->expected > 0 || (c < ' ' && !is_blank) || c == 0x7F) {
		end_row(decoded);
		return false;
	}
	decoded->beyond = 0;
	if (sign_of(c) < 0)
		return false;
	add_sign(&decoded->run, sign_of(c));
	return decoded->run.count >= RUN;
}

/* enough: this many characters beyond ASCII in a row are not accidental. */
static void note_decoded(struct semel_overlap *overlap, struct decoded *decoded, unsigned char c,
			 unsigned enough)
{
	if (c >= BEYOND)
		overlap->decoded_text = add_beyond(decoded, c) >= enough || overlap->decoded_text;
	else if (add_decoded(decoded, c))
		set_bit(overlap->runs, decoded->run.key);
}

/* ---- undoing escapes --------------------------------------------------------------------------
 */

enum escape { BACKSLASHES = 1, PERCENTS = 2, ENTITIES = 4, ALL_ESCAPES = 7 };

/* Reads a number of up to `most` digits to the base, and advances *at. -1: there is none. */
static long read_digits(const unsigned char **at, const unsigned char *end, int base, int most)
{
	long number = -1;

	for (int i = 0; i < most && *at < end; i++, (*at)++) {
		int digit = sign_of(**at);
		if (digit < 0 || digit >= base)
			break;
		number = (number < 0 ? 0 : number) * base + digit;
	}
	return number;
}

/* Reads what follows a backslash: \u0041, \u{41}, \U00000041, \x41, \101, \n. */
static long read_backslash(const unsigned char **at, const unsigned char *end)
{
	unsigned char letter = *at < end ? **at : '\0';
	const unsigned char *digits = *at + 1;
	long number = -1;

	if (letter == 'u' || letter == 'U' || letter == 'x') {
		digits += digits < end && *digits == '{';
		number = read_digits(&digits, end, 16, letter == 'u' ? 4 : letter == 'x' ? 2 : 8);
		digits += number >= 0 && digits < end && *digits == '}';
	} else if (letter >= '0' && letter <= '7') {
		digits = *at;
		number = read_digits(&digits, end, 8, 3);
	}
	if (number >= 0) {
		*at = digits;
		return number;
	}
	*at += *at < end;
	return strchr("abefnrtv", letter) ? ' ' : letter;
}

/* Reads &#65; &#x41; or a name, which stands for a mark or a character beyond ASCII. -1: none of
 * these. */
static long read_entity(const unsigned char **at, const unsigned char *end)
{
	const unsigned char *from = *at;
	bool is_numeric = from < end && *from == '#';
	bool is_hex = is_numeric && from + 1 < end && (from[1] | 0x20) == 'x';
	long number = -1;

	from += is_numeric + is_hex;
	if (is_numeric)
		number = read_digits(&from, end, is_hex ? 16 : 10, 8);
	else
		for (number = ' '; from < end && from - *at < 10 && sign_of(*from) >= 0; from++)
			;
	if (number < 0 || from == end || *from != ';' || from == *at)
		return -1;
	*at = from + 1;
	return number;
}

/* Writes to out, which has room for length bytes. A character beyond ASCII becomes one byte, since
 * it does not matter which one it is. */
static size_t undo_escapes(const unsigned char *text, size_t length, int escapes,
			   unsigned char *out)
{
	const unsigned char *at = text, *end = text + length;
	size_t size = 0;

	while (at < end) {
		unsigned char c = *at++;
		long number = -1;
		if (c == '\\' && (escapes & BACKSLASHES))
			number = read_backslash(&at, end);
		else if (c == '&' && (escapes & ENTITIES))
			number = read_entity(&at, end);
		else if (c == '%' && (escapes & PERCENTS) && end - at >= 2 && hex_of(at[0]) >= 0 &&
			 hex_of(at[1]) >= 0)
			number = read_digits(&at, end, 16, 2);
		out[size++] = number < 0 ? c : number < BEYOND ? (unsigned char)number : BEYOND;
	}
	return size;
}

/* ---- base64 and hexadecimal digits ------------------------------------------------------------
 */

/* Accepts both alphabets: also that of URLs. */
static int base64_of(unsigned char c)
{
	return semel_base64_digit(c == '-' ? '+' : c == '_' ? '/' : c);
}

/* Decodes up to four digits of base64. The number of bytes is one less than that of the digits. */
static void decode_group(const unsigned char *digits, size_t count, unsigned char out[3])
{
	uint32_t bits = 0;

	for (size_t i = 0; i < 4; i++)
		bits = bits << 6 | (i < count ? digits[i] : 0);
	out[0] = (unsigned char)(bits >> 16);
	out[1] = (unsigned char)(bits >> 8);
	out[2] = (unsigned char)bits;
}

/* Every word is valid base64: decoded, every other text of one line has by accident two characters
 * beyond ASCII in a row, and some have three. A word that decodes entirely to text is rare. */
#define ENOUGH_OF_BASE64 4

static bool is_encoded_text(const unsigned char *word, size_t length, unsigned char *out)
{
	unsigned char digits[4], bytes[3];
	size_t size = 0, beyond = 0;

	for (size_t i = 0; i < length; i += 4) {
		size_t group = length - i < 4 ? length - i : 4;
		for (size_t k = 0; k < group; k++)
			digits[k] = (unsigned char)base64_of(word[i + k]);
		decode_group(digits, group, bytes);
		for (size_t k = 0; k + 1 < group; k++) {
			beyond += bytes[k] >= 0xC0;
			out[size++] = bytes[k];
		}
	}
	/* The last character may be cut off. */
	for (size_t cut = 0; beyond >= ENOUGH && cut < 4 && cut < size; cut++) {
		struct semel_text text = semel_text_from(out, size - cut);
		if (semel_text_is_utf8(text))
			return !semel_text_has_control(text);
	}
	return false;
}

static void note_base64_words(struct semel_overlap *overlap, const unsigned char *text,
			      size_t length, unsigned char *scratch)
{
	size_t from = 0;

	for (size_t i = 0; i <= length && !overlap->decoded_text; i++) {
		if (i < length && base64_of(text[i]) >= 0)
			continue;
		if (i - from >= BASE64_MIN)
			overlap->decoded_text = is_encoded_text(text + from, i - from, scratch);
		from = i + 1;
	}
}

/* Reads all base64 digits of the text as one sequence, starting at each of the first four digits:
 * one of these starts has the bytes of a value anywhere in it, even if line breaks divide the
 * value. */
static void note_base64(struct semel_overlap *overlap, const unsigned char *text, size_t length,
			unsigned char *digits)
{
	size_t count = 0;
	unsigned char bytes[3];

	note_base64_words(overlap, text, length, digits);
	for (size_t i = 0; i < length; i++)
		if (base64_of(text[i]) >= 0)
			digits[count++] = (unsigned char)base64_of(text[i]);
	for (size_t from = 0; from < 4; from++) {
		struct decoded decoded = { 0 };
		for (size_t i = from; i + 1 < count; i += 4) {
			size_t group = count - i < 4 ? count - i : 4;
			decode_group(digits + i, group, bytes);
			for (size_t k = 0; k + 1 < group; k++)
				note_decoded(overlap, &decoded, bytes[k], ENOUGH_OF_BASE64);
		}
	}
}

static void note_hex_row(struct semel_overlap *overlap, const unsigned char *digits, size_t count)
{
	for (size_t from = 0; count >= HEX_MIN && from < 2; from++) {
		struct decoded decoded = { 0 };
		for (size_t i = from; i + 1 < count; i += 2)
			note_decoded(overlap, &decoded,
				     (unsigned char)(digits[i] << 4 | digits[i + 1]), ENOUGH);
	}
}

/* "34 31 31 31", "34:31", "=34=31" and "34313131" are all read alike. */
static void note_hex(struct semel_overlap *overlap, const unsigned char *text, size_t length,
		     unsigned char *digits)
{
	size_t count = 0;

	for (size_t i = 0; i < length; i++) {
		if (hex_of(text[i]) >= 0) {
			digits[count++] = (unsigned char)hex_of(text[i]);
		} else if (sign_of(text[i]) >= 0) {
			note_hex_row(overlap, digits, count);
			count = 0;
		}
	}
	note_hex_row(overlap, digits, count);
}

/* ---- the text ---------------------------------------------------------------------------------
 */

/* Undoes escapes one kind at a time, because an apparent escape of another kind may belong to the
 * value; then all kinds at once, several times. If escapes are still left, the text is not
 * understood and counts as an overlap. */
static void note_escaped(struct semel_overlap *overlap, const unsigned char *text, size_t length,
			 unsigned char *scratch)
{
	unsigned char *from = scratch, *to = scratch + length;

	for (int kind = BACKSLASHES; kind <= ENTITIES; kind <<= 1)
		note_plain(overlap, to, undo_escapes(text, length, kind, to));
	memcpy(from, text, length);
	for (int pass = 0; pass < PASSES; pass++) {
		size_t undone = undo_escapes(from, length, ALL_ESCAPES, to);
		if (undone == length)
			return;
		note_plain(overlap, to, undone);
		note_base64(overlap, to, undone, from);
		unsigned char *spare = from;
		from = to;
		to = spare;
		length = undone;
	}
	overlap->found = undo_escapes(from, length, ALL_ESCAPES, to) != length || overlap->found;
}

static bool has_escapes(const unsigned char *text, size_t length)
{
	return memchr(text, '\\', length) || memchr(text, '%', length) || memchr(text, '&', length);
}

struct semel_overlap *semel_overlap_new(struct semel_text text)
{
	const unsigned char *bytes = (const void *)text.data;
	struct semel_overlap *overlap = calloc(1, sizeof *overlap);
	unsigned char *scratch =
		overlap && text.length <= TEXT_MAX ? malloc(2 * text.length + 1) : NULL;

	if (!overlap)
		return NULL;
	overlap->found = !scratch;
	if (!scratch || text.length == 0) {
		free(scratch);
		return overlap;
	}
	note_plain(overlap, bytes, text.length);
	note_base64(overlap, bytes, text.length, scratch);
	note_hex(overlap, bytes, text.length, scratch);
	if (has_escapes(bytes, text.length))
		note_escaped(overlap, bytes, text.length, scratch);
	free(scratch);
	return overlap;
}

void semel_overlap_free(struct semel_overlap *overlap)
{
	free(overlap);
}

void semel_overlap_doubt(struct semel_overlap *overlap)
{
	overlap->found = true;
}

bool semel_overlap_is_found(const struct semel_overlap *overlap)
{
	return overlap->found;
}

/* ---- comparing values -------------------------------------------------------------------------
 */

/* Is a value of one to three letters and digits in the text, as a word, or is one of the words in
 * it? If other characters make the value longer, it may be anywhere in the text. */
static bool has_short(const struct semel_overlap *overlap, const unsigned char *value,
		      size_t length, struct run run)
{
	struct words words = { 0 };
	uint32_t key = short_key(run.key, run.count), word = 0;

	if (has_bit(length < RUN ? overlap->words : overlap->parts, key))
		return true;
	for (size_t i = 0; i <= length; i++) {
		size_t ended = end_word(&words, i < length ? value[i] : '\0', &word);
		if (ended > 0 && has_bit(overlap->words, short_key(word, ended)))
			return true;
	}
	return false;
}

static bool is_blank(unsigned char c)
{
	return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool has_plain(const struct semel_overlap *overlap, const unsigned char *value,
		      size_t length)
{
	struct run run = { 0 };
	bool has_beyond = false, has_marks = false;

	for (size_t i = 0; i < length; i++) {
		int sign = sign_of(value[i]);
		has_beyond = has_beyond || value[i] >= BEYOND;
		has_marks = has_marks || (sign < 0 && value[i] < BEYOND && !is_blank(value[i]));
		if (sign < 0)
			continue;
		add_sign(&run, sign);
		if (run.count >= RUN && has_bit(overlap->runs, run.key))
			return true;
	}
	if (has_beyond && (overlap->beyond_ascii || overlap->decoded_text))
		return true;
	if (run.count == 0)
		return has_marks && !has_beyond;
	return run.count < RUN && has_short(overlap, value, length, run);
}

static bool has_run(const struct semel_overlap *overlap, struct decoded *decoded, unsigned char c)
{
	if (c >= BEYOND)
		return add_beyond(decoded, c) >= ENOUGH && overlap->beyond_ascii;
	return add_decoded(decoded, c) && has_bit(overlap->runs, decoded->run.key);
}

/* Compares the decoded value, if all of it is base64 (parts are divided by dots, as in a JWT). */
static bool has_base64(const struct semel_overlap *overlap, const unsigned char *value,
		       size_t length)
{
	struct decoded decoded = { 0 };
	unsigned char digits[4], bytes[3];
	size_t count = 0;
	bool found = false;

	for (size_t i = 0; i <= length && !found; i++) {
		int digit = i < length ? base64_of(value[i]) : -1;
		bool divides = i == length || value[i] == '.' || value[i] == '=';
		if (digit < 0 && !divides && !is_blank(value[i]))
			return false;
		if (digit >= 0)
			digits[count++] = (unsigned char)digit;
		if (count < 4 && !divides)
			continue;
		decode_group(digits, count, bytes);
		for (size_t k = 0; k + 1 < count; k++)
			found = has_run(overlap, &decoded, bytes[k]) || found;
		count = 0;
	}
	return found;
}

static bool has_hex(const struct semel_overlap *overlap, const unsigned char *value, size_t length)
{
	struct decoded decoded = { 0 };
	bool found = false;

	for (size_t i = 0; i + 1 < length && !found; i += 2) {
		if (hex_of(value[i]) < 0 || hex_of(value[i + 1]) < 0)
			return false;
		found = has_run(overlap, &decoded,
				(unsigned char)(hex_of(value[i]) << 4 | hex_of(value[i + 1])));
	}
	return found;
}

void semel_overlap_compare(struct semel_overlap *overlap, struct semel_text value)
{
	const unsigned char *bytes = (const void *)value.data;

	if (overlap->found || value.length == 0)
		return;
	overlap->found = has_plain(overlap, bytes, value.length) ||
			 (value.length >= BASE64_MIN && has_base64(overlap, bytes, value.length)) ||
			 (value.length >= HEX_MIN && has_hex(overlap, bytes, value.length));
	if (overlap->found || !has_escapes(bytes, value.length))
		return;
	unsigned char *scratch = malloc(value.length);
	overlap->found =
		!scratch || has_plain(overlap, scratch,
				      undo_escapes(bytes, value.length, ALL_ESCAPES, scratch));
	free(scratch);
}

/* A number with digits only has no other usual notation. */
static bool is_whole(struct semel_text number)
{
	return !memchr(number.data, '.', number.length) &&
	       !memchr(number.data, 'e', number.length) && !memchr(number.data, 'E', number.length);
}

void semel_overlap_compare_number(struct semel_overlap *overlap, struct semel_text number)
{
	static const int digits[] = { 17, 15, 6 };
	char token[64], text[400];

	semel_overlap_compare(overlap, number);
	if (overlap->found || number.length >= sizeof token || is_whole(number))
		return;
	if (overlap->reals++ == REALS_MAX) {
		overlap->found = true;
		return;
	}
	memcpy(token, number.data, number.length);
	token[number.length] = '\0';
	double value = strtod(token, NULL);
	for (size_t i = 0; i < sizeof digits / sizeof *digits && !overlap->found; i++) {
		snprintf(text, sizeof text, "%.*g", digits[i], value);
		semel_overlap_compare(overlap, semel_text_of(text));
	}
	for (int decimals = 0; decimals <= 2 && !overlap->found; decimals += 2) {
		snprintf(text, sizeof text, "%.*f", decimals, value);
		semel_overlap_compare(overlap, semel_text_of(text));
	}
}
