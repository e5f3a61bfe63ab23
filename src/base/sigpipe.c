/* SPDX-License-Identifier: Apache-2.0 */
/* SIGPIPE is sent to the thread that wrote, so blocking it here, and taking it from the thread's
 * own queue afterwards, hides it from the process. */
#include "base/sigpipe.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

static bool is_pending(void)
{
	sigset_t pending;
	sigemptyset(&pending);
	sigpending(&pending);
	return sigismember(&pending, SIGPIPE) == 1;
}

static void only_sigpipe(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGPIPE);
}

void semel_sigpipe_block(struct semel_sigpipe *sigpipe)
{
	sigset_t set;
	only_sigpipe(&set);
	sigpipe->pending = is_pending();
	pthread_sigmask(SIG_BLOCK, &set, &sigpipe->mask);
}

void semel_sigpipe_restore(const struct semel_sigpipe *sigpipe)
{
	sigset_t set;
	only_sigpipe(&set);
	int saved = errno;
	if (!sigpipe->pending && is_pending()) {
		const struct timespec at_once = { 0 };
		while (sigtimedwait(&set, NULL, &at_once) < 0 && errno == EINTR)
			;
	}
	pthread_sigmask(SIG_SETMASK, &sigpipe->mask, NULL);
	errno = saved;
}
