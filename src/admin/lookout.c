/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/lookout.h"

#include "admin/health.h"
#include "admin/sight.h"
#include "base/error.h"

#include <stdlib.h>

struct semel_lookout {
	struct semel_desk desk;
};

semel_status semel_lookout_open(const struct semel_admin_options *options,
				struct semel_lookout **lookout_out, semel_error *error)
{
	struct semel_lookout *lookout = calloc(1, sizeof *lookout);

	*lookout_out = NULL;
	if (!lookout)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for a look");
	struct semel_desk *desk = &lookout->desk;
	desk->options = *options;
	semel_admin_defaults(&desk->options);
	desk->env = semel_env_system();
	pthread_mutex_init(&desk->lock, NULL);
	desk->sights = semel_sights_new(desk);
	semel_status status =
		desk->sights ? semel_watch_start(desk, &desk->watch, error)
			     : semel_error_set(error, SEMEL_INTERNAL, "no memory for a look");
	if (status != SEMEL_OK) {
		semel_lookout_close(lookout);
		return status;
	}
	*lookout_out = lookout;
	return SEMEL_OK;
}

void semel_lookout_tell(struct semel_lookout *lookout, struct semel_buffer *text)
{
	semel_watch_look(lookout->desk.watch);
	semel_sights_tell(lookout->desk.sights, text);
}

void semel_lookout_close(struct semel_lookout *lookout)
{
	if (!lookout)
		return;
	semel_watch_stop(lookout->desk.watch);
	semel_sights_free(lookout->desk.sights);
	for (size_t i = 0; i < lookout->desk.spare_count; i++)
		semel_store_close(lookout->desk.spare[i]);
	pthread_mutex_destroy(&lookout->desk.lock);
	free(lookout);
}
