/* SPDX-License-Identifier: Apache-2.0 */
/* "scheme:rest?key=value&key=value". The rest is a path for files, and the driver's own business
 * otherwise. */
#ifndef SEMEL_BASE_URL_H
#define SEMEL_BASE_URL_H

#include <semel/status.h>

#include <stdint.h>

#define SEMEL_URL_PARAMS_MAX 16

struct semel_url {
	char *text;   /* as given */
	char *scheme; /* "sqlite" */
	char *path;   /* between "scheme:" and "?"; leading "//" is kept */
	struct {
		char *name, *value;
	} params[SEMEL_URL_PARAMS_MAX];
	size_t param_count;
};

/* Owned by the caller; free with semel_url_free also after a failure. */
semel_status semel_url_parse(const char *text, struct semel_url *url_out, semel_error *error);
/* NULL when absent. */
const char *semel_url_param(const struct semel_url *url, const char *name);
struct semel_range {
	int64_t min, max, fallback;
};

/* CONFIG when it is no number within the range; the fallback when it is absent. */
semel_status semel_url_param_int(const struct semel_url *url, const char *name,
				 struct semel_range range, int64_t *value_out, semel_error *error);
/* CONFIG, naming it and the nearest right one, when a parameter is none of the known. */
semel_status semel_url_check_params(const struct semel_url *url, const char *const *known,
				    size_t known_count, semel_error *error);
/* The URL as it may be shown: passwords become ***. Cut to size, never overrun. */
void semel_url_show(const char *text, char *out, size_t size);
void semel_url_free(struct semel_url *url);

#endif
