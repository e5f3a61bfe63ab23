/* SPDX-License-Identifier: Apache-2.0 */
/* A line of `publish --batch` that is accepted makes an event, whose record is a line again that
 * makes the same event. */
#include "base/json.h"
#include "event/event.h"

#include "fuzz.h"

static int64_t fixed_number(void *user)
{
	(void)user;
	return 1000;
}

static uint64_t fixed_chance(void *user)
{
	(void)user;
	return 7;
}

static const struct semel_env env = { .now_ms = fixed_number,
				      .steady_ms = fixed_number,
				      .random = fixed_chance };

/* Line breaks between tokens become spaces in a record; nothing else may change. */
static void compare_payloads(struct semel_text first, struct semel_text second)
{
	PROMISE(first.length == second.length);
	for (size_t i = 0; i < first.length; i++)
		PROMISE(first.data[i] == second.data[i] ||
			(strchr("\r\n", first.data[i]) && second.data[i] == ' '));
}

static void go_there_and_back(const struct semel_event *event, struct semel_arena *arena)
{
	struct semel_buffer line = { 0 };
	semel_event_to_json(event, &line);
	PROMISE(semel_json_is_valid(semel_buffer_text(&line)));
	PROMISE(!memchr(line.data, '\n', line.length));
	semel_event_input input;
	struct semel_event again;
	PROMISE(semel_event_input_from_json(semel_buffer_text(&line), arena, &input, NULL) ==
		SEMEL_OK);
	PROMISE(semel_event_from_input(&input, &env, arena, &again, NULL) == SEMEL_OK);
	PROMISE(semel_text_equal(event->id, again.id));
	PROMISE(semel_text_equal(event->type, again.type));
	PROMISE(semel_text_equal(event->topic, again.topic));
	PROMISE(event->time_ms == again.time_ms);
	compare_payloads(event->payload, again.payload);
	semel_buffer_free(&line);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = fuzz_copy(data, size);
	struct semel_arena *arena = semel_arena_new(4096);
	semel_event_input input;
	struct semel_event event;
	semel_error error = { 0 };
	struct semel_text line = semel_text_from(copy, size);
	if (semel_event_input_from_json(line, arena, &input, &error) == SEMEL_OK &&
	    semel_event_from_input(&input, &env, arena, &event, &error) == SEMEL_OK) {
		PROMISE(semel_event_check(&event, &error) == SEMEL_OK);
		go_there_and_back(&event, arena);
	} else {
		PROMISE(error.status != SEMEL_OK && error.text[0] != '\0');
		PROMISE(semel_text_is_utf8(semel_text_of(error.text)));
	}
	semel_arena_free(arena);
	free(copy);
	return 0;
}
