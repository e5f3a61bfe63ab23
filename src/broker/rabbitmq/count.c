/* SPDX-License-Identifier: Apache-2.0 */
/* How many messages are ready in a queue, counted while deliveries arrive. The library's own calls
 * read everything that the broker has sent before its answer, however much that is. So the request
 * is sent here, and the answer is found among the frames as they are taken; when the unacked list
 * is full before it has arrived, there is none (BUSY), and it is ignored when it arrives. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#define TIMEOUT_MS 30000
#define WAIT_MS    100

/* Requests on this channel without an answer. */
static uint32_t *pending_counts(struct semel_rabbit *rabbit, uint16_t channel)
{
	return channel < SEMEL_RABBIT_ASSIGNMENTS
		       ? &rabbit->count_request.pending
		       : &rabbit->assignments[channel - SEMEL_RABBIT_ASSIGNMENTS].counts_pending;
}

void semel_rabbit_count_received(struct semel_rabbit *rabbit, uint16_t channel,
				 const amqp_queue_declare_ok_t *ok)
{
	uint32_t *open = pending_counts(rabbit, channel);
	if (*open > 0)
		(*open)--;
	if (*open > 0 || rabbit->count_request.channel != channel)
		return;
	rabbit->count_request.channel = 0;
	rabbit->count_request.ready = ok->message_count;
	rabbit->count_request.consumers = ok->consumer_count;
}

void semel_rabbit_count_failed(struct semel_rabbit *rabbit, uint16_t channel, semel_status status,
			       const char *why)
{
	*pending_counts(rabbit, channel) = 0;
	if (rabbit->count_request.channel != channel)
		return;
	rabbit->count_request.channel = 0;
	rabbit->count_request.status =
		semel_error_set(&rabbit->count_request.why, status, "%s", why);
}

static semel_status send_request(struct semel_rabbit *rabbit, uint16_t channel, const char *queue,
				 semel_error *error)
{
	amqp_queue_declare_t passive = { .queue = semel_rabbit_string(queue), .passive = 1 };
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	int code = rabbit->library->send_method(rabbit->connection, channel,
						AMQP_QUEUE_DECLARE_METHOD, &passive);
	if (code != AMQP_STATUS_OK)
		return semel_rabbit_set_lost(rabbit, code, error);
	(*pending_counts(rabbit, channel))++;
	rabbit->count_request.channel = channel;
	rabbit->count_request.status = SEMEL_OK;
	return SEMEL_OK;
}

static semel_status await_answer(struct semel_rabbit *rabbit, semel_error *error)
{
	int64_t until_ms = semel_steady_ms(rabbit->env) + TIMEOUT_MS;
	while (rabbit->count_request.channel != 0) {
		if (semel_rabbit_unacked_list_is_full(rabbit))
			return SEMEL_BUSY;
		semel_status status = semel_rabbit_pump(rabbit, WAIT_MS, error);
		if (status != SEMEL_OK)
			return status;
		if (semel_steady_ms(rabbit->env) >= until_ms)
			return semel_rabbit_set_lost(rabbit, AMQP_STATUS_TIMEOUT, error);
	}
	return SEMEL_OK;
}

semel_status semel_rabbit_request_count(struct semel_rabbit *rabbit, uint16_t channel,
					const char *queue, semel_error *error)
{
	if (semel_rabbit_unacked_list_is_full(rabbit))
		return SEMEL_BUSY;
	semel_status status = send_request(rabbit, channel, queue, error);
	if (status != SEMEL_OK)
		return status;
	status = await_answer(rabbit, error);
	rabbit->count_request.channel = 0;
	semel_rabbit_signal_ready(rabbit);
	if (status != SEMEL_OK || rabbit->count_request.status == SEMEL_OK)
		return status;
	return semel_error_set(error, rabbit->count_request.status, "%s",
			       rabbit->count_request.why.text);
}

semel_status semel_rabbit_count(struct semel_rabbit *rabbit, const char *queue, uint64_t *ready_out,
				uint32_t *consumers_out, semel_error *error)
{
	semel_status status = semel_rabbit_open_channel(rabbit, SEMEL_RABBIT_CONTROL, error);
	if (status != SEMEL_OK)
		return status;
	status = semel_rabbit_request_count(rabbit, SEMEL_RABBIT_CONTROL, queue, error);
	if (status != SEMEL_OK)
		return status;
	*ready_out = rabbit->count_request.ready;
	if (consumers_out)
		*consumers_out = rabbit->count_request.consumers;
	return SEMEL_OK;
}
