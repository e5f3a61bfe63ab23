/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a drill: a line for each row as soon as it has run; or one object in JSON. */
#include "base/buffer.h"
#include "base/url.h"
#include "cli/plays/drill/drill.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define TITLE_WIDTH 40

static const char *colour(const struct semel_drill *drill, const char *code)
{
	return drill->colour ? code : "";
}

static void put_member(struct semel_buffer *buffer, const char *name, const char *value)
{
	semel_buffer_printf(buffer, ",\"%s\":", name);
	semel_buffer_json(buffer, semel_text_of(value));
}

static void print(struct semel_buffer *buffer)
{
	if (!buffer->failed)
		fputs(buffer->data, stdout);
	fflush(stdout); /* the next row may take a moment */
	semel_buffer_free(buffer);
}

void semel_drill_begin(struct semel_drill *drill)
{
	char store[256], broker[256];
	struct semel_buffer buffer = { 0 };
	semel_url_redact(drill->target.store, store, sizeof store);
	semel_url_redact(drill->target.broker, broker, sizeof broker);
	if (drill->json) {
		semel_buffer_string(&buffer, "{\"name\":");
		semel_buffer_json(&buffer, semel_text_of(drill->target.names.name));
		put_member(&buffer, "store", store);
		put_member(&buffer, "broker", broker);
		semel_buffer_string(&buffer, ",\"rows\":[");
	} else {
		semel_buffer_printf(&buffer, "%sA drill on %s and %s%s\nunder the name %s\n",
				    colour(drill, "\033[1m"), store, broker,
				    colour(drill, "\033[0m"), drill->target.names.name);
	}
	drill->begun = true;
	print(&buffer);
}

void semel_drill_leftover(const char *name, bool removed, void *user)
{
	const struct semel_drill *drill = user;
	fprintf(drill->json ? stderr : stdout,
		removed ? "%s was left by an earlier drill: removed\n"
			: "%s was left by a drill with another broker: not removed (run: semel "
			  "drill --clean, with that --broker)\n",
		name);
}

static void put_json(const struct semel_drill *drill, const struct semel_drill_row *row,
		     int64_t took_ms, struct semel_buffer *buffer)
{
	semel_buffer_printf(buffer, "%s\n{\"kind\":", drill->rows > 1 ? "," : "");
	semel_buffer_json(buffer, semel_text_of(row->kind));
	put_member(buffer, "name", row->name);
	put_member(buffer, "title", row->title);
	put_member(buffer, "outcome", row->outcome);
	semel_buffer_printf(buffer, ",\"ok\":%s,\"found\":", drill->failure[0] ? "false" : "true");
	semel_buffer_json_or_null(buffer, drill->failure[0] ? semel_text_of(drill->failure)
							    : (struct semel_text){ NULL, 0 });
	semel_buffer_printf(buffer, ",\"ms\":%" PRId64 "}", took_ms);
}

static const char *heading_of(const char *kind)
{
	if (strcmp(kind, "crash") == 0)
		return "Killed at";
	return strcmp(kind, "what-if") == 0 ? "What if" : "Final check";
}

static void put_text(struct semel_drill *drill, const struct semel_drill_row *row, int64_t took_ms,
		     struct semel_buffer *buffer)
{
	bool held = !drill->failure[0];
	if (drill->kind != row->kind)
		semel_buffer_printf(buffer, "\n%s%-*s  result      time  expected outcome%s\n",
				    colour(drill, "\033[1m"), TITLE_WIDTH, heading_of(row->kind),
				    colour(drill, "\033[0m"));
	semel_buffer_printf(buffer, "%-*s  %s%-6s%s  %6.1f s  %s\n", TITLE_WIDTH, row->title,
			    colour(drill, held ? "\033[32m" : "\033[1;31m"), held ? "ok" : "FAILED",
			    colour(drill, "\033[0m"), (double)took_ms / 1000, row->outcome);
	if (!held)
		semel_buffer_printf(buffer, "%*s  found: %s\n", 4, "", drill->failure);
}

void semel_drill_report(struct semel_drill *drill, const struct semel_drill_row *row,
			int64_t took_ms)
{
	struct semel_buffer buffer = { 0 };
	drill->rows++;
	drill->failed += drill->failure[0] != '\0';
	if (drill->json)
		put_json(drill, row, took_ms, &buffer);
	else
		put_text(drill, row, took_ms, &buffer);
	drill->kind = row->kind;
	print(&buffer);
}

void semel_drill_end(struct semel_drill *drill, bool complete)
{
	struct semel_buffer buffer = { 0 };
	if (!drill->begun)
		return;
	if (drill->json)
		semel_buffer_printf(&buffer, "],\"failed\":%d,\"ok\":%s}\n", drill->failed,
				    drill->failed || !complete ? "false" : "true");
	else if (!complete)
		semel_buffer_string(&buffer, "\nThe drill is incomplete.\n");
	else if (drill->failed)
		semel_buffer_printf(&buffer, "\n%s%d of %d rows failed%s: see above\n",
				    colour(drill, "\033[1;31m"), drill->failed, drill->rows,
				    colour(drill, "\033[0m"));
	else
		semel_buffer_printf(
			&buffer,
			"\n%s%d of %d rows passed%s: nothing lost, nothing processed twice, "
			"nothing out of order\n",
			colour(drill, "\033[32m"), drill->rows, drill->rows,
			colour(drill, "\033[0m"));
	print(&buffer);
}
