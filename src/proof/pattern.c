/* SPDX-License-Identifier: Apache-2.0 */
/* As for a shell's star: where a # was passed last is remembered, and it takes one word more each
 * time the rest does not fit. */
#include "proof/pattern.h"

#include <string.h>

/* One word of a text; begun past its end: there is none. */
struct words {
	const char *at, *end;
	bool over;
};

static struct words words_of(struct semel_text text)
{
	return (struct words){ .at = semel_text_chars(text),
			       .end = semel_text_chars(text) + text.length };
}

static struct semel_text first_word(const struct words *words)
{
	const char *dot = memchr(words->at, '.', (size_t)(words->end - words->at));
	const char *end = dot ? dot : words->end;
	return semel_text_from(words->at, (size_t)(end - words->at));
}

static struct words rest_of(struct words words)
{
	const char *dot = memchr(words.at, '.', (size_t)(words.end - words.at));
	return (struct words){ .at = dot ? dot + 1 : words.end, .end = words.end, .over = !dot };
}

bool semel_pattern_matches(struct semel_text pattern, struct semel_text key)
{
	struct words expected = words_of(pattern), given = words_of(key);
	struct words behind = expected, retry = given; /* of the last # */
	bool any = false;

	while (!given.over) {
		struct semel_text word =
			expected.over ? semel_text_of(NULL) : first_word(&expected);
		if (!expected.over && semel_text_equal(word, SEMEL_TEXT("#"))) {
			behind = expected = rest_of(expected);
			retry = given;
			any = true;
		} else if (!expected.over && (semel_text_equal(word, SEMEL_TEXT("*")) ||
					      semel_text_equal(word, first_word(&given)))) {
			expected = rest_of(expected);
			given = rest_of(given);
		} else if (any) {
			given = retry = rest_of(retry);
			expected = behind;
		} else {
			return false;
		}
	}
	while (!expected.over && semel_text_equal(first_word(&expected), SEMEL_TEXT("#")))
		expected = rest_of(expected);
	return expected.over;
}
