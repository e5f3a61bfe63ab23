/* SPDX-License-Identifier: Apache-2.0 */
/* Moments, durations and URLs: what is accepted is written again and means the same. */
#include "base/time.h"
#include "base/url.h"

#include "fuzz.h"

static void try_moment(const char *text)
{
	int64_t moment, again;
	char written[SEMEL_TIME_SIZE];
	if (!semel_time_parse(text, &moment))
		return;
	semel_time_format(moment, written);
	/* An offset may carry a moment out of the four-digit years. */
	PROMISE(!semel_time_parse(written, &again) || again == moment);
	int64_t monday = semel_time_week_start(moment);
	PROMISE(monday <= moment && moment - monday < INT64_C(7) * 86400000);
	PROMISE(semel_time_week_start(monday) == monday);
}

static void try_duration(const char *text)
{
	int64_t duration, again;
	char written[SEMEL_TIME_SIZE];
	if (!semel_duration_parse(text, &duration))
		return;
	PROMISE(duration >= 0);
	semel_duration_format(duration, written);
	PROMISE(semel_duration_parse(written, &again) && again == duration);
}

static void try_url(const char *text)
{
	struct semel_url url;
	semel_error error = { 0 };
	if (semel_url_parse(text, &url, &error) == SEMEL_OK) {
		PROMISE(strcmp(url.text, text) == 0);
		PROMISE(url.scheme[0] != '\0' && url.path);
		for (size_t i = 0; i < url.param_count; i++)
			PROMISE(semel_url_param(&url, url.params[i].name) == url.params[i].value);
		PROMISE(semel_url_check_params(&url, NULL, 0, NULL) ==
			(url.param_count > 0 ? SEMEL_CONFIG : SEMEL_OK));
	} else {
		PROMISE(error.status == SEMEL_CONFIG && error.text[0] != '\0');
	}
	semel_url_free(&url);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *copy = fuzz_copy(data, size);
	try_moment(copy);
	try_duration(copy);
	try_url(copy);
	free(copy);
	return 0;
}
