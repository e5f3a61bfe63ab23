/* SPDX-License-Identifier: Apache-2.0 */
/* What a consumer was opened with, complete and copied. Nothing of it changes afterwards. */
#ifndef SEMEL_CONSUME_CONFIG_H
#define SEMEL_CONSUME_CONFIG_H

#include "base/text.h"

#include <semel/consumer.h>

struct semel_consumer_config {
	semel_consumer_options
		options; /* with defaults; its texts are the caller's, not to be read */
	char *store_url, *broker_url;
	char **topics; /* NULL-ended */
	struct semel_text scope, handler_version;
	char *dedup_header, *id_header, *bind;
};

/* INVALID or CONFIG: the options are incomplete, or contradict each other. */
semel_status semel_consumer_config_check(const semel_consumer_options *options, semel_error *error);
/* False: no memory. Clear it also then. */
bool semel_consumer_config_copy(struct semel_consumer_config *config,
				const semel_consumer_options *options);
void semel_consumer_config_clear(struct semel_consumer_config *config);

/* NULL-ended copies of lists of texts. NULL: no memory. */
char **semel_list_copy(const char *const *list, size_t length);
void semel_list_free(char **list);

/* Is anything claimed at all? */
bool semel_config_claims(const struct semel_consumer_config *config);
/* At most one run: whatever went wrong, it is not repeated without an operator. */
bool semel_config_runs_once(const struct semel_consumer_config *config);

#endif
