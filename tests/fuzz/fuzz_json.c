/* SPDX-License-Identifier: Apache-2.0 */
/* The validator agrees with jansson, and what walks over valid JSON finds valid JSON in it. */
#include "base/json.h"

#include "fuzz.h"

#include <jansson.h>

/* Where the two differ on purpose: NUL bytes, huge numbers, deep nesting. */
static bool is_known_difference(struct semel_text text, enum json_error_code code)
{
	size_t depth = 0;
	for (size_t i = 0; i < text.length; i++)
		depth += text.data[i] == '[' || text.data[i] == '{';
	return depth > 512 || memchr(text.data, '\0', text.length) ||
	       code == json_error_numeric_overflow;
}

static void compare_with_jansson(struct semel_text text, bool valid)
{
	json_error_t error = { 0 };
	json_t *tree = json_loadb(semel_text_chars(text), text.length,
				  JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
	if (!is_known_difference(text, tree ? json_error_unknown : json_error_code(&error)))
		PROMISE(valid == (tree != NULL));
	json_decref(tree);
}

static void walk_over(struct semel_text text, struct semel_arena *arena)
{
	struct semel_json_walk walk = semel_json_walk(text);
	struct semel_text name, value;
	while (semel_json_next(&walk, &name, &value)) {
		PROMISE(semel_json_is_valid(name));
		PROMISE(semel_json_is_valid(value));
		struct semel_text plain = semel_json_unquote(name, arena);
		PROMISE(semel_text_is_utf8(plain));
		struct semel_text found = semel_json_member(text, semel_text_chars(plain), arena);
		PROMISE(!found.data || semel_text_is_utf8(found));
		struct semel_text without = semel_json_with(text, semel_text_chars(plain),
							    (struct semel_text){ NULL, 0 }, arena);
		PROMISE(semel_json_is_valid(without));
		PROMISE(!semel_json_member(without, semel_text_chars(plain), arena).data);
	}
	struct semel_text with = semel_json_with(text, "new", SEMEL_TEXT("v\n"), arena);
	PROMISE(semel_json_is_valid(with));
	PROMISE(semel_text_equal(semel_json_member(with, "new", arena), SEMEL_TEXT("v\n")));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size > 4096)
		return 0;
	char *copy = fuzz_copy(data, size);
	struct semel_text text = semel_text_from(copy, size);
	struct semel_arena *arena = semel_arena_new(4096);
	bool valid = semel_json_is_valid(text);
	size_t error_at = semel_json_error_at(text);
	PROMISE(error_at <= size);
	compare_with_jansson(text, valid);
	if (valid)
		walk_over(text, arena);
	semel_arena_free(arena);
	free(copy);
	return 0;
}
