/* SPDX-License-Identifier: Apache-2.0 */
/* How much is ready in a queue, asked while deliveries come. The library's own calls read all that
 * the broker has sent before its answer, however much that is. So the question is sent, and the
 * answer is found among the frames as they are taken; when the stage is full before it has come,
 * there is none (BUSY), and it is passed over when it comes. */
#include "base/error.h"
#include "broker/rabbitmq/rabbitmq.h"

#define PATIENCE_MS 30000
#define WAIT_MS     100

/* Questions on this channel without an answer. */
static uint32_t *open_questions(struct semel_rabbit *rabbit, uint16_t channel)
{
	return channel < SEMEL_RABBIT_SHARES
		       ? &rabbit->question.open
		       : &rabbit->shares[channel - SEMEL_RABBIT_SHARES].questions;
}

void semel_rabbit_answered(struct semel_rabbit *rabbit, uint16_t channel,
			   const amqp_queue_declare_ok_t *ok)
{
	uint32_t *open = open_questions(rabbit, channel);
	if (*open > 0)
		(*open)--;
	if (*open > 0 || rabbit->question.channel != channel)
		return;
	rabbit->question.channel = 0;
	rabbit->question.ready = ok->message_count;
	rabbit->question.consumers = ok->consumer_count;
}

void semel_rabbit_not_answered(struct semel_rabbit *rabbit, uint16_t channel, semel_status status,
			       const char *why)
{
	*open_questions(rabbit, channel) = 0;
	if (rabbit->question.channel != channel)
		return;
	rabbit->question.channel = 0;
	rabbit->question.status = semel_error_set(&rabbit->question.why, status, "%s", why);
}

semel_status semel_rabbit_ask(struct semel_rabbit *rabbit, uint16_t channel, const char *queue,
			      semel_error *error)
{
	amqp_queue_declare_t passive = { .queue = semel_rabbit_string(queue), .passive = 1 };
	int64_t until_ms = semel_steady_ms(rabbit->env) + PATIENCE_MS;
	if (semel_rabbit_stage_is_full(rabbit))
		return SEMEL_BUSY;
	semel_status status = semel_rabbit_call_begin(rabbit, error);
	if (status != SEMEL_OK)
		return status;
	int code = rabbit->library->send_method(rabbit->connection, channel,
						AMQP_QUEUE_DECLARE_METHOD, &passive);
	if (code != AMQP_STATUS_OK)
		return semel_rabbit_lost(rabbit, code, error);
	(*open_questions(rabbit, channel))++;
	rabbit->question.channel = channel;
	rabbit->question.status = SEMEL_OK;
	while (status == SEMEL_OK && rabbit->question.channel != 0 &&
	       !semel_rabbit_stage_is_full(rabbit)) {
		status = semel_rabbit_pump(rabbit, WAIT_MS, error);
		if (status == SEMEL_OK && semel_steady_ms(rabbit->env) >= until_ms)
			status = semel_rabbit_lost(rabbit, AMQP_STATUS_TIMEOUT, error);
	}
	bool answered = rabbit->question.channel == 0;
	rabbit->question.channel = 0;
	semel_rabbit_ring(rabbit);
	if (status != SEMEL_OK || !answered)
		return status != SEMEL_OK ? status : SEMEL_BUSY;
	return rabbit->question.status == SEMEL_OK
		       ? SEMEL_OK
		       : semel_error_set(error, rabbit->question.status, "%s",
					 rabbit->question.why.text);
}
