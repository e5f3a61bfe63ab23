/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/commands/slot.h"

#include "base/error.h"
#include "base/wake.h"
#include "cli/arguments/config.h"
#include "store/changes.h"

#include <string.h>

#define WAIT_MS  60000
#define PAUSE_MS 20

/* The server creates a slot only after every open transaction has ended. */
static semel_status wait_until_made(struct semel_changes *changes, semel_error *error)
{
	const struct semel_env *env = semel_env_system();
	int64_t until_ms = semel_steady_ms(env) + WAIT_MS;
	bool made = false;
	semel_status status = changes->driver->create(changes, &made, error);
	while (status == SEMEL_OK && !made) {
		if (semel_steady_ms(env) >= until_ms)
			return semel_error_set(error, SEMEL_NOT_FINISHED,
					       "the replication slot is not created yet: the "
					       "server waits for an older transaction to end (find "
					       "it in pg_stat_activity, then try again)");
		semel_sleep_us(PAUSE_MS * 1000);
		status = changes->driver->create(changes, &made, error);
	}
	return status;
}

static semel_status create_slot(struct semel_changes *changes, const char *slot, FILE *output,
				semel_error *error)
{
	struct semel_slot_state state;
	semel_status status = changes->driver->prepare(changes, error);
	if (status != SEMEL_OK)
		return status;
	status = changes->driver->inspect(changes, &state, error);
	if (status != SEMEL_OK)
		return status;
	if (state.problem[0] != '\0')
		return semel_error_set(error, SEMEL_CONFIG, "%s", state.problem);
	if (!state.exists)
		status = wait_until_made(changes, error);
	if (status != SEMEL_OK)
		return status;
	if (output != NULL)
		fprintf(output, "%s the replication slot %s\n",
			state.exists ? "up to date:" : "created", slot);
	return SEMEL_OK;
}

static const char *slot_of(const struct semel_invocation *invocation)
{
	const char *configured = semel_section_text(&invocation->config->relay, "slot");
	if (semel_args_has(invocation->args, "slot") || configured == NULL)
		return semel_args_text(invocation->args, "slot");
	return configured;
}

static bool is_requested(const struct semel_invocation *invocation)
{
	return semel_args_flag(invocation->args, "cdc");
}

bool semel_slot_is_configured(const struct semel_invocation *invocation)
{
	const char *source = semel_section_text(&invocation->config->relay, "source");
	return is_requested(invocation) || (source != NULL && strcmp(source, "cdc") == 0);
}

semel_status semel_slot_create(struct semel_invocation *invocation, FILE *output)
{
	const char *slot = slot_of(invocation);
	struct semel_changes *changes = NULL;
	if (!is_requested(invocation))
		return SEMEL_OK;
	semel_status status = semel_changes_open(invocation->store, slot, semel_env_system(),
						 &changes, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	status = create_slot(changes, slot, output, &invocation->error);
	changes->driver->close(changes);
	return status;
}

static void report_differences(const struct semel_slot_state *state, const char *slot,
			       semel_difference_callback report, void *user)
{
	char text[512];
	if (state->problem[0] != '\0')
		report(state->problem, user);
	if (!state->known || (state->exists && !state->lost))
		return;
	snprintf(text, sizeof(text),
		 state->lost ? "the server has removed WAL that the replication slot %s needs (the "
			       "relay drops it and creates a new one)"
			     : "replication slot %s not found (run: semel topology apply --cdc)",
		 slot);
	report(text, user);
}

semel_status semel_slot_check(struct semel_invocation *invocation, semel_difference_callback report,
			      void *user)
{
	const char *slot = slot_of(invocation);
	struct semel_changes *changes = NULL;
	struct semel_slot_state state;
	if (!semel_slot_is_configured(invocation))
		return SEMEL_OK;
	semel_status status = semel_changes_open(invocation->store, slot, semel_env_system(),
						 &changes, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	status = changes->driver->inspect(changes, &state, &invocation->error);
	if (status != SEMEL_OK)
		goto close_changes;
	report_differences(&state, slot, report, user);

close_changes:
	changes->driver->close(changes);
	return status;
}
