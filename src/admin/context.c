/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/context.h"

#include "base/error.h"
#include "base/time.h"
#include "store/changes.h"

#include <stdio.h>
#include <string.h>

void semel_admin_defaults(struct semel_admin_options *options)
{
	if (options->ready_stall_ms == 0)
		options->ready_stall_ms = 60000;
	if (options->slot_budget == 0)
		options->slot_budget = SEMEL_SLOT_BUDGET_DEFAULT;
	if (!options->slot)
		options->slot = SEMEL_SLOT_DEFAULT;
}

semel_status semel_admin_request_open_store(struct semel_admin_request *request, semel_error *error)
{
	struct semel_admin_context *context = request->context;

	if (request->store)
		return SEMEL_OK;
	pthread_mutex_lock(&context->idle_mutex);
	if (context->idle_count > 0)
		request->store = context->idle[--context->idle_count];
	pthread_mutex_unlock(&context->idle_mutex);
	request->pooled = request->store != NULL;
	if (request->store)
		return SEMEL_OK;
	return semel_store_open(context->options.store, &request->store, error);
}

void semel_admin_request_close_store(struct semel_admin_request *request, bool keep_store)
{
	struct semel_admin_context *context = request->context;

	if (request->store && keep_store) {
		pthread_mutex_lock(&context->idle_mutex);
		if (context->idle_count < sizeof context->idle / sizeof *context->idle) {
			context->idle[context->idle_count++] = request->store;
			request->store = NULL;
		}
		pthread_mutex_unlock(&context->idle_mutex);
	}
	semel_store_close(request->store);
	request->store = NULL;
}

semel_status semel_admin_request_audit(struct semel_admin_request *request, const char *what,
				       const char *target, const char *detail, semel_error *error)
{
	struct semel_audit_row row = { .at_ms = semel_now_ms(request->context->env),
				       .who = semel_text_of(request->who),
				       .what = semel_text_of(what),
				       .target = semel_text_of(target),
				       .detail = semel_text_of(detail),
				       .outcome = SEMEL_TEXT(SEMEL_AUDIT_BEGUN) };
	semel_status status = semel_admin_request_open_store(request, error);

	if (status != SEMEL_OK)
		return status;
	return request->store->driver->upkeep->audit_add(request->store, &row,
							 &request->audit_number, error);
}

void semel_audit_outcome(semel_status status, char *text, size_t size)
{
	if (status != SEMEL_OK)
		snprintf(text, size, "%s: %s",
			 semel_problem_status(status) < 500 ? "refused" : "failed",
			 semel_status_name(status));
	else
		snprintf(text, size, "done");
}

void semel_admin_request_audit_end(struct semel_admin_request *request, semel_status status)
{
	if (request->audit_number == 0 || !request->store)
		return;
	char result[64], outcome[sizeof result + sizeof request->outcome + 2];
	semel_audit_outcome(status, result, sizeof result);
	bool is_partial = status != SEMEL_OK && request->outcome[0] != '\0';
	snprintf(outcome, sizeof outcome, "%s%s%s",
		 status != SEMEL_OK || request->outcome[0] == '\0' ? result : "",
		 is_partial ? "; " : "", request->outcome);
	(void)request->store->driver->upkeep->audit_finish(request->store, request->audit_number,
							   outcome, NULL);
}

void semel_buffer_time(struct semel_buffer *buffer, int64_t time_ms)
{
	char time[SEMEL_TIME_SIZE];

	if (time_ms == 0) {
		semel_buffer_string(buffer, "null");
		return;
	}
	semel_time_format(time_ms, time);
	semel_buffer_printf(buffer, "\"%s\"", time);
}

semel_status semel_admin_request_number(struct semel_admin_request *request, const char *name,
					struct semel_range range, int64_t *number_out,
					semel_error *error)
{
	const char *text = semel_http_query(request->http, name);
	long long number = range.fallback;

	if (text && !semel_text_to_int64(text, range.min, range.max, &number))
		return semel_error_set(error, SEMEL_USAGE, "%s must be a number from %lld to %lld",
				       name, (long long)range.min, (long long)range.max);
	*number_out = number;
	return SEMEL_OK;
}
