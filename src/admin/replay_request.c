/* SPDX-License-Identifier: Apache-2.0 */
/* The body that starts a replay: the options of `semel replay` as members of an object. */
#include "admin/replays.h"
#include "base/error.h"
#include "base/json.h"
#include "base/time.h"

#include <stdio.h>
#include <string.h>

struct reading {
	struct semel_arena *arena; /* of the plan's texts */
	struct semel_replay_plan *plan;
};

static semel_status refuse(semel_error *error, struct semel_text name, const char *what)
{
	return semel_error_set(error, SEMEL_USAGE, "%.*s must be %s", (int)name.length,
			       semel_text_shown(name), what);
}

static semel_status read_text(struct reading *reading, struct semel_text name,
			      struct semel_text value, const char **text_out, semel_error *error)
{
	if (value.length == 0 || value.data[0] != '"')
		return refuse(error, name, "a string");
	struct semel_text text = semel_json_unquote(value, reading->arena);
	if (semel_text_has_nul(text))
		return refuse(error, name, "a string without NUL bytes");
	*text_out = semel_text_to_string(text);
	return *text_out ? SEMEL_OK : refuse(error, name, "a string");
}

static semel_status read_number(struct reading *reading, struct semel_text name,
				struct semel_text value, long long max, semel_error *error)
{
	char text[32];
	long long number = 0;

	snprintf(text, sizeof text, "%.*s", (int)(value.length < 31 ? value.length : 31),
		 semel_text_shown(value));
	if (!semel_text_to_int64(text, 1, max, &number))
		return refuse(error, name, "an integer, at least 1");
	if (semel_text_equal(name, SEMEL_TEXT("max")))
		reading->plan->max = (uint64_t)number;
	else
		reading->plan->rate = (uint32_t)number;
	return SEMEL_OK;
}

static semel_status read_time(struct reading *reading, struct semel_text name,
			      struct semel_text value, int64_t *time_ms_out, semel_error *error)
{
	const char *text = NULL;
	semel_status status = read_text(reading, name, value, &text, error);

	if (status != SEMEL_OK)
		return status;
	return semel_time_parse(text, time_ms_out)
		       ? SEMEL_OK
		       : refuse(error, name, "a time such as 2026-01-31T12:00:00Z");
}

static semel_status read_flag(struct semel_text name, struct semel_text value, bool *flag_out,
			      semel_error *error)
{
	*flag_out = semel_text_equal(value, SEMEL_TEXT("true"));
	return *flag_out || semel_text_equal(value, SEMEL_TEXT("false"))
		       ? SEMEL_OK
		       : refuse(error, name, "true or false");
}

static semel_status read_aggregate(struct reading *reading, struct semel_text name,
				   struct semel_text value, semel_error *error)
{
	const char *text = NULL;
	semel_status status = read_text(reading, name, value, &text, error);

	if (status != SEMEL_OK)
		return status;
	const char *colon = strchr(text, ':');
	if (!colon || colon == text || !colon[1])
		return refuse(error, name, "of the form TYPE:ID");
	reading->plan->filter.aggregate_type =
		semel_text_string(semel_arena_text(reading->arena, text, (size_t)(colon - text)));
	reading->plan->filter.aggregate_id = colon + 1;
	return SEMEL_OK;
}

static semel_status read_member(struct reading *reading, struct semel_text name,
				struct semel_text value, semel_error *error)
{
	struct semel_replay_plan *plan = reading->plan;

	if (semel_text_equal(name, SEMEL_TEXT("type")))
		return read_text(reading, name, value, &plan->filter.type, error);
	if (semel_text_equal(name, SEMEL_TEXT("scope")))
		return read_text(reading, name, value, &plan->scope, error);
	if (semel_text_equal(name, SEMEL_TEXT("aggregate")))
		return read_aggregate(reading, name, value, error);
	if (semel_text_equal(name, SEMEL_TEXT("since")))
		return read_time(reading, name, value, &plan->filter.since_ms, error);
	if (semel_text_equal(name, SEMEL_TEXT("until")))
		return read_time(reading, name, value, &plan->filter.until_ms, error);
	if (semel_text_equal(name, SEMEL_TEXT("max")))
		return read_number(reading, name, value, INT64_MAX, error);
	if (semel_text_equal(name, SEMEL_TEXT("rate")))
		return read_number(reading, name, value, 1000000, error);
	if (semel_text_equal(name, SEMEL_TEXT("reprocess")))
		return read_flag(name, value, &plan->reprocess, error);
	if (semel_text_equal(name, SEMEL_TEXT("force")))
		return read_flag(name, value, &plan->force, error);
	if (semel_text_equal(name, SEMEL_TEXT("dryRun")))
		return read_flag(name, value, &plan->dry_run, error);
	return semel_error_set(
		error, SEMEL_USAGE,
		"unknown member %.*s (known members: type, scope, aggregate, since, until, "
		"max, rate, reprocess, force and dryRun)",
		(int)(name.length < 40 ? name.length : 40), semel_text_shown(name));
}

semel_status semel_replay_request_read(struct semel_text body, struct semel_arena *arena,
				       struct semel_replay_plan *plan, semel_error *error)
{
	struct reading reading = { arena, plan };
	struct semel_text name, value;

	if (body.length > SEMEL_REPLAY_REQUEST_MAX)
		return semel_error_set(error, SEMEL_USAGE,
				       "the body can have at most %zu "
				       "bytes",
				       SEMEL_REPLAY_REQUEST_MAX);
	if (body.length == 0)
		body = SEMEL_TEXT("{}");
	if (!semel_json_is_valid(body) || semel_json_first(body) != '{')
		return semel_error_set(error, SEMEL_USAGE, "the body must be a JSON object");
	struct semel_json_walk walk = semel_json_walk(body);
	while (semel_json_next(&walk, &name, &value)) {
		semel_status status =
			read_member(&reading, semel_json_unquote(name, arena), value, error);
		if (status != SEMEL_OK)
			return status;
	}
	if (plan->reprocess && !plan->scope)
		return semel_error_set(error, SEMEL_USAGE,
				       "reprocess requires scope, whose claims are deleted");
	return SEMEL_OK;
}
