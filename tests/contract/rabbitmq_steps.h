/* SPDX-License-Identifier: Apache-2.0 */
/* For tests against a real RabbitMQ: SEMEL_TEST_RABBITMQ is its URL; without it they are skipped.
 */
#ifndef SEMEL_TESTS_RABBITMQ_STEPS_H
#define SEMEL_TESTS_RABBITMQ_STEPS_H

#include <stddef.h>

/* NULL: not set. */
const char *rabbit_steps_url(void);
/* Runs one test that is skipped because there is no server. */
int rabbit_steps_skip(void);
/* The URL with parameters ("partitions=4"), and a topic of its own for steps_topics. */
void rabbit_steps_make(const char *parameters, char *url_out, size_t size);
/* Deletes everything that the scopes of the tests can have made for the topic. */
void rabbit_steps_drop(void);

#endif
