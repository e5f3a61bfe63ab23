/* SPDX-License-Identifier: Apache-2.0 */
/* Who is connected, and for how long. A request has its time to arrive; when the house is nearly
 * full, whoever has been silent for longest goes, so that a thousand idle or dripping connections
 * do not keep the next one out. */
#ifndef SEMEL_ADMIN_GUESTS_H
#define SEMEL_ADMIN_GUESTS_H

#include "admin/microhttpd.h"
#include "base/env.h"

#include <stdint.h>

struct semel_guests;

struct semel_guests_options {
	const struct semel_microhttpd *library;
	const struct semel_env *env;
	uint32_t crowded;   /* from so many on the most silent one has to go */
	int64_t request_ms; /* a request arrives within this */
	int64_t idle_ms;    /* between two requests */
	int64_t answer_ms;  /* an answer is read within this */
};

/* Starts the thread that cuts those who are overdue. */
semel_status semel_guests_start(const struct semel_guests_options *options,
				struct semel_guests **guests_out, semel_error *error);
/* Cuts nobody any more. */
void semel_guests_stop(struct semel_guests *guests);
/* After the daemon has ended. guests may be NULL. */
void semel_guests_free(struct semel_guests *guests);

/* MHD_NotifyConnectionCallback; user: the guests. */
void semel_guests_seen(void *user, struct MHD_Connection *connection, void **context,
		       enum MHD_ConnectionNotificationCode code);

enum semel_guest_step {
	SEMEL_GUEST_ASKS,    /* the first line of a request is there */
	SEMEL_GUEST_WAITS,   /* the request is complete, and we are at work */
	SEMEL_GUEST_READS,   /* the answer goes out */
	SEMEL_GUEST_LISTENS, /* to a stream, without end */
	SEMEL_GUEST_RESTS,   /* the answer is out */
};
void semel_guest_step(struct semel_guests *guests, struct MHD_Connection *connection,
		      enum semel_guest_step step);

#endif
