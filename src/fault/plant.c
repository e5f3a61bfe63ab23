/* SPDX-License-Identifier: Apache-2.0 */
/* Which planted bugs are active, in the test program only. SEMEL_PLANT is a list with commas:
 * ack-before-commit, mark-before-confirm, claim-outside-transaction, new-id-on-retry,
 * high-water-mark, order-ignored-on-hand-over are found by tests/chaos; follower-left-parked,
 * replay-runs-the-dead, prune-without-lock, verify-trusts-parked, replay-by-lost-copy and
 * two-replays-win by tests/model. */
#include "fault/plant.h"

#ifdef SEMEL_PLANT_BUGS

#include <stdlib.h>
#include <string.h>

bool semel_planted(const char *bug)
{
	const char *at = getenv("SEMEL_PLANT");
	size_t bug_length = strlen(bug);
	while (at && *at) {
		size_t length = strcspn(at, ",");
		if (length == bug_length && memcmp(at, bug, length) == 0)
			return true;
		at += length;
		at += *at == ',';
	}
	return false;
}

#else

/* A file must hold something. */
typedef int semel_plant_unused;

#endif
