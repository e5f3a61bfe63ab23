/* SPDX-License-Identifier: Apache-2.0 */
/* An offset store for the tests of brokers, in memory that child processes share. The
 * steps call it; a broker that keeps its readers' places itself takes no notice. */
#ifndef SEMEL_TESTS_BROKER_OFFSET_STORE_H
#define SEMEL_TESTS_BROKER_OFFSET_STORE_H

#include "broker/broker.h"

/* Forgets all places. */
void offset_store_clear(void);
/* A broker was opened. */
void offset_store_attach(struct semel_broker *broker);
/* It reads for this scope. */
void offset_store_set_scope(const struct semel_broker *broker, const char *scope);
void offset_store_record_fetched(const struct semel_broker *broker,
				 const struct semel_delivery *deliveries, size_t count);
void offset_store_record_acked(const struct semel_broker *broker,
			       const struct semel_delivery *deliveries, size_t count);

#endif
