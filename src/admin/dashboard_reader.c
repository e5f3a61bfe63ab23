/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/dashboard_reader.h"

#include "admin/dashboard.h"
#include "admin/health.h"
#include "base/error.h"

#include <stdlib.h>

struct semel_dashboard_reader {
	struct semel_admin_context context;
};

semel_status semel_dashboard_reader_open(const struct semel_admin_options *options,
					 struct semel_dashboard_reader **reader_out,
					 semel_error *error)
{
	struct semel_dashboard_reader *reader = calloc(1, sizeof *reader);

	*reader_out = NULL;
	if (!reader)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for the dashboard");
	struct semel_admin_context *context = &reader->context;
	context->options = *options;
	semel_admin_defaults(&context->options);
	context->env = semel_env_system();
	pthread_mutex_init(&context->idle_mutex, NULL);
	context->dashboard = semel_dashboard_new(context);
	semel_status status =
		context->dashboard
			? semel_health_monitor_start(context, &context->health, error)
			: semel_error_set(error, SEMEL_INTERNAL, "no memory for the dashboard");
	if (status != SEMEL_OK) {
		semel_dashboard_reader_close(reader);
		return status;
	}
	*reader_out = reader;
	return SEMEL_OK;
}

void semel_dashboard_reader_write_json(struct semel_dashboard_reader *reader,
				       struct semel_buffer *text)
{
	semel_health_monitor_check(reader->context.health);
	semel_dashboard_write_json(reader->context.dashboard, text);
}

void semel_dashboard_reader_close(struct semel_dashboard_reader *reader)
{
	if (!reader)
		return;
	semel_health_monitor_stop(reader->context.health);
	semel_dashboard_free(reader->context.dashboard);
	for (size_t i = 0; i < reader->context.idle_count; i++)
		semel_store_close(reader->context.idle[i]);
	pthread_mutex_destroy(&reader->context.idle_mutex);
	free(reader);
}
