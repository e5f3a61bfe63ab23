/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, in the order of the program's help; one line each. */
#include "cli/arguments/command.h"

// clang-format off
#define COMMANDS(COMMAND) \
	COMMAND(init) \
	COMMAND(demo) \
	COMMAND(publish) \
	COMMAND(relay) \
	COMMAND(consume) \
	COMMAND(run) \
	COMMAND(dlq) \
	COMMAND(replay) \
	COMMAND(repair) \
	COMMAND(subscriptions) \
	COMMAND(topology) \
	COMMAND(serve) \
	COMMAND(prune) \
	COMMAND(top) \
	COMMAND(doctor) \
	COMMAND(trace) \
	COMMAND(verify) \
	COMMAND(drill) \
	COMMAND(failpoints) \
	COMMAND(bench) \
	COMMAND(help) \
	COMMAND(man) \
	COMMAND(completion) \
	COMMAND(reference) \
	COMMAND(states)
// clang-format on

#define DECLARE(name) extern const struct semel_command semel_command_##name;
#define ENTRY(name)   &semel_command_##name,

COMMANDS(DECLARE)

const struct semel_command *const semel_commands[] = { COMMANDS(ENTRY) NULL };
