/* SPDX-License-Identifier: Apache-2.0 */
/* What RabbitMQ answers when it will not take an event, or has something else under a name. */
#include "broker/rabbitmq/rabbitmq.h"
#include "contract/broker_steps.h"
#include "contract/rabbitmq_steps.h"

#include <stdio.h>
#include <string.h>

static char url[512];

static int make(void **state)
{
	(void)state;
	if (!rabbit_steps_url())
		return 0;
	steps_follow_env(false);
	rabbit_steps_make("", url, sizeof(url));
	return 0;
}

static int drop(void **state)
{
	(void)state;
	if (rabbit_steps_url())
		rabbit_steps_drop();
	return 0;
}

static void need_server(void)
{
	if (!rabbit_steps_url())
		STEPS_SKIP("SEMEL_TEST_RABBITMQ names no server (amqp://user:password@host:port/)");
}

static struct semel_rabbit *control_of(struct semel_broker *broker)
{
	semel_error error = { 0 };
	struct semel_rabbit *rabbit = semel_rabbit_of(broker);
	semel_rabbit_heartbeat_stop(
		rabbit); /* from here on the connection is used without the driver */
	assert_int_equal(semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_CONTROL, &error), SEMEL_OK);
	assert_int_equal(semel_rabbit_call_begin(rabbit, &error), SEMEL_OK);
	return rabbit;
}

static void publish_one(struct semel_broker *broker, struct steps_event *event, int number)
{
	steps_event_make(event, "a", number);
	steps_offer(broker, event);
	steps_confirm(broker, event, 1);
}

static void an_event_that_no_queue_takes_comes_back_with_its_way(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url);
	struct steps_event events[3];
	steps_event_make(&events[0], "a", 1);
	steps_event_make(&events[1], "a", 2);
	steps_event_make(&events[2], "b", 1);
	for (int i = 0; i < 3; i++)
		steps_offer(broker, &events[i]);
	steps_confirm(broker, events, 3);
	assert_int_equal(events[0].status, SEMEL_UNROUTABLE);
	assert_non_null(strstr(events[0].reason, steps_topics()[0]));
	assert_non_null(strstr(events[0].reason, "order.created.v1"));
	assert_int_equal(events[1].status, SEMEL_HELD);
	assert_int_equal(events[2].status, SEMEL_UNROUTABLE);
	semel_broker_close(broker);
}

static void a_missing_exchange_counts_like_no_route_and_is_made_again(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url), *other = steps_open(url);
	struct steps_event event;
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	publish_one(broker, &event, 1);
	assert_int_equal(event.status, SEMEL_OK);
	struct semel_rabbit *control = control_of(other);
	control->library->exchange_delete(control->connection, SEMEL_RABBIT_CONTROL,
					  semel_rabbit_string(steps_topics()[0]), 0);
	publish_one(broker, &event, 2);
	assert_int_equal(event.status, SEMEL_UNROUTABLE);
	assert_non_null(strstr(event.reason, "no exchange"));
	publish_one(broker, &event, 3); /* it is there again, but nothing is bound to it */
	assert_int_equal(event.status, SEMEL_UNROUTABLE);
	assert_non_null(strstr(event.reason, "NO_ROUTE"));
	semel_broker_close(broker);
	semel_broker_close(other);
}

/* A queue of one event that refuses the next. */
static void make_full_queue(struct semel_rabbit *rabbit, const char *name)
{
	amqp_table_entry_t arguments[] = {
		{ .key = semel_rabbit_string("x-max-length"),
		  .value = { .kind = AMQP_FIELD_KIND_I32, .value.i32 = 1 } },
		{ .key = semel_rabbit_string("x-overflow"),
		  .value = { .kind = AMQP_FIELD_KIND_UTF8,
			     .value.bytes = semel_rabbit_string("reject-publish") } },
	};
	semel_error error = { 0 };
	rabbit->library->queue_declare(rabbit->connection, SEMEL_RABBIT_CONTROL,
				       semel_rabbit_string(name), 0, 1, 0, 0,
				       (amqp_table_t){ .num_entries = 2, .entries = arguments });
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
	rabbit->library->queue_bind(rabbit->connection, SEMEL_RABBIT_CONTROL,
				    semel_rabbit_string(name),
				    semel_rabbit_string(steps_topics()[0]),
				    semel_rabbit_string("#"), SEMEL_RABBIT_NO_TABLE);
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
}

static void a_queue_that_is_full_refuses_by_nack(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url);
	struct steps_event event;
	char queue[96];
	semel_error error = { 0 };
	snprintf(queue, sizeof(queue), "late.%s", steps_topics()[0]); /* dropped with the scopes */
	struct semel_rabbit *control = control_of(broker);
	assert_int_equal(semel_rabbit_declare_topic(control, steps_topics()[0], NULL, &error),
			 SEMEL_OK);
	make_full_queue(control, queue);
	publish_one(broker, &event, 1);
	assert_int_equal(event.status, SEMEL_OK);
	publish_one(broker, &event, 2);
	assert_int_equal(event.status, SEMEL_NACKED);
	assert_string_not_equal(event.reason, "");
	semel_broker_close(broker);
}

static void a_queue_with_other_settings_is_explained_and_left_alone(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url);
	struct semel_subscribe_options options = {
		.scope = "late", .topics = steps_topics(), .prefetch = 1, .lease_ms = 1000
	};
	char queue[96];
	semel_error error = { 0 };
	snprintf(queue, sizeof(queue), "late.%s", steps_topics()[0]);
	struct semel_rabbit *control = control_of(broker);
	assert_int_equal(semel_rabbit_declare_topic(control, steps_topics()[0], NULL, &error),
			 SEMEL_OK);
	make_full_queue(control, queue);
	assert_int_equal(broker->driver->subscribe(broker, &options, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, queue));
	assert_non_null(strstr(error.text, "the broker has"));
	assert_non_null(strstr(error.text, "semel needs"));
	semel_broker_close(broker);
}

/* As it was made before there was a limit to declare. */
static void a_queue_of_an_earlier_version_is_taken_as_it_is(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url);
	struct semel_rabbit *control = control_of(broker);
	char queue[96];
	semel_error error = { 0 };
	amqp_table_entry_t entries[] = {
		{ .key = semel_rabbit_string("x-queue-type"),
		  .value = { .kind = AMQP_FIELD_KIND_UTF8,
			     .value.bytes = semel_rabbit_string("quorum") } },
		{ .key = semel_rabbit_string("x-single-active-consumer"),
		  .value = { .kind = AMQP_FIELD_KIND_BOOLEAN, .value.boolean = 1 } },
	};
	amqp_table_t arguments = { .num_entries = 2, .entries = entries };
	snprintf(queue, sizeof(queue), "billing.%s", steps_topics()[0]);
	control->library->queue_declare(control->connection, SEMEL_RABBIT_CONTROL,
					semel_rabbit_string(queue), 0, 1, 0, 0, arguments);
	assert_int_equal(semel_rabbit_call_end(control, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
	struct semel_broker *other = steps_open(url);
	struct steps_event event;
	steps_subscribe(other, (struct steps_subscription){ .scope = "billing" });
	publish_one(other, &event, 1);
	assert_int_equal(event.status, SEMEL_OK);
	semel_broker_close(other);
	semel_broker_close(broker);
}

/* "billing" with "x.T" and "billing.x" with "T". */
static void two_subscriptions_of_one_name_do_not_share_a_queue(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url), *other = steps_open(url);
	char longer[128], scope[] = "billing.x";
	semel_error error = { 0 };
	snprintf(longer, sizeof(longer), "x.%s", steps_topics()[0]);
	const char *topics[] = { longer, NULL };
	struct semel_subscribe_options first = {
		.scope = "billing", .topics = topics, .prefetch = 1, .lease_ms = 1000
	};
	struct semel_subscribe_options second = {
		.scope = scope, .topics = steps_topics(), .prefetch = 1, .lease_ms = 1000
	};
	const char *scopes[] = { "billing", NULL };
	assert_int_equal(broker->driver->subscribe(broker, &first, &error), SEMEL_OK);
	assert_int_equal(other->driver->subscribe(other, &second, &error), SEMEL_CONFIG);
	assert_non_null(strstr(error.text, "belongs to the scope billing and its topic x."));
	semel_broker_close(other);
	semel_broker_close(broker);
	broker = steps_open(url);
	assert_int_equal(broker->driver->subscribe(broker, &first, &error), SEMEL_OK);
	assert_int_equal(broker->driver->remove(broker, longer, scopes, &error), SEMEL_OK);
	semel_broker_close(broker);
}

static void delete_exchange(struct semel_rabbit *rabbit, const char *name)
{
	semel_error error = { 0 };
	rabbit->library->exchange_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
					 semel_rabbit_string(name), 0);
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
}

static void an_exchange_that_is_refused_costs_its_event_only_and_keeps_no_room(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = steps_open(url), *other = steps_open(url);
	struct semel_rabbit *control = control_of(other);
	const char *topic = steps_topics()[0];
	struct steps_event event;
	semel_error error = { 0 };
	control->library->exchange_declare(
		control->connection, SEMEL_RABBIT_CONTROL, semel_rabbit_string(topic),
		semel_rabbit_string("fanout"), 0, 1, 0, 0, SEMEL_RABBIT_NO_TABLE);
	assert_int_equal(semel_rabbit_call_end(control, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
	publish_one(broker, &event, 1);
	assert_int_equal(event.status, SEMEL_NACKED);
	assert_non_null(strstr(event.reason, topic));
	delete_exchange(control, topic);
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	publish_one(broker, &event, 2); /* of the same aggregate */
	assert_int_equal(event.status, SEMEL_OK);
	semel_broker_close(other);
	semel_broker_close(broker);
}

static void a_login_that_is_refused_shows_no_password(void **state)
{
	(void)state;
	need_server();
	struct semel_broker *broker = NULL;
	char wrong[600];
	const char *at = strchr(url, '@');
	semel_error error = { 0 };
	snprintf(wrong, sizeof(wrong), "amqp://nosuchuser:secret%s", at ? at : "@127.0.0.1/");
	assert_int_equal(semel_broker_open(wrong, steps_env(), 1, &broker, &error), SEMEL_CONFIG);
	assert_null(strstr(error.text, "secret"));
	assert_non_null(strstr(error.text, "nosuchuser"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)

/* A consumer starts over after an outage, and declares what it needs; anything else would end it.
 */
static void a_subscription_that_is_deleted_under_a_retry_is_an_outage(void **state)
{
	(void)state;
	need_server();
	rabbit_steps_make("partitions=4", url, sizeof(url));
	struct semel_broker *broker = steps_open(url), *other = steps_open(url);
	struct semel_rabbit *rabbit = control_of(other);
	struct steps_event event;
	semel_error error = { 0 };
	char exchange[128];
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	steps_event_make(&event, "a", 1);
	steps_requeue(broker, "billing", &event, 0);
	snprintf(exchange, sizeof(exchange), "billing.%s", steps_topics()[0]);
	rabbit->library->exchange_delete(rabbit->connection, SEMEL_RABBIT_CONTROL,
					 semel_rabbit_string(exchange), 0);
	assert_int_equal(semel_rabbit_call_end(rabbit, SEMEL_RABBIT_CONTROL, NULL, &error),
			 SEMEL_OK);
	assert_int_equal(broker->driver->requeue(broker, "billing", &event.event, &event.metadata,
						 0, &error),
			 SEMEL_OUTAGE);
	semel_broker_close(other);
	semel_broker_close(broker);

	broker = steps_open(url);
	steps_subscribe(broker, (struct steps_subscription){ .scope = "billing" });
	steps_requeue(broker, "billing", &event, 0);
	semel_broker_close(broker);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_event_that_no_queue_takes_comes_back_with_its_way),
		TEST(a_missing_exchange_counts_like_no_route_and_is_made_again),
		TEST(a_queue_that_is_full_refuses_by_nack),
		TEST(a_queue_with_other_settings_is_explained_and_left_alone),
		TEST(a_queue_of_an_earlier_version_is_taken_as_it_is),
		TEST(two_subscriptions_of_one_name_do_not_share_a_queue),
		TEST(an_exchange_that_is_refused_costs_its_event_only_and_keeps_no_room),
		TEST(a_login_that_is_refused_shows_no_password),
		TEST(a_subscription_that_is_deleted_under_a_retry_is_an_outage),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
