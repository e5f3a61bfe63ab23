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
 *   others of the bundle are sent again in smaller ones, and each event as a batch: so an answer is
 *   about one event, and a batch that was too large of which no event is does not come again.
 * - Aborting and beginning anew are states, not loops: each poll does a little and returns, so that
 *   the caller tends his leases. What is offered meanwhile waits.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX   (4 * 1024 * 1024) /* a bundle of so much is shown before another one begins */
#define CAREFUL_MAX 256               /* events in one while the one at fault is looked for */
#define COMMIT_MS   1000
#define SLICE_MS    200
#define ABORT_MS    4000
#define PATIENT_MS  30000

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

static semel_status begin(struct semel_kafka *kafka, semel_error *error)
{
	bool again = false;
	semel_status status = judge(kafka, kafka->library->begin_transaction(kafka->producer),
				    "begin a transaction", &again, error);
	kafka->bundle.begun = status == SEMEL_OK;
	return status;
}

/* A new producer under this name, which is to shut out those before it. The old one is asked to
 * abort all the same: librdkafka 2.0 may end the process when it is destroyed while it waits for a
 * partition to be added to a transaction. */
static semel_status take_name(struct semel_kafka *kafka, char *name, semel_error *error)
{
	free(kafka->bundle.name);
	kafka->bundle.name = name;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	return semel_kafka_producer_make(kafka, error);
}

semel_status semel_kafka_init_transactions(struct semel_broker *broker, const char *name,
					   semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	semel_status status = SEMEL_OK;
	bool again = false;
	char *full = semel_kafka_full_name(kafka, name);
	if (!full)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for transactions");
	if (kafka->bundle.name && strcmp(kafka->bundle.name, full) == 0)
		free(full); /* it was called before, and goes on */
	else
		status = take_name(kafka, full, error);
	if (status == SEMEL_OK)
		status = judge(kafka, kafka->library->init_transactions(kafka->producer, COMMIT_MS),
			       "take transactions up", &again, error);
	return again ? SEMEL_FULL : status;
}

/* Others are shown, or sent again, before the last transaction: there will be room for its rest. */
static bool has_others(const struct semel_kafka *kafka)
{
	const struct semel_kafka_bundle *bundle = &kafka->bundle;
	return bundle->pending.first || bundle->closing || bundle->committing ||
	       bundle->unreported > 0 || kafka->window.broken ||
	       bundle->phase != SEMEL_KAFKA_BUNDLE_READY;
}

bool semel_kafka_complete_transaction(struct semel_broker *broker, bool whole)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	if (!whole && has_others(kafka))
		return false;
	kafka->bundle.open = false;
	return true;
}

/* ---- chains ---------------------------------------------------------------------------------- */

static void append(struct semel_kafka_chain *chain, struct semel_kafka_slot *slot)
{
	slot->follower = NULL;
	if (chain->last)
		chain->last->follower = slot;
	else
		chain->first = slot;
	chain->last = slot;
}

static struct semel_kafka_slot *take_first(struct semel_kafka_chain *chain)
{
	struct semel_kafka_slot *slot = chain->first;
	chain->first = slot->follower;
	if (!chain->first)
		chain->last = NULL;
	slot->follower = NULL;
	return slot;
}

static bool is_together(const struct semel_kafka_slot *one, const struct semel_kafka_slot *other)
{
	return one == other || (one->metadata.transaction != 0 &&
				one->metadata.transaction == other->metadata.transaction);
}

static void empty(struct semel_kafka_bundle *bundle)
{
	bundle->sent = (struct semel_kafka_chain){ 0 };
	bundle->count = bundle->unreported = 0;
	bundle->bytes = 0;
	bundle->begun = bundle->closing = bundle->committing = false;
}

/* ---- filling --------------------------------------------------------------------------------- */

/* Nobody is looked for any more; batches of many events are made again. */
static semel_status end_care(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->window.refused_bytes > 0 && !kafka->window.too_large)
		semel_kafka_shrink(kafka);
	kafka->window.refused_bytes = 0;
	kafka->careful = kafka->singly = false;
	semel_kafka_producer_free(kafka);
	kafka->bundle.phase = SEMEL_KAFKA_BUNDLE_STARTING;
	kafka->bundle.until_ms = semel_steady_ms(kafka->env) + PATIENT_MS;
	return semel_kafka_producer_make(kafka, error);
}

/* May this one go with those that were sent? Otherwise they are shown first. */
static bool may_join(struct semel_kafka *kafka, const struct semel_kafka_slot *slot)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	uint32_t most = kafka->careful ? CAREFUL_MAX : kafka->window.size / 2;
	if (bundle->count == 0)
		return true;
	if (is_together(bundle->sent.last, slot) ||
	    (slot->metadata.transaction == 0 && bundle->open))
		return true;
	bundle->closing = bundle->closing || bundle->count >= most || bundle->bytes >= BYTES_MAX ||
			  (kafka->careful && slot->sequence > bundle->care_to);
	return !bundle->closing;
}

static semel_status send_next(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	struct semel_kafka_slot *slot = bundle->pending.first;
	bool held = semel_kafka_is_held(&kafka->window, slot);
	semel_status status = held || bundle->begun ? SEMEL_OK : begin(kafka, error);
	if (status != SEMEL_OK)
		return status;
	(void)take_first(&bundle->pending);
	slot->state = SEMEL_KAFKA_SENT;
	if (held) {
		semel_kafka_hold(&kafka->window, slot);
		return SEMEL_OK;
	}
	append(&bundle->sent, slot);
	bundle->count++;
	bundle->bytes += slot->event->payload.length;
	bundle->unreported++;
	return semel_kafka_send(kafka, slot, error);
}

static semel_status feed(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	semel_status status = SEMEL_OK;
	while (status == SEMEL_OK && bundle->pending.first && !kafka->window.broken &&
	       bundle->phase == SEMEL_KAFKA_BUNDLE_READY && !bundle->committing) {
		if (kafka->careful && bundle->count == 0 &&
		    bundle->pending.first->sequence > bundle->care_to)
			status = end_care(kafka, error);
		else if (may_join(kafka, bundle->pending.first))
			status = send_next(kafka, error);
		else
			break;
	}
	return status == SEMEL_FULL ? SEMEL_OUTAGE : status;
}

semel_status semel_kafka_bundle_offer(struct semel_kafka *kafka, struct semel_kafka_slot *slot,
				      semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	if (slot->metadata.transaction != 0) {
		bundle->last = slot->metadata.transaction;
		bundle->open = true;
	}
	slot->state = SEMEL_KAFKA_QUEUED;
	append(&bundle->pending, slot);
	return feed(kafka, error);
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

bool semel_kafka_bundle_is_whole(const struct semel_kafka *kafka)
{
	const struct semel_kafka_bundle *bundle = &kafka->bundle;
	return bundle->count > 0 && bundle->unreported == 0 && !kafka->window.broken &&
	       bundle->phase == SEMEL_KAFKA_BUNDLE_READY &&
	       (bundle->closing || bundle->committing || (!bundle->open && !bundle->pending.first));
}

static void answer_all(struct semel_kafka *kafka)
{
	while (kafka->bundle.sent.first)
		semel_kafka_answer(&kafka->window, take_first(&kafka->bundle.sent), SEMEL_OK, NULL);
}

/* *shown_out: it is committed; otherwise it goes on, or broke. */
static semel_status commit(struct semel_kafka *kafka, bool *shown_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	bool again = false;
	rd_kafka_error_t *failure = library->commit_transaction(kafka->producer, COMMIT_MS);
	bool broken = failure && library->error_txn_requires_abort(failure);
	semel_status status = judge(kafka, failure, "commit a transaction", &again, error);
	*shown_out = status == SEMEL_OK;
	if (broken)
		kafka->window.broken = true;
	return again || broken ? SEMEL_OK : status;
}

static semel_status show(struct semel_kafka *kafka, semel_error *error)
{
	bool shown = false;
	if (!semel_kafka_bundle_is_whole(kafka))
		return SEMEL_OK;
	kafka->bundle.committing = true;
	semel_status status = commit(kafka, &shown, error);
	if (!shown)
		return status;
	answer_all(kafka);
	empty(&kafka->bundle);
	return feed(kafka, error);
}

/* ---- after a refusal ------------------------------------------------------------------------- */

static semel_status begin_abort(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	char text[256] = "";
	/* Who was shut out must not shut out others in his turn before he has seen his leases. */
	if (kafka->library->fatal_error(kafka->producer, text, sizeof(text)))
		return semel_error_set(error, SEMEL_OUTAGE, "%s: %s", kafka->place, text);
	semel_logf(SEMEL_LOG_DEBUG, "kafka: a transaction failed; %u events are sent again",
		   bundle->count);
	kafka->library->purge(kafka->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	bundle->phase = SEMEL_KAFKA_BUNDLE_ABORTING;
	bundle->until_ms = semel_steady_ms(kafka->env) + ABORT_MS;
	return SEMEL_OK;
}

/* False: it is not done yet. librdkafka wants to be rid of every record first, and 2.0 may end the
 * process when a producer is destroyed while it waits for a partition to be added. */
static bool is_aborted(struct semel_kafka *kafka)
{
	const struct semel_kafka_library *library = kafka->library;
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	bool late = semel_steady_ms(kafka->env) >= bundle->until_ms;
	if (!bundle->begun)
		return true;
	if (library->outq_len(kafka->producer) > 0 && !late)
		return false;
	rd_kafka_error_t *failure = library->abort_transaction(kafka->producer, SLICE_MS);
	bool again = failure && library->error_is_retriable(failure);
	if (failure)
		library->error_destroy(failure);
	bundle->begun = again && !late;
	return !bundle->begun;
}

/* All that were committed together with the one at fault. */
static void refuse_run(struct semel_kafka *kafka, const struct semel_kafka_slot *guilty)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	struct semel_kafka_chain rest = { 0 };
	char reason[160];
	snprintf(reason, sizeof(reason), "an event of its transaction was refused: %.110s",
		 bundle->reason);
	bundle->refused = guilty->metadata.transaction;
	bundle->refused_by = bundle->refusal;
	if (bundle->refused != 0 && bundle->refused == bundle->last)
		bundle->open = false; /* what comes of it is refused when it is offered */
	while (bundle->pending.first) {
		struct semel_kafka_slot *slot = take_first(&bundle->pending);
		if (is_together(guilty, slot))
			semel_kafka_answer(&kafka->window, slot, bundle->refusal,
					   slot == guilty ? bundle->reason : reason);
		else
			append(&rest, slot);
	}
	bundle->pending = rest;
}

/* What was sent is to be sent again, in its order, before what waits. */
static void take_back(struct semel_kafka *kafka)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	struct semel_kafka_slot *last = bundle->sent.last;
	uint64_t blamed = 0;
	for (struct semel_kafka_slot *slot = bundle->sent.first; slot; slot = slot->follower) {
		slot->state = SEMEL_KAFKA_QUEUED;
		blamed = slot->blamed ? slot->sequence : blamed;
		slot->blamed = false;
	}
	if (last && blamed == 0)
		blamed = last->sequence;
	if (last) {
		last->follower = bundle->pending.first;
		bundle->pending.first = bundle->sent.first;
		if (!bundle->pending.last)
			bundle->pending.last = last;
	}
	if (!kafka->careful || blamed > bundle->care_to)
		bundle->care_to = blamed;
	empty(bundle);
}

static semel_status start_anew(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	semel_kafka_producer_free(kafka);
	kafka->window.broken = false;
	take_back(kafka);
	if (!kafka->careful)
		kafka->window.too_large = false;
	if (bundle->refusal != SEMEL_OK)
		refuse_run(kafka, bundle->guilty);
	bundle->refusal = SEMEL_OK;
	bundle->guilty = NULL;
	kafka->careful = kafka->singly = true;
	bundle->phase = SEMEL_KAFKA_BUNDLE_STARTING;
	bundle->until_ms = semel_steady_ms(kafka->env) + PATIENT_MS;
	return semel_kafka_producer_make(kafka, error);
}

static semel_status go_on_starting(struct semel_kafka *kafka, semel_error *error)
{
	bool again = false;
	semel_status status =
		judge(kafka, kafka->library->init_transactions(kafka->producer, SLICE_MS),
		      "take transactions up", &again, error);
	if (status == SEMEL_OK)
		kafka->bundle.phase = SEMEL_KAFKA_BUNDLE_READY;
	return again && semel_steady_ms(kafka->env) < kafka->bundle.until_ms ? SEMEL_OK : status;
}

/* Those whose refused sibling is about to be reported: afterwards nobody would know. */
static void hold_siblings(struct semel_kafka *kafka)
{
	struct semel_kafka_chain rest = { 0 }, *pending = &kafka->bundle.pending;
	while (kafka->window.refused > 0 && pending->first) {
		struct semel_kafka_slot *slot = take_first(pending);
		if (semel_kafka_is_held(&kafka->window, slot))
			semel_kafka_hold(&kafka->window, slot);
		else
			append(&rest, slot);
	}
	if (rest.first)
		*pending = rest;
}

semel_status semel_kafka_bundle_step(struct semel_kafka *kafka, semel_error *error)
{
	struct semel_kafka_bundle *bundle = &kafka->bundle;
	semel_status status = SEMEL_OK;
	if (kafka->window.broken && bundle->phase == SEMEL_KAFKA_BUNDLE_READY)
		status = begin_abort(kafka, error);
	if (status == SEMEL_OK && bundle->phase == SEMEL_KAFKA_BUNDLE_ABORTING && is_aborted(kafka))
		status = start_anew(kafka, error);
	if (status == SEMEL_OK && bundle->phase == SEMEL_KAFKA_BUNDLE_STARTING)
		status = go_on_starting(kafka, error);
	if (status == SEMEL_OK)
		status = feed(kafka, error);
	if (status == SEMEL_OK)
		status = show(kafka, error);
	hold_siblings(kafka);
	return status;
}
