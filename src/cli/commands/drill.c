/* SPDX-License-Identifier: Apache-2.0 */
/* `semel drill`: would it survive here? Played on the user's own store and broker, and cleared up
 * again, whatever happens. */
#include "cli/plays/drill/drill.h"
#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/arguments/command.h"
#include "cli/plays/demo/demo.h"
#include "cli/process/output.h"

#include <libgen.h>
#include <stdio.h>
#include <string.h>

#define ROWS_MAX 64

/* ---- which rows ------------------------------------------------------------------------------ */

static const struct semel_drill_row *row_at(size_t at)
{
	return at < SEMEL_FP_COUNT ? semel_drill_crash(at)
				   : semel_drill_what_if(at - SEMEL_FP_COUNT);
}

static bool is_selected(const char *const *selected, const char *name)
{
	if (!*selected)
		return true;
	while (*selected && strcmp(*selected, name) != 0)
		selected++;
	return *selected != NULL;
}

static semel_status check_names(const char *const *selected, semel_error *error)
{
	const char *names[ROWS_MAX];
	size_t count = 0;
	for (const struct semel_drill_row *row; count < ROWS_MAX && (row = row_at(count)) != NULL;)
		names[count++] = row->name;
	for (; *selected; selected++) {
		size_t at = 0;
		while (at < count && strcmp(names[at], *selected) != 0)
			at++;
		if (at < count)
			continue;
		const char *nearest = semel_text_nearest(*selected, names, count);
		return semel_error_set(error, SEMEL_USAGE,
				       "--row %s: there is no such row%s%s%s (semel drill --list "
				       "tells them)",
				       *selected, nearest ? ": did you mean " : "",
				       nearest ? nearest : "", nearest ? "?" : "");
	}
	return SEMEL_OK;
}

static void put_row(struct semel_buffer *buffer, const struct semel_drill_row *row)
{
	semel_buffer_string(buffer, "{\"name\":");
	semel_buffer_json(buffer, semel_text_of(row->name));
	semel_buffer_string(buffer, ",\"kind\":");
	semel_buffer_json(buffer, semel_text_of(row->kind));
	semel_buffer_string(buffer, ",\"outcome\":");
	semel_buffer_json(buffer, semel_text_of(row->outcome));
	semel_buffer_string(buffer, "}");
}

static semel_status list_rows(bool json, semel_error *error)
{
	const struct semel_drill_row *row;
	struct semel_buffer buffer = { 0 };
	for (size_t at = 0; (row = row_at(at)) != NULL; at++) {
		if (json) {
			semel_buffer_string(&buffer, at == 0 ? "[" : ",\n ");
			put_row(&buffer, row);
		} else {
			semel_buffer_printf(&buffer, "%-26s %-8s %s\n", row->name, row->kind,
					    row->outcome);
		}
	}
	if (json)
		semel_buffer_string(&buffer, "]\n");
	return semel_output_print(&buffer, error);
}

/* ---- the play -------------------------------------------------------------------------------- */

static semel_status subscribe(struct semel_drill *drill)
{
	semel_status status = SEMEL_OK;
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS && status == SEMEL_OK; i++) {
		const char *const words[] = { "topology", "apply",
					      "--scope",  drill->target.names.scopes[i],
					      "--topic",  drill->target.names.topic,
					      NULL };
		status = semel_drill_run(drill, words, NULL);
	}
	if (status == SEMEL_OK && drill->failure[0])
		return semel_error_set(drill->error, SEMEL_CONFIG,
				       "the drill cannot make its subscriptions: %.300s",
				       drill->failure);
	return status;
}

static semel_status set_up(struct semel_drill *drill)
{
	const char *store = drill->target.own_store;
	drill->shop.engine = store ? &semel_shop_postgres : &semel_shop_sqlite;
	drill->shop.topic = drill->target.names.topic;
	if (!store)
		store = semel_sandbox_path(&drill->sandbox, "sqlite:", "semel.db");
	if (!store)
		return semel_error_set(drill->error, SEMEL_INTERNAL, "no memory");
	semel_status status = semel_shop_open(&drill->shop, store, drill->error);
	return status == SEMEL_OK ? subscribe(drill) : status;
}

static semel_status play_row(struct semel_drill *drill, size_t at)
{
	const struct semel_env *env = semel_env_system();
	const struct semel_drill_row *row = row_at(at);
	int64_t began_ms = semel_steady_ms(env);
	drill->failure[0] = '\0';
	snprintf(drill->prefix, sizeof drill->prefix, "r%02zu-", at);
	semel_status status = row->run(drill, row);
	if (status == SEMEL_OK)
		semel_drill_report(drill, row, semel_steady_ms(env) - began_ms);
	return status;
}

static semel_status play(struct semel_drill *drill, const char *const *selected)
{
	const struct semel_drill_row *row;
	semel_status status = set_up(drill);
	if (status != SEMEL_OK)
		return status;
	semel_drill_begin(drill);
	for (size_t at = 0; status == SEMEL_OK && (row = row_at(at)) != NULL; at++)
		if (is_selected(selected, row->name))
			status = play_row(drill, at);
	return status;
}

/* What could not be cleared stays findable, for the next drill. */
static semel_status clear_up(struct semel_drill *drill)
{
	semel_error why = { 0 };
	semel_shop_close(&drill->shop);
	semel_status status =
		drill->made ? semel_drill_target_clear(&drill->target, &why) : SEMEL_OK;
	if (status == SEMEL_OK)
		return SEMEL_OK;
	drill->sandbox.keep = true;
	return semel_error_set(drill->error, status,
			       "the drill's things could not be taken away: %.300s (semel drill "
			       "--clean tries again)",
			       why.text);
}

static semel_status open_sandbox(struct semel_drill *drill)
{
	const struct semel_sandbox_plan plan = { .parent = drill->target.parent_folder,
						 .fallback = "/tmp",
						 .name = drill->target.names.name,
						 .store = drill->target.own_store,
						 .broker = drill->target.own_broker };
	semel_status status = semel_sandbox_open(&drill->sandbox, &plan, drill->error);
	if (status == SEMEL_OK)
		status = semel_drill_target_lock(&drill->target, drill->sandbox.folder,
						 drill->error);
	if (status == SEMEL_OK)
		status = semel_drill_watcher_start(&drill->target, drill->sandbox.folder,
						   &drill->watcher, drill->error);
	return status;
}

static semel_status remove_leftovers(struct semel_drill *drill)
{
	char folder[PATH_MAX];
	memcpy(folder, drill->sandbox.folder, sizeof folder);
	return semel_drill_remove_leftovers(&drill->target, dirname(folder), semel_drill_leftover,
					    drill, drill->error);
}

static semel_status drill_here(struct semel_drill *drill, const struct semel_args *args)
{
	semel_status status = open_sandbox(drill);
	if (status == SEMEL_OK)
		status = remove_leftovers(drill);
	if (status == SEMEL_OK && !semel_args_flag(args, "clean")) {
		status = semel_drill_target_create(&drill->target, drill->error);
		drill->made = status == SEMEL_OK;
		if (status == SEMEL_OK)
			status = play(drill, semel_args_list(args, "row", NULL));
	}
	semel_status cleared = clear_up(drill);
	semel_sandbox_close(&drill->sandbox);
	semel_drill_watcher_stop(&drill->watcher);
	semel_drill_target_unlock(&drill->target);
	semel_drill_end(drill, status == SEMEL_OK);
	if (status != SEMEL_OK)
		return status;
	if (cleared != SEMEL_OK)
		return cleared;
	return drill->failed ? SEMEL_PROBLEM_FOUND : SEMEL_OK;
}

static semel_status run(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	struct semel_drill drill = { .target = { .store = invocation->store,
						 .broker = invocation->broker },
				     .json = invocation->json,
				     .colour = semel_demo_has_colour() && !invocation->json,
				     .error = &invocation->error };
	semel_status status = check_names(semel_args_list(args, "row", NULL), drill.error);
	if (status != SEMEL_OK)
		return status;
	if (semel_args_flag(args, "list"))
		return list_rows(invocation->json, drill.error);
	struct semel_arena *arena = semel_arena_new(4096);
	if (!arena)
		return semel_error_set(drill.error, SEMEL_INTERNAL, "no memory");
	status = semel_drill_target_choose(&drill.target, arena, drill.error);
	if (status == SEMEL_OK)
		status = drill_here(&drill, args);
	semel_arena_free(arena);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "row",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "NAME",
	  .help = "play only this one" },
	{ .name = "list",
	  .kind = SEMEL_OPTION_FLAG,
	  .help = "tell the names of the rows, and end" },
	{ .name = "clean",
	  .kind = SEMEL_OPTION_FLAG,
	  .help = "only take away what an earlier drill could not" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel drill --store postgres://app@db/shop --broker amqp://mq/",
	  "before you trust it with the real thing" },
	{ "semel drill --row relay.after-confirm --row order-is-poisoned", "two of the rows" },
	{ 0 },
};

const struct semel_command semel_command_drill = {
	.name = "drill",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary = "kill everything once, on this store and broker, and see that nothing is lost",
	.options = options,
	.details =
		"Runs every row of the failure matrix (semel failpoints) and the seven what-ifs "
		"of the Order story with this very program: a process is killed in the very "
		"moment, everything is started again, and the databases are looked at. Exit 1 "
		"when a row fails.\n\n"
		"It plays beside your own things, under names of its own: a folder semel-drill-… "
		"beside the SQLite file, a schema semel_drill_… on PostgreSQL (the user needs "
		"CREATE on the database), exchanges, queues, topics and groups semel-drill-… at "
		"the broker. Your tables, queues and topics are not touched. All of it is taken "
		"away in the end, also when the drill is killed; what could not be, the next "
		"drill on this store takes away.",
	.examples = examples,
};
