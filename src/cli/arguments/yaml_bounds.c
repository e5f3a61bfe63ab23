/* SPDX-License-Identifier: Apache-2.0 */
/* libyaml reads at most 1024 characters ahead to decide whether a scalar is a key, so checking each
 * event stops it soon after the first one that exceeds a bound. */
#include "cli/arguments/yaml_bounds.h"

#include <yaml.h>

#define STRING_OF(number) #number
#define STRING(number)    STRING_OF(number)

struct counts {
	size_t depth, nodes, anchors;
};

/* The bound that this event exceeds, or NULL. */
static const char *count_event(struct counts *counts, const yaml_event_t *event)
{
	const yaml_char_t *anchor = NULL;
	size_t length = 0;
	switch (event->type) {
	case YAML_SEQUENCE_START_EVENT:
		anchor = event->data.sequence_start.anchor;
		counts->depth++;
		break;
	case YAML_MAPPING_START_EVENT:
		anchor = event->data.mapping_start.anchor;
		counts->depth++;
		break;
	case YAML_SCALAR_EVENT:
		anchor = event->data.scalar.anchor;
		length = event->data.scalar.length;
		break;
	case YAML_ALIAS_EVENT:
		anchor = event->data.alias.anchor;
		break;
	case YAML_SEQUENCE_END_EVENT:
	case YAML_MAPPING_END_EVENT:
		counts->depth--;
		return NULL;
	default:
		return NULL;
	}
	counts->nodes++;
	counts->anchors += anchor != NULL;
	if (counts->depth > SEMEL_YAML_DEPTH_MAX)
		return "lists and maps are nested deeper than " STRING(
			SEMEL_YAML_DEPTH_MAX) " levels";
	if (counts->nodes > SEMEL_YAML_NODES_MAX)
		return "there are more than " STRING(SEMEL_YAML_NODES_MAX) " values, lists and "
									   "maps";
	if (counts->anchors > SEMEL_YAML_ANCHORS_MAX)
		return "there are more than " STRING(SEMEL_YAML_ANCHORS_MAX) " anchors and "
									     "aliases";
	return length > SEMEL_YAML_VALUE_MAX ? "a value is longer than 64 KiB" : NULL;
}

struct semel_yaml_problem semel_yaml_check(struct semel_text text)
{
	struct semel_yaml_problem problem = { .what = NULL };
	struct counts counts = { 0 };
	yaml_parser_t parser;
	if (!yaml_parser_initialize(&parser))
		return (struct semel_yaml_problem){ "out of memory", 1, true };
	yaml_parser_set_input_string(&parser, (const unsigned char *)text.data, text.length);
	for (bool ended = false; !ended && !problem.what;) {
		yaml_event_t event;
		if (!yaml_parser_parse(&parser, &event)) {
			problem = (struct semel_yaml_problem){ parser.problem ? parser.problem
									      : "unreadable",
							       (int)parser.problem_mark.line + 1,
							       false };
			break;
		}
		problem = (struct semel_yaml_problem){ count_event(&counts, &event),
						       (int)event.start_mark.line + 1, true };
		ended = event.type == YAML_STREAM_END_EVENT;
		yaml_event_delete(&event);
	}
	yaml_parser_delete(&parser);
	return problem;
}
