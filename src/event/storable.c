/* SPDX-License-Identifier: Apache-2.0 */
/* Names that came from elsewhere and that no store could keep: too long for an index, not UTF-8, a
 * zero byte. Such an event breaks the contract; its dead letter gets names that can be stored. Two
 * different names never become the same one: a hash of the whole stands at the end. */
#include "event/event.h"

#include "base/error.h"

#include <inttypes.h>
#include <string.h>

#define PREFIX_MAX 200 /* bytes of the new name before its hash */

/* U+FFFD */
static const struct semel_text replacement = SEMEL_TEXT_CONST("\xef\xbf\xbd");

static bool has_zero(struct semel_text name)
{
	return name.length > 0 && memchr(name.data, '\0', name.length);
}

static bool is_storable(struct semel_text name)
{
	return !name.data || (name.length <= SEMEL_FOREIGN_NAME_MAX && !has_zero(name) &&
			      semel_text_is_utf8(name));
}

semel_status semel_event_check_storable(const char *field, struct semel_text name,
					semel_error *error)
{
	if (is_storable(name))
		return SEMEL_OK;
	if (name.length > SEMEL_FOREIGN_NAME_MAX)
		return semel_error_set(error, SEMEL_CONTRACT,
				       "the event's %s is %zu bytes long: at most %d can be stored",
				       field, name.length, SEMEL_FOREIGN_NAME_MAX);
	return semel_error_set(error, SEMEL_CONTRACT, "the event's %s %s", field,
			       has_zero(name) ? "has a zero byte in it" : "is not valid UTF-8");
}

static struct semel_text make_storable(struct semel_text name, struct semel_arena *arena)
{
	char prefix[PREFIX_MAX + 4];
	size_t length = 0;
	if (is_storable(name))
		return name;
	for (size_t at = 0; at < name.length && length < PREFIX_MAX;) {
		const unsigned char *byte = (const unsigned char *)name.data + at;
		size_t step = *byte == '\0' ? 0 : semel_utf8_length(byte, name.length - at);
		const semel_byte *from = step == 0 ? replacement.data : name.data + at;
		size_t size = step == 0 ? replacement.length : step;
		memcpy(prefix + length, from, size);
		length += size;
		at += step == 0 ? 1 : step;
	}
	const char *name_and_hash = semel_arena_printf(arena, "%.*s~%016" PRIx64, (int)length,
						       prefix, semel_event_hash_id(name));
	return semel_text_of(name_and_hash);
}

void semel_event_make_storable(struct semel_event *event, struct semel_arena *arena)
{
	struct semel_text *const names[] = {
		&event->id,    &event->type,        &event->aggregate_type, &event->aggregate_id,
		&event->topic, &event->routing_key, &event->content_type
	};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		*names[i] = make_storable(*names[i], arena);
}
