/* SPDX-License-Identifier: Apache-2.0 */
#include "unit/consume/http_server.h"
#include "unit/consume/outside_support.h"

#include <time.h>

struct fixture {
	struct http_server server;
	char url[128];
	struct semel_outside *outside;
	struct semel_event event;
	struct semel_outcome outcome;
};

static int set_up(void **state)
{
	struct fixture *fixture = calloc(1, sizeof *fixture);
	assert_true(server_listen(&fixture->server, fixture->url, sizeof fixture->url));
	fixture->outside = open_handler(&semel_outside_http, fixture->url, 20000);
	fixture->event = sample_event();
	*state = fixture;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *fixture = *state;
	semel_outside_http.close(fixture->outside);
	server_stop(&fixture->server);
	free(fixture);
	return 0;
}

static semel_status run(struct fixture *fixture)
{
	semel_outside_http.run(fixture->outside, &fixture->event, 3, &fixture->outcome);
	return fixture->outcome.status;
}

static semel_status run_with_answer(struct fixture *fixture, const char *answer)
{
	server_answer_with(&fixture->server, answer);
	return run(fixture);
}

static semel_status run_with_code(struct fixture *fixture, int code, const char *header)
{
	char answer[256];
	snprintf(answer, sizeof answer, "HTTP/1.1 %d Whatever\r\n%sContent-Length: 5\r\n\r\nwords",
		 code, header);
	return run_with_answer(fixture, answer);
}

/* A line of the request as it was sent. */
static bool was_sent(struct fixture *fixture, const char *line)
{
	char *text;
	assert_true(asprintf(&text, "\r\n%s\r\n", line) > 0);
	pthread_mutex_lock(&fixture->server.lock);
	bool found = strstr(fixture->server.request.data, text) != NULL;
	if (!found)
		print_message("%s\n", fixture->server.request.data);
	pthread_mutex_unlock(&fixture->server.lock);
	free(text);
	return found;
}

static bool was_mentioned(struct fixture *fixture, const char *words)
{
	pthread_mutex_lock(&fixture->server.lock);
	bool found = strcasestr(fixture->server.request.data, words) != NULL;
	pthread_mutex_unlock(&fixture->server.lock);
	return found;
}

static void the_event_is_posted_with_its_metadata(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(run_with_code(fixture, 200, ""), SEMEL_OK);
	assert_true(was_mentioned(fixture, "POST /events HTTP/1.1\r\n"));
	assert_true(was_mentioned(fixture, "\r\n\r\n{\"total\":5}"));
	static const char *const lines[] = {
		"Content-Type: application/json",
		"Content-Length: 11",
		"Idempotency-Key: " EVENT_ID,
		"webhook-id: " EVENT_ID,
		"ce-id: " EVENT_ID,
		"ce-type: order.created.v1",
		"ce-source: /shop",
		"ce-time: 2026-01-01T00:00:00.123Z",
		"ce-specversion: 1.0",
		"semel-aggregate-type: order",
		"semel-aggregate-id: ord-1",
		"semel-attempt: 3",
		"correlationId: c-1",
	};
	for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
		if (!was_sent(fixture, lines[i]))
			fail_msg("missing: %s", lines[i]);
	assert_false(was_mentioned(fixture, "Expect:"));
}

static void headers_that_are_HTTPs_or_ours_are_not_the_events_to_set(void **state)
{
	struct fixture *fixture = *state;
	fixture->event.headers = SEMEL_TEXT(
		"{\"Content-Length\":\"1\",\"HOST\":\"evil\",\"ce-ID\":\"2\",\"Expect\":\"x\","
		"\"bad name\":\"3\",\"broken\":\"a\\r\\nX-Smuggled: 1\",\"number\":4,"
		"\"empty\":\"\",\"ce-tenant\":\"t\",\"traceparent\":\"00-a-b-01\"}");
	assert_int_equal(run_with_code(fixture, 204, ""), SEMEL_OK);
	assert_true(was_sent(fixture, "Content-Length: 11"));
	assert_true(was_sent(fixture, "ce-id: " EVENT_ID));
	assert_true(was_sent(fixture, "ce-source: /semel"));
	assert_true(was_sent(fixture, "ce-tenant: t"));
	assert_true(was_sent(fixture, "traceparent: 00-a-b-01"));
	assert_true(was_sent(fixture, "empty:"));
	static const char *const never[] = { "evil", "Smuggled", "Expect", "bad name", "number" };
	for (size_t i = 0; i < sizeof never / sizeof *never; i++)
		assert_false(was_mentioned(fixture, never[i]));
}

/* Whoever writes events is not to be taken for the operator, for a proxy or for Semel. */
static void headers_that_an_endpoint_believes_are_not_the_events_to_set(void **state)
{
	struct fixture *fixture = *state;
	fixture->event.headers = SEMEL_TEXT(
		"{\"Authorization\":\"evil\",\"AUTHORIZATION\":\"evil\",\"Cookie\":\"evil\","
		"\"Host\":\"evil\",\"X-Forwarded-For\":\"evil\",\"x_forwarded_proto\":\"evil\","
		"\"X_Forwarded-Host\":\"evil\",\"Forwarded\":\"evil\",\"Via\":\"evil\","
		"\"X-Real-IP\":\"evil\",\"webhook-signature\":\"evil\",\"webhook_id\":\"evil\","
		"\"Webhook-Timestamp\":\"evil\",\"Idempotency_Key\":\"evil\",\"ce_id\":\"evil\","
		"\"Semel-Attempt\":\"evil\",\"semel_replay\":\"evil\",\"Proxy-Authorization\":"
		"\"evil\",\"Transfer-Encoding\":\"evil\",\"Connection\":\"evil\",\"TE\":\"evil\","
		"\"Upgrade\":\"evil\",\"Content_Length\":\"evil\",\"Content-Disposition\":\"evil\","
		"\"X-HTTP-Method-Override\":\"evil\",\"Origin\":\"evil\",\"Sec-Fetch-Site\":"
		"\"evil\","
		"\"tenant\":\"t\",\"viable\":\"v\",\"hosts\":\"h\",\"tracestate\":\"a=b\"}");
	char place[160];
	snprintf(place, sizeof place, "http://user:pw@%s", fixture->url + strlen("http://"));
	server_answer_with(&fixture->server, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
	struct semel_outcome outcome = run_once(&semel_outside_http, place, &fixture->event);
	assert_int_equal(outcome.status, SEMEL_OK);
	assert_false(was_mentioned(fixture, "evil"));
	assert_true(was_sent(fixture, "Authorization: Basic dXNlcjpwdw=="));
	assert_true(was_sent(fixture, "webhook-id: " EVENT_ID));
	assert_true(was_sent(fixture, "tenant: t"));
	assert_true(was_sent(fixture, "viable: v"));
	assert_true(was_sent(fixture, "hosts: h"));
	assert_true(was_sent(fixture, "tracestate: a=b"));
}

static void secrets_of_the_url_are_in_no_reason(void **state)
{
	struct fixture *fixture = *state;
	char place[200];
	snprintf(place, sizeof place, "%s?sig=sesame77&x=1#part", fixture->url);
	server_answer_with(&fixture->server,
			   "HTTP/1.1 404 No\r\nContent-Length: 11\r\n\r\nno such way");
	struct semel_outcome outcome = run_once(&semel_outside_http, place, &fixture->event);
	assert_says(&outcome, "/events?*** answered 404: no such way");
	assert_true(was_mentioned(fixture, "POST /events?sig=sesame77&x=1 HTTP/1.1"));
	server_answer_with(&fixture->server,
			   "HTTP/1.1 404 No\r\nContent-Length: 13\r\n\r\nsig=sesame77?");
	outcome = run_once(&semel_outside_http, place, &fixture->event);
	assert_says(&outcome, "repeats a secret");
	assert_null(strstr(outcome.reason, "sesame77"));
}

static void cloud_event_values_are_percent_encoded(void **state)
{
	struct fixture *fixture = *state;
	fixture->event.type = SEMEL_TEXT("order \"é\" 100%");
	assert_int_equal(run_with_code(fixture, 200, ""), SEMEL_OK);
	assert_true(was_sent(fixture, "ce-type: order%20%22%C3%A9%22%20100%25"));
}

static void a_line_break_in_an_id_is_rejected_and_nothing_is_sent(void **state)
{
	struct fixture *fixture = *state;
	fixture->event.aggregate_id = SEMEL_TEXT("ord\r\nX-Smuggled: 1");
	assert_int_equal(run_with_code(fixture, 200, ""), SEMEL_HANDLER_REJECT);
	assert_says(&fixture->outcome, "semel-aggregate-id");
	assert_int_equal(fixture->server.requests, 0);
}

static void the_status_is_the_verdict(void **state)
{
	struct fixture *fixture = *state;
	static const struct {
		int code;
		semel_status status;
	} cases[] = {
		{ 200, SEMEL_OK },
		{ 201, SEMEL_OK },
		{ 299, SEMEL_OK },
		{ 301, SEMEL_HANDLER_REJECT },
		{ 304, SEMEL_HANDLER_REJECT },
		{ 400, SEMEL_HANDLER_REJECT },
		{ 404, SEMEL_HANDLER_REJECT },
		{ 408, SEMEL_HANDLER_RETRY },
		{ 409, SEMEL_HANDLER_REJECT },
		{ 410, SEMEL_HANDLER_REJECT },
		{ 425, SEMEL_HANDLER_RETRY },
		{ 429, SEMEL_HANDLER_RETRY },
		{ 500, SEMEL_HANDLER_RETRY },
		{ 503, SEMEL_HANDLER_RETRY },
		{ 599, SEMEL_HANDLER_RETRY },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int code = cases[i].code;
		if (run_with_code(fixture, code, "Location: /elsewhere\r\n") != cases[i].status)
			fail_msg("%d gave %s", code, semel_status_name(fixture->outcome.status));
		assert_int_equal(fixture->server.requests, i + 1);
		assert_int_equal(fixture->outcome.retry_after_ms, 0);
		assert_false(fixture->outcome.timed_out);
	}
}

static void the_answer_is_in_the_reason_up_to_500_bytes(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(run_with_code(fixture, 422, ""), SEMEL_HANDLER_REJECT);
	assert_says(&fixture->outcome, "/events answered 422: words");
	char answer[1024];
	int length = snprintf(answer, sizeof answer,
			      "HTTP/1.1 500 Oh\r\nContent-Length: 800\r\n\r\n%0800d", 0);
	assert_in_range(length, 800, sizeof answer - 1);
	assert_int_equal(run_with_answer(fixture, answer), SEMEL_HANDLER_RETRY);
	assert_int_equal(strspn(strstr(fixture->outcome.reason, ": ") + 2, "0"), 500);
}

static void retry_after_is_honoured_within_an_hour(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(run_with_code(fixture, 503, "Retry-After: 7\r\n"), SEMEL_HANDLER_RETRY);
	assert_int_equal(fixture->outcome.retry_after_ms, 7000);
	run_with_code(fixture, 429, "Retry-After: 999999\r\n");
	assert_int_equal(fixture->outcome.retry_after_ms, 3600000);
	run_with_code(fixture, 503, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\n");
	assert_int_equal(fixture->outcome.retry_after_ms, 0);
	run_with_code(fixture, 503, "Retry-After: soon\r\n");
	assert_int_equal(fixture->outcome.retry_after_ms, 0);

	char header[128];
	time_t later = time(NULL) + 600;
	struct tm parts;
	gmtime_r(&later, &parts);
	strftime(header, sizeof header, "Retry-After: %a, %d %b %Y %H:%M:%S GMT\r\n", &parts);
	run_with_code(fixture, 503, header);
	assert_in_range(fixture->outcome.retry_after_ms, 500000, 600000);
	run_with_code(fixture, 400, "Retry-After: 7\r\n");
	assert_int_equal(fixture->outcome.retry_after_ms, 0);
}

static void one_connection_serves_many_events(void **state)
{
	struct fixture *fixture = *state;
	for (int i = 0; i < 20; i++)
		assert_int_equal(run_with_code(fixture, 200, ""), SEMEL_OK);
	assert_int_equal(fixture->server.requests, 20);
	assert_int_equal(fixture->server.connections, 1);
}

static void an_unreachable_endpoint_is_an_outage(void **state)
{
	struct fixture *fixture = *state;
	struct http_server gone;
	char url[128];
	assert_true(server_listen(&gone, url, sizeof url));
	server_stop(&gone);
	fixture->outcome = run_once(&semel_outside_http, url, &fixture->event);
	assert_int_equal(fixture->outcome.status, SEMEL_OUTAGE);
	assert_false(fixture->outcome.timed_out);
	assert_says(&fixture->outcome, "no answer from http://127.0.0.1:");
}

static void an_unknown_host_is_an_outage_without_its_password(void **state)
{
	struct fixture *fixture = *state;
	fixture->outcome = run_once(&semel_outside_http, "http://user:secret@unknown.invalid/x",
				    &fixture->event);
	assert_int_equal(fixture->outcome.status, SEMEL_OUTAGE);
	assert_says(&fixture->outcome, "http://***@unknown.invalid/x");
	assert_null(strstr(fixture->outcome.reason, "secret"));
}

static void no_answer_in_time_is_an_outage(void **state)
{
	struct fixture *fixture = *state;
	struct semel_outside *hasty = open_handler(&semel_outside_http, fixture->url, 100);
	semel_outside_http.run(hasty, &fixture->event, 1, &fixture->outcome);
	semel_outside_http.close(hasty);
	assert_int_equal(fixture->outcome.status, SEMEL_OUTAGE);
	assert_true(fixture->outcome.timed_out);
}

static void a_connection_that_is_broken_off_is_a_retry(void **state)
{
	struct fixture *fixture = *state;
	assert_int_equal(run_with_answer(fixture, ""), SEMEL_HANDLER_RETRY);
	assert_int_equal(run_with_answer(fixture, "nonsense\r\n\r\n"), SEMEL_HANDLER_RETRY);
}

static void *interrupt_when_asked(void *argument)
{
	struct fixture *fixture = argument;
	int requests = 0;
	while (requests == 0) {
		pthread_mutex_lock(&fixture->server.lock);
		requests = fixture->server.requests;
		pthread_mutex_unlock(&fixture->server.lock);
	}
	semel_outside_http.interrupt(fixture->outside);
	return NULL;
}

static void an_interrupted_request_is_an_outage(void **state)
{
	struct fixture *fixture = *state;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, interrupt_when_asked, fixture), 0);
	assert_int_equal(run(fixture), SEMEL_OUTAGE); /* the server never answers */
	pthread_join(thread, NULL);
	assert_false(fixture->outcome.timed_out);
	assert_true(fixture->outcome.interrupted);
	assert_says(&fixture->outcome, "the consumer is stopping");
}

static void a_proxy_of_the_environment_is_not_used(void **state)
{
	struct fixture *fixture = *state;
	setenv("http_proxy", "http://127.0.0.1:1/", 1);
	assert_int_equal(run_with_code(fixture, 200, ""), SEMEL_OK);
	unsetenv("http_proxy");
}

static void a_URL_that_cannot_be_right_is_refused(void **state)
{
	(void)state;
	assert_refuses(&semel_outside_http, NULL, "http://127.0.0.1:8080/events");
	assert_refuses(&semel_outside_http, "", "http://127.0.0.1:8080/events");
	assert_refuses(&semel_outside_http, "127.0.0.1/x", "http://127.0.0.1:8080/events");
	assert_refuses(&semel_outside_http, "http://host:99999/", "http://127.0.0.1:8080/events");
	assert_refuses(&semel_outside_http, "ftp://host/x", "http:// or https://");
	assert_refuses(&semel_outside_http, "file:///etc/passwd", "http:// or https://");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_event_is_posted_with_its_metadata),
		TEST(headers_that_are_HTTPs_or_ours_are_not_the_events_to_set),
		TEST(headers_that_an_endpoint_believes_are_not_the_events_to_set),
		TEST(secrets_of_the_url_are_in_no_reason),
		TEST(cloud_event_values_are_percent_encoded),
		TEST(a_line_break_in_an_id_is_rejected_and_nothing_is_sent),
		TEST(the_status_is_the_verdict),
		TEST(the_answer_is_in_the_reason_up_to_500_bytes),
		TEST(retry_after_is_honoured_within_an_hour),
		TEST(one_connection_serves_many_events),
		TEST(an_unreachable_endpoint_is_an_outage),
		TEST(an_unknown_host_is_an_outage_without_its_password),
		TEST(no_answer_in_time_is_an_outage),
		TEST(a_connection_that_is_broken_off_is_a_retry),
		TEST(an_interrupted_request_is_an_outage),
		TEST(a_proxy_of_the_environment_is_not_used),
		cmocka_unit_test(a_URL_that_cannot_be_right_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
