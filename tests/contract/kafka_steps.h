/* SPDX-License-Identifier: Apache-2.0 */
/* For tests against Kafka: librdkafka's mock cluster in a process of its own, and a real one where
 * SEMEL_TEST_KAFKA is host:port. */
#ifndef SEMEL_TESTS_KAFKA_STEPS_H
#define SEMEL_TESTS_KAFKA_STEPS_H

#include <stdbool.h>
#include <stddef.h>

/* Every test gets a mock cluster, from kafka_steps_make to kafka_steps_drop. */
void kafka_steps_use_mock(void);
/* The next request of this kind (Kafka's number of it) gets this error. Mock only. */
void kafka_steps_mock_fail(int request, int error);
/* Turns to the real one. False: it is not set. */
bool kafka_steps_use_real(void);
/* The URL with parameters ("create-topics=no"), and a topic of its own for steps_topics. */
void kafka_steps_make(const char *parameters, char *url_out, size_t size);
void kafka_steps_drop(void);

#endif
