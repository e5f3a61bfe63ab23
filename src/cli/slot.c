/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/slot.h"

#include "base/error.h"
#include "base/wake.h"
#include "store/changes.h"

#include <stdio.h>

#define WAIT_MS  60000
#define PAUSE_MS 20

/* The server waits for every transaction that is open. */
static semel_status wait_until_made(struct semel_changes *changes, semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	int64_t until_ms = semel_steady_ms(env) + WAIT_MS;
	bool made = false;
	semel_status status = changes->driver->make(changes, &made, error);
	while (status == SEMEL_OK && !made) {
		if (semel_steady_ms(env) >= until_ms)
			return semel_error_set(error, SEMEL_NOT_FINISHED,
					       "the slot is not made yet: the server waits for a "
					       "transaction that is open since before (look for it "
					       "in pg_stat_activity, and try again)");
		semel_wake_pause_us(PAUSE_MS * 1000);
		status = changes->driver->make(changes, &made, error);
	}
	return status;
}

static semel_status make(struct semel_changes *changes, const char *slot, semel_error *error)
{
	struct semel_slot_state state;
	semel_status status = changes->driver->prepare(changes, error);
	if (status == SEMEL_OK)
		status = changes->driver->look(changes, &state, error);
	if (status != SEMEL_OK)
		return status;
	if (state.obstacle[0] != '\0')
		return semel_error_set(error, SEMEL_CONFIG, "%s", state.obstacle);
	if (!state.exists)
		status = wait_until_made(changes, error);
	if (status == SEMEL_OK)
		printf("%s the replication slot %s\n", state.exists ? "up to date:" : "made", slot);
	return status;
}

semel_status semel_slot_make(struct semel_invocation *invocation)
{
	const char *slot = semel_args_text(invocation->args, "slot");
	struct semel_changes *changes = NULL;
	if (!semel_args_flag(invocation->args, "cdc"))
		return SEMEL_OK;
	semel_status status =
		semel_changes_open(invocation->store, slot, &changes, &invocation->error);
	if (status == SEMEL_OK)
		status = make(changes, slot, &invocation->error);
	if (changes != NULL)
		changes->driver->close(changes);
	return status;
}
