/* SPDX-License-Identifier: Apache-2.0 */
/* The brokers that are built in, and which of their answers are about one event. To remove a
 * broker: delete its folder and the lines here that name its driver. */
#include "base/error.h"
#include "broker/broker.h"

#include <assert.h>
#include <string.h>

extern const struct semel_broker_driver semel_local_driver;
extern const struct semel_broker_driver semel_rabbit_driver;
extern const struct semel_broker_driver semel_rabbit_tls_driver;
extern const struct semel_broker_driver semel_kafka_driver;

static const struct semel_broker_driver *const drivers[] = {
	&semel_local_driver,
	&semel_rabbit_driver,
	&semel_rabbit_tls_driver,
	&semel_kafka_driver,
	NULL,
};

#define DRIVER_COUNT (sizeof(drivers) / sizeof(drivers[0]) - 1)

static const struct semel_broker_driver *driver_of(const char *scheme)
{
	for (size_t i = 0; i < DRIVER_COUNT; i++)
		if (strcmp(drivers[i]->scheme, scheme) == 0)
			return drivers[i];
	return NULL;
}

static semel_status error_unknown(const struct semel_url *url, semel_error *error)
{
	struct semel_url_form forms[DRIVER_COUNT + 1];

	for (size_t i = 0; i < DRIVER_COUNT; i++)
		forms[i] = (struct semel_url_form){ drivers[i]->scheme, drivers[i]->form };
	return semel_url_error_scheme("broker", url->scheme, forms, DRIVER_COUNT, error);
}

static semel_status find(const char *text, struct semel_url *url_out,
			 const struct semel_broker_driver **driver_out, semel_error *error)
{
	*driver_out = NULL;
	semel_status status = semel_url_parse(text, url_out, error);
	if (status != SEMEL_OK)
		return status;
	*driver_out = driver_of(url_out->scheme);
	return *driver_out == NULL ? error_unknown(url_out, error) : SEMEL_OK;
}

semel_status semel_broker_driver_find(const char *text,
				      const struct semel_broker_driver **driver_out,
				      semel_error *error)
{
	struct semel_url url = { 0 };
	semel_status status = find(text, &url, driver_out, error);
	semel_url_free(&url);
	return status;
}

semel_status semel_broker_open(const char *text, const struct semel_env *env, uint32_t window,
			       struct semel_broker **broker_out, semel_error *error)
{
	assert(text != NULL && env != NULL && window > 0 && broker_out != NULL);
	*broker_out = NULL;
	struct semel_url url = { 0 };
	const struct semel_broker_driver *driver = NULL;
	semel_status status = find(text, &url, &driver, error);
	if (status != SEMEL_OK)
		goto free_url;
	status = driver->open(&url, env, window, broker_out, error);

free_url:
	semel_url_free(&url);
	return status;
}

semel_status semel_broker_examine(const char *text, const struct semel_examination *examination)
{
	struct semel_url url = { 0 };
	semel_error error = { .status = SEMEL_OK };
	const struct semel_broker_driver *driver = NULL;
	semel_status status = find(text, &url, &driver, &error);
	if (status != SEMEL_OK) {
		semel_examination_failed(examination, SEMEL_CHECK_BROKER_REACHED, &error);
		goto free_url;
	}
	status = driver->examine(&url, examination);

free_url:
	semel_url_free(&url);
	return status;
}

void semel_broker_set_offset_store(struct semel_broker *broker,
				   const struct semel_offset_store *offset_store)
{
	assert(broker != NULL && offset_store != NULL);
	if (broker->driver->set_offset_store != NULL)
		broker->driver->set_offset_store(broker, offset_store);
}

void semel_broker_close(struct semel_broker *broker)
{
	if (broker != NULL)
		broker->driver->close(broker);
}

bool semel_outcome_is_about_event(semel_status status)
{
	switch (status) {
	case SEMEL_FULL:
	case SEMEL_NOT_FINISHED:
	case SEMEL_STOPPED:
	case SEMEL_CONFIG:
	case SEMEL_NO_SCHEMA:
	case SEMEL_SCHEMA_NEWER:
	case SEMEL_NOT_A_DATABASE:
	case SEMEL_PROBLEM_FOUND:
		return false;
	default:
		return semel_status_class(status) == SEMEL_CLASS_REJECT ||
		       semel_status_class(status) == SEMEL_CLASS_RETRY;
	}
}
