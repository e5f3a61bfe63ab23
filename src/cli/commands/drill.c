/* SPDX-License-Identifier: Apache-2.0 */
/* `semel drill`: runs the failure matrix on the user's own store and broker, and removes whatever
 * it has created there, however it ends. */
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
				       "--row %s: no such row%s%s%s (run: semel drill "
				       "--list)",
				       *selected, nearest ? ", did you mean " : "",
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

/* ---- the run --------------------------------------------------------------------------------- */

static semel_status subscribe(struct semel_drill *drill)
{
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++) {
		const char *const words[] = { "topology", "apply",
					      "--scope",  drill->target.names.scopes[i],
					      "--topic",  drill->target.names.topic,
					      NULL };
		semel_drill_run(drill, words, NULL);
	}
	if (drill->status != SEMEL_OK || !drill->failure[0])
		return drill->status;
	return semel_error_set(drill->error, SEMEL_CONFIG,
			       "cannot create the drill's subscriptions: %.300s", drill->failure);
}

static semel_status set_up(struct semel_drill *drill)
{
	const char *store = drill->target.own_store;
	drill->shop.topic = drill->target.names.topic;
	if (!store)
		store = semel_sandbox_path(&drill->sandbox, "sqlite:", "semel.db");
	if (!store)
		return semel_error_set(drill->error, SEMEL_INTERNAL, "out of memory");
	semel_status status = semel_shop_open(&drill->shop, store, drill->error);
	if (status != SEMEL_OK)
		return status;
	return subscribe(drill);
}

static void run_row(struct semel_drill *drill, size_t at)
{
	const struct semel_env *env = semel_env_system();
	const struct semel_drill_row *row = row_at(at);
	int64_t began_ms = semel_steady_ms(env);
	drill->failure[0] = '\0';
	snprintf(drill->prefix, sizeof drill->prefix, "r%02zu-", at);
	row->run(drill, row);
	if (drill->status != SEMEL_OK)
		return;
	semel_drill_report(drill, row, semel_steady_ms(env) - began_ms);
}

static semel_status run_rows(struct semel_drill *drill, const char *const *selected)
{
	const struct semel_drill_row *row;
	semel_status status = set_up(drill);
	if (status != SEMEL_OK)
		return status;
	semel_drill_begin(drill);
	for (size_t at = 0; drill->status == SEMEL_OK && (row = row_at(at)) != NULL; at++)
		if (is_selected(selected, row->name))
			run_row(drill, at);
	return drill->status;
}

/* ---- before and after ------------------------------------------------------------------------ */

static semel_status open_sandbox(struct semel_drill *drill)
{
	const struct semel_sandbox_plan plan = { .parent = drill->target.parent_folder,
						 .fallback = "/tmp",
						 .name = drill->target.names.name,
						 .store = drill->target.own_store,
						 .broker = drill->target.own_broker };
	semel_status status = semel_sandbox_open(&drill->sandbox, &plan, drill->error);
	if (status != SEMEL_OK)
		return status;
	status = semel_drill_target_lock(&drill->target, drill->sandbox.folder, drill->error);
	if (status != SEMEL_OK)
		return status;
	return semel_drill_watcher_start(&drill->target, drill->sandbox.folder, &drill->watcher,
					 drill->error);
}

static semel_status remove_leftovers(struct semel_drill *drill)
{
	char folder[PATH_MAX];
	memcpy(folder, drill->sandbox.folder, sizeof folder);
	return semel_drill_remove_leftovers(&drill->target, dirname(folder), semel_drill_leftover,
					    drill, drill->error);
}

/* If the target cannot be cleared, its folder is kept, so that the next drill finds it. */
static semel_status clear_target(struct semel_drill *drill)
{
	semel_error cause = { 0 };
	semel_shop_close(&drill->shop);
	if (!drill->created)
		return SEMEL_OK;
	semel_status status = semel_drill_target_clear(&drill->target, &cause);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	drill->sandbox.keep = true;
	return semel_error_set(drill->error, status,
			       "cannot remove what the drill has created: %.300s (run: semel "
			       "drill --clean)",
			       cause.text);
}

static semel_status run_in_sandbox(struct semel_drill *drill, const struct semel_args *args)
{
	semel_status status = open_sandbox(drill);
	if (status != SEMEL_OK)
		return status;
	status = remove_leftovers(drill);
	if (status != SEMEL_OK || semel_args_flag(args, "clean"))
		return status;
	status = semel_drill_target_create(&drill->target, drill->error);
	if (status != SEMEL_OK)
		return status;
	drill->created = true;
	return run_rows(drill, semel_args_list(args, "row", NULL));
}

static semel_status run_drill(struct semel_drill *drill, const struct semel_args *args)
{
	semel_status status = run_in_sandbox(drill, args);
	semel_status cleared = clear_target(drill);
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
		return semel_error_set(drill.error, SEMEL_INTERNAL, "out of memory");
	status = semel_drill_target_choose(&drill.target, arena, drill.error);
	if (status != SEMEL_OK)
		goto free_arena;
	status = run_drill(&drill, args);
free_arena:
	semel_arena_free(arena);
	return status;
}

static const struct semel_option options[] = {
	{ .name = "row",
	  .kind = SEMEL_OPTION_MULTI,
	  .argument = "NAME",
	  .help = "run only this row" },
	{ .name = "list", .kind = SEMEL_OPTION_FLAG, .help = "list the rows, and exit" },
	{ .name = "clean",
	  .kind = SEMEL_OPTION_FLAG,
	  .help = "only remove what earlier drills left behind" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_example examples[] = {
	{ "semel drill --store postgres://app@db/shop --broker amqp://mq/",
	  "before production data" },
	{ "semel drill --row relay.after-confirm --row order-is-poisoned", "two of its rows" },
	{ 0 },
};

const struct semel_command semel_command_drill = {
	.name = "drill",
	.run = run,
	.group = SEMEL_GROUP_PROVE,
	.summary =
		"run the failure matrix on this store and broker, and check that nothing is lost",
	.options = options,
	.details =
		"Runs every row of the failure matrix (semel failpoints) and the seven failure "
		"scenarios of the sample shop with this executable: a process is killed at the "
		"failpoint, everything is started again, and the databases are checked. Exit 1 "
		"when a row fails.\n\n"
		"It runs beside your own data, under names of its own: a folder semel-drill-… "
		"beside the SQLite file, a schema semel_drill_… on PostgreSQL (the user needs "
		"CREATE on the database), exchanges, queues, topics and groups semel-drill-… at "
		"the broker. Your tables, queues and topics are not touched. All of it is removed "
		"in the end, also when the drill is killed; what could not be removed then, the "
		"next drill on this store removes.",
	.examples = examples,
};
