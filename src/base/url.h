/* SPDX-License-Identifier: Apache-2.0 */
/* "scheme:rest?key=value&key=value". The rest is a path for files; otherwise its meaning is up to
 * the driver. */
#ifndef SEMEL_BASE_URL_H
#define SEMEL_BASE_URL_H

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
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

/* CONFIG when it is not a number within the range; the fallback when it is absent. */
semel_status semel_url_param_int(const struct semel_url *url, const char *name,
				 struct semel_range range, int64_t *value_out, semel_error *error);
/* CONFIG, naming the parameter and the nearest known one, when a parameter is unknown. */
semel_status semel_url_check_params(const struct semel_url *url, const char *const *known,
				    size_t known_count, semel_error *error);
/* A kind of URL that a driver opens. */
struct semel_url_form {
	const char *scheme;
	const char *form; /* "sqlite:PATH"; NULL: not listed */
};
/* CONFIG: no driver of this kind ("store") opens URLs of the scheme. Names the nearest scheme, and
 * the forms of all drivers. */
semel_status semel_url_error_scheme(const char *kind, const char *scheme,
				    const struct semel_url_form *forms, size_t count,
				    semel_error *error);
/* The URL for a message: "***" replaces passwords, parameters that are not known to be public, and
 * everything ambiguous. Cut to size, never overrun. False: something was hidden. This is the only
 * function that makes URLs printable. */
bool semel_url_redact(const char *text, char *out, size_t size);
/* True for a URL of a known scheme of which some part is hidden. */
bool semel_url_has_secret(const char *text);
/* A misplaced word for a message: unchanged, unless it may be a URL. */
const char *semel_word_redact(const char *word, char *out, size_t size);
/* True if the text repeats a hidden piece of the URL, of four characters or more. */
bool semel_url_has_leaked(const char *url, const char *text);
/* False: the URL of a server whose user or password has a reserved character that is not encoded,
 * so that a piece of it would be taken for a host, a port or a path. */
bool semel_url_is_unambiguous(const char *text);
void semel_url_free(struct semel_url *url);

#endif
