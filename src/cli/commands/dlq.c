/* SPDX-License-Identifier: Apache-2.0 */
/* `semel dlq`: lists, shows, replays and discards dead letters. */
#include "base/error.h"
#include "base/time.h"
#include "cli/arguments/command.h"
#include "cli/process/output.h"
#include "deadletter/deadletter.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REASON_SHOWN 100

/* Appends a text from outside as one line without control characters, for a terminal. max 0: no
 * limit. */
static void append_plain(struct semel_buffer *buffer, const char *text, size_t max)
{
	size_t length = text ? strlen(text) : 0;
	bool cut = max > 0 && length > max;
	if (cut)
		length = max;
	while (cut && length > 0 && ((unsigned char)text[length] & 0xc0) == 0x80)
		length--; /* do not cut within a character */
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)text[i];
		semel_buffer_append(buffer, c < 0x20 || c == 0x7f ? " " : &text[i], 1);
	}
	semel_buffer_string(buffer, cut ? "…" : "");
	if (length == 0)
		semel_buffer_string(buffer, "-");
}

/* ---- list, count, show ----------------------------------------------------------------------- */

struct listing {
	struct semel_buffer buffer;
	bool json;
	uint64_t count;
	semel_status printed; /* status of the output, which is printed piece by piece */
	semel_error *error;
};

static void print_part(struct listing *listing)
{
	if (listing->printed != SEMEL_OK)
		semel_buffer_free(&listing->buffer);
	else
		listing->printed = semel_output_print(&listing->buffer, listing->error);
	listing->buffer = (struct semel_buffer){ 0 };
}

static void print_list_entry(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;
	struct semel_buffer *buffer = &listing->buffer;
	listing->count++;
	if (listing->json) {
		semel_buffer_string(buffer, listing->count == 1 ? "[" : ",\n ");
		semel_dead_letter_to_json(letter, buffer);
		print_part(listing);
		return;
	}
	char time[SEMEL_TIME_SIZE];
	semel_time_format(letter->failed_at_ms, time);
	semel_buffer_printf(buffer, "%s  %-9s  %s  ", letter->entry_id,
			    semel_dead_status_name(letter->status), time);
	append_plain(buffer, letter->scope, 0);
	semel_buffer_string(buffer, "  ");
	append_plain(buffer, letter->event_type, 0);
	semel_buffer_string(buffer, "  ");
	append_plain(buffer, letter->event_id, 0);
	semel_buffer_printf(buffer, "\n    attempts %u, replays %u of %d", letter->attempts,
			    letter->replay_count, SEMEL_REPLAYS_MAX);
	if (letter->parked > 0)
		semel_buffer_printf(buffer, ", %" PRIu64 " parked behind it", letter->parked);
	semel_buffer_string(buffer, ": ");
	append_plain(buffer, letter->failure_reason, REASON_SHOWN);
	semel_buffer_string(buffer, "\n");
	print_part(listing);
}

/* Indexed from SEMEL_DEAD_PENDING. */
static const struct semel_choice statuses[] = {
	{ "PENDING", "waits for a replay or a discard" },
	{ "REPLAYED", "was sent again" },
	{ "DISCARDED", "was given up by an operator" },
	{ 0 },
};

static semel_dead_status read_status(const struct semel_args *args)
{
	if (!semel_args_has(args, "status"))
		return SEMEL_DEAD_ANY;
	return SEMEL_DEAD_PENDING + (semel_dead_status)semel_args_choice(args, "status");
}

static semel_status run_list(struct semel_invocation *invocation)
{
	const struct semel_args *args = invocation->args;
	semel_error *error = &invocation->error;
	semel_dead_letter_filter filter = { .limit = (uint32_t)semel_args_number(args, "limit"),
					    .status = read_status(args),
					    .scope = semel_args_text(args, "scope") };
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, error);
	if (status != SEMEL_OK)
		return status;
	struct listing listing = { .json = invocation->json, .error = error };
	status = invocation->json
			 ? semel_dead_letter_list(store, &filter, print_list_entry, &listing, error)
			 : semel_dead_letter_list_brief(store, &filter, print_list_entry, &listing,
							error);
	semel_store_close(store);
	if (status != SEMEL_OK || listing.printed != SEMEL_OK)
		return status != SEMEL_OK ? status : listing.printed;
	if (invocation->json)
		semel_buffer_string(&listing.buffer, listing.count == 0 ? "[]\n" : "]\n");
	else if (listing.count == 0)
		semel_buffer_string(&listing.buffer, "no dead letters\n");
	return semel_output_print(&listing.buffer, error);
}

static semel_status run_count(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, error);
	if (status != SEMEL_OK)
		return status;
	uint64_t count = 0;
	status = semel_dead_letter_count(store, semel_args_text(invocation->args, "scope"), &count,
					 error);
	semel_store_close(store);
	if (status != SEMEL_OK)
		return status;
	printf(invocation->json ? "{\"count\":%" PRIu64 "}\n" : "%" PRIu64 "\n", count);
	return SEMEL_OK;
}

static void show_text(const semel_dead_letter *letter, struct semel_buffer *buffer)
{
	char time[SEMEL_TIME_SIZE];
	semel_time_format(letter->failed_at_ms, time);
	const struct {
		const char *label, *value;
	} lines[] = {
		{ "entry", letter->entry_id },
		{ "status", semel_dead_status_name(letter->status) },
		{ "event", letter->event_id },
		{ "type", letter->event_type },
		{ "topic", letter->topic },
		{ "scope", letter->scope },
		{ "failed at", time },
		{ "reason", letter->failure_reason },
		{ "correlation", letter->correlation_id },
		{ "saga", letter->saga_id },
		{ "discard reason", letter->discard_reason },
	};
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
		semel_buffer_printf(buffer, "%-15s", lines[i].label);
		append_plain(buffer, lines[i].value, 0);
		semel_buffer_string(buffer, "\n");
	}
	semel_buffer_printf(buffer, "%-15s%u\n%-15s%u of %d\n%-15s%" PRIu64 "\n%-15s", "attempts",
			    letter->attempts, "replays", letter->replay_count, SEMEL_REPLAYS_MAX,
			    "parked", letter->parked, "record");
	semel_event_to_record(letter->event, buffer);
	semel_buffer_string(buffer, "\n");
}

static void show_entry(const semel_dead_letter *letter, void *user)
{
	struct listing *listing = user;
	if (!listing->json) {
		show_text(letter, &listing->buffer);
		return;
	}
	semel_dead_letter_to_json(letter, &listing->buffer);
	semel_buffer_string(&listing->buffer, "\n");
}

static semel_status run_show(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	const char *const *ids = semel_args_positionals(invocation->args, NULL);
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, error);
	if (status != SEMEL_OK)
		return status;
	struct listing listing = { .json = invocation->json };
	status = semel_dead_letter_get(store, ids[0], show_entry, &listing, error);
	semel_store_close(store);
	semel_status printed =
		semel_output_print(&listing.buffer, status == SEMEL_OK ? error : NULL);
	if (status != SEMEL_OK)
		return status;
	return printed;
}

/* ---- replay, discard: one result for each id ------------------------------------------------- */

struct results {
	struct semel_invocation *invocation;
	const char *done; /* "replayed", "discarded" */
	uint64_t count, failed;
	semel_status first; /* the first failure */
	semel_error first_error;
};

static void result_json(const struct results *results, const char *id, semel_status status,
			const semel_error *error)
{
	struct semel_buffer buffer = { 0 };
	semel_buffer_string(&buffer, results->count == 0 ? "[{\"status\":" : ",\n {\"status\":");
	semel_buffer_json(&buffer, semel_text_of(status == SEMEL_OK ? results->done
								    : semel_status_name(status)));
	semel_buffer_string(&buffer, ",\"dlqEntryId\":");
	semel_buffer_json(&buffer, semel_text_of(id));
	if (status != SEMEL_OK) {
		semel_buffer_string(&buffer, ",\"error\":");
		semel_buffer_json(&buffer, semel_text_of(error->text));
	}
	semel_buffer_string(&buffer, "}");
	(void)semel_output_print(&buffer, NULL);
}

static void print_result(struct results *results, const char *id, semel_status status,
			 const semel_error *error)
{
	if (results->invocation->json) {
		result_json(results, id, status, error);
		return;
	}
	if (status != SEMEL_OK)
		return;
	printf("%s %s\n", results->done, id);
}

/* False: the store or the broker is unreachable, so the rest is not tried. */
static bool report_result(struct results *results, const char *id, semel_status status,
			  const semel_error *error)
{
	print_result(results, id, status, error);
	results->count++;
	if (status == SEMEL_OK)
		return true;
	if (results->failed++ == 0) {
		results->first = status;
		results->first_error = *error;
	} else {
		fprintf(stderr, "semel: %s\n", error->text);
	}
	return semel_status_class(status) == SEMEL_CLASS_REJECT;
}

static semel_status finish_results(struct results *results)
{
	if (results->invocation->json)
		printf(results->count == 0 ? "[]\n" : "]\n");
	if (results->failed > 0)
		results->invocation->error = results->first_error;
	return results->failed > 0 ? results->first : SEMEL_OK;
}

/* Ids of the dead letters that are pending now. One that is replayed and becomes pending again at
 * once is not replayed again. */
struct id_list {
	char **ids;
	size_t count, capacity;
	bool failed;
};

static void add_id(const semel_dead_letter *letter, void *user)
{
	struct id_list *list = user;
	char *id = list->count < list->capacity ? strdup(letter->entry_id) : NULL;
	if (id)
		list->ids[list->count++] = id;
	else
		list->failed = true;
}

static void free_ids(struct id_list *list)
{
	for (size_t i = 0; i < list->count; i++)
		free(list->ids[i]);
	free(list->ids);
}

static semel_status list_pending(semel_store *store, const char *scope, struct id_list *list,
				 semel_error *error)
{
	uint64_t count = 0;
	semel_status status = semel_dead_letter_count(store, scope, &count, error);
	if (status != SEMEL_OK || count == 0)
		return status;
	list->capacity = count < UINT32_MAX ? (size_t)count : UINT32_MAX;
	list->ids = calloc(list->capacity, sizeof(*list->ids));
	if (!list->ids)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
	semel_dead_letter_filter filter = { .limit = (uint32_t)list->capacity,
					    .status = SEMEL_DEAD_PENDING,
					    .scope = scope };
	status = semel_dead_letter_list_brief(store, &filter, add_id, list, error);
	if (status != SEMEL_OK || !list->failed)
		return status;
	return semel_error_set(error, SEMEL_INTERNAL, "out of memory");
}

/* listed: the ids were pending when they were listed; those that another operator has replayed or
 * discarded since are skipped. */
static void replay_ids(struct results *results, struct semel_dead_replayer *replayer,
		       const char *const *ids, size_t count, bool listed)
{
	bool proceed = true;
	for (size_t i = 0; i < count && proceed; i++) {
		semel_error error = { 0 };
		semel_status status = semel_dead_replayer_replay(replayer, ids[i], &error);
		if (listed && status == SEMEL_NOT_PENDING)
			continue;
		proceed = report_result(results, ids[i], status, &error);
	}
}

static semel_status replay_all(struct results *results, struct semel_dead_replayer *replayer,
			       const char *scope)
{
	struct id_list list = { 0 };
	semel_status status =
		list_pending(replayer->store, scope, &list, &results->invocation->error);
	if (status != SEMEL_OK)
		goto free_ids;
	replay_ids(results, replayer, (const char *const *)list.ids, list.count, true);
	if (results->count == 0 && !results->invocation->json)
		printf("no dead letter is pending\n");
	status = finish_results(results);

free_ids:
	free_ids(&list);
	return status;
}

static semel_status run_replay(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	size_t count = 0;
	const char *const *ids = semel_args_positionals(invocation->args, &count);
	bool all = semel_args_flag(invocation->args, "all");
	const char *scope = semel_args_text(invocation->args, "scope");
	if (all && count > 0)
		return semel_error_set(
			error, SEMEL_USAGE,
			"--all and dead letter ids are mutually exclusive (use one)");
	if (!all && count == 0)
		return semel_error_set(error, SEMEL_USAGE,
				       "dlq replay needs dead letter ids or --all (run: semel dlq "
				       "list)");
	if (scope && !all)
		return semel_error_set(error, SEMEL_USAGE,
				       "--scope can be used only with --all (remove --scope, or "
				       "replace the ids with --all)");

	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, error);
	if (status != SEMEL_OK)
		return status;
	struct semel_dead_replayer replayer = { .store = store,
						.broker_url = invocation->broker,
						.env = semel_env_system() };
	struct results results = { .invocation = invocation, .done = "replayed" };
	if (all) {
		status = replay_all(&results, &replayer, scope);
	} else {
		replay_ids(&results, &replayer, ids, count, false);
		status = finish_results(&results);
	}
	semel_dead_replayer_close(&replayer);
	semel_store_close(store);
	return status;
}

static semel_status run_discard(struct semel_invocation *invocation)
{
	size_t count = 0;
	const char *const *ids = semel_args_positionals(invocation->args, &count);
	const char *reason = semel_args_text(invocation->args, "reason");
	semel_store *store = NULL;
	semel_status status = semel_store_open(invocation->store, &store, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	struct results results = { .invocation = invocation, .done = "discarded" };
	bool proceed = true;
	for (size_t i = 0; i < count && proceed; i++) {
		semel_error error = { 0 };
		status = semel_dead_letter_discard(store, ids[i], reason, &error);
		proceed = report_result(&results, ids[i], status, &error);
	}
	semel_store_close(store);
	return finish_results(&results);
}

/* ---- the tables ------------------------------------------------------------------------------ */

#define OPTION_SCOPE                                                                               \
	{                                                                                          \
		.name = "scope", .kind = SEMEL_OPTION_TEXT, .command_line_only = true,             \
		.argument = "SCOPE",                                                               \
		.help = "select this subscription (relay: events that the broker refused)",        \
	}

static const struct semel_option list_options[] = {
	{ .name = "limit",
	  .kind = SEMEL_OPTION_NUMBER,
	  .command_line_only = true,
	  .argument = "N",
	  .min = 1,
	  .max = 1000,
	  .default_value = "20",
	  .help = "list at most this many" },
	{ .name = "status",
	  .kind = SEMEL_OPTION_CHOICE,
	  .command_line_only = true,
	  .argument = "STATUS",
	  .choices = statuses,
	  .any_case = true,
	  .help = "select dead letters of this status (default: all)" },
	OPTION_SCOPE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_option count_options[] = { OPTION_SCOPE, SEMEL_OPTION_JSON, { 0 } };

static const struct semel_option show_options[] = { SEMEL_OPTION_JSON, { 0 } };

static const struct semel_option replay_options[] = {
	{ .name = "all",
	  .kind = SEMEL_OPTION_FLAG,
	  .command_line_only = true,
	  .help = "replay every dead letter that is pending now" },
	OPTION_SCOPE,
	SEMEL_OPTION_JSON,
	{ 0 },
};

static const struct semel_option discard_options[] = {
	{ .name = "reason",
	  .kind = SEMEL_OPTION_TEXT,
	  .command_line_only = true,
	  .argument = "TEXT",
	  .help = "reason, recorded with the entry" },
	SEMEL_OPTION_JSON,
	{ 0 },
};

extern const struct semel_command semel_command_dlq;

static const struct semel_command command_list = {
	.name = "list",
	.run = run_list,
	.summary = "list dead letters, the oldest failure first",
	.options = list_options,
	.parent = &semel_command_dlq,
};

static const struct semel_command command_count = {
	.name = "count",
	.run = run_count,
	.summary = "count pending dead letters",
	.options = count_options,
	.details = "Events that are parked behind a dead letter are not counted.",
	.parent = &semel_command_dlq,
};

static const struct semel_command command_show = {
	.name = "show",
	.run = run_show,
	.summary = "show a dead letter with its event",
	.positionals = "ID",
	.positionals_min = 1,
	.positionals_max = 1,
	.options = show_options,
	.parent = &semel_command_dlq,
};

static const struct semel_command command_replay = {
	.name = "replay",
	.run = run_replay,
	.summary = "send pending dead letters to their subscription again",
	.positionals = "[ID…]",
	.positionals_max = SIZE_MAX,
	.options = replay_options,
	.details =
		"The event keeps its id and is sent to its own subscription only; it is "
		"processed at once, and then the events that are parked behind it, in order. If "
		"it fails again it returns to the same entry. An entry is replayed at most three "
		"times.\n\n"
		"Each id has its own result; the exit code is that of the first that failed.",
	.parent = &semel_command_dlq,
};

static const struct semel_command command_discard = {
	.name = "discard",
	.run = run_discard,
	.summary = "discard pending dead letters",
	.positionals = "ID…",
	.positionals_min = 1,
	.positionals_max = SIZE_MAX,
	.options = discard_options,
	.details =
		"The entry is kept as DISCARDED until its retention ends. Events that are parked "
		"behind it are released, in order.",
	.parent = &semel_command_dlq,
};

static const struct semel_command *const subcommands[] = { &command_list,    &command_count,
							   &command_show,    &command_replay,
							   &command_discard, NULL };

static const struct semel_example examples[] = {
	{ "semel dlq list --status PENDING", "list dead letters that wait for a decision" },
	{ "semel dlq replay --all --scope billing", "after billing was repaired" },
	{ "semel dlq count --json", "for an alert" },
	{ 0 },
};

const struct semel_command semel_command_dlq = {
	.name = "dlq",
	.group = SEMEL_GROUP_OPERATE,
	.summary = "list, show, replay or discard dead letters",
	.details = "A dead letter is an event that is no longer retried, kept with its payload: a "
		   "handler of a subscription rejected it, or the broker refused it.",
	.examples = examples,
	.subcommands = subcommands,
};
