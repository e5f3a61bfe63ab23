/* SPDX-License-Identifier: Apache-2.0 */
/* What is in the log of the local broker, counted by a subscription of its own that reads the log
 * from its beginning and acknowledges nothing: the next count reads all of it again. */
#include "cli/plays/demo/demo.h"

#include "base/arena.h"
#include "base/env.h"
#include "base/error.h"
#include "broker/broker.h"

#include <stdlib.h>
#include <string.h>

#define SCOPE       "semel-demo-count"
#define ARENA_BLOCK ((size_t)64 * 1024)
#define BATCH       100
#define EVENTS_MAX  1024 /* more than the demo sends */
#define LEASE_MS    1000

struct count {
	struct semel_broker *broker;
	struct semel_arena *arena; /* of the ids */
	struct semel_text ids[EVENTS_MAX];
	size_t total;
};

static semel_status fetch_all(struct count *count, semel_error *error)
{
	struct semel_delivery deliveries[BATCH];
	uint32_t fetched = 0;
	do {
		semel_status status = count->broker->driver->fetch(
			count->broker, BATCH, count->arena, deliveries, &fetched, error);
		if (status != SEMEL_OK)
			return status;
		for (uint32_t i = 0; i < fetched && count->total < EVENTS_MAX; i++)
			count->ids[count->total++] = deliveries[i].event.id;
	} while (fetched > 0);
	return SEMEL_OK;
}

static semel_status read_log(struct count *count, const char *url, semel_error *error)
{
	static const char *const topics[] = { "order.events", NULL };
	const struct semel_subscribe_options options = {
		.scope = SCOPE, .topics = topics, .prefetch = EVENTS_MAX, .lease_ms = LEASE_MS
	};
	semel_status status = semel_broker_open(url, semel_env_system(), 1, &count->broker, error);
	if (status != SEMEL_OK)
		return status;
	status = count->broker->driver->subscribe(count->broker, &options, error);
	if (status != SEMEL_OK)
		return status;
	return fetch_all(count, error);
}

static int compare_ids(const void *left, const void *right)
{
	const struct semel_text *a = left, *b = right;
	size_t shorter = a->length < b->length ? a->length : b->length;
	int order = memcmp(a->data, b->data, shorter);
	return order != 0 ? order : (a->length > b->length) - (a->length < b->length);
}

static struct semel_demo_sent summarize(struct count *count)
{
	struct semel_demo_sent sent = { .events = (int64_t)count->total };
	int64_t times = 0;
	qsort(count->ids, count->total, sizeof *count->ids, compare_ids);
	for (size_t i = 0; i < count->total; i++) {
		bool repeated = i > 0 && semel_text_equal(count->ids[i], count->ids[i - 1]);
		times = repeated ? times + 1 : 1;
		sent.distinct += !repeated;
		sent.most = times > sent.most ? times : sent.most;
	}
	return sent;
}

struct semel_demo_sent semel_demo_count_sent(struct semel_demo *demo)
{
	struct semel_demo_sent sent = { 0 };
	if (demo->status != SEMEL_OK)
		return sent;
	struct count *count = calloc(1, sizeof *count);
	if (count)
		count->arena = semel_arena_new(ARENA_BLOCK);
	if (!count || !count->arena) {
		demo->status = semel_error_set(demo->error, SEMEL_INTERNAL, "no memory");
		free(count);
		return sent;
	}
	demo->status = read_log(count, demo->broker_file, demo->error);
	if (demo->status == SEMEL_OK)
		sent = summarize(count);
	semel_broker_close(count->broker);
	semel_arena_free(count->arena);
	free(count);
	return sent;
}
