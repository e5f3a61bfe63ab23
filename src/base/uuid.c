/* SPDX-License-Identifier: Apache-2.0 */
/* UUIDv7 (RFC 9562): 48 bits of time, a 12-bit counter, 62 random bits.
 *
 * The counter is reset to a value in its lower half in each millisecond. When it overflows, or when
 * the clock goes back, the id's time runs ahead of the clock, so that ids still grow. */
#include "base/uuid.h"

#include <stddef.h>
#include <threads.h>

enum { COUNTER_MAX = 0xFFF, COUNTER_START_MAX = 0x7FF };

static thread_local struct {
	uint64_t time_ms;
	unsigned counter;
} last;

static void step(uint64_t now_ms, uint64_t chance)
{
	if (now_ms <= last.time_ms && last.counter < COUNTER_MAX) {
		last.counter++;
		return;
	}
	last.time_ms = now_ms > last.time_ms ? now_ms : last.time_ms + 1;
	last.counter = (unsigned)(chance & COUNTER_START_MAX);
}

static void write_hex(uint64_t number, int digits, char *to)
{
	for (int i = digits - 1; i >= 0; i--, number >>= 4)
		to[i] = "0123456789abcdef"[number & 15];
}

void semel_uuid_make(const struct semel_env *env, char text_out[SEMEL_UUID_SIZE])
{
	int64_t now_ms = semel_now_ms(env);
	uint64_t chance = semel_random(env);
	step(now_ms > 0 ? (uint64_t)now_ms : 0, semel_random(env));

	write_hex(last.time_ms >> 16 & 0xFFFFFFFF, 8, text_out);
	text_out[8] = '-';
	write_hex(last.time_ms & 0xFFFF, 4, text_out + 9);
	text_out[13] = '-';
	write_hex(0x7000 | last.counter, 4, text_out + 14);
	text_out[18] = '-';
	write_hex(0x8000 | (chance >> 48 & 0x3FFF), 4, text_out + 19);
	text_out[23] = '-';
	write_hex(chance & UINT64_C(0xFFFFFFFFFFFF), 12, text_out + 24);
	text_out[36] = '\0';
}

static bool is_hex(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

bool semel_uuid_is_valid(const char *text)
{
	if (!text)
		return false;
	for (size_t i = 0; i < SEMEL_UUID_SIZE - 1; i++) {
		bool hyphen = i == 8 || i == 13 || i == 18 || i == 23;
		if (hyphen ? text[i] != '-' : !is_hex(text[i]))
			return false; /* also at the NUL of a short text */
	}
	return text[SEMEL_UUID_SIZE - 1] == '\0';
}
