/* SPDX-License-Identifier: Apache-2.0 */
/* Chains of upcasters. Types form chains without forks or cycles, which is checked when a step is
 * added, so applying them always ends. They may run while the claim's transaction is open, so a
 * program among them has little time. */
#include "consume/upcast.h"

#include "base/child.h"
#include "base/error.h"
#include "base/json.h"
#include "consume/environment.h"
#include "consume/handler.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAM_TIMEOUT_MS 5000

struct step {
	char *from_type, *to_type, *target;
	enum semel_upcast_kind kind;
	semel_upcaster function;
	void *user;
};

struct semel_upcasters {
	struct step *steps;
	size_t count;
	const char *const *passed; /* the consumer's */
};

/* What a C function writes to. */
struct semel_upcast {
	struct semel_arena *arena;
	struct semel_text payload;
};

struct applying {
	semel_store *store;
	struct semel_event *event;
	struct semel_arena *arena;
	semel_error *error;
	const char *const *passed;
};

/* ---- the list -------------------------------------------------------------------------------- */

struct semel_upcasters *semel_upcasters_new(void)
{
	return calloc(1, sizeof(struct semel_upcasters));
}

void semel_upcasters_pass_env(struct semel_upcasters *upcasters, const char *const *names)
{
	upcasters->passed = names;
}

static void free_step(struct step *step)
{
	free(step->from_type);
	free(step->to_type);
	free(step->target);
}

void semel_upcasters_free(struct semel_upcasters *upcasters)
{
	if (upcasters == NULL)
		return;
	for (size_t i = 0; i < upcasters->count; i++)
		free_step(&upcasters->steps[i]);
	free(upcasters->steps);
	free(upcasters);
}

static const struct step *find_step(const struct semel_upcasters *upcasters, struct semel_text type)
{
	for (size_t i = 0; i < upcasters->count; i++)
		if (semel_text_equal(semel_text_of(upcasters->steps[i].from_type), type))
			return &upcasters->steps[i];
	return NULL;
}

/* Does the chain that begins at one type lead to the other? */
static bool leads_to(const struct semel_upcasters *upcasters, const char *from, const char *to)
{
	const char *type = from;
	while (strcmp(type, to) != 0) {
		const struct step *step = find_step(upcasters, semel_text_of(type));
		if (step == NULL)
			return false;
		type = step->to_type;
	}
	return true;
}

static semel_status check_step(const struct semel_upcasters *upcasters,
			       const struct semel_upcast_step *step, semel_error *error)
{
	if (semel_string_is_blank(step->from_type) || semel_string_is_blank(step->to_type))
		return semel_error_set(error, SEMEL_INVALID,
				       "an upcaster needs an input type and an output type");
	if (step->kind == SEMEL_UPCAST_C ? step->function == NULL
					 : semel_string_is_blank(step->target))
		return semel_error_set(error, SEMEL_INVALID,
				       "the upcaster from %s to %s has nothing to run",
				       step->from_type, step->to_type);
	const struct step *other = find_step(upcasters, semel_text_of(step->from_type));
	if (other != NULL)
		return semel_error_set(error, SEMEL_INVALID,
				       "two upcasters convert %s (one to %s, one to %s): keep one",
				       step->from_type, other->to_type, step->to_type);
	if (leads_to(upcasters, step->to_type, step->from_type))
		return semel_error_set(error, SEMEL_INVALID,
				       "the upcasters from %s to %s form a cycle", step->from_type,
				       step->to_type);
	return SEMEL_OK;
}

semel_status semel_upcasters_add(struct semel_upcasters *upcasters,
				 const struct semel_upcast_step *step, semel_error *error)
{
	semel_status status = check_step(upcasters, step, error);
	if (status != SEMEL_OK)
		return status;
	struct step *grown = realloc(upcasters->steps, (upcasters->count + 1) * sizeof *grown);
	if (grown == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an upcaster");
	upcasters->steps = grown;
	struct step copy = {
		.from_type = strdup(step->from_type),
		.to_type = strdup(step->to_type),
		.target = strdup(step->target != NULL ? step->target : ""),
		.kind = step->kind,
		.function = step->function,
		.user = step->user,
	};
	if (copy.from_type == NULL || copy.to_type == NULL || copy.target == NULL) {
		free_step(&copy);
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an upcaster");
	}
	upcasters->steps[upcasters->count++] = copy;
	return SEMEL_OK;
}

static bool read_kind(const char *word, size_t length, enum semel_upcast_kind *kind_out)
{
	bool sql = length == 3 && memcmp(word, "sql", 3) == 0;
	bool exec = length == 4 && memcmp(word, "exec", 4) == 0;
	*kind_out = sql ? SEMEL_UPCAST_SQL : SEMEL_UPCAST_EXEC;
	return sql || exec;
}

semel_status semel_upcasters_parse(struct semel_upcasters *upcasters, const char *specification,
				   semel_error *error)
{
	struct semel_upcast_step step = { 0 };
	char *text = strdup(specification);
	if (text == NULL)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for an upcaster");
	char *equals = strchr(text, '=');
	char *kind = equals != NULL ? strchr(equals, ':') : NULL;
	char *target = kind != NULL ? strchr(kind + 1, ':') : NULL;
	semel_status status = SEMEL_USAGE;
	if (target == NULL || !read_kind(kind + 1, (size_t)(target - kind - 1), &step.kind)) {
		semel_error_set(error, SEMEL_USAGE,
				"\"%s\" is not an upcaster: write FROM=TO:sql:EXPRESSION or "
				"FROM=TO:exec:COMMAND",
				specification);
		goto free_text;
	}
	*equals = *kind = '\0';
	step.from_type = text;
	step.to_type = equals + 1;
	step.target = target + 1;
	status = semel_upcasters_add(upcasters, &step, error);
	if (status == SEMEL_INVALID) {
		status = SEMEL_USAGE;
		if (error != NULL)
			error->status = SEMEL_USAGE;
	}

free_text:
	free(text);
	return status;
}

/* ---- one step -------------------------------------------------------------------------------- */

semel_status semel_upcast_payload(semel_upcast *upcast, const void *payload, size_t size)
{
	if (upcast == NULL || (payload == NULL && size > 0))
		return SEMEL_INVALID;
	if (size > SEMEL_PAYLOAD_MAX)
		return SEMEL_TOO_LARGE;
	struct semel_text copy =
		semel_arena_text(upcast->arena, payload != NULL ? payload : "", size);
	if (copy.data == NULL)
		return SEMEL_INTERNAL;
	upcast->payload = copy;
	return SEMEL_OK;
}

static semel_status call_function(const struct step *step, struct applying *applying,
				  struct semel_text *payload_out)
{
	/* A step that only renames the type writes nothing. */
	semel_upcast upcast = { applying->arena, applying->event->payload };
	switch (step->function(applying->event, &upcast, step->user)) {
	case SEMEL_DONE:
		*payload_out = upcast.payload;
		return SEMEL_OK;
	case SEMEL_RETRY:
		return semel_error_set(applying->error, SEMEL_HANDLER_RETRY,
				       "it returned SEMEL_RETRY");
	default:
		return semel_error_set(applying->error, SEMEL_HANDLER_REJECT,
				       "it rejected the event");
	}
}

static semel_status evaluate(const struct step *step, struct applying *applying,
			     struct semel_text *payload_out)
{
	semel_store *store = applying->store;
	semel_status status =
		store->driver->inbox->evaluate(store, step->target, applying->event,
					       applying->arena, payload_out, applying->error);
	/* An expression that fails for this event always will; an unreachable store recovers. */
	if (status == SEMEL_INVALID) {
		status = SEMEL_HANDLER_REJECT;
		if (applying->error != NULL)
			applying->error->status = status;
	}
	if (status != SEMEL_OK || payload_out->data != NULL)
		return status;
	return semel_error_set(applying->error, SEMEL_HANDLER_REJECT, "the expression yields NULL");
}

static semel_status take_output(struct semel_child *child, struct applying *applying,
				struct semel_text *payload_out)
{
	struct semel_text output = semel_child_output(child);
	/* Programs end their last line with a newline; a JSON text needs none. */
	if (semel_event_is_json(applying->event) && output.length > 0 &&
	    output.data[output.length - 1] == '\n')
		output.length--;
	*payload_out = semel_arena_text(
		applying->arena, output.length > 0 ? semel_text_chars(output) : "", output.length);
	if (payload_out->data == NULL)
		return semel_error_set(applying->error, SEMEL_INTERNAL, "out of memory");
	return SEMEL_OK;
}

static semel_status explain_exit(const struct semel_child *child, struct applying *applying)
{
	char stderr_text[700], ending[128];
	semel_child_stderr(child, stderr_text, sizeof stderr_text);
	semel_child_describe_exit(child, ending, sizeof ending);
	bool never = semel_child_exit_code(child) == SEMEL_PROGRAM_REJECTS;
	return semel_error_set(applying->error, never ? SEMEL_HANDLER_REJECT : SEMEL_HANDLER_RETRY,
			       "it %s%s%s", ending, stderr_text[0] != '\0' ? ": " : "",
			       stderr_text);
}

static semel_status run_child(struct semel_child *child, struct applying *applying,
			      struct semel_text *payload_out)
{
	const struct semel_child_communication communication = {
		.input = applying->event->payload,
		.until_exit = true,
		.timeout_ms = PROGRAM_TIMEOUT_MS,
		.interrupt_fd = -1,
		.output_limit = SEMEL_PAYLOAD_MAX,
	};
	switch (semel_child_communicate(child, &communication)) {
	case SEMEL_CHILD_EXITED:
		if (semel_child_exit_code(child) == 0)
			return take_output(child, applying, payload_out);
		return explain_exit(child, applying);
	case SEMEL_CHILD_TOO_MUCH:
		return semel_error_set(applying->error, SEMEL_HANDLER_REJECT,
				       "the new payload is larger than %zu bytes",
				       SEMEL_PAYLOAD_MAX);
	case SEMEL_CHILD_NO_MEMORY:
		return semel_error_set(applying->error, SEMEL_INTERNAL, "out of memory");
	default:
		return semel_error_set(applying->error, SEMEL_HANDLER_RETRY,
				       "the program did not exit within %d s",
				       PROGRAM_TIMEOUT_MS / 1000);
	}
}

static semel_status run_program(const struct step *step, struct applying *applying,
				struct semel_text *payload_out)
{
	struct semel_environment *environment = semel_environment_new(NULL, applying->passed);
	struct semel_child *child = NULL;
	if (environment == NULL)
		return semel_error_set(applying->error, SEMEL_INTERNAL, "out of memory");
	semel_status status =
		semel_environment_describe(environment, applying->event, 0, applying->error);
	if (status != SEMEL_OK)
		goto free_environment;
	const struct semel_child_options plan = {
		.command = step->target,
		.environment = semel_environment_list(environment),
		.capture = true,
	};
	status = semel_child_start(&plan, &child, applying->error);
	if (status != SEMEL_OK)
		goto end_child;
	status = run_child(child, applying, payload_out);

end_child:
	semel_child_end(child, 0);
free_environment:
	semel_environment_free(environment);
	return status == SEMEL_TOO_LARGE ? SEMEL_HANDLER_REJECT : status;
}

/* ---- the chain ------------------------------------------------------------------------------- */

static semel_status run_step(const struct step *step, struct applying *applying,
			     struct semel_text *payload_out)
{
	switch (step->kind) {
	case SEMEL_UPCAST_C:
		return call_function(step, applying, payload_out);
	case SEMEL_UPCAST_SQL:
		return evaluate(step, applying, payload_out);
	default:
		return run_program(step, applying, payload_out);
	}
}

static semel_status take_step(const struct step *step, struct applying *applying)
{
	struct semel_text payload = { 0 };
	semel_status status = run_step(step, applying, &payload);
	if (status != SEMEL_OK)
		return status;
	if (payload.length > SEMEL_PAYLOAD_MAX)
		return semel_error_set(applying->error, SEMEL_HANDLER_REJECT,
				       "the new payload is larger than %zu bytes",
				       SEMEL_PAYLOAD_MAX);
	if (semel_event_is_json(applying->event) && !semel_json_is_valid(payload))
		return semel_error_set(applying->error, SEMEL_HANDLER_REJECT,
				       "the new payload is not JSON (wrong at byte %zu)",
				       semel_json_error_at(payload));
	struct semel_text type =
		semel_arena_text(applying->arena, step->to_type, strlen(step->to_type));
	if (type.data == NULL)
		return semel_error_set(applying->error, SEMEL_INTERNAL, "out of memory");
	applying->event->type = type;
	applying->event->payload = payload;
	return SEMEL_OK;
}

bool semel_upcasters_has_step(const struct semel_upcasters *upcasters,
			      const struct semel_event *event)
{
	return find_step(upcasters, event->type) != NULL;
}

semel_status semel_upcasters_apply(const struct semel_upcasters *upcasters, semel_store *store,
				   struct semel_event *event, struct semel_arena *arena,
				   semel_error *error)
{
	struct semel_event current = *event; /* a failure leaves the event unchanged */
	struct applying applying = { store, &current, arena, error, upcasters->passed };
	const struct step *step;
	while ((step = find_step(upcasters, current.type)) != NULL) {
		semel_status status = take_step(step, &applying);
		if (status == SEMEL_OK)
			continue;
		semel_error_prefix(error, "upcaster from %s to %s", step->from_type, step->to_type);
		return status;
	}
	*event = current;
	return SEMEL_OK;
}
