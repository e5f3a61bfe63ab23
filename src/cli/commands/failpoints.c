/* SPDX-License-Identifier: Apache-2.0 */
/* `semel failpoints`: the failure matrix as text. */
#include "base/buffer.h"
#include "base/error.h"
#include "cli/arguments/command.h"
#include "cli/process/output.h"
#include "fault/failpoint.h"

#include <stdio.h>

static void write_json(const struct semel_failpoint_row *row, struct semel_buffer *buffer)
{
	const struct {
		const char *name, *value;
	} members[] = {
		{ "name", row->name },
		{ "party", row->process },
		{ "window", row->window },
		{ "outcome", row->outcome },
	};
	for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
		semel_buffer_printf(buffer, "%s\"%s\":", i ? "," : "{", members[i].name);
		semel_buffer_json(buffer, semel_text_of(members[i].value));
	}
	semel_buffer_string(buffer, "}");
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_failpoint_row *rows = semel_failpoint_rows();
	struct semel_buffer buffer = { 0 };
	for (size_t i = 0; i < SEMEL_FP_COUNT; i++) {
		if (invocation->json) {
			semel_buffer_string(&buffer, i ? ",\n " : "[");
			write_json(&rows[i], &buffer);
		} else {
			semel_buffer_printf(&buffer, "%-24s %-9s %s\n%35s→ %s\n", rows[i].name,
					    rows[i].process, rows[i].window, "", rows[i].outcome);
		}
	}
	if (invocation->json)
		semel_buffer_string(&buffer, "]\n");
	return semel_output_print(&buffer, &invocation->error);
}

static const struct semel_option options[] = { SEMEL_OPTION_JSON, { 0 } };

static const struct semel_example examples[] = {
	{ "SEMEL_FAILPOINT=relay.after-confirm:kill@3 semel relay --drain",
	  "kill the relay after its third confirm, and see that nothing is lost" },
	{ 0 },
};

const struct semel_command semel_command_failpoints = {
	.name = "failpoints",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary = "list the points at which a crash can be provoked",
	.options = options,
	.details = "Every window in which a crash matters has a name. Arm one with "
		   "SEMEL_FAILPOINT=NAME:ACTION[@N][,…], where ACTION is kill (SIGKILL to itself), "
		   "error, or pause=MS, and N is the hit at which it acts (default: each).",
	.examples = examples,
};
