/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that the tests of brokers share. */
#include "contract/broker_steps.h"

#include "base/json.h"
#include "base/text.h"
#include "contract/broker_offset_store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 90000

/* ---- time ----------------------------------------------------------------------------------- */

static _Atomic int64_t passed_ms; /* a driver may have a thread of its own */
static bool env_is_followed = true;

static int64_t shifted_now_ms(void *user)
{
	(void)user;
	return semel_now_ms(semel_env_system()) + passed_ms;
}

static int64_t shifted_steady_ms(void *user)
{
	(void)user;
	return semel_steady_ms(semel_env_system()) + passed_ms;
}

static uint64_t system_random(void *user)
{
	(void)user;
	return semel_random(semel_env_system());
}

const struct semel_env *steps_env(void)
{
	static const struct semel_env env = { .now_ms = shifted_now_ms,
					      .steady_ms = shifted_steady_ms,
					      .random = system_random };
	return &env;
}

static void pause_ms(int64_t ms)
{
	struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000 };
	nanosleep(&time, NULL);
}

void steps_follow_env(bool follows)
{
	env_is_followed = follows;
	passed_ms = 0;
}

void steps_pass(int64_t ms)
{
	if (env_is_followed)
		passed_ms += ms;
	else
		pause_ms(ms);
}

static int64_t real_ms(void)
{
	return semel_steady_ms(semel_env_system());
}

/* ---- files ---------------------------------------------------------------------------------- */

static char folder[64], file[96];

void steps_folder_make(const char *parameters, char *url_out, size_t size)
{
	snprintf(folder, sizeof(folder), "/tmp/semel-broker-XXXXXX");
	assert_non_null(mkdtemp(folder));
	snprintf(file, sizeof(file), "%s/broker.db", folder);
	snprintf(url_out, size, "local:%s%s", file, parameters);
}

void steps_folder_drop(void)
{
	static const char *const suffixes[] = { "", "-wal", "-shm", "-turn" };
	char path[128];
	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", file, suffixes[i]);
		unlink(path);
	}
	assert_int_equal(rmdir(folder), 0);
}

const char *steps_file(void)
{
	return file;
}

/* ---- the topic ------------------------------------------------------------------------------- */

static char topic[64] = STEPS_TOPIC;

void steps_name_topic(const char *name)
{
	snprintf(topic, sizeof(topic), "%s", name);
	offset_store_clear();
}

const char *const *steps_topics(void)
{
	static const char *const topics[] = { topic, NULL };
	return topics;
}

/* ---- publishing ----------------------------------------------------------------------------- */

static void assert_ok(semel_status status, const semel_error *error)
{
	if (status != SEMEL_OK)
		fail_msg("%s: %s", semel_status_name(status), error->text);
}

struct semel_broker *steps_open(const char *url)
{
	semel_error error = { 0 };
	struct semel_broker *broker = NULL;
	assert_ok(semel_broker_open(url, steps_env(), STEPS_WINDOW, &broker, &error), &error);
	offset_store_attach(broker);
	return broker;
}

void steps_event_make(struct steps_event *event, const char *aggregate, int number)
{
	memset(event, 0, sizeof(*event));
	event->status = SEMEL_NOT_FINISHED;
	snprintf(event->id, sizeof(event->id), "%s-%d", aggregate, number);
	snprintf(event->aggregate, sizeof(event->aggregate), "%s", aggregate);
	snprintf(event->payload, sizeof(event->payload), "%d", number);
	event->event = (struct semel_event){
		.id = semel_text_of(event->id),
		.type = SEMEL_TEXT("order.created.v1"),
		.aggregate_type = SEMEL_TEXT("order"),
		.aggregate_id = semel_text_of(event->aggregate),
		.topic = semel_text_of(topic),
		.routing_key = SEMEL_TEXT("order.created.v1"),
		.content_type = SEMEL_TEXT("application/json"),
		.headers = SEMEL_TEXT("{}"),
		.payload = semel_text_of(event->payload),
		.time_ms = 1700000000000 + number,
	};
}

void steps_offer(struct semel_broker *broker, struct steps_event *event)
{
	semel_error error = { 0 };
	assert_ok(broker->driver->publish(broker, &event->event, &event->metadata, event, &error),
		  &error);
}

static void note_outcome(const struct semel_publish_outcome *outcome, void *user)
{
	struct steps_event *event = outcome->token;
	(void)user;
	assert_int_equal(event->status, SEMEL_NOT_FINISHED); /* one outcome each */
	event->status = outcome->status;
	snprintf(event->reason, sizeof(event->reason), "%s", outcome->reason);
}

static bool is_settled(const struct steps_event *events, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (events[i].status == SEMEL_NOT_FINISHED)
			return false;
	return true;
}

void steps_confirm(struct semel_broker *broker, struct steps_event *events, size_t count)
{
	semel_error error = { 0 };
	int64_t deadline_ms = real_ms() + PATIENCE_MS;
	while (!is_settled(events, count)) {
		assert_ok(broker->driver->poll(broker, 100, note_outcome, NULL, &error), &error);
		assert_true(real_ms() < deadline_ms);
	}
}

void steps_publish(struct semel_broker *broker, const char *aggregate, int first, int last)
{
	struct steps_event events[STEPS_WINDOW];
	while (first <= last) {
		size_t count = 0;
		for (; count < STEPS_WINDOW && first <= last; first++) {
			steps_event_make(&events[count], aggregate, first);
			steps_offer(broker, &events[count++]);
		}
		steps_confirm(broker, events, count);
		for (size_t i = 0; i < count; i++)
			assert_int_equal(events[i].status, SEMEL_OK);
	}
}

/* ---- consuming ------------------------------------------------------------------------------ */

void steps_subscribe(struct semel_broker *broker, struct steps_subscription how)
{
	const struct semel_subscribe_options options = {
		.scope = how.scope,
		.topics = steps_topics(),
		.prefetch = how.prefetch == 0 ? STEPS_FETCH_MAX : how.prefetch,
		.lease_ms = how.lease_ms == 0 ? 60000 : how.lease_ms,
		.from_latest = how.from_latest,
	};
	semel_error error = { 0 };
	offset_store_set_scope(broker, how.scope);
	assert_ok(broker->driver->subscribe(broker, &options, &error), &error);
}

struct steps_batch *steps_batch_new(void)
{
	struct steps_batch *batch = calloc(1, sizeof(*batch));
	assert_non_null(batch);
	batch->arena = semel_arena_new(65536);
	assert_non_null(batch->arena);
	return batch;
}

void steps_batch_free(struct steps_batch *batch)
{
	semel_arena_free(batch->arena);
	free(batch);
}

uint32_t steps_fetch(struct semel_broker *broker, uint32_t max, struct steps_batch *batch)
{
	semel_error error = { 0 };
	uint32_t count = 0;
	assert_true(batch->count + max <= STEPS_FETCH_MAX);
	assert_ok(broker->driver->fetch(broker, max, batch->arena, batch->deliveries + batch->count,
					&count, &error),
		  &error);
	assert_true(count <= max);
	offset_store_record_fetched(broker, batch->deliveries + batch->count, count);
	batch->count += count;
	return count;
}

void steps_fetch_all(struct semel_broker *broker, uint32_t count, struct steps_batch *batch)
{
	int64_t deadline_ms = real_ms() + PATIENCE_MS;
	while (batch->count < count) {
		if (steps_fetch(broker, count - batch->count, batch) == 0)
			pause_ms(1);
		if (real_ms() >= deadline_ms)
			fail_msg("%u of %u deliveries came", batch->count, count);
	}
}

void steps_fetch_nothing(struct semel_broker *broker)
{
	struct steps_batch *batch = steps_batch_new();
	for (int i = 0; i < 20; i++) {
		steps_fetch(broker, 100, batch);
		pause_ms(env_is_followed ? 1 : 50);
	}
	assert_int_equal(batch->count, 0);
	steps_batch_free(batch);
}

void steps_ack_some(struct semel_broker *broker, const struct semel_delivery *deliveries,
		    size_t count)
{
	semel_error error = { 0 };
	assert_ok(broker->driver->ack(broker, deliveries, count, &error), &error);
	offset_store_record_acked(broker, deliveries, count);
}

void steps_ack(struct semel_broker *broker, const struct steps_batch *batch)
{
	steps_ack_some(broker, batch->deliveries, batch->count);
}

void steps_consume(const char *url, const char *scope, uint32_t count)
{
	struct semel_broker *broker = steps_open(url);
	struct steps_batch *batch = steps_batch_new();
	steps_subscribe(broker, (struct steps_subscription){ .scope = scope });
	steps_fetch_all(broker, count, batch);
	steps_fetch_nothing(broker);
	steps_ack(broker, batch);
	steps_batch_free(batch);
	semel_broker_close(broker);
}

static bool is_of(const struct semel_delivery *delivery, const char *aggregate)
{
	return semel_text_equal(delivery->event.aggregate_id, semel_text_of(aggregate));
}

void steps_assert_order(const struct steps_batch *batch, int first)
{
	for (uint32_t i = 0; i < batch->count; i++) {
		const struct semel_event *event = &batch->deliveries[i].event;
		int expected = first;
		for (uint32_t j = 0; j < i; j++)
			expected +=
				is_of(&batch->deliveries[j], semel_text_string(event->aggregate_id))
					? 1
					: 0;
		assert_int_equal(atoi(semel_text_string(event->payload)), expected);
	}
}

uint32_t steps_count(const struct steps_batch *batch, const char *aggregate, int number)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < batch->count; i++)
		if (is_of(&batch->deliveries[i], aggregate) &&
		    atoi(semel_text_string(batch->deliveries[i].event.payload)) == number)
			count++;
	return count;
}

void steps_assert_same(struct semel_text left, struct semel_text right)
{
	assert_int_equal(left.length, right.length);
	if (right.length > 0)
		assert_memory_equal(left.data, right.data, right.length);
}

void steps_assert_members(struct semel_text left, struct semel_text right)
{
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_json_walk of_left = semel_json_walk(left), of_right = semel_json_walk(right);
	struct semel_text left_name, left_value, right_name, right_value;
	assert_non_null(arena);
	while (semel_json_next(&of_right, &right_name, &right_value)) {
		assert_true(semel_json_next(&of_left, &left_name, &left_value));
		steps_assert_same(semel_json_unquote(left_name, arena),
				  semel_json_unquote(right_name, arena));
		steps_assert_same(semel_json_unquote(left_value, arena),
				  semel_json_unquote(right_value, arena));
	}
	assert_false(semel_json_next(&of_left, &left_name, &left_value));
	semel_arena_free(arena);
}

struct semel_backlog steps_backlog(struct semel_broker *broker, const char *scope)
{
	struct semel_backlog backlog = { 0 };
	semel_error error = { 0 };
	assert_ok(broker->driver->backlog(broker, scope, steps_topics(), &backlog, &error), &error);
	return backlog;
}

void steps_requeue(struct semel_broker *broker, const char *scope, const struct steps_event *event,
		   int64_t delay_ms)
{
	semel_error error = { 0 };
	assert_ok(broker->driver->requeue(broker, scope, &event->event, &event->metadata, delay_ms,
					  &error),
		  &error);
}

/* ---- processes ------------------------------------------------------------------------------ */

int steps_fork(void (*body)(const char *url, int argument, int ready_fd), const char *url,
	       int argument, int *ready_fd_out)
{
	int ends[2];
	assert_int_equal(pipe(ends), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		close(ends[0]);
		prctl(PR_SET_PDEATHSIG, SIGKILL);    /* no child outlives a test that failed */
		setenv("CMOCKA_TEST_ABORT", "1", 1); /* a failure ends the child, not the test */
		body(url, argument, ends[1]);
		_exit(0);
	}
	close(ends[1]);
	*ready_fd_out = ends[0];
	return child;
}

void steps_await(int ready_fd)
{
	char byte;
	assert_int_equal(read(ready_fd, &byte, 1), 1);
	close(ready_fd);
}

void steps_reap(int child, bool kill_it)
{
	int result = 0;
	if (kill_it)
		kill(child, SIGKILL);
	assert_int_equal(waitpid(child, &result, 0), child);
	if (!kill_it)
		assert_true(WIFEXITED(result) && WEXITSTATUS(result) == 0);
}
