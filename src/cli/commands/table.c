/* SPDX-License-Identifier: Apache-2.0 */
/* The table of commands, in the order of the program's help; one line each. */
#include "cli/arguments/command.h"

// clang-format off
const struct semel_command *const semel_commands[] = {
	&semel_command_init,
	&semel_command_demo,
	&semel_command_publish,
	&semel_command_relay,
	&semel_command_consume,
	&semel_command_run,
	&semel_command_dlq,
	&semel_command_replay,
	&semel_command_repair,
	&semel_command_subscriptions,
	&semel_command_topology,
	&semel_command_serve,
	&semel_command_prune,
	&semel_command_top,
	&semel_command_doctor,
	&semel_command_trace,
	&semel_command_verify,
	&semel_command_drill,
	&semel_command_failpoints,
	&semel_command_bench,
	&semel_command_help,
	&semel_command_man,
	&semel_command_completion,
	&semel_command_reference,
	&semel_command_states,
	NULL,
};
// clang-format on
