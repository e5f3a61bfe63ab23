/* SPDX-License-Identifier: Apache-2.0 */
/* librdkafka's clients, what they report of the cluster, and calls that are made until they are
 * answered (client.c, transient.c).
 *
 * To change here: the configuration that the delivery guarantee depends on is set in client.c, and
 * no URL can override it. Only client.c decides that the connection is lost. Every file may make a
 * call; one that waits for an answer uses semel_kafka_call_deadline and semel_kafka_retry_call, so
 * that all calls have the same time-out. */
#ifndef SEMEL_BROKER_KAFKA_CLIENT_H
#define SEMEL_BROKER_KAFKA_CLIENT_H

#include "broker/kafka/library.h"

#include <stdbool.h>
#include <stdint.h>

struct semel_kafka;

#define SEMEL_KAFKA_CALL_MS 10000 /* for a call that waits for an answer */

/* ---- client.c: making clients ---- */

semel_status semel_kafka_producer_new(struct semel_kafka *kafka, semel_error *error);
/* Unanswered events are dropped; librdkafka references none of them any more. */
void semel_kafka_producer_free(struct semel_kafka *kafka);
semel_status semel_kafka_consumer_new(struct semel_kafka *kafka, const char *group,
				      rd_kafka_t **consumer_out, semel_error *error);
/* A consumer that reads, and never joins the group. */
semel_status semel_kafka_observer_new(struct semel_kafka *kafka, const char *group,
				      rd_kafka_t **observer_out, semel_error *error);
/* An observer for single records. */
semel_status semel_kafka_record_reader_new(struct semel_kafka *kafka, rd_kafka_t **reader_out,
					   semel_error *error);
/* New events in the queue wake the caller through event_fd (on), or no longer do (off). */
void semel_kafka_notify_on(struct semel_kafka *kafka, rd_kafka_queue_t *queue);
void semel_kafka_notify_off(struct semel_kafka *kafka, rd_kafka_queue_t *queue);

/* ---- client.c: the state of the cluster ---- */

/* Waits until a broker of the cluster answers. */
semel_status semel_kafka_connect(struct semel_kafka *kafka, semel_error *error);
void semel_kafka_handle_error(struct semel_kafka *kafka, rd_kafka_t *client,
			      rd_kafka_event_t *event);
/* Is the cluster reachable, as far as is known? Call it after events were handled. */
semel_status semel_kafka_check_health(struct semel_kafka *kafka, semel_error *error);
/* The status for a failed call. what: "read the offsets". */
semel_status semel_kafka_call_failed(struct semel_kafka *kafka, rd_kafka_resp_err_t err,
				     const char *what, semel_error *error);

/* ---- transient.c ---- */

/* May the same call succeed in a moment, for example while a cluster restarts? */
bool semel_kafka_is_transient(rd_kafka_resp_err_t err);
/* At the start of a call: its deadline (steady). Then: how long the next request may take; and
 * whether to send another request after this answer, having slept for a moment if so. */
int64_t semel_kafka_call_deadline(const struct semel_kafka *kafka);
int semel_kafka_call_remaining_ms(const struct semel_kafka *kafka, int64_t until_ms);
bool semel_kafka_retry_call(const struct semel_kafka *kafka, rd_kafka_resp_err_t err,
			    int64_t until_ms);
/* The committed offsets of the client's group. */
semel_status semel_kafka_read_committed(struct semel_kafka *kafka, rd_kafka_t *client,
					rd_kafka_topic_partition_list_t *list, semel_error *error);
/* Replaces the offsets that stand for beginning and end by the actual ones. */
semel_status semel_kafka_resolve_offsets(struct semel_kafka *kafka, rd_kafka_t *client,
					 rd_kafka_topic_partition_list_t *list, semel_error *error);
/* Waits until the broker has answered. */
rd_kafka_resp_err_t semel_kafka_commit_sync(struct semel_kafka *kafka,
					    const rd_kafka_topic_partition_list_t *list);

#endif
