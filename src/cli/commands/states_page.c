/* SPDX-License-Identifier: Apache-2.0 */
/* docs/states.md, written from the tables of src/state. */
#include "cli/arguments/help.h"
#include "state/state.h"
#include "store/rules.h"

#include <string.h>

static const char *event_state(int state)
{
	return semel_state_name((enum semel_state)state);
}

static const char *hold_state(int state)
{
	return state == SEMEL_HOLD_NONE ? "free"
					: semel_hold_state_name((enum semel_hold_state)state);
}

/* Names in a diagram have no blanks. */
static void node(struct semel_buffer *buffer, const char *name)
{
	for (; *name; name++)
		semel_buffer_printf(buffer, "%c", *name == ' ' ? '_' : *name);
}

static bool is_drawn(struct semel_transitions table, size_t at)
{
	for (size_t i = 0; i < at; i++)
		if (table.rows[i].from == table.rows[at].from &&
		    table.rows[i].to == table.rows[at].to)
			return true;
	return table.rows[at].from == table.rows[at].to;
}

static void diagram(struct semel_buffer *buffer, struct semel_transitions table,
		    const char *(*name)(int))
{
	semel_buffer_printf(buffer, "\n```mermaid\nstateDiagram-v2\n    [*] --> ");
	node(buffer, name(0));
	semel_buffer_string(buffer, "\n");
	for (size_t i = 0; i < table.count; i++) {
		if (is_drawn(table, i))
			continue;
		semel_buffer_string(buffer, "    ");
		node(buffer, name(table.rows[i].from));
		semel_buffer_string(buffer, " --> ");
		node(buffer, name(table.rows[i].to));
		semel_buffer_string(buffer, "\n");
	}
	semel_buffer_string(buffer, "```\n");
}

static void transitions(struct semel_buffer *buffer, struct semel_transitions table,
			const char *(*name)(int))
{
	semel_buffer_string(buffer, "\n| from | to | by | when | in which transaction |\n"
				    "|---|---|---|---|---|\n");
	for (size_t i = 0; i < table.count; i++)
		semel_buffer_printf(buffer, "| %s | %s | %s | %s | %s |\n",
				    name(table.rows[i].from), name(table.rows[i].to),
				    semel_actor_name(table.rows[i].by), table.rows[i].when,
				    table.rows[i].transaction);
}

static void event_part(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer,
		"\n## An event at a subscription\n\n"
		"An event has one state at each subscription. It is derived from the rows of the "
		"scope: claim, dead letter, parked row and hold. A copy at the broker carries no "
		"authority: it makes the consumer look, and the rows decide. So a copy may be "
		"lost, repeated or late.\n\n| state | the event |\n|---|---|\n");
	for (int state = 0; state < SEMEL_STATE_COUNT; state++)
		semel_buffer_printf(buffer, "| %s | %s |\n", event_state(state),
				    semel_state_sentence((enum semel_state)state));
	diagram(buffer, semel_state_transitions(), event_state);
	transitions(buffer, semel_state_transitions(), event_state);
}

static void hold_part(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer, "\n## A hold\n\n"
			"A hold keeps an ordering key (an aggregate, or a topic under total order) "
			"waiting for one event, its head. Later events of the key are parked "
			"behind it.\n\n| state | meaning |\n|---|---|\n");
	for (int state = SEMEL_HOLD_NONE; state <= SEMEL_HOLD_RELEASED; state++)
		semel_buffer_printf(buffer, "| %s | %s |\n", hold_state(state),
				    semel_hold_state_sentence((enum semel_hold_state)state));
	diagram(buffer, semel_hold_transitions(), hold_state);
	transitions(buffer, semel_hold_transitions(), hold_state);
}

void semel_states_markdown(struct semel_buffer *buffer)
{
	semel_buffer_string(
		buffer, "<!-- Written by `semel states`; change the tables in src/state, not this "
			"page. -->\n# States\n\n"
			"Every state and every transition, with who makes it and in which "
			"transaction. What is not listed here is refused, and "
			"[tests/model](../tests/model) explores the combinations.\n");
	event_part(buffer);
	hold_part(buffer);
}
