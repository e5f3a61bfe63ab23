/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions: what was committed together in the database becomes visible together, or not at
 * all, to readers of committed records.
 *
 * - A transaction of Kafka's holds whole transactions of the database (source transactions), as
 *   many as were published while the last one was committed. None is spread over two of them,
 *   unless the caller declares it complete before it is.
 * - An event has its outcome when its transaction is committed. After a crash before that, none of
 *   its events becomes visible: the next producer with the same name has the transaction aborted,
 *   and fences off earlier producers.
 * - When Kafka refuses an event, its source transaction cannot become visible as a whole; so none
 *   of it does. The other events are sent again in smaller transactions, and each event as a batch
 *   of its own: so an answer is about one event, and a batch that is too large though no event is
 *   does not recur.
 * - Aborting and starting again are states, not loops: each poll does a little and returns, so that
 *   the caller can renew its leases. What is published meanwhile waits.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX     (4 * 1024 * 1024) /* of a transaction that is closed before more is sent */
#define ISOLATING_MAX 256               /* events in one while the faulty event is searched for */
#define COMMIT_MS     1000
#define SLICE_MS      200
#define ABORT_MS      4000
#define STARTING_MS   30000

/* ---- librdkafka's calls --------------------------------------------------------------------- */

/* Consumes the failure. *again_out: the same call may be repeated. */
static semel_status take_failure(struct semel_kafka *kafka, rd_kafka_error_t *failure,
				 const char *what, bool *again_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	*again_out = false;
	if (!failure)
		return SEMEL_OK;
	rd_kafka_resp_err_t err = library->error_code(failure);
	*again_out = library->error_is_retriable(failure) != 0;
	library->error_destroy(failure);
	return semel_kafka_call_failed(kafka, err, what, error);
}

static semel_status begin_transaction(struct semel_kafka *kafka, semel_error *error)
{
	bool again = false;
	semel_status status =
		take_failure(kafka, kafka->library->begin_transaction(kafka->producer),
			     "begin a transaction", &again, error);
	kafka->transaction.begun = status == SEMEL_OK;
	return status;
}

/* Makes a new producer with this name, which fences off those before it. The old producer
 * nevertheless aborts its transaction: librdkafka 2.0 may end the process when a producer is
 * destroyed while it waits for a partition to be added to a transaction. */
static semel_status use_name(struct semel_kafka *kafka, char *name, semel_error *error)
{
	free(kafka->transaction.name);
	kafka->transaction.name = name;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	return semel_kafka_producer_new(kafka, error);
}

semel_status semel_kafka_init_transactions(struct semel_broker *broker, const char *name,
					   semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	semel_status status = SEMEL_OK;
	bool again = false;
	char *full = semel_kafka_full_name(kafka, name);
	if (!full)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for transactions");
	if (kafka->transaction.name && strcmp(kafka->transaction.name, full) == 0)
		free(full); /* it was called before, and is continued */
	else
		status = use_name(kafka, full, error);
	if (status != SEMEL_OK)
		return status;
	status = take_failure(kafka, kafka->library->init_transactions(kafka->producer, COMMIT_MS),
			      "initialize transactions", &again, error);
	return again ? SEMEL_FULL : status;
}

/* Will other events be committed, or sent again, before the last source transaction, so that there
 * will be capacity for the rest of it? */
static bool has_others(const struct semel_kafka *kafka)
{
	const struct semel_kafka_transaction *transaction = &kafka->transaction;
	return transaction->pending.first || transaction->closing || transaction->committing ||
	       transaction->unreported > 0 || kafka->window.broken ||
	       transaction->phase != SEMEL_KAFKA_TRANSACTION_READY;
}

bool semel_kafka_complete_transaction(struct semel_broker *broker, bool whole)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	if (!whole && has_others(kafka))
		return false;
	kafka->transaction.open = false;
	return true;
}

/* ---- lists ----------------------------------------------------------------------------------- */

static void list_append(struct semel_kafka_inflight_list *list,
			struct semel_kafka_inflight *inflight)
{
	inflight->list_next = NULL;
	if (list->last)
		list->last->list_next = inflight;
	else
		list->first = inflight;
	list->last = inflight;
}

static struct semel_kafka_inflight *list_take_first(struct semel_kafka_inflight_list *list)
{
	struct semel_kafka_inflight *inflight = list->first;
	list->first = inflight->list_next;
	if (!list->first)
		list->last = NULL;
	inflight->list_next = NULL;
	return inflight;
}

static bool is_same_transaction(const struct semel_kafka_inflight *one,
				const struct semel_kafka_inflight *other)
{
	return one == other || (one->metadata.transaction != 0 &&
				one->metadata.transaction == other->metadata.transaction);
}

static void clear(struct semel_kafka_transaction *transaction)
{
	transaction->sent = (struct semel_kafka_inflight_list){ 0 };
	transaction->count = transaction->unreported = 0;
	transaction->bytes = 0;
	transaction->begun = transaction->closing = transaction->committing = false;
}

/* ---- sending --------------------------------------------------------------------------------- */

/* The faulty event was found, or there is none: batches may have many events again. */
static semel_status end_isolation(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->window.refused_bytes > 0 && !kafka->window.too_large)
		semel_kafka_shrink_batches(kafka);
	kafka->window.refused_bytes = 0;
	kafka->isolating = kafka->single_record_batches = false;
	semel_kafka_producer_free(kafka);
	kafka->transaction.phase = SEMEL_KAFKA_TRANSACTION_STARTING;
	kafka->transaction.until_ms = semel_steady_ms(kafka->env) + STARTING_MS;
	return semel_kafka_producer_new(kafka, error);
}

/* May the event join those that were sent? Otherwise they are committed first. */
static bool can_join(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	uint32_t most = kafka->isolating ? ISOLATING_MAX : kafka->window.size / 2;
	if (transaction->count == 0)
		return true;
	if (is_same_transaction(transaction->sent.last, inflight) ||
	    (inflight->metadata.transaction == 0 && transaction->open))
		return true;
	transaction->closing = transaction->closing || transaction->count >= most ||
			       transaction->bytes >= BYTES_MAX ||
			       (kafka->isolating && inflight->sequence > transaction->isolate_to);
	return !transaction->closing;
}

static semel_status send_next(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	struct semel_kafka_inflight *inflight = transaction->pending.first;
	bool held = semel_kafka_is_held(&kafka->window, inflight);
	semel_status status =
		held || transaction->begun ? SEMEL_OK : begin_transaction(kafka, error);
	if (status != SEMEL_OK)
		return status;
	(void)list_take_first(&transaction->pending);
	inflight->state = SEMEL_KAFKA_SENT;
	if (held) {
		semel_kafka_hold(&kafka->window, inflight);
		return SEMEL_OK;
	}
	list_append(&transaction->sent, inflight);
	transaction->count++;
	transaction->bytes += inflight->event->payload.length;
	transaction->unreported++;
	return semel_kafka_send(kafka, inflight, error);
}

static bool can_send(const struct semel_kafka *kafka)
{
	const struct semel_kafka_transaction *transaction = &kafka->transaction;
	return transaction->pending.first && !kafka->window.broken &&
	       transaction->phase == SEMEL_KAFKA_TRANSACTION_READY && !transaction->committing;
}

static semel_status send_pending(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	while (can_send(kafka)) {
		semel_status status;
		if (kafka->isolating && transaction->count == 0 &&
		    transaction->pending.first->sequence > transaction->isolate_to)
			status = end_isolation(kafka, error);
		else if (can_join(kafka, transaction->pending.first))
			status = send_next(kafka, error);
		else
			return SEMEL_OK;
		if (status != SEMEL_OK)
			return status == SEMEL_FULL ? SEMEL_OUTAGE : status;
	}
	return SEMEL_OK;
}

semel_status semel_kafka_transaction_offer(struct semel_kafka *kafka,
					   struct semel_kafka_inflight *inflight,
					   semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	if (inflight->metadata.transaction != 0) {
		transaction->last = inflight->metadata.transaction;
		transaction->open = true;
	}
	inflight->state = SEMEL_KAFKA_QUEUED;
	list_append(&transaction->pending, inflight);
	return send_pending(kafka, error);
}

void semel_kafka_transaction_accept(struct semel_kafka *kafka,
				    struct semel_kafka_inflight *inflight)
{
	inflight->state = SEMEL_KAFKA_ACCEPTED;
	kafka->transaction.unreported--;
}

void semel_kafka_transaction_refuse(struct semel_kafka *kafka,
				    const struct semel_kafka_inflight *inflight,
				    semel_status refusal, const char *reason)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	kafka->window.broken = true;
	if (!kafka->isolating || transaction->refusal != SEMEL_OK)
		return;
	/* The event is not retried alone, because the rest would become visible without it. */
	transaction->refusal =
		semel_status_class(refusal) == SEMEL_CLASS_REJECT ? refusal : SEMEL_INVALID;
	transaction->faulty = inflight;
	snprintf(transaction->reason, sizeof(transaction->reason), "%s", reason);
}

/* ---- committing------------------------------------------------------------------------------- */

bool semel_kafka_transaction_can_commit(const struct semel_kafka *kafka)
{
	const struct semel_kafka_transaction *transaction = &kafka->transaction;
	return transaction->count > 0 && transaction->unreported == 0 && !kafka->window.broken &&
	       transaction->phase == SEMEL_KAFKA_TRANSACTION_READY &&
	       (transaction->closing || transaction->committing ||
		(!transaction->open && !transaction->pending.first));
}

static void finish_all(struct semel_kafka *kafka)
{
	while (kafka->transaction.sent.first)
		semel_kafka_finish(&kafka->window, list_take_first(&kafka->transaction.sent),
				   SEMEL_OK, NULL);
}

/* *committed_out false: it is still being committed, or is broken. */
static semel_status commit(struct semel_kafka *kafka, bool *committed_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	bool again = false;
	rd_kafka_error_t *failure = library->commit_transaction(kafka->producer, COMMIT_MS);
	bool broken = failure && library->error_txn_requires_abort(failure);
	semel_status status = take_failure(kafka, failure, "commit a transaction", &again, error);
	*committed_out = status == SEMEL_OK;
	if (broken)
		kafka->window.broken = true;
	return again || broken ? SEMEL_OK : status;
}

static semel_status commit_complete(struct semel_kafka *kafka, semel_error *error)
{
	bool committed = false;
	if (!semel_kafka_transaction_can_commit(kafka))
		return SEMEL_OK;
	kafka->transaction.committing = true;
	semel_status status = commit(kafka, &committed, error);
	if (!committed)
		return status;
	finish_all(kafka);
	clear(&kafka->transaction);
	return send_pending(kafka, error);
}

/* ---- after a refusal ------------------------------------------------------------------------- */

static semel_status begin_abort(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	char text[256] = "";
	/* A fenced producer must not fence off others in turn before it has checked its leases. */
	if (kafka->library->fatal_error(kafka->producer, text, sizeof(text)))
		return semel_error_set(error, SEMEL_OUTAGE, "%s: %s", kafka->address, text);
	snprintf(text, sizeof(text), "%u events", transaction->count);
	semel_log(SEMEL_LOG_DEBUG, "Kafka transaction failed, resending its events",
		  &(struct semel_log_fields){ .error = text });
	kafka->library->purge(kafka->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	transaction->phase = SEMEL_KAFKA_TRANSACTION_ABORTING;
	transaction->until_ms = semel_steady_ms(kafka->env) + ABORT_MS;
	return SEMEL_OK;
}

/* False: not yet. librdkafka aborts only with an empty queue, and 2.0 may end the process when a
 * producer is destroyed while it waits for a partition to be added. */
static bool is_aborted(struct semel_kafka *kafka)
{
	const struct semel_kafka_library *library = kafka->library;
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	bool late = semel_steady_ms(kafka->env) >= transaction->until_ms;
	if (!transaction->begun)
		return true;
	if (library->outq_len(kafka->producer) > 0 && !late)
		return false;
	rd_kafka_error_t *failure = library->abort_transaction(kafka->producer, SLICE_MS);
	bool again = failure && library->error_is_retriable(failure);
	if (failure)
		library->error_destroy(failure);
	transaction->begun = again && !late;
	return !transaction->begun;
}

/* Refuses all events of the faulty event's source transaction. */
static void refuse_transaction(struct semel_kafka *kafka, const struct semel_kafka_inflight *faulty)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	struct semel_kafka_inflight_list rest = { 0 };
	char reason[160];
	snprintf(reason, sizeof(reason), "an event of its transaction was refused: %.110s",
		 transaction->reason);
	transaction->refused = faulty->metadata.transaction;
	transaction->refused_by = transaction->refusal;
	if (transaction->refused != 0 && transaction->refused == transaction->last)
		transaction->open =
			false; /* its later events are refused when they are published */
	while (transaction->pending.first) {
		struct semel_kafka_inflight *inflight = list_take_first(&transaction->pending);
		if (is_same_transaction(faulty, inflight))
			semel_kafka_finish(&kafka->window, inflight, transaction->refusal,
					   inflight == faulty ? transaction->reason : reason);
		else
			list_append(&rest, inflight);
	}
	transaction->pending = rest;
}

/* Queues the sent events again, in their order, before the waiting ones. */
static void requeue_sent(struct semel_kafka *kafka)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	struct semel_kafka_inflight *last = transaction->sent.last;
	uint64_t suspected = 0;
	for (struct semel_kafka_inflight *inflight = transaction->sent.first; inflight;
	     inflight = inflight->list_next) {
		inflight->state = SEMEL_KAFKA_QUEUED;
		suspected = inflight->suspected ? inflight->sequence : suspected;
		inflight->suspected = false;
	}
	if (last && suspected == 0)
		suspected = last->sequence;
	if (last) {
		last->list_next = transaction->pending.first;
		transaction->pending.first = transaction->sent.first;
		if (!transaction->pending.last)
			transaction->pending.last = last;
	}
	if (!kafka->isolating || suspected > transaction->isolate_to)
		transaction->isolate_to = suspected;
	clear(transaction);
}

static semel_status replace_producer(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	requeue_sent(kafka);
	if (!kafka->isolating)
		kafka->window.too_large = false;
	if (transaction->refusal != SEMEL_OK)
		refuse_transaction(kafka, transaction->faulty);
	transaction->refusal = SEMEL_OK;
	transaction->faulty = NULL;
	kafka->isolating = kafka->single_record_batches = true;
	transaction->phase = SEMEL_KAFKA_TRANSACTION_STARTING;
	transaction->until_ms = semel_steady_ms(kafka->env) + STARTING_MS;
	return semel_kafka_producer_new(kafka, error);
}

static semel_status continue_starting(struct semel_kafka *kafka, semel_error *error)
{
	bool again = false;
	semel_status status =
		take_failure(kafka, kafka->library->init_transactions(kafka->producer, SLICE_MS),
			     "initialize transactions", &again, error);
	if (status == SEMEL_OK)
		kafka->transaction.phase = SEMEL_KAFKA_TRANSACTION_READY;
	return again && semel_steady_ms(kafka->env) < kafka->transaction.until_ms ? SEMEL_OK
										  : status;
}

/* Called before the refusal of an event is reported: afterwards it is no longer known which later
 * events of its aggregate to hold. */
static void hold_later_events(struct semel_kafka *kafka)
{
	struct semel_kafka_inflight_list rest = { 0 }, *pending = &kafka->transaction.pending;
	while (kafka->window.refused > 0 && pending->first) {
		struct semel_kafka_inflight *inflight = list_take_first(pending);
		if (semel_kafka_is_held(&kafka->window, inflight))
			semel_kafka_hold(&kafka->window, inflight);
		else
			list_append(&rest, inflight);
	}
	if (rest.first)
		*pending = rest;
}

static semel_status step(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_transaction *transaction = &kafka->transaction;
	semel_status status = SEMEL_OK;
	if (kafka->window.broken && transaction->phase == SEMEL_KAFKA_TRANSACTION_READY) {
		status = begin_abort(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (transaction->phase == SEMEL_KAFKA_TRANSACTION_ABORTING && is_aborted(kafka)) {
		status = replace_producer(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (transaction->phase == SEMEL_KAFKA_TRANSACTION_STARTING) {
		status = continue_starting(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = send_pending(kafka, error);
	if (status != SEMEL_OK)
		return status;
	return commit_complete(kafka, error);
}

semel_status semel_kafka_transaction_step(struct semel_kafka *kafka, semel_error *error)
{
	semel_status status = step(kafka, error);
	hold_later_events(kafka);
	return status;
}
