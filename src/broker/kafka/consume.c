/* SPDX-License-Identifier: Apache-2.0 */
/* Fetching and settling.
 *
 * - Not more than prefetch deliveries are in the caller's hands. What librdkafka has read ahead
 *   waits in its queues, which are bounded; it stops reading when they are full.
 * - A record of a retry topic is kept back until it is due, and all behind it.
 * - A delivery's tag names its share (32 bits) and the assignment (32).
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <unistd.h>

#define CHUNK 256

static uint64_t own_tag(uint32_t at, uint32_t epoch)
{
	return (uint64_t)at << 32 | epoch;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The end of a partition lies behind control records that nobody is handed. */
static bool note_end(struct semel_kafka_share *share, int64_t offset)
{
	if (offset <= share->next_offset)
		return true;
	if (!semel_kafka_share_add(share, NULL, offset - 1))
		return false;
	semel_kafka_share_advance(share);
	return true;
}

/* The retry topics of two subscriptions may have one name (a.b and c, a and b.c); whose a record is
 * stands in it. */
static bool is_of_another_scope(const struct semel_kafka *kafka,
				const struct semel_kafka_share *share,
				const rd_kafka_message_t *message)
{
	struct semel_text scope = { NULL, 0 };
	if (share->tier > 0)
		scope = semel_kafka_header(kafka, message, "semel-retry-scope");
	return scope.data && !semel_text_equal(scope, semel_text_of(kafka->scope));
}

/* librdkafka goes back to the beginning when the log ends before the offset that it reads at: it
 * was made anew, or has lost its end. */
static bool has_gone_back(const struct semel_kafka_share *share, const rd_kafka_message_t *message)
{
	return (!message->err || message->err == RD_KAFKA_RESP_ERR__PARTITION_EOF) &&
	       message->offset < share->next_offset;
}

static semel_status take_message(struct semel_kafka *kafka, struct semel_kafka_share *share,
				 rd_kafka_message_t *message, semel_error *error)
{
	rd_kafka_resp_err_t err = message->err;
	bool kept = true;
	if (has_gone_back(share, message)) {
		kafka->library->message_destroy(message);
		return semel_kafka_anchor_lost(kafka, share,
					       "the topic ends before the offset of this scope: it "
					       "was made anew or has lost its end, and is read "
					       "from its beginning",
					       error);
	}
	if (!err && is_of_another_scope(kafka, share, message)) {
		kept = note_end(share, message->offset + 1);
	} else if (!err) {
		kept = semel_kafka_share_add(share, message, message->offset);
		if (kept)
			return SEMEL_OK;
	} else if (err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
		kept = note_end(share, message->offset);
	} else {
		semel_kafka_anchor_doubt(kafka);
		semel_logf(SEMEL_LOG_DEBUG, "kafka: %s [%d]: %s", share->topic, share->partition,
			   kafka->library->message_errstr(message));
	}
	kafka->library->message_destroy(message);
	if (err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
		return semel_kafka_failed(kafka, err, "read a topic", error);
	return kept ? SEMEL_OK : semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
}

/* Up to count more records of the share. */
static semel_status read_on(struct semel_kafka *kafka, struct semel_kafka_share *share,
			    uint32_t count, semel_error *error)
{
	rd_kafka_message_t *messages[CHUNK];
	semel_status status = SEMEL_OK;
	ssize_t got = kafka->library->consume_batch_queue(share->queue, 0, messages,
							  count < CHUNK ? count : CHUNK);
	for (ssize_t i = 0; i < got; i++) {
		if (status == SEMEL_OK)
			status = take_message(kafka, share, messages[i], error);
		else
			kafka->library->message_destroy(messages[i]);
	}
	return status;
}

/* The next flight that may be handed out; NULL: none. */
static struct semel_kafka_flight *next_flight(struct semel_kafka_share *share)
{
	while (share->next < share->length) {
		struct semel_kafka_flight *flight = &share->flights[share->start + share->next];
		if (flight->message && !flight->out)
			return flight;
		share->next++;
	}
	return NULL;
}

static bool is_due(struct semel_kafka *kafka, struct semel_kafka_share *share,
		   const struct semel_kafka_flight *flight)
{
	if (share->tier == 0)
		return true;
	share->due_ms = semel_kafka_due_of(kafka, flight->message);
	return share->due_ms <= semel_now_ms(kafka->env);
}

/* ---- fetching -------------------------------------------------------------------------------- */

struct catch
{
	struct semel_arena *arena;
	struct semel_delivery *deliveries;
	uint32_t count, max;
	uint64_t room; /* bytes; the first one is taken whatever it has */
};

static semel_status hand_out(struct semel_kafka *kafka, struct semel_kafka_share *share,
			     struct catch *catch, semel_error *error)
{
	struct semel_kafka_flight *flight;
	while (catch->count<catch->max &&catch->room> 0 && (flight = next_flight(share)) != NULL &&
	       is_due(kafka, share, flight)) {
		struct semel_delivery *delivery = &catch->deliveries[catch->count];
		if (!semel_kafka_read(kafka, share, flight->message, catch->arena, delivery))
			return semel_error_set(error, SEMEL_INTERNAL, "no memory for a delivery");
		delivery->redelivered = flight->redelivered;
		delivery->offset_in_store = kafka->offset_store && share->tier == 0;
		delivery->tag = own_tag((uint32_t)(share - kafka->shares), share->epoch);
		flight->out = true;
		share->out++;
		share->next++;
		share->due_ms = 0;
		uint64_t bytes = semel_kafka_flight_bytes(flight);
		share->out_bytes += bytes;
		catch->count++;
		catch->room -= bytes < catch->room ? bytes : catch->room;
	}
	return SEMEL_OK;
}

/* One at a time of a retry topic: what is not due stays at the broker. */
static semel_status fetch_share(struct semel_kafka *kafka, struct semel_kafka_share *share,
				struct catch *catch, semel_error *error)
{
	semel_status status = hand_out(kafka, share, catch, error);
	if (status != SEMEL_OK || catch->count == catch->max || catch->room == 0 ||
	    next_flight(share))
		return status;
	status = read_on(kafka, share, share->tier > 0 ? 1 : catch->max - catch->count, error);
	return status == SEMEL_OK ? hand_out(kafka, share, catch, error) : status;
}

static uint32_t count_out(const struct semel_kafka *kafka, uint64_t *bytes_out)
{
	uint32_t count = 0;
	for (uint32_t i = 0; i < kafka->share_count; i++) {
		count += kafka->shares[i].out;
		*bytes_out += kafka->shares[i].out_bytes;
	}
	return count;
}

static uint64_t room_for_bytes(const struct semel_kafka *kafka, uint64_t out)
{
	return out < kafka->prefetch_bytes ? kafka->prefetch_bytes - out : 0;
}

/* Shares take turns to be the first. */
static semel_status fetch_all(struct semel_kafka *kafka, struct catch *catch, semel_error *error)
{
	semel_status status = SEMEL_OK;
	uint32_t before;
	do {
		before = catch->count;
		for (uint32_t i = 0; i < kafka->share_count && status == SEMEL_OK; i++) {
			uint32_t at = (kafka->share_next + i) % kafka->share_count;
			struct semel_kafka_share *share = &kafka->shares[at];
			if (share->held && !share->leaving && !share->unproven &&
			    catch->count < catch->max)
				status = fetch_share(kafka, share, catch, error);
		}
		kafka->share_next++;
	} while (status == SEMEL_OK && catch->count > before &&
		 catch->count<catch->max &&catch->room> 0);
	return status;
}

static void quieten(const struct semel_kafka *kafka)
{
	uint64_t rung;
	if (kafka->wake && read(kafka->bell_fd, &rung, sizeof(rung)) < 0)
		return; /* nobody rang */
}

semel_status semel_kafka_fetch(struct semel_broker *broker, uint32_t max, struct semel_arena *arena,
			       struct semel_delivery *deliveries_out, uint32_t *count_out_,
			       semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	*count_out_ = 0;
	if (!kafka->consumer_queue)
		return semel_error_set(error, SEMEL_INVALID, "nothing is subscribed");
	quieten(kafka);
	semel_kafka_producer_serve(kafka, 0);
	semel_status status = semel_kafka_group_serve(kafka, error);
	if (status == SEMEL_OK)
		status = semel_kafka_anchor_check(kafka, error);
	if (status != SEMEL_OK)
		return status;
	uint64_t out_bytes = 0;
	uint32_t out = count_out(kafka, &out_bytes);
	uint32_t room = out < kafka->prefetch ? kafka->prefetch - out : 0;
	struct catch catch = { .arena = arena,
			       .deliveries = deliveries_out,
			       .max = room < max ? room : max,
			       .room = room_for_bytes(kafka, out_bytes) };
	if (catch.max > 0 && catch.room > 0)
		status = fetch_all(kafka, &catch, error);
	*count_out_ = status == SEMEL_OK ? catch.count : 0;
	semel_kafka_group_commit(kafka, catch.count == 0);
	return status;
}

/* ---- settling -------------------------------------------------------------------------------- */

semel_status semel_kafka_ack(struct semel_broker *broker, const struct semel_delivery *deliveries,
			     size_t count, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	bool late = false;
	for (size_t i = 0; i < count; i++) {
		uint32_t at = (uint32_t)(deliveries[i].tag >> 32);
		if (at < kafka->share_count && kafka->shares[at].held &&
		    kafka->shares[at].epoch == (uint32_t)deliveries[i].tag)
			(void)semel_kafka_share_ack(kafka, &kafka->shares[at],
						    deliveries[i].offset);
		else
			late = true;
	}
	for (uint32_t i = 0; i < kafka->share_count; i++)
		if (kafka->shares[i].held)
			semel_kafka_share_advance(&kafka->shares[i]);
	semel_kafka_group_commit(kafka, false);
	if (late)
		return semel_error_set(error, SEMEL_LEASE_LOST,
				       "partitions had moved on before their events were acked; "
				       "they come again elsewhere");
	return SEMEL_OK;
}

semel_status semel_kafka_rewind(struct semel_broker *broker, semel_error *error)
{
	struct semel_kafka *kafka = semel_kafka_of(broker);
	(void)error;
	for (uint32_t i = 0; i < kafka->share_count; i++)
		if (kafka->shares[i].held)
			semel_kafka_share_rewind(&kafka->shares[i]);
	return SEMEL_OK;
}
