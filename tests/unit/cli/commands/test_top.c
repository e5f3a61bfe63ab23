/* SPDX-License-Identifier: Apache-2.0 */
/* How a dashboard is drawn as lines. */
#include "cli/commands/top/top.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#define DASHBOARD(time, lag)                                                                       \
	"{\"time\":\"2026-11-15T12:00:" time ".000Z\",\"outbox\":{\"waiting\":3,\"retrying\":1,"   \
	"\"parked\":0,\"blocked\":0,\"lastError\":\"no\\u001b[2Jroute\"},\"pending\":2,"           \
	"\"ageSeconds\":75,\"subscriptions\":[{\"scope\":\"bill\\u0007ing\",\"lag\":" lag ","      \
	"\"delayed\":1,\"retrying\":0,\"parked\":4,\"blocked\":0,\"deadLetters\":2,"               \
	"\"breaker\":2,\"paused\":false}],\"reasons\":[\"it\\nis stuck\"]}"

static struct semel_buffer text;

static void has(const char *wanted)
{
	if (!strstr(text.data, wanted))
		fail_msg("\"%s\" is not in:\n%s", wanted, text.data);
}

static void it_shows_what_waits_how_fast_that_changes_and_why(void **state)
{
	(void)state;
	semel_buffer_clear(&text);
	assert_true(semel_top_draw(DASHBOARD("00", "90"), DASHBOARD("04", "100"), &text));
	has("outbox                 3         1         0         0         2   1m15s\n");
	has("bill\\u0007ing                  100      +2.5         1         0         4");
	has("breaker open\n");
	has("not ready: it is stuck\n");
}

static void what_is_not_known_is_a_dash(void **state)
{
	(void)state;
	semel_buffer_clear(&text);
	assert_true(semel_top_draw(NULL, DASHBOARD("04", "null"), &text));
	has("bill\\u0007ing                    -         -         1");
	assert_false(semel_top_draw(NULL, "{", &text));
}

static void nothing_that_others_wrote_moves_the_cursor(void **state)
{
	(void)state;
	semel_buffer_clear(&text);
	assert_true(semel_top_draw(NULL, DASHBOARD("04", "1"), &text));
	for (size_t i = 0; i < text.length; i++)
		assert_true(text.data[i] == '\n' || (unsigned char)text.data[i] >= 0x20);
	has("no\\u001b[2Jroute");
}

static int close_down(void **state)
{
	(void)state;
	semel_buffer_free(&text);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_shows_what_waits_how_fast_that_changes_and_why),
		cmocka_unit_test(what_is_not_known_is_a_dash),
		cmocka_unit_test(nothing_that_others_wrote_moves_the_cursor),
	};

	return cmocka_run_group_tests(tests, NULL, close_down);
}
