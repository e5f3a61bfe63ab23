/* SPDX-License-Identifier: Apache-2.0 */
/* What a failed call becomes in a response, and where that differs from a refused request. */
#include "admin/problem.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static void assert_failure(semel_status status, unsigned expected, const char *words)
{
	struct semel_http_response response = { 0 };

	semel_response_failure(&response, status, "why");
	assert_int_equal(response.status, expected);
	assert_int_equal(semel_problem_status(status), expected);
	assert_non_null(strstr(response.body.data, words));
	semel_buffer_free(&response.body);
}

static void a_failed_call_has_the_row_of_its_name(void **state)
{
	(void)state;
	assert_failure(SEMEL_NOT_FOUND, 404, "\"/problems/not-found\"");
	assert_failure(SEMEL_BUSY, 503, "\"/problems/busy\"");
}

static void an_event_that_is_too_large_is_not_the_body_of_the_request(void **state)
{
	struct semel_http_response response = { 0 };

	(void)state;
	assert_failure(SEMEL_TOO_LARGE, 500, "\"/problems/too-large\"");
	semel_response_problem(&response, SEMEL_PROBLEM_TOO_LARGE, "why");
	assert_int_equal(response.status, 413);
	assert_non_null(strstr(response.body.data, "\"/problems/too-large\""));
	semel_buffer_free(&response.body);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_failed_call_has_the_row_of_its_name),
		cmocka_unit_test(an_event_that_is_too_large_is_not_the_body_of_the_request),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
