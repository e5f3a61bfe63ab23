/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"
#include "consume/upcast.h"
#include "unit/consume/outside_support.h"

#include <stdio.h>
#include <stdlib.h>

struct fixture {
	struct semel_upcasters *upcasters;
	struct semel_arena *arena;
	struct semel_event event;
	semel_error error;
};

static int set_up(void **state)
{
	struct fixture *fixture = calloc(1, sizeof *fixture);
	fixture->upcasters = semel_upcasters_new();
	fixture->arena = semel_arena_new(4096);
	fixture->event = sample_event();
	*state = fixture;
	return fixture->upcasters == NULL || fixture->arena == NULL;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;
	semel_upcasters_free(fixture->upcasters);
	semel_arena_free(fixture->arena);
	free(fixture);
	return 0;
}

/* A store that only evaluates: the expression chooses the result. */
static semel_status evaluate(semel_store *store, const char *expression,
			     const struct semel_event *event, struct semel_arena *arena,
			     struct semel_text *value_out, semel_error *error)
{
	(void)store;
	(void)event;
	if (strcmp(expression, "wrong") == 0)
		return semel_error_set(error, SEMEL_INVALID, "no such column: wrong");
	if (strcmp(expression, "outage") == 0)
		return semel_error_set(error, SEMEL_OUTAGE, "the store is unreachable");
	if (strcmp(expression, "NULL") == 0)
		*value_out = (struct semel_text){ 0 };
	else
		*value_out = semel_arena_text(arena, expression, strlen(expression));
	return SEMEL_OK;
}

static const struct semel_store_driver fake_driver = {
	.scheme = "fake", .inbox = &(const struct semel_inbox_functions){ .evaluate = evaluate }
};
static semel_store fake_store = { .driver = &fake_driver };

static semel_status parse(struct fixture *fixture, const char *specification)
{
	return semel_upcasters_parse(fixture->upcasters, specification, &fixture->error);
}

static semel_status apply(struct fixture *fixture)
{
	return semel_upcasters_apply(fixture->upcasters, &fake_store, &fixture->event,
				     fixture->arena, &fixture->error);
}

static void assert_error_has(const struct fixture *fixture, const char *words)
{
	if (strstr(fixture->error.text, words) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", fixture->error.text, words);
}

static semel_verdict add_currency(const semel_event *event, semel_upcast *upcast, void *user)
{
	char payload[128];
	size_t size;
	const char *old = semel_event_payload(event, &size);
	int length = snprintf(payload, sizeof payload, "%.*s,\"currency\":\"%s\"}", (int)size - 1,
			      old, (const char *)user);
	return semel_upcast_payload(upcast, payload, (size_t)length) == SEMEL_OK ? SEMEL_DONE
										 : SEMEL_RETRY;
}

static semel_verdict write_nothing(const semel_event *event, semel_upcast *upcast, void *user)
{
	(void)event;
	(void)upcast;
	return *(semel_verdict *)user;
}

static semel_status add_function(struct fixture *fixture, semel_upcaster function, void *user)
{
	const struct semel_upcast_step step = { .from_type = "order.created.v1",
						.to_type = "order.created.v2",
						.kind = SEMEL_UPCAST_C,
						.function = function,
						.user = user };
	return semel_upcasters_add(fixture->upcasters, &step, &fixture->error);
}

static void an_event_that_no_step_takes_stays_as_it_is(void **state)
{
	struct fixture *fixture = *state;
	struct semel_event before = fixture->event;
	assert_int_equal(parse(fixture, "invoice.v1=invoice.v2:sql:'{}'"), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_OK);
	assert_memory_equal(&before, &fixture->event, sizeof before);
}

static void steps_are_chained_over_all_kinds(void **state)
{
	struct fixture *fixture = *state;
	char currency[] = "EUR";
	assert_int_equal(parse(fixture, "order.created.v2=order.created.v3:exec:"
					"sed 's/total/sum/'"),
			 SEMEL_OK);
	assert_int_equal(add_function(fixture, add_currency, currency), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_OK);
	assert_string_equal(fixture->event.type.data, "order.created.v3");
	assert_string_equal(fixture->event.payload.data, "{\"sum\":5,\"currency\":\"EUR\"}");
	assert_string_equal(fixture->event.id.data, EVENT_ID);

	fixture->event = sample_event();
	assert_int_equal(parse(fixture, "order.created.v3=order.placed.v1:sql:{\"a\":\"b:c=d\"}"),
			 SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_OK);
	assert_string_equal(fixture->event.type.data, "order.placed.v1");
	assert_string_equal(fixture->event.payload.data, "{\"a\":\"b:c=d\"}");
}

static void a_function_that_writes_nothing_only_renames(void **state)
{
	struct fixture *fixture = *state;
	semel_verdict verdict = SEMEL_DONE;
	assert_int_equal(add_function(fixture, write_nothing, &verdict), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_OK);
	assert_string_equal(fixture->event.type.data, "order.created.v2");
	assert_string_equal(fixture->event.payload.data, "{\"total\":5}");
}

static void a_function_may_reject_or_ask_again(void **state)
{
	struct fixture *fixture = *state;
	semel_verdict verdict = SEMEL_REJECT;
	assert_int_equal(add_function(fixture, write_nothing, &verdict), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, "upcaster from order.created.v1 to order.created.v2");
	verdict = SEMEL_RETRY;
	assert_int_equal(apply(fixture), SEMEL_HANDLER_RETRY);
}

static void a_failure_late_in_the_chain_leaves_the_event_as_it_came(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:sql:{}"), SEMEL_OK);
	assert_int_equal(parse(fixture, "order.created.v2=order.created.v3:exec:exit 65"),
			 SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, "upcaster from order.created.v2 to order.created.v3");
	assert_string_equal(fixture->event.type.data, "order.created.v1");
	assert_string_equal(fixture->event.payload.data, "{\"total\":5}");
}

static void a_program_gets_the_event_and_reports_why_it_fails(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:exec:"
					"echo $SEMEL_EVENT_ID is odd >&2; exit 65"),
			 SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, EVENT_ID " is odd");
}

static void a_program_that_fails_otherwise_is_tried_again(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:exec:exit 1"), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_RETRY);
	assert_error_has(fixture, "exited with status 1");
}

static void a_payload_that_claims_to_be_JSON_must_be(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:exec:echo '{oops}'"),
			 SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, "not JSON");
	fixture->event.content_type = SEMEL_TEXT("text/plain");
	assert_int_equal(apply(fixture), SEMEL_OK);
	assert_string_equal(fixture->event.payload.data, "{oops}\n");
}

static void a_payload_that_is_too_large_is_rejected(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:exec:"
					"head -c 17000000 /dev/zero"),
			 SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, "larger");
}

static void a_wrong_expression_rejects_and_an_unreachable_store_does_not(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "order.created.v1=order.created.v2:sql:wrong"), SEMEL_OK);
	assert_int_equal(parse(fixture, "null.v1=null.v2:sql:NULL"), SEMEL_OK);
	assert_int_equal(parse(fixture, "outage.v1=outage.v2:sql:outage"), SEMEL_OK);
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	assert_int_equal(fixture->error.status, SEMEL_HANDLER_REJECT);
	assert_error_has(fixture, "no such column");
	fixture->event.type = SEMEL_TEXT("null.v1");
	assert_int_equal(apply(fixture), SEMEL_HANDLER_REJECT);
	fixture->event.type = SEMEL_TEXT("outage.v1");
	assert_int_equal(apply(fixture), SEMEL_OUTAGE);
}

static void steps_that_cannot_be_right_are_refused(void **state)
{
	struct fixture *fixture = *state;
	const struct semel_upcast_step nameless = {
		.from_type = " ", .to_type = "b", .kind = SEMEL_UPCAST_SQL, .target = "1"
	};
	assert_int_equal(semel_upcasters_add(fixture->upcasters, &nameless, &fixture->error),
			 SEMEL_INVALID);
	assert_int_equal(add_function(fixture, NULL, NULL), SEMEL_INVALID);
	assert_error_has(fixture, "nothing to run");
	static const char *const bad[] = { "",           "a",        "a=b",      "a=b:c",
					   "a=b:perl:x", "=:",       "a:sql:x",  "=b:sql:x",
					   "a=:sql:x",   "a=b:sql:", "a=a:sql:x" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(parse(fixture, bad[i]), SEMEL_USAGE);
	assert_int_equal(parse(fixture, "a=b:perl:x"), SEMEL_USAGE);
	assert_error_has(fixture, "FROM=TO:sql:EXPRESSION");
}

static void two_steps_from_one_type_and_circles_are_refused(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(parse(fixture, "a=b:sql:1"), SEMEL_OK);
	assert_int_equal(parse(fixture, "b=c:sql:1"), SEMEL_OK);
	assert_int_equal(parse(fixture, "x=b:sql:1"), SEMEL_OK);
	assert_int_equal(parse(fixture, "a=d:sql:1"), SEMEL_USAGE);
	assert_error_has(fixture, "two upcasters convert a");
	assert_int_equal(parse(fixture, "c=a:sql:1"), SEMEL_USAGE);
	assert_error_has(fixture, "cycle");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_event_that_no_step_takes_stays_as_it_is),
		TEST(steps_are_chained_over_all_kinds),
		TEST(a_function_that_writes_nothing_only_renames),
		TEST(a_function_may_reject_or_ask_again),
		TEST(a_failure_late_in_the_chain_leaves_the_event_as_it_came),
		TEST(a_program_gets_the_event_and_reports_why_it_fails),
		TEST(a_program_that_fails_otherwise_is_tried_again),
		TEST(a_payload_that_claims_to_be_JSON_must_be),
		TEST(a_payload_that_is_too_large_is_rejected),
		TEST(a_wrong_expression_rejects_and_an_unreachable_store_does_not),
		TEST(steps_that_cannot_be_right_are_refused),
		TEST(two_steps_from_one_type_and_circles_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
