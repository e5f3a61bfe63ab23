/* SPDX-License-Identifier: Apache-2.0 */
/* The limit that the consumer is measured against: takes messages with librabbitmq, writes one row
 * for each with libpq, and nothing else: no claim, no order, no retry.
 *
 *     bare_consume HOST PORT QUEUE DATABASE STATEMENT EVENTS BATCH
 *
 * STATEMENT has $1 for the message id and $2 for the payload. A batch is one transaction, its
 * statements in pipeline mode, and one ack of all after the commit. Prints events per second. */
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <libpq-fe.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

#define CHANNEL 1

static void die(const char *what)
{
	fprintf(stderr, "bare_consume: %s failed\n", what);
	exit(1);
}

static void need(amqp_rpc_reply_t reply, const char *what)
{
	if (reply.reply_type != AMQP_RESPONSE_NORMAL)
		die(what);
}

static amqp_connection_state_t open_broker(const char *host, int port, const char *queue,
					   uint16_t prefetch)
{
	amqp_connection_state_t broker = amqp_new_connection();
	amqp_socket_t *socket = amqp_tcp_socket_new(broker);
	if (!socket || amqp_socket_open(socket, host, port) != AMQP_STATUS_OK)
		die("connecting");
	need(amqp_login(broker, "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest"),
	     "logging in");
	amqp_channel_open(broker, CHANNEL);
	need(amqp_get_rpc_reply(broker), "opening a channel");
	amqp_basic_qos(broker, CHANNEL, 0, prefetch, 0);
	need(amqp_get_rpc_reply(broker), "setting the prefetch");
	amqp_basic_consume(broker, CHANNEL, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0, 0,
			   amqp_empty_table);
	need(amqp_get_rpc_reply(broker), "consuming");
	return broker;
}

static PGconn *open_database(const char *url, const char *statement)
{
	PGconn *database = PQconnectdb(url);
	if (PQstatus(database) != CONNECTION_OK)
		die("connecting to the database");
	PGresult *result = PQprepare(database, "effect", statement, 0, NULL);
	if (PQresultStatus(result) != PGRES_COMMAND_OK || !PQenterPipelineMode(database))
		die("preparing the statement");
	PQclear(result);
	return database;
}

/* False: nothing has arrived, and wait is false. */
static int take(amqp_connection_state_t broker, amqp_envelope_t *envelope, int wait)
{
	struct timeval timeout = { .tv_sec = wait ? 30 : 0 };
	amqp_maybe_release_buffers(broker);
	amqp_rpc_reply_t reply = amqp_consume_message(broker, envelope, &timeout, 0);
	if (reply.reply_type == AMQP_RESPONSE_NORMAL)
		return 1;
	if (wait || reply.library_error != AMQP_STATUS_TIMEOUT)
		die("waiting for a message");
	return 0;
}

static void write_row(PGconn *database, const amqp_envelope_t *envelope)
{
	amqp_bytes_t id = envelope->message.properties.message_id, body = envelope->message.body;
	char name[64];
	snprintf(name, sizeof name, "%.*s", (int)id.len, (const char *)id.bytes);
	const char *values[] = { name, body.bytes };
	int lengths[] = { 0, (int)body.len }, formats[] = { 0, 1 };
	if (!PQsendQueryPrepared(database, "effect", 2, values, lengths, formats, 0))
		die("sending a row");
}

static void send_plain(PGconn *database, const char *sql)
{
	if (!PQsendQueryParams(database, sql, 0, NULL, NULL, NULL, NULL, 0))
		die(sql);
}

static void commit(PGconn *database)
{
	ExecStatusType status = PGRES_COMMAND_OK;
	send_plain(database, "COMMIT");
	if (!PQpipelineSync(database))
		die("committing");
	while (status != PGRES_PIPELINE_SYNC) {
		PGresult *result = PQgetResult(database);
		status = result ? PQresultStatus(result) : PGRES_COMMAND_OK;
		if (status != PGRES_COMMAND_OK && status != PGRES_PIPELINE_SYNC)
			die(PQerrorMessage(database));
		PQclear(result);
	}
}

/* How many; at most one batch. */
static uint64_t consume_batch(amqp_connection_state_t broker, PGconn *database, uint64_t most)
{
	amqp_envelope_t envelope;
	uint64_t count = 0, tag = 0;
	while (count < most && take(broker, &envelope, count == 0)) {
		if (count++ == 0)
			send_plain(database, "BEGIN");
		write_row(database, &envelope);
		tag = envelope.delivery_tag;
		amqp_destroy_envelope(&envelope);
	}
	commit(database);
	if (amqp_basic_ack(broker, CHANNEL, tag, 1) != AMQP_STATUS_OK)
		die("the ack");
	return count;
}

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int count, char **words)
{
	if (count != 8) {
		fprintf(stderr, "bare_consume HOST PORT QUEUE DATABASE STATEMENT EVENTS BATCH\n");
		return 64;
	}
	uint64_t events = strtoull(words[6], NULL, 10), batch = strtoull(words[7], NULL, 10);
	PGconn *database = open_database(words[4], words[5]);
	amqp_connection_state_t broker =
		open_broker(words[1], atoi(words[2]), words[3], (uint16_t)(batch * 2));
	double begin = now_s();
	for (uint64_t done = 0; done < events;)
		done += consume_batch(broker, database,
				      events - done < batch ? events - done : batch);
	printf("%.0f\n", (double)events / (now_s() - begin));
	amqp_connection_close(broker, AMQP_REPLY_SUCCESS);
	PQfinish(database);
	return 0;
}
