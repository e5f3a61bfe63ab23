/* SPDX-License-Identifier: Apache-2.0 */
/* Writing to a pipe whose reader may have closed it, without being killed by it: a library may not
 * change what SIGPIPE does to the whole process, so the calling thread blocks the signal during a
 * write. */
#ifndef SEMEL_BASE_SIGPIPE_H
#define SEMEL_BASE_SIGPIPE_H

#include <signal.h>
#include <stdbool.h>

struct semel_sigpipe {
	sigset_t mask; /* what the thread blocked before */
	bool pending;  /* a SIGPIPE was pending before; it is left pending */
};

void semel_sigpipe_block(struct semel_sigpipe *sigpipe);
/* Consumes the signal that our writes caused, if any, and restores the mask. */
void semel_sigpipe_restore(const struct semel_sigpipe *sigpipe);

#endif
