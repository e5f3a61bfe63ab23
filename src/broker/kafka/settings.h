/* SPDX-License-Identifier: Apache-2.0 */
/* What a kafka: URL says (settings.c).
 *
 * To change here: a new parameter needs a row in settings.c and docs/kafka.md. The settings are
 * read once, when the broker is opened, and constant afterwards; every file may read them. */
#ifndef SEMEL_BROKER_KAFKA_SETTINGS_H
#define SEMEL_BROKER_KAFKA_SETTINGS_H

#include "base/url.h"

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct semel_kafka_setting {
	const char *name, *value; /* of librdkafka's configuration */
};

struct semel_kafka_settings {
	char *servers;                                                  /* "host:port,host:port" */
	struct semel_kafka_setting forwarded[SEMEL_URL_PARAMS_MAX + 1]; /* to librdkafka */
	size_t forwarded_count;
	char *prefix; /* of the names of topics and groups at the cluster */
	bool create_topics;
	int64_t partitions, replication; /* of created topics; 0: the cluster's defaults */
	bool offsets_in_store;
	bool publishes_dead_letters; /* to a topic, besides the store */
};

/* Reads the URL and the files that it names. CONFIG: the error says what is wrong, and never shows
 * a secret. */
semel_status semel_kafka_settings_read(const struct semel_url *url,
				       struct semel_kafka_settings *settings_out,
				       semel_error *error);
void semel_kafka_settings_free(struct semel_kafka_settings *settings);

#endif
