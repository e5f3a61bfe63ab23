/* SPDX-License-Identifier: Apache-2.0 */
/* Trace contexts, and the body that a collector is sent. */
#include "observe/span.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define PARENT "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

static void a_traceparent_is_read_and_written_back(void **state)
{
	(void)state;
	struct semel_span_context context;
	char text[SEMEL_TRACEPARENT_SIZE];
	assert_true(semel_traceparent_parse(SEMEL_TEXT(PARENT), &context));
	assert_true(context.sampled);
	semel_traceparent_format(&context, text);
	assert_string_equal(text, PARENT);
}

static void what_is_no_traceparent_is_refused(void **state)
{
	(void)state;
	static const char *const wrong[] = {
		"",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
		"00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
		"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
		"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
		"00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
		"4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-00",
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct semel_span_context context;
		if (semel_traceparent_parse(semel_text_of(wrong[i]), &context))
			fail_msg("%s was taken", wrong[i]);
	}
	struct semel_span_context context;
	assert_false(semel_traceparent_parse((struct semel_text){ 0 }, &context));
}

static void a_later_version_may_be_longer(void **state)
{
	(void)state;
	struct semel_span_context context;
	assert_true(semel_traceparent_parse(
		SEMEL_TEXT("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more"),
		&context));
	assert_false(context.sampled);
}

static void an_event_without_a_traceparent_has_the_trace_that_its_id_spells(void **state)
{
	(void)state;
	struct semel_text none = { 0 };
	struct semel_span_context context =
		semel_span_context_of(none, SEMEL_TEXT("01930B5E-7c1a-7d10-8a3e-5f0a3c9d2b41"));
	assert_true(context.sampled);
	assert_int_equal(context.trace[0], 0x01);
	assert_int_equal(context.trace[2], 0x0b);
	assert_int_equal(context.trace[15], 0x41);
	assert_false(semel_span_context_of(none, SEMEL_TEXT("no uuid")).sampled);
	assert_false(semel_span_context_of(none, none).sampled);
}

static void a_sampler_that_is_off_samples_nothing(void **state)
{
	(void)state;
	setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off", 1);
	assert_false(semel_trace_begin(semel_env_system()).sampled);
	setenv("OTEL_TRACES_SAMPLER", "traceidratio", 1);
	setenv("OTEL_TRACES_SAMPLER_ARG", "0.25", 1);
	int sampled = 0;
	for (int i = 0; i < 4000; i++)
		sampled += semel_trace_begin(semel_env_system()).sampled;
	assert_in_range(sampled, 700, 1300);
	unsetenv("OTEL_TRACES_SAMPLER");
	assert_true(semel_trace_begin(semel_env_system()).sampled);
}

static void the_body_is_what_a_collector_reads(void **state)
{
	(void)state;
	struct semel_span_context parent;
	assert_true(semel_traceparent_parse(SEMEL_TEXT(PARENT), &parent));
	struct semel_span span =
		semel_span_make("semel.consume", SEMEL_SPAN_CONSUMER, &parent, semel_env_system());
	span.failure = "nacked";
	semel_span_text(&span, "event.id", SEMEL_TEXT("a\"b"));
	semel_span_number(&span, "messaging.kafka.offset", INT64_C(9007199254740993));
	struct semel_buffer text = { 0 };
	semel_spans_to_json(&span, 1, "shop", &text);
	json_t *root = json_loads(text.data, 0, NULL), *read = NULL;
	assert_non_null(root);
	assert_int_equal(json_unpack(root, "{s[{s[{s[o]}]}]}", "resourceSpans", "scopeSpans",
				     "spans", &read),
			 0);
	const char *trace, *up, *name, *key, *number;
	int kind, code;
	assert_int_equal(json_unpack(read, "{ss,ss,ss,si,s{si},s[{s{ss}},{ss,s{ss}}]}", "traceId",
				     &trace, "parentSpanId", &up, "name", &name, "kind", &kind,
				     "status", "code", &code, "attributes", "value", "stringValue",
				     &key, "key", &(const char *){ NULL }, "value", "intValue",
				     &number),
			 0);
	assert_string_equal(trace, "4bf92f3577b34da6a3ce929d0e0e4736");
	assert_string_equal(up, "00f067aa0ba902b7");
	assert_string_equal(name, "semel.consume");
	assert_string_equal(key, "a\"b");
	assert_string_equal(number, "9007199254740993");
	assert_int_equal(kind, 5);
	assert_int_equal(code, 2);
	json_decref(root);
	semel_buffer_free(&text);
}

static void more_attributes_than_there_is_room_for_are_left_out(void **state)
{
	(void)state;
	struct semel_span_context parent = { .sampled = true };
	struct semel_span span =
		semel_span_make("x", SEMEL_SPAN_INTERNAL, &parent, semel_env_system());
	for (int i = 0; i < 100; i++)
		semel_span_number(&span, "n", i);
	assert_int_equal(span.attribute_count, SEMEL_SPAN_ATTRIBUTES_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_traceparent_is_read_and_written_back),
		cmocka_unit_test(what_is_no_traceparent_is_refused),
		cmocka_unit_test(a_later_version_may_be_longer),
		cmocka_unit_test(an_event_without_a_traceparent_has_the_trace_that_its_id_spells),
		cmocka_unit_test(a_sampler_that_is_off_samples_nothing),
		cmocka_unit_test(the_body_is_what_a_collector_reads),
		cmocka_unit_test(more_attributes_than_there_is_room_for_are_left_out),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
