/* SPDX-License-Identifier: Apache-2.0 */
/* Producers and consumers, and the state of the cluster.
 *
 * - The settings that the delivery guarantee depends on are made here, and no URL can override
 *   them: all replicas in sync, an idempotent producer that never leaves a gap, commits by us only.
 * - librdkafka handles short outages: it reconnects and sends unanswered records, once. Only when
 *   no broker has answered for a while does the caller get an OUTAGE, and opens the broker again.
 */
#include "base/error.h"
#include "broker/kafka/kafka.h"
#include "observe/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_MS 5000
#define DOWN_MS    5000
#define GRACE_MS   1500
#define ABORT_MS   2000
#define ERROR_SIZE 512

enum purpose { PRODUCER, GROUP_MEMBER, OBSERVER, RECORD_READER };

/* queue.buffering limits librdkafka's queue; our window is smaller. */
static const struct semel_kafka_setting producer_settings[] = {
	{ "acks", "all" },
	{ "enable.idempotence", "true" },
	{ "enable.gapless.guarantee", "true" },
	/* so that one batch follows a refused one, not four */
	{ "max.in.flight", "1" },
	{ "message.timeout.ms", "0" },
	{ "partitioner", "murmur2_random" },
	{ "queue.buffering.max.messages", "1000000" },
	{ "queue.buffering.max.kbytes", "1048576" },
	{ "linger.ms", "0" },
	{ "allow.auto.create.topics", "false" },
	{ "topic.metadata.propagation.max.ms", "5000" },
};

/* A transaction that does not end in time is aborted, so no record waits longer. */
static const struct semel_kafka_setting transaction_settings[] = {
	{ "enable.gapless.guarantee", "false" },
	{ "transaction.timeout.ms", "60000" },
	{ "message.timeout.ms", "60000" },
};

static const struct semel_kafka_setting consumer_settings[] = {
	{ "isolation.level", "read_committed" },
	{ "enable.auto.commit", "false" },
	{ "enable.auto.offset.store", "false" },
	{ "auto.offset.reset", "earliest" },
	{ "partition.assignment.strategy", "cooperative-sticky" },
	{ "enable.partition.eof", "true" },
	{ "session.timeout.ms", "6000" },
	{ "heartbeat.interval.ms", "1000" },
	{ "max.poll.interval.ms", "60000" },
	{ "queued.min.messages", "2000" },
	{ "queued.max.messages.kbytes", "2048" },
	{ "max.partition.fetch.bytes", "524288" },
	{ "fetch.error.backoff.ms", "100" },
};

/* One batch of each partition is enough for one record. It must not fill the queue: librdkafka
 * would wait a second before it fetches again, even from another offset. */
static const struct semel_kafka_setting reader_settings[] = {
	{ "max.partition.fetch.bytes", "1024" },
};

static const struct semel_kafka_setting common_settings[] = {
	{ "client.id", "semel" },
	{ "socket.nagle.disable", "true" },
	{ "reconnect.backoff.ms", "50" },
	{ "reconnect.backoff.max.ms", "1000" },
	{ "topic.metadata.refresh.interval.ms", "30000" }, /* so that new partitions are found */
	{ "topic.metadata.refresh.fast.interval.ms", "100" },
	{ "log.connection.close", "false" },
};

#define COUNT(settings) (sizeof(settings) / sizeof((settings)[0]))

/* ---- making ---------------------------------------------------------------------------------- */

static void write_log(const rd_kafka_t *client, int level, const char *facility, const char *text)
{
	(void)client;
	(void)level;
	(void)facility;
	semel_log(SEMEL_LOG_DEBUG, "message from librdkafka",
		  &(struct semel_log_fields){ .error = text });
}

static semel_status set(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
			const struct semel_kafka_setting *settings, size_t count,
			semel_error *error)
{
	char text[ERROR_SIZE];
	for (size_t i = 0; i < count; i++) {
		rd_kafka_conf_res_t result = kafka->library->conf_set(
			conf, settings[i].name, settings[i].value, text, sizeof(text));
		if (result != RD_KAFKA_CONF_OK)
			return semel_error_set(error, SEMEL_CONFIG, "the kafka: URL: %s: %s",
					       settings[i].name, text);
	}
	return SEMEL_OK;
}

static semel_status set_transactions(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
				     semel_error *error)
{
	const struct semel_kafka_setting name = { .name = "transactional.id",
						  .value = kafka->transaction.name };
	semel_status status = set(kafka, conf, &name, 1, error);
	if (status != SEMEL_OK)
		return status;
	return set(kafka, conf, transaction_settings, COUNT(transaction_settings), error);
}

/* Sets the batch sizes that earlier refusals require. */
static semel_status set_batches(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
				semel_error *error)
{
	char size[24];
	snprintf(size, sizeof(size), "%" PRIu64, kafka->batch_bytes);
	const struct semel_kafka_setting single = { "batch.num.messages", "1" };
	const struct semel_kafka_setting small = { "batch.size", size };
	if (kafka->single_record_batches) {
		semel_status status = set(kafka, conf, &single, 1, error);
		if (status != SEMEL_OK)
			return status;
	}
	return kafka->batch_bytes > 0 ? set(kafka, conf, &small, 1, error) : SEMEL_OK;
}

/* The URL's settings override ours; they cannot name those of the guarantee (settings.c). */
static semel_status set_forwarded(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
				  semel_error *error)
{
	return set(kafka, conf, kafka->settings.forwarded, kafka->settings.forwarded_count, error);
}

static semel_status configure_producer(struct semel_kafka *kafka, rd_kafka_conf_t *conf,
				       semel_error *error)
{
	semel_status status = set(kafka, conf, producer_settings, COUNT(producer_settings), error);
	if (status != SEMEL_OK)
		return status;
	if (kafka->transaction.name) {
		status = set_transactions(kafka, conf, error);
		if (status != SEMEL_OK)
			return status;
	}
	status = set_forwarded(kafka, conf, error);
	if (status != SEMEL_OK)
		return status;
	return set_batches(kafka, conf, error);
}

static semel_status configure_consumer(struct semel_kafka *kafka, enum purpose purpose,
				       rd_kafka_conf_t *conf, semel_error *error)
{
	semel_status status = set(kafka, conf, consumer_settings, COUNT(consumer_settings), error);
	if (status != SEMEL_OK)
		return status;
	status = set_forwarded(kafka, conf, error);
	if (status != SEMEL_OK || purpose != RECORD_READER)
		return status;
	return set(kafka, conf, reader_settings, COUNT(reader_settings), error);
}

static semel_status configure(struct semel_kafka *kafka, enum purpose purpose,
			      rd_kafka_conf_t *conf, semel_error *error)
{
	const struct semel_kafka_setting servers = { .name = "bootstrap.servers",
						     .value = kafka->settings.servers };
	semel_status status = set(kafka, conf, &servers, 1, error);
	if (status != SEMEL_OK)
		return status;
	status = set(kafka, conf, common_settings, COUNT(common_settings), error);
	if (status != SEMEL_OK)
		return status;
	return purpose == PRODUCER ? configure_producer(kafka, conf, error)
				   : configure_consumer(kafka, purpose, conf, error);
}

/* Consumes conf. */
static semel_status make(struct semel_kafka *kafka, enum purpose purpose, rd_kafka_conf_t *conf,
			 rd_kafka_t **client_out, semel_error *error)
{
	const struct semel_kafka_library *library = kafka->library;
	bool producing = purpose == PRODUCER;
	char text[ERROR_SIZE];
	semel_status status = configure(kafka, purpose, conf, error);
	if (status != SEMEL_OK)
		goto destroy_conf;
	library->conf_set_log_cb(conf, write_log);
	library->conf_set_events(conf, producing ? RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR
						 : RD_KAFKA_EVENT_REBALANCE | RD_KAFKA_EVENT_ERROR |
							   RD_KAFKA_EVENT_OFFSET_COMMIT);
	*client_out = library->new (producing ? RD_KAFKA_PRODUCER : RD_KAFKA_CONSUMER, conf, text,
				    sizeof(text));
	if (*client_out)
		return SEMEL_OK;
	status = semel_error_set(error, SEMEL_CONFIG, "the kafka: URL: %s", text);

destroy_conf:
	library->conf_destroy(conf);
	return status;
}

semel_status semel_kafka_producer_new(struct semel_kafka *kafka, semel_error *error)
{
	rd_kafka_conf_t *conf = kafka->library->conf_new();
	semel_status status = make(kafka, PRODUCER, conf, &kafka->producer, error);
	if (status != SEMEL_OK)
		return status;
	kafka->producer_queue = kafka->library->queue_get_main(kafka->producer);
	if (kafka->wake)
		semel_kafka_notify_on(kafka, kafka->producer_queue);
	return SEMEL_OK;
}

/* Without the abort, readers wait until the transaction times out. librdkafka aborts only when its
 * queue is empty. */
static void abort_transaction(struct semel_kafka *kafka)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + ABORT_MS;
	if (!kafka->transaction.begun || kafka->lost || kafka->fatal_status != SEMEL_OK)
		return;
	while (kafka->library->outq_len(kafka->producer) > 0 &&
	       semel_steady_ms(kafka->env) < until_ms)
		semel_kafka_producer_serve(kafka, 20);
	rd_kafka_error_t *failure = kafka->library->abort_transaction(kafka->producer, ABORT_MS);
	if (failure)
		kafka->library->error_destroy(failure);
}

void semel_kafka_producer_free(struct semel_kafka *kafka)
{
	const struct semel_kafka_library *library = kafka->library;
	if (!kafka->producer)
		return;
	library->purge(kafka->producer, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT);
	abort_transaction(kafka);
	for (size_t i = 0; i < kafka->topic_count; i++) {
		if (kafka->topics[i].handle)
			library->topic_destroy(kafka->topics[i].handle);
		kafka->topics[i].handle = NULL;
	}
	semel_kafka_first_reset(kafka);
	library->queue_destroy(kafka->producer_queue);
	library->destroy(kafka->producer);
	kafka->producer = NULL;
	kafka->producer_queue = NULL;
}

static semel_status make_consumer(struct semel_kafka *kafka, const char *group,
				  enum purpose purpose, rd_kafka_t **consumer_out,
				  semel_error *error)
{
	rd_kafka_conf_t *conf = kafka->library->conf_new();
	char *full = semel_kafka_full_name(kafka, group);
	const struct semel_kafka_setting name = { .name = "group.id", .value = full };
	semel_status status = full ? set(kafka, conf, &name, 1, error)
				   : semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	free(full);
	if (status != SEMEL_OK)
		goto destroy_conf;
	if (purpose == GROUP_MEMBER) {
		status = semel_kafka_group_join_watch(kafka, conf, error);
		if (status != SEMEL_OK)
			goto destroy_conf;
	}
	return make(kafka, purpose, conf, consumer_out, error);

destroy_conf:
	kafka->library->conf_destroy(conf);
	return status;
}

semel_status semel_kafka_consumer_new(struct semel_kafka *kafka, const char *group,
				      rd_kafka_t **consumer_out, semel_error *error)
{
	return make_consumer(kafka, group, GROUP_MEMBER, consumer_out, error);
}

semel_status semel_kafka_observer_new(struct semel_kafka *kafka, const char *group,
				      rd_kafka_t **observer_out, semel_error *error)
{
	return make_consumer(kafka, group, OBSERVER, observer_out, error);
}

/* The reader uses the group's name, because the user has rights on it, but does not join the
 * group. */
semel_status semel_kafka_record_reader_new(struct semel_kafka *kafka, rd_kafka_t **reader_out,
					   semel_error *error)
{
	return make_consumer(kafka, kafka->scope, RECORD_READER, reader_out, error);
}

void semel_kafka_notify_on(struct semel_kafka *kafka, rd_kafka_queue_t *queue)
{
	static const uint64_t one = 1;
	kafka->library->queue_io_event_enable(queue, kafka->event_fd, &one, sizeof(one));
}

void semel_kafka_notify_off(struct semel_kafka *kafka, rd_kafka_queue_t *queue)
{
	kafka->library->queue_io_event_enable(queue, -1, NULL, 0);
}

/* ---- the cluster ----------------------------------------------------------------------------- */

static bool is_access_error(rd_kafka_resp_err_t err)
{
	return err == RD_KAFKA_RESP_ERR__AUTHENTICATION || err == RD_KAFKA_RESP_ERR__SSL ||
	       err == RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED ||
	       err == RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED ||
	       err == RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED ||
	       err == RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED;
}

static void set_fatal(struct semel_kafka *kafka, semel_status status, const char *text)
{
	if (kafka->fatal_status != SEMEL_OK)
		return;
	kafka->fatal_status = status;
	snprintf(kafka->fatal_text, sizeof(kafka->fatal_text), "%s", text);
}

/* librdkafka stops at a gap because an event was refused: publish.c handles that. */
static void handle_fatal(struct semel_kafka *kafka, rd_kafka_t *client)
{
	char text[ERROR_SIZE] = "";
	rd_kafka_resp_err_t err = kafka->library->fatal_error(client, text, sizeof(text));
	if (err == RD_KAFKA_RESP_ERR__GAPLESS_GUARANTEE)
		kafka->window.broken = true;
	else
		set_fatal(kafka, is_access_error(err) ? SEMEL_CONFIG : SEMEL_OUTAGE, text);
}

/* Once access has been granted, such an error is an outage, and so is a connection that breaks
 * during the handshake: a restarting broker causes both. */
static bool is_access_denied(const struct semel_kafka *kafka, rd_kafka_resp_err_t err,
			     const char *text)
{
	if (kafka->authenticated)
		return false;
	return err == RD_KAFKA_RESP_ERR__SSL ? strstr(text, "verify") != NULL
					     : is_access_error(err);
}

/* "host:port/bootstrap: Failed to resolve … (after 2ms in state CONNECT)", without host and time.
 */
static void add_connection_error(struct semel_kafka *kafka, const char *text)
{
	const char *begin = strstr(text, ": "), *end = strstr(text, " (after ");
	char text_of_error[ERROR_SIZE];
	size_t used = strlen(kafka->connection_errors);
	begin = begin ? begin + 2 : text;
	int length = (int)(end && end > begin ? (size_t)(end - begin) : strlen(begin));
	snprintf(text_of_error, sizeof(text_of_error), "%.*s", length, begin);
	if (!strstr(kafka->connection_errors, text_of_error))
		snprintf(kafka->connection_errors + used, sizeof(kafka->connection_errors) - used,
			 "%s%s", used > 0 ? "; " : "", text_of_error);
}

/* The cause of an error that only says that no broker answers. */
static const char *reason_of(const struct semel_kafka *kafka, rd_kafka_resp_err_t err)
{
	return kafka->connection_errors[0] ? kafka->connection_errors
					   : kafka->library->err2str(err);
}

static void clear_connection_errors(struct semel_kafka *kafka)
{
	kafka->down_since_ms = 0;
	kafka->connection_errors[0] = '\0';
}

void semel_kafka_handle_error(struct semel_kafka *kafka, rd_kafka_t *client,
			      rd_kafka_event_t *event)
{
	const struct semel_kafka_library *library = kafka->library;
	rd_kafka_resp_err_t err = library->event_error(event);
	const char *text = library->event_error_string(event);
	semel_log(SEMEL_LOG_DEBUG, "librdkafka reported an error",
		  &(struct semel_log_fields){ .error = text });
	if (err == RD_KAFKA_RESP_ERR__RESOLVE || err == RD_KAFKA_RESP_ERR__TRANSPORT ||
	    err == RD_KAFKA_RESP_ERR__SSL)
		add_connection_error(kafka, text);
	if (library->event_error_is_fatal(event) || err == RD_KAFKA_RESP_ERR__FATAL)
		handle_fatal(kafka, client);
	else if (is_access_denied(kafka, err, text))
		set_fatal(kafka, SEMEL_CONFIG, text);
	else if (kafka->down_since_ms == 0 &&
		 (err == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN || is_access_error(err)))
		kafka->down_since_ms = semel_steady_ms(kafka->env);
}

static rd_kafka_resp_err_t ping(struct semel_kafka *kafka, int wait_ms)
{
	const struct rd_kafka_metadata *metadata = NULL;
	rd_kafka_resp_err_t err =
		kafka->library->metadata(kafka->producer, 0, NULL, &metadata, wait_ms);
	if (metadata)
		kafka->library->metadata_destroy(metadata);
	return err;
}

/* The error when the broker has to be opened again. */
static semel_status set_fatal_error(struct semel_kafka *kafka, semel_error *error)
{
	kafka->lost = true;
	if (kafka->fatal_status == SEMEL_CONFIG)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"%s denies access: %s (check security.protocol, "
			"sasl.username, the password, ssl.ca.location and the user's "
			"rights)",
			kafka->address, kafka->fatal_text);
	return semel_error_set(error, kafka->fatal_status, "%s: %s", kafka->address,
			       kafka->fatal_text);
}

semel_status semel_kafka_check_health(struct semel_kafka *kafka, semel_error *error)
{
	if (kafka->fatal_status != SEMEL_OK)
		return set_fatal_error(kafka, error);
	if (kafka->lost)
		return semel_error_set(error, SEMEL_OUTAGE, "lost the connection to %s",
				       kafka->address);
	if (kafka->down_since_ms == 0 ||
	    semel_steady_ms(kafka->env) - kafka->down_since_ms < DOWN_MS)
		return SEMEL_OK;
	rd_kafka_resp_err_t err = ping(kafka, 500);
	kafka->down_since_ms = 0;
	if (err == RD_KAFKA_RESP_ERR_NO_ERROR) {
		clear_connection_errors(kafka);
		return SEMEL_OK;
	}
	kafka->lost = true;
	return semel_error_set(error, SEMEL_OUTAGE,
			       "no broker of %s answers: %s (is Kafka running there?)",
			       kafka->address, reason_of(kafka, err));
}

/* Waits a while after the first failure: a name may have several addresses, the first of which does
 * not answer. */
static bool is_timed_out(const struct semel_kafka *kafka, int64_t until_ms)
{
	int64_t now_ms = semel_steady_ms(kafka->env);
	return now_ms >= until_ms ||
	       (kafka->down_since_ms > 0 && now_ms - kafka->down_since_ms >= GRACE_MS);
}

semel_status semel_kafka_connect(struct semel_kafka *kafka, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(kafka->env) + CONNECT_MS;
	rd_kafka_resp_err_t err;
	do {
		err = ping(kafka, 300);
		if (err == RD_KAFKA_RESP_ERR_NO_ERROR) {
			clear_connection_errors(kafka);
			kafka->authenticated = true;
			return SEMEL_OK;
		}
		semel_kafka_producer_serve(kafka, 0);
		if (kafka->fatal_status != SEMEL_OK)
			return set_fatal_error(kafka, error);
	} while (!is_timed_out(kafka, until_ms));
	kafka->lost = true;
	return semel_error_set(error, SEMEL_OUTAGE, "cannot reach %s: %s (is Kafka running there?)",
			       kafka->address, reason_of(kafka, err));
}

semel_status semel_kafka_call_failed(struct semel_kafka *kafka, rd_kafka_resp_err_t err,
				     const char *what, semel_error *error)
{
	bool access = is_access_error(err) || err == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
	/* librdkafka reports an unreachable cluster by many errors, none of which says so. */
	if (err < 0 && semel_kafka_is_transient(err) && kafka->producer) {
		rd_kafka_resp_err_t now = ping(kafka, 300);
		if (now)
			return semel_error_set(error, SEMEL_OUTAGE,
					       "cannot %s: no broker of %s answers: %s (is Kafka "
					       "running there?)",
					       what, kafka->address, reason_of(kafka, now));
	}
	const char *advice = "(try: semel doctor)";
	if (access)
		advice = "(give the user this right, or use another user)";
	else if (semel_kafka_is_transient(err))
		advice = "(a cluster answers this while it restarts: try again; if it "
			 "persists, check the brokers' logs)";
	return semel_error_set(error, access ? SEMEL_CONFIG : SEMEL_OUTAGE,
			       "cannot %s at %s: %s %s", what, kafka->address,
			       kafka->library->err2str(err), advice);
}
