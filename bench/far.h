/* SPDX-License-Identifier: Apache-2.0 */
/* The broker's end of latency.c: far_rabbitmq.c or far_kafka.c. A function that fails prints it
 * and ends the program. */
#ifndef BENCH_FAR_H
#define BENCH_FAR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct run {
	const char *host, *queue; /* for Kafka the queue is a topic */
	const char *exchange, *key;
	int port;
	int64_t rate, events, warm_up;
	int64_t *sent_ns, *committed_ns, *arrived_ns; /* by number, from 0 */
	_Atomic int64_t arrived;
	int64_t repeated;
	atomic_bool listening;
};

#define TIMEOUT_S 30

void die(const char *what);
void note_arrival(struct run *run, const void *body, size_t length);

/* Receives until all events have arrived; sets run->listening first. A thread of its own. */
void *far_receive(void *run);
/* A connection to publish with, and one event over it. */
void *far_open(const struct run *run);
void far_publish(void *far, const struct run *run, const char *payload);

#endif
