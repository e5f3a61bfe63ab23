/* SPDX-License-Identifier: Apache-2.0 */
/* The latency of an event: commits one row at a time at a steady rate, and receives the
 * messages of the queue or the topic at the other end, in one process and so by one clock.
 *
 *     latency DATABASE STATEMENT HOST PORT QUEUE RATE EVENTS WARM_UP [EXCHANGE KEY]
 *
 * STATEMENT has $1 for the aggregate and $2 for the payload, a JSON array with the event's
 * number in front.
 * With EXCHANGE the program publishes each event itself right after its commit, persistent and
 * mandatory: what the two servers need at the least, with no relay. The first WARM_UP events do not
 * count. Prints the rate that was reached, the median and the 99th percentile from the commit's
 * return to the arrival in ms, the same of the commit itself, and how many came late or twice. */
#include "far.h"

#include <libpq-fe.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void die(const char *what)
{
	fprintf(stderr, "latency: %s failed\n", what);
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* ---- the far end ------------------------------------------------------------------------------
 */

void note_arrival(struct run *run, const void *body, size_t length)
{
	char text[32] = "";
	memcpy(text, body, length < sizeof text - 1 ? length : sizeof text - 1);
	int64_t number = strtoll(text + 1, NULL, 10);
	if (number < 0 || number >= run->events)
		die("reading a message");
	if (run->arrived_ns[number] != 0) {
		run->repeated++;
		return;
	}
	run->arrived_ns[number] = now_ns();
	atomic_fetch_add(&run->arrived, 1);
}

/* ---- the near end -----------------------------------------------------------------------------
 */

static void wait_until(int64_t at_ns)
{
	struct timespec at = { .tv_sec = at_ns / 1000000000, .tv_nsec = at_ns % 1000000000 };
	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static void commit_one(PGconn *database, struct run *run, int64_t number, void *far)
{
	char aggregate[32], payload[256];
	snprintf(aggregate, sizeof aggregate, "aggregate-%lld", (long long)(number % 1000));
	snprintf(payload, sizeof payload, "[%lld,\"%0220d\"]", (long long)number, 0);
	const char *values[] = { aggregate, payload };
	run->sent_ns[number] = now_ns();
	PGresult *result = PQexecPrepared(database, "insert", 2, values, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		die(PQerrorMessage(database));
	PQclear(result);
	run->committed_ns[number] = now_ns();
	if (far)
		far_publish(far, run, payload);
}

static double send_all(PGconn *database, struct run *run)
{
	void *far = run->exchange ? far_open(run) : NULL;
	int64_t begin_ns = now_ns();
	for (int64_t i = 0; i < run->events; i++) {
		wait_until(begin_ns + i * 1000000000 / run->rate);
		commit_one(database, run, i, far);
	}
	return (double)run->events / ((double)(now_ns() - begin_ns) / 1e9);
}

/* ---- the report -------------------------------------------------------------------------------
 */

static int compare(const void *left, const void *right)
{
	int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;
	return (a > b) - (a < b);
}

static void print_percentiles(const char *what, const struct run *run, const int64_t *from,
			      const int64_t *to)
{
	int64_t count = run->events - run->warm_up;
	int64_t *taken = calloc((size_t)count, sizeof *taken);
	for (int64_t i = 0; taken && i < count; i++)
		taken[i] = to[run->warm_up + i] - from[run->warm_up + i];
	if (!taken)
		die("getting memory");
	qsort(taken, (size_t)count, sizeof *taken, compare);
	printf("%s %.2f %.2f ", what, (double)taken[count / 2] / 1e6,
	       (double)taken[count * 99 / 100] / 1e6);
	free(taken);
}

int main(int count, char **words)
{
	if (count != 9 && count != 11) {
		fprintf(stderr, "latency DATABASE STATEMENT HOST PORT QUEUE RATE EVENTS WARM_UP "
				"[EXCHANGE KEY]\n");
		return 64;
	}
	struct run run = { .host = words[3],
			   .port = atoi(words[4]),
			   .queue = words[5],
			   .rate = strtoll(words[6], NULL, 10),
			   .events = strtoll(words[7], NULL, 10),
			   .warm_up = strtoll(words[8], NULL, 10),
			   .exchange = count == 11 ? words[9] : NULL,
			   .key = count == 11 ? words[10] : NULL };
	pthread_t receiver;
	run.sent_ns = calloc((size_t)run.events * 3, sizeof *run.sent_ns);
	if (!run.sent_ns)
		die("getting memory");
	run.committed_ns = run.sent_ns + run.events;
	run.arrived_ns = run.committed_ns + run.events;
	PGconn *database = PQconnectdb(words[1]);
	PGresult *prepared = PQprepare(database, "insert", words[2], 0, NULL);
	if (PQresultStatus(prepared) != PGRES_COMMAND_OK)
		die(PQerrorMessage(database));
	PQclear(prepared);
	if (pthread_create(&receiver, NULL, far_receive, &run) != 0)
		die("starting a thread");
	while (!atomic_load(&run.listening))
		wait_until(now_ns() + 1000000);
	double rate = send_all(database, &run);
	pthread_join(receiver, NULL);
	printf("rate %.0f ", rate);
	print_percentiles("latency", &run, run.committed_ns, run.arrived_ns);
	print_percentiles("commit", &run, run.sent_ns, run.committed_ns);
	printf("repeated %lld\n", (long long)run.repeated);
	PQfinish(database);
	free(run.sent_ns);
	return 0;
}
