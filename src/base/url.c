/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of stores and brokers. They may contain passwords: a message never shows more of a URL than
 * its scheme and the wrong parameter. */
#include "base/url.h"

#include "base/error.h"
#include "base/text.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_SIZE 512 /* the names of all parameters of a scheme */
#define SHOWN_SIZE 64

static bool is_scheme(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		char c = text[i];
		bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
		bool other = (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
		if (!letter && (i == 0 || !other))
			return false;
	}
	return length > 0;
}

/* If a password contains a ?, the rest of it would be taken for parameters. */
static semel_status refuse_ambiguous(const char *scheme, semel_error *error)
{
	return semel_error_set(
		error, SEMEL_CONFIG,
		"invalid %.20s: URL (in a user's name or password write %%40 for @, %%3A for "
		":, %%2F for /, %%3F for ? and %%23 for #; hosts have letters, digits, . and "
		"-, a port has digits)",
		scheme);
}

static bool is_ambiguous(const struct semel_url *url)
{
	const char *query = strchr(url->text, '?');
	return query && strchr(query, '@');
}

static semel_status split_params(char *query, struct semel_url *url, semel_error *error)
{
	char *rest = query;
	for (char *param; (param = strsep(&rest, "&")) != NULL;) {
		if (*param == '\0')
			continue;
		if (url->param_count == SEMEL_URL_PARAMS_MAX)
			return semel_error_set(
				error, SEMEL_CONFIG,
				"the %s: URL has more than %d parameters (remove some)",
				url->scheme, SEMEL_URL_PARAMS_MAX);
		char *equals = strchr(param, '=');
		if ((!equals || equals == param) && is_ambiguous(url))
			return refuse_ambiguous(url->scheme, error);
		if (!equals || equals == param)
			return semel_error_set(error, SEMEL_CONFIG,
					       "the %s: URL has no value for its parameter number "
					       "%zu (write ?name=value&name=value, and %%26 for an "
					       "& in a value)",
					       url->scheme, url->param_count + 1);
		*equals = '\0';
		if (semel_url_param(url, param))
			return semel_error_set(error, SEMEL_CONFIG,
					       "the %s: URL has the parameter \"%s\" twice",
					       url->scheme, param);
		url->params[url->param_count].name = param;
		url->params[url->param_count++].value = equals + 1;
	}
	return SEMEL_OK;
}

/* scheme, path and parameters are pieces of one copy, which begins at scheme. */
semel_status semel_url_parse(const char *text, struct semel_url *url_out, semel_error *error)
{
	*url_out = (struct semel_url){ 0 };
	const char *colon = text ? strchr(text, ':') : NULL;
	if (!colon || !is_scheme(text, (size_t)(colon - text))) {
		char shown[SHOWN_SIZE] = "";
		if (text)
			semel_url_redact(text, shown, sizeof shown);
		return semel_error_set(error, SEMEL_CONFIG,
				       "\"%s\" is not a URL (write scheme:path, such as "
				       "sqlite:semel.db or local:semel-broker.db)",
				       shown);
	}

	url_out->text = strdup(text);
	url_out->scheme = strdup(text);
	if (!url_out->text || !url_out->scheme)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory");

	url_out->path = url_out->scheme + (colon - text);
	*url_out->path++ = '\0';
	for (char *c = url_out->scheme; *c; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
	if (!semel_url_is_unambiguous(text))
		return refuse_ambiguous(url_out->scheme, error);
	char *query = strchr(url_out->path, '?');
	if (!query)
		return SEMEL_OK;
	*query = '\0';
	return split_params(query + 1, url_out, error);
}

const char *semel_url_param(const struct semel_url *url, const char *name)
{
	for (size_t i = 0; i < url->param_count; i++)
		if (strcmp(url->params[i].name, name) == 0)
			return url->params[i].value;
	return NULL;
}

semel_status semel_url_param_int(const struct semel_url *url, const char *name,
				 struct semel_range range, int64_t *value_out, semel_error *error)
{
	*value_out = range.fallback;
	const char *value = semel_url_param(url, name);
	if (!value)
		return SEMEL_OK;
	long long number;
	bool good = semel_text_to_int64(value, range.min, range.max, &number);
	if (!good && is_ambiguous(url))
		return refuse_ambiguous(url->scheme, error);
	if (!good)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s=%.60s in the %s: URL must be a whole number from %lld "
				       "to %lld",
				       name, value, url->scheme, (long long)range.min,
				       (long long)range.max);
	*value_out = number;
	return SEMEL_OK;
}

static bool is_one_of(const char *name, const char *const *known, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(name, known[i]) == 0)
			return true;
	return false;
}

/* The name may be shown: the parameters before it are known, and none of them has a secret that
 * could continue after an &. */
static semel_status refuse_param(const char *scheme, const char *name, const char *const *known,
				 size_t count, semel_error *error)
{
	const char *nearest = semel_text_nearest(name, known, count);
	if (nearest)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"%s: URLs have no parameter \"%.60s\" (did you mean \"%s\"?)", scheme, name,
			nearest);
	char all[KNOWN_SIZE] = "";
	size_t length = 0;
	for (size_t i = 0; i < count && length < sizeof(all); i++)
		length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s",
					   i > 0 ? ", " : "", known[i]);
	return semel_error_set(error, SEMEL_CONFIG,
			       "%s: URLs have no parameter \"%.60s\" (use one of: %s)", scheme,
			       name, all);
}

#define FORMS_SIZE  256
#define SCHEMES_MAX 16

/* "A, B or C" */
static void list_forms(const struct semel_url_form *forms, size_t count, char list[FORMS_SIZE])
{
	size_t length = 0, shown = 0, last = 0;

	for (size_t i = 0; i < count; i++)
		if (forms[i].form)
			last = i;
	list[0] = '\0';
	for (size_t i = 0; i < count && length < FORMS_SIZE; i++) {
		const char *before = shown == 0 ? "" : i == last ? " or " : ", ";
		if (!forms[i].form)
			continue;
		length += (size_t)snprintf(list + length, FORMS_SIZE - length, "%s%s", before,
					   forms[i].form);
		shown++;
	}
}

semel_status semel_url_error_scheme(const char *kind, const char *scheme,
				    const struct semel_url_form *forms, size_t count,
				    semel_error *error)
{
	const char *schemes[SCHEMES_MAX] = { NULL };
	char list[FORMS_SIZE];

	assert(count <= SCHEMES_MAX);
	if (count == 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "no %s driver for %s: URLs (this build has no %s driver)",
				       kind, scheme, kind);
	for (size_t i = 0; i < count; i++)
		schemes[i] = forms[i].scheme;
	list_forms(forms, count, list);
	const char *nearest = semel_text_nearest(scheme, schemes, count);
	return semel_error_set(error, SEMEL_CONFIG, "no %s driver for %s: URLs (%s%s%stry: %s)",
			       kind, scheme, nearest ? "did you mean " : "", nearest ? nearest : "",
			       nearest ? "? " : "", list);
}

semel_status semel_url_check_params(const struct semel_url *url, const char *const *known,
				    size_t known_count, semel_error *error)
{
	for (size_t i = 0; i < url->param_count; i++) {
		const char *name = url->params[i].name;
		if (is_one_of(name, known, known_count))
			continue;
		if (is_ambiguous(url))
			return refuse_ambiguous(url->scheme, error);
		return refuse_param(url->scheme, name, known, known_count, error);
	}
	return SEMEL_OK;
}

void semel_url_free(struct semel_url *url)
{
	free(url->text);
	free(url->scheme);
	*url = (struct semel_url){ 0 };
}
