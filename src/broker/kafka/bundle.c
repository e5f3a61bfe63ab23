/* SPDX-License-Identifier: Apache-2.0 */
/* Transactions: what was committed together in the database is shown together, or not at all, to
 * whoever reads committed records only.
 *
 * - A bundle is one transaction of Kafka's. It holds whole transactions of the database, as many as
 *   were offered while the last one was shown; none is spread over two of them, unless the caller
 *   says that it is complete before it is.
 * - An event is answered for when its bundle is committed. Until then a crash shows nothing of it:
 *   whoever comes next under the same name has it aborted, and shuts out those before him.
 * - When Kafka refuses an event, its transaction cannot be shown as a whole; so none of it is. The
 *   others of the bundle are sent again, each transaction by itself, and each event as a batch: a
 *   batch may be too large of which no event is.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX  (4 * 1024 * 1024) /* a bundle of so much is shown before another one begins */
#define SLICE_MS   1000
#define PATIENT_MS 30000

/* ---- calls of librdkafka's ------------------------------------------------------------------- */

/* Takes the failure; *again_out: the same call may be made once more. */
static semel_status judge(struct semel_kafka *kafka, rd_kafka_error_t *failure, const char *what,
			  bool *again_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	*again_out = false;
	if (!failure)
		return SEMEL_OK;
	rd_kafka_resp_err_t err = library->error_code(failure);
	*again_out = library->error_is_retriable(failure) != 0;
	library->error_destroy(failure);
	return semel_kafka_failed(kafka, err, what, error);
}

static semel_status await_begin(struct semel_kafka *kafka, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + PATIENT_MS;
	bool again = false;
	semel_status status;
	do
		status = judge(kafka, kafka->library->init_transactions(kafka->producer, SLICE_MS),
			       "take transactions up", &again, error);
	while (status != SEMEL_OK && again && semel_steady_ms(kafka->env) < until_ms);
	return status;
}

static semel_status begin(struct semel_kafka *kafka, semel_error *error)
{
	bool again = false;
	semel_status status = judge(kafka, kafka->library->begin_transaction(kafka->producer),
				    "begin a transaction", &again, error);
	kafka->bundle.begun = status == SEMEL_OK;
	return status;
}

/* A new producer shuts the old one out, and with it whatever it has left. The old one is asked to
 * abort all the same: librdkafka 2.0 may end the process when it is destroyed while it waits for a
 * partition to be added to a transaction. */
static semel_status restart(struct semel_kafka *kafka, semel_error *error)
{
	semel_kafka_producer_free(kafka);
	kafka->window.broken = kafka->bundle.begun = kafka->bundle.committing = false;
	semel_status status = semel_kafka_producer_make(kafka, error);
	return status == SEMEL_OK ? await_begin(kafka, error) : status;
}

semel_status semel_kafka_transact(struct semel_broker *broker, const char *name, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	free(kafka->bundle.name);
	kafka->bundle.name = semel_kafka_full_name(kafka, name);
	if (!kafka->bundle.name)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for transactions");
	return restart(kafka, error);
}

void semel_kafka_complete(struct semel_broker *broker)
{
	semel_kafka_of(broker)->bundle.open = false;
}

/* ---- filling --------------------------------------------------------------------------------- */

semel_status semel_kafka_bundle_admit(struct semel_kafka *kafka, uint64_t transaction,
				      semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	bool fresh = transaction == 0 ? !bundle->open : transaction != bundle->last;
	if (bundle->closing || bundle->committing)
		return SEMEL_FULL;
	if (fresh && bundle->count > 0 &&
	    (bundle->count >= kafka->window.size / 2 || bundle->bytes >= BYTES_MAX)) {
		bundle->closing = true;
		return SEMEL_FULL;
	}
	if (!bundle->begun && !kafka->window.broken) {
		bool was_singly = kafka->singly;
		kafka->singly = false;
		semel_status status = was_singly ? restart(kafka, error) : SEMEL_OK;
		if (status == SEMEL_OK)
			status = begin(kafka, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (transaction != 0) {
		bundle->last = transaction;
		bundle->open = true;
	}
	return SEMEL_OK;
}

void semel_kafka_bundle_add(struct semel_kafka *kafka, struct semel_kafka_slot *slot)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	slot->follower = NULL;
	if (bundle->newest)
		bundle->newest->follower = slot;
	else
		bundle->oldest = slot;
	bundle->newest = slot;
	bundle->count++;
	bundle->bytes += slot->event->payload.length;
	bundle->unreported += slot->state == SEMEL_KAFKA_SENT;
}

void semel_kafka_bundle_take(struct semel_kafka *kafka, struct semel_kafka_slot *slot)
{
	slot->state = SEMEL_KAFKA_TAKEN;
	kafka->bundle.unreported--;
}

void semel_kafka_bundle_refuse(struct semel_kafka *kafka, const struct semel_kafka_slot *slot,
			       semel_status refusal, const char *reason)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	kafka->window.broken = true;
	if (!kafka->careful || bundle->refusal != SEMEL_OK)
		return;
	/* It is not tried again by itself, or the rest would go without it. */
	bundle->refusal =
		semel_status_class(refusal) == SEMEL_CLASS_REJECT ? refusal : SEMEL_INVALID;
	bundle->guilty = slot;
	snprintf(bundle->reason, sizeof(bundle->reason), "%s", reason);
}

/* ---- showing --------------------------------------------------------------------------------- */

static void empty(struct semel_kafka_bundle *bundle)
{
	bundle->oldest = bundle->newest = NULL;
	bundle->count = bundle->unreported = 0;
	bundle->bytes = 0;
	bundle->begun = bundle->closing = bundle->committing = false;
}

bool semel_kafka_bundle_is_whole(const struct semel_kafka *kafka)
{
	const struct semel_kafka_bundle *bundle = &kafka->bundle;
	return bundle->count > 0 && bundle->unreported == 0 && !kafka->window.broken &&
	       (!bundle->open || bundle->closing || bundle->committing);
}

static void answer_all(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
		       const struct semel_kafka_slot *end)
{
	for (; slot != end; slot = slot->follower)
		if (slot->state != SEMEL_KAFKA_ANSWERED)
			semel_kafka_answer(&kafka->window, slot, SEMEL_OK, NULL);
}

/* *shown_out: it is committed; otherwise it goes on, or broke. */
static semel_status commit(struct semel_kafka *kafka, bool *shown_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	bool again = false;
	rd_kafka_error_t *failure = library->commit_transaction(kafka->producer, SLICE_MS);
	bool broken = failure && library->error_txn_requires_abort(failure);
	semel_status status = judge(kafka, failure, "commit a transaction", &again, error);
	*shown_out = status == SEMEL_OK;
	if (broken)
		kafka->window.broken = true;
	return again || broken ? SEMEL_OK : status;
}

semel_status semel_kafka_bundle_show(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	bool shown = false;
	if (!semel_kafka_bundle_is_whole(kafka))
		return SEMEL_OK;
	bundle->committing = true;
	semel_status status = commit(kafka, &shown, error);
	if (!shown)
		return status;
	answer_all(kafka, bundle->oldest, NULL);
	empty(bundle);
	return SEMEL_OK;
}

/* ---- after a refusal ------------------------------------------------------------------------- */

static semel_status await(struct semel_kafka *kafka, int64_t until_ms, semel_error *error)
{
	semel_kafka_producer_serve(kafka, 100);
	semel_status status = semel_kafka_health(kafka, error);
	if (status == SEMEL_OK && semel_steady_ms(kafka->env) >= until_ms)
		return semel_error_set(error, SEMEL_OUTAGE,
				       "%s has not answered for a transaction in %d ms",
				       kafka->place, PATIENT_MS);
	return status;
}

/* Sent, and reported or refused. */
static semel_status send_run(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			     const struct semel_kafka_slot *end, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	int64_t until_ms = semel_steady_ms(kafka->env) + PATIENT_MS;
	semel_status status = begin(kafka, error);
	bundle->refusal = SEMEL_OK;
	bundle->unreported = 0;
	for (; slot != end && status == SEMEL_OK && bundle->refusal == SEMEL_OK;
	     slot = slot->follower) {
		slot->state = SEMEL_KAFKA_SENT;
		if (semel_kafka_is_held(&kafka->window, slot)) {
			semel_kafka_hold(&kafka->window, slot);
			continue;
		}
		status = semel_kafka_send(kafka, slot, error);
		bundle->unreported++;
	}
	while (status == SEMEL_OK && bundle->unreported > 0 && bundle->refusal == SEMEL_OK)
		status = await(kafka, until_ms, error);
	return status == SEMEL_FULL ? SEMEL_OUTAGE : status;
}

static void refuse_run(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
		       const struct semel_kafka_slot *end)
{
	const struct semel_kafka_bundle *bundle = &kafka->bundle;
	char reason[160];
	snprintf(reason, sizeof(reason), "an event of its transaction was refused: %.110s",
		 bundle->reason);
	for (; slot != end; slot = slot->follower)
		if (slot->state != SEMEL_KAFKA_ANSWERED)
			semel_kafka_answer(&kafka->window, slot, bundle->refusal,
					   slot == bundle->guilty ? bundle->reason : reason);
}

static semel_status show_run(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			     const struct semel_kafka_slot *end, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + PATIENT_MS;
	bool shown = false;
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK && !shown) {
		status = commit(kafka, &shown, error);
		if (status == SEMEL_OK && !shown && kafka->window.broken)
			status = semel_error_set(error, SEMEL_OUTAGE,
						 "%s has given a transaction up", kafka->place);
		if (status == SEMEL_OK && !shown)
			status = await(kafka, until_ms, error);
	}
	if (status == SEMEL_OK)
		answer_all(kafka, slot, end);
	kafka->bundle.begun = false;
	return status;
}

/* One transaction of the database. open: more of it will come, so it is not shown yet. */
static semel_status redo(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
			 const struct semel_kafka_slot *end, bool open, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	uint64_t transaction = slot->passage.transaction;
	semel_status status = send_run(kafka, slot, end, error);
	if (status != SEMEL_OK)
		return status;
	if (bundle->refusal != SEMEL_OK) {
		refuse_run(kafka, slot, end);
		bundle->refused = transaction;
		bundle->refused_by = bundle->refusal;
		bundle->unreported = 0;
		return restart(kafka, error);
	}
	if (!open)
		return show_run(kafka, slot, end, error);
	for (struct semel_kafka_slot *next; slot != end; slot = next) {
		next = slot->follower;
		if (slot->state != SEMEL_KAFKA_ANSWERED)
			semel_kafka_bundle_add(kafka, slot);
	}
	return SEMEL_OK;
}

static struct semel_kafka_slot *end_of_run(const struct semel_kafka_slot *slot)
{
	struct semel_kafka_slot *end = slot->follower;
	while (end && slot->passage.transaction != 0 &&
	       end->passage.transaction == slot->passage.transaction)
		end = end->follower;
	return end;
}

semel_status semel_kafka_bundle_repair(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	struct semel_kafka_slot *slot = bundle->oldest;
	bool open = bundle->open && !bundle->closing && !bundle->committing;
	char text[256] = "";
	/* Who was shut out must not shut out others in his turn before he has seen his leases. */
	if (kafka->library->fatal_error(kafka->producer, text, sizeof(text)))
		return semel_error_set(error, SEMEL_OUTAGE, "%s: %s", kafka->place, text);
	semel_logf(SEMEL_LOG_DEBUG, "kafka: a transaction failed; %u events are sent again",
		   bundle->count);
	kafka->singly = true;
	semel_status status = restart(kafka, error);
	empty(bundle);
	bool small = true; /* none of them is too large by itself */
	kafka->careful = true;
	while (slot && status == SEMEL_OK) {
		struct semel_kafka_slot *end = end_of_run(slot);
		status = redo(kafka, slot, end,
			      open && !end && slot->passage.transaction == bundle->last, error);
		small = small && bundle->refusal != SEMEL_TOO_LARGE;
		slot = end;
	}
	kafka->careful = false;
	if (status == SEMEL_OK && small && kafka->window.refused_bytes > 0)
		semel_kafka_shrink(kafka);
	kafka->window.refused_bytes = 0;
	return status;
}
