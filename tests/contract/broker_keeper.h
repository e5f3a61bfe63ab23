/* SPDX-License-Identifier: Apache-2.0 */
/* A keeper of offsets for the tests of brokers, in memory that child processes share. The steps
 * call it; a broker that keeps its readers' places itself takes no notice. */
#ifndef SEMEL_TESTS_BROKER_KEEPER_H
#define SEMEL_TESTS_BROKER_KEEPER_H

#include "broker/broker.h"

/* Forgets all places. */
void keeper_clear(void);
/* A broker was opened. */
void keeper_attach(struct semel_broker *broker);
/* It reads for this scope. */
void keeper_name_scope(const struct semel_broker *broker, const char *scope);
void keeper_note_fetched(const struct semel_broker *broker, const struct semel_delivery *deliveries,
			 size_t count);
void keeper_note_acked(const struct semel_broker *broker, const struct semel_delivery *deliveries,
		       size_t count);

#endif
