/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of outside handlers share: an event, and a handler that must open. */
#ifndef SEMEL_TESTS_OUTSIDE_SUPPORT_H
#define SEMEL_TESTS_OUTSIDE_SUPPORT_H

#include "consume/handler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define EVENT_ID "01923456-0000-7000-8000-000000000001"

static inline struct semel_event sample_event(void)
{
	return (struct semel_event){
		.id = SEMEL_TEXT(EVENT_ID),
		.type = SEMEL_TEXT("order.created.v1"),
		.aggregate_type = SEMEL_TEXT("order"),
		.aggregate_id = SEMEL_TEXT("ord-1"),
		.topic = SEMEL_TEXT("order.events"),
		.routing_key = SEMEL_TEXT("order.created.v1"),
		.content_type = SEMEL_TEXT("application/json"),
		.headers = SEMEL_TEXT("{\"correlationId\":\"c-1\",\"producer\":\"/shop\"}"),
		.payload = SEMEL_TEXT("{\"total\":5}"),
		.time_ms = 1767225600123,
	};
}

static inline struct semel_outside *open_handler(const struct semel_outside_kind *kind,
						 const char *target, int64_t timeout_ms)
{
	const struct semel_outside_options options = { .target = target,
						       .timeout_ms = timeout_ms,
						       .scope = "billing" };
	struct semel_outside *outside = NULL;
	semel_error error = { 0 };
	semel_status status = kind->open(&options, &outside, &error);
	if (status != SEMEL_OK)
		print_error("%s\n", error.text);
	assert_int_equal(status, SEMEL_OK);
	assert_ptr_equal(outside->kind, kind);
	return outside;
}

/* One event through a handler of its own. */
static inline struct semel_outcome run_once(const struct semel_outside_kind *kind,
					    const char *target, const struct semel_event *event)
{
	struct semel_outcome outcome;
	struct semel_outside *outside = open_handler(kind, target, 20000);
	kind->run(outside, event, 2, &outcome);
	kind->close(outside);
	return outcome;
}

static inline void assert_refuses(const struct semel_outside_kind *kind, const char *target,
				  const char *because)
{
	const struct semel_outside_options options = { .target = target,
						       .timeout_ms = 1000,
						       .scope = "billing" };
	struct semel_outside *outside = NULL;
	semel_error error = { 0 };
	assert_int_equal(kind->open(&options, &outside, &error), SEMEL_CONFIG);
	if (strstr(error.text, because) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", error.text, because);
}

static inline void assert_says(const struct semel_outcome *outcome, const char *words)
{
	if (strstr(outcome->reason, words) == NULL)
		fail_msg("\"%s\" does not contain \"%s\"", outcome->reason, words);
}

#endif
