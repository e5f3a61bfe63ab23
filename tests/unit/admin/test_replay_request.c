/* SPDX-License-Identifier: Apache-2.0 */
/* The body of a request for a replay: what is not meant exactly so is refused. */
#include "admin/replays.h"
#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

static semel_status read_plan(struct semel_text body, struct semel_replay_plan *plan,
			      struct semel_arena *arena, semel_error *error)
{
	*plan = (struct semel_replay_plan){ 0 };
	*error = (semel_error){ 0 };
	return semel_replay_request_read(body, arena, plan, error);
}

static void a_member_that_holds_a_zero_byte_is_refused(void **state)
{
	(void)state;
	static const struct {
		struct semel_text body;
		const char *member;
	} bodies[] = {
		{ SEMEL_TEXT_CONST("{\"type\":\"order.placed\\u0000.v2\"}"), "type must be" },
		{ SEMEL_TEXT_CONST("{\"scope\":\"billing\\u0000\"}"), "scope must be" },
		{ SEMEL_TEXT_CONST("{\"aggregate\":\"order:1\\u0000,2\"}"), "aggregate must be" },
		{ SEMEL_TEXT_CONST("{\"since\":\"2026-01-31T12:00:00Z\\u0000\"}"),
		  "since must be" },
		{ SEMEL_TEXT_CONST("{\"type\\u0000x\":\"order.placed\"}"), "a JSON object" },
	};
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_replay_plan plan;
	semel_error error;

	for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
		assert_int_equal(read_plan(bodies[i].body, &plan, arena, &error), SEMEL_USAGE);
		assert_non_null(strstr(error.text, bodies[i].member));
		assert_null(plan.filter.type);
	}
	semel_arena_free(arena);
}

static void a_plan_has_what_its_body_says(void **state)
{
	(void)state;
	struct semel_arena *arena = semel_arena_new(4096);
	struct semel_replay_plan plan;
	semel_error error;

	assert_int_equal(
		read_plan(SEMEL_TEXT(" {\"type\":\"order.placed\",\"aggregate\":\"order:1\","
				     "\"max\":3}"),
			  &plan, arena, &error),
		SEMEL_OK);
	assert_string_equal(plan.filter.type, "order.placed");
	assert_string_equal(plan.filter.aggregate_type, "order");
	assert_string_equal(plan.filter.aggregate_id, "1");
	assert_int_equal(plan.max, 3);
	assert_int_equal(read_plan(SEMEL_TEXT(" [1]"), &plan, arena, &error), SEMEL_USAGE);
	assert_int_equal(read_plan(SEMEL_TEXT("7"), &plan, arena, &error), SEMEL_USAGE);
	semel_arena_free(arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_member_that_holds_a_zero_byte_is_refused),
		cmocka_unit_test(a_plan_has_what_its_body_says),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
