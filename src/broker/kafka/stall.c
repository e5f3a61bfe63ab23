/* SPDX-License-Identifier: Apache-2.0 */
/* A partition that accepts nothing must not stop the others: it has no leader, too few replicas in
 * sync, or its broker is unreachable, while other brokers of the cluster answer.
 *
 * - Once a second the oldest unanswered event is determined for every partition. When it stays the
 *   same for a while, the cluster is asked for the partition's leader.
 * - The partition is stalled when it has no leader in two checks, or does not answer for a while
 *   during which others do, or for longer during which the cluster answers metadata requests. When
 *   no broker answers, it is an outage.
 * - librdkafka still has the partition's events, and could send them at any time: so a new producer
 *   replaces the old one (resend.c), and these events are finished as STALLED, later ones of their
 *   aggregates as HELD.
 * - From then on the partition's events are finished so at once, except for a probe, which is sent
 *   when there is a leader and a pause that grows is over. Any answer of the partition ends the
 *   stall.
 * - A transaction waits: it becomes visible as a whole, or not at all.
 */
#include "broker/kafka/kafka.h"
#include "observe/log.h"
#include "observe/metrics.h"

#include <stdio.h>
#include <string.h>

#define CHECK_MS      1000
#define STUCK_MS      2500  /* then the cluster is queried */
#define LEADERLESS_MS 5000  /* without a leader */
#define SILENT_MS     12000 /* without an answer while others answer */
#define NO_ANSWER_MS  20000 /* without an answer while the cluster answers metadata requests */
#define METADATA_MS   300
#define PROBE_MS      5000 /* for an answer to a probe */
#define PAUSE_MIN_MS  2000 /* before the next probe */
#define PAUSE_MAX_MS  60000

static struct semel_kafka_partition *partition_of(const struct semel_kafka *kafka,
						  const struct semel_kafka_inflight *inflight)
{
	return inflight->partition < 0
		       ? NULL
		       : &kafka->topics[inflight->topic].partition_states[inflight->partition];
}

bool semel_kafka_is_stalled(const struct semel_kafka *kafka,
			    const struct semel_kafka_inflight *inflight)
{
	const struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	return partition && partition->stalled_ms > 0;
}

static void set_stalled_metric(const struct semel_kafka_topic *topic, int32_t number, bool stalled)
{
	char text[16];
	snprintf(text, sizeof(text), "%d", (int)number);
	semel_series_set(semel_series(SEMEL_METRIC_PARTITION_STALLED, topic->name, text), stalled);
}

/* ---- events of a stalled partition ------------------------------------------- */

bool semel_kafka_finish_stalled(struct semel_kafka *kafka, struct semel_kafka_inflight *inflight)
{
	const struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	char reason[160];
	if (!partition || partition->stalled_ms == 0)
		return false;
	if (semel_kafka_is_held(&kafka->window, inflight)) {
		semel_kafka_hold(&kafka->window, inflight);
		return true;
	}
	snprintf(reason, sizeof(reason), "partition %d of topic %.80s accepts nothing: %s",
		 (int)inflight->partition, kafka->topics[inflight->topic].name,
		 partition->leaderless > 0 ? "it has no leader" : "it does not answer");
	semel_kafka_finish(&kafka->window, inflight, SEMEL_STALLED, reason);
	return true;
}

bool semel_kafka_can_probe(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	int64_t now_ms = semel_steady_ms(kafka->env);
	if (partition->probing && partition->first)
		return semel_event_has_same_aggregate(partition->first->event, inflight->event);
	if (partition->leaderless > 0 || now_ms < partition->probe_ms)
		return false;
	partition->probing = true;
	partition->probe_ms = now_ms + PROBE_MS;
	return true;
}

void semel_kafka_end_stall(struct semel_kafka *kafka, const struct semel_kafka_inflight *inflight)
{
	struct semel_kafka_partition *partition = partition_of(kafka, inflight);
	if (!partition || partition->stalled_ms == 0)
		return;
	partition->stalled_ms = 0;
	partition->probe_count = 0;
	partition->probing = false;
	set_stalled_metric(&kafka->topics[inflight->topic], inflight->partition, false);
	semel_log(SEMEL_LOG_INFO, "partition accepts events again",
		  &(struct semel_log_fields){ .topic = kafka->topics[inflight->topic].name,
					      .partition = inflight->partition,
					      .offset = -1,
					      .has_position = true });
}

/* ---- checking -------------------------------------------------------------------------------- */

static void find_oldest(struct semel_kafka *kafka)
{
	const struct semel_kafka_window *window = &kafka->window;
	for (size_t i = 0; i < kafka->topic_count; i++)
		for (uint32_t j = 0; j < kafka->topics[i].partition_state_count; j++)
			kafka->topics[i].partition_states[j].oldest = 0;
	for (uint32_t i = 0; i < window->size; i++) {
		const struct semel_kafka_inflight *inflight = &window->inflight[i];
		if (inflight->state != SEMEL_KAFKA_SENT || inflight->partition < 0)
			continue;
		struct semel_kafka_partition *partition = partition_of(kafka, inflight);
		if (partition->oldest == 0 || inflight->sequence < partition->oldest)
			partition->oldest = inflight->sequence;
	}
}

/* How long the same event has been the oldest unanswered one. */
static int64_t stuck_for(const struct semel_kafka_partition *partition, int64_t now_ms)
{
	return partition->stuck == 0 ? 0 : now_ms - partition->stuck_ms;
}

/* True: the cluster should be asked for its leader. */
static bool update_stuck(struct semel_kafka_partition *partition, int64_t now_ms)
{
	if (partition->oldest != partition->stuck) {
		partition->stuck = partition->oldest;
		partition->stuck_ms = now_ms;
	}
	if (partition->stalled_ms > 0)
		return true;
	if (stuck_for(partition, now_ms) < STUCK_MS)
		partition->leaderless = 0;
	return stuck_for(partition, now_ms) >= STUCK_MS;
}

/* Makes the producer's handles of the topics to ask for. */
static bool is_any_stuck(struct semel_kafka *kafka, int64_t now_ms, int64_t *taken_ms_out)
{
	bool any = false;
	*taken_ms_out = 0;
	for (size_t i = 0; i < kafka->topic_count; i++) {
		struct semel_kafka_topic *topic = &kafka->topics[i];
		bool ask = false;
		for (uint32_t j = 0; j < topic->partition_state_count; j++) {
			ask = update_stuck(&topic->partition_states[j], now_ms) || ask;
			if (topic->partition_states[j].accepted &&
			    topic->partition_states[j].accepted_ms > *taken_ms_out)
				*taken_ms_out = topic->partition_states[j].accepted_ms;
		}
		any = (ask && semel_kafka_topic_handle(kafka, topic)) || any;
	}
	return any;
}

/* ---- stalling -------------------------------------------------------------------------------- */

static void mark_stalled(struct semel_kafka *kafka, const struct semel_kafka_topic *topic,
			 uint32_t number, int64_t now_ms)
{
	struct semel_kafka_partition *partition = &topic->partition_states[number];
	bool first = partition->stalled_ms == 0;
	int64_t pause_ms = PAUSE_MIN_MS;
	if (first)
		partition->stalled_ms = now_ms;
	else
		partition->probe_count++;
	for (uint32_t i = 0; i < partition->probe_count && pause_ms < PAUSE_MAX_MS; i++)
		pause_ms *= 2;
	partition->probing = false;
	partition->probe_ms = now_ms + (pause_ms < PAUSE_MAX_MS ? pause_ms : PAUSE_MAX_MS);
	kafka->resend.stalled = true;
	set_stalled_metric(topic, (int32_t)number, true);
	semel_log(first ? SEMEL_LOG_WARN : SEMEL_LOG_DEBUG, "partition stalled, its events wait",
		  &(struct semel_log_fields){ .topic = topic->name,
					      .partition = (int32_t)number,
					      .offset = -1,
					      .has_position = true,
					      .error = partition->leaderless > 0
							       ? "it has no leader (start its "
								 "broker; try: semel doctor)"
							       : "it does not answer (are enough "
								 "replicas in sync? try: semel "
								 "doctor)" });
}

static bool has_stalled(const struct semel_kafka_partition *partition, int64_t now_ms,
			int64_t accepted_ms)
{
	int64_t stuck_ms = stuck_for(partition, now_ms);
	if (partition->stalled_ms > 0)
		return partition->probing && partition->first && now_ms >= partition->probe_ms;
	if (partition->leaderless > 1)
		return stuck_ms >= LEADERLESS_MS;
	return stuck_ms >=
	       (accepted_ms > partition->stuck_ms + CHECK_MS ? SILENT_MS : NO_ANSWER_MS);
}

static void check_topic(struct semel_kafka *kafka, struct semel_kafka_topic *topic,
			const struct rd_kafka_metadata_topic *answer, int64_t accepted_ms)
{
	int64_t now_ms = semel_steady_ms(kafka->env);
	for (int i = 0; i < answer->partition_cnt; i++) {
		int32_t number = answer->partitions[i].id;
		if (number < 0 || (uint32_t)number >= topic->partition_state_count)
			continue;
		struct semel_kafka_partition *partition = &topic->partition_states[number];
		partition->leaderless =
			answer->partitions[i].leader < 0 ? partition->leaderless + 1 : 0;
		if (has_stalled(partition, now_ms, accepted_ms))
			mark_stalled(kafka, topic, (uint32_t)number, now_ms);
	}
}

/* The topic was deleted, so its stalls have ended. */
static void forget_topic(struct semel_kafka_topic *topic)
{
	topic->partitions = 0;
	for (uint32_t i = 0; i < topic->partition_state_count; i++) {
		if (topic->partition_states[i].stalled_ms > 0)
			set_stalled_metric(topic, (int32_t)i, false);
		topic->partition_states[i].stalled_ms = 0;
	}
}

static void check_all(struct semel_kafka *kafka, const struct rd_kafka_metadata *metadata,
		      int64_t accepted_ms)
{
	for (int i = 0; i < metadata->topic_cnt; i++)
		for (size_t j = 0; j < kafka->topic_count; j++) {
			struct semel_kafka_topic *topic = &kafka->topics[j];
			const struct rd_kafka_metadata_topic *answer = &metadata->topics[i];
			if (strcmp(answer->topic, topic->full) != 0)
				continue;
			if (answer->err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
				forget_topic(topic);
			else if (!answer->err)
				check_topic(kafka, topic, answer, accepted_ms);
		}
}

void semel_kafka_check_stalls(struct semel_kafka *kafka)
{
	const struct rd_kafka_metadata *metadata = NULL;
	int64_t now_ms = semel_steady_ms(kafka->env), accepted_ms = 0;
	kafka->window.stall_check_ms = now_ms + CHECK_MS;
	if (kafka->transaction.name || kafka->resend.state == SEMEL_KAFKA_RESEND_DRAINING)
		return;
	find_oldest(kafka);
	if (!is_any_stuck(kafka, now_ms, &accepted_ms))
		return;
	rd_kafka_resp_err_t err =
		kafka->library->metadata(kafka->producer, 0, NULL, &metadata, METADATA_MS);
	if (!err && metadata->broker_cnt > 0)
		check_all(kafka, metadata, accepted_ms);
	if (metadata)
		kafka->library->metadata_destroy(metadata);
}
