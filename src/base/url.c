/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of stores and brokers. They may hold passwords: a message never shows more of one than its
 * scheme and the parameter that is wrong. */
#include "base/url.h"

#include "base/error.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KNOWN_SIZE 512 /* the names of all parameters of a scheme */

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

static semel_status split_params(char *query, struct semel_url *url, semel_error *error)
{
	char *rest = query;
	for (char *param; (param = strsep(&rest, "&")) != NULL;) {
		if (*param == '\0')
			continue;
		if (url->param_count == SEMEL_URL_PARAMS_MAX)
			return semel_error_set(
				error, SEMEL_CONFIG,
				"the %s: URL has more than %d parameters: remove some", url->scheme,
				SEMEL_URL_PARAMS_MAX);
		char *equals = strchr(param, '=');
		if (!equals || equals == param)
			return semel_error_set(error, SEMEL_CONFIG,
					       "the %s: URL has the parameter \"%s\" without a "
					       "value: write ?name=value&name=value",
					       url->scheme, param);
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
	if (!colon || !is_scheme(text, (size_t)(colon - text)))
		return semel_error_set(error, SEMEL_CONFIG,
				       "\"%.60s\" is no URL: write scheme:path, such as "
				       "sqlite:semel.db or local:semel-broker.db",
				       text && !strchr(text, '@') ? text : "…");

	url_out->text = strdup(text);
	url_out->scheme = strdup(text);
	if (!url_out->text || !url_out->scheme)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory");

	url_out->path = url_out->scheme + (colon - text);
	*url_out->path++ = '\0';
	for (char *c = url_out->scheme; *c; c++)
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
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
	if (!semel_text_to_int64(value, range.min, range.max, &number))
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s=%.60s in the %s: URL: give a whole number from %lld to "
				       "%lld",
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

static semel_status refuse_param(const char *scheme, const char *name, const char *const *known,
				 size_t count, semel_error *error)
{
	const char *nearest = semel_text_nearest(name, known, count);
	if (nearest)
		return semel_error_set(error, SEMEL_CONFIG,
				       "%s: URLs know no parameter \"%.60s\": did you mean \"%s\"?",
				       scheme, name, nearest);
	char all[KNOWN_SIZE] = "";
	size_t length = 0;
	for (size_t i = 0; i < count && length < sizeof(all); i++)
		length += (size_t)snprintf(all + length, sizeof(all) - length, "%s%s",
					   i > 0 ? ", " : "", known[i]);
	return semel_error_set(error, SEMEL_CONFIG,
			       "%s: URLs know no parameter \"%.60s\" (known are: %s)", scheme, name,
			       all);
}

semel_status semel_url_check_params(const struct semel_url *url, const char *const *known,
				    size_t known_count, semel_error *error)
{
	for (size_t i = 0; i < url->param_count; i++) {
		const char *name = url->params[i].name;
		if (is_one_of(name, known, known_count))
			continue;
		return refuse_param(url->scheme, name, known, known_count, error);
	}
	return SEMEL_OK;
}

/* What follows at up to its end is a secret: "***" takes its place. */
static void hide(char *text, size_t start, size_t end)
{
	size_t rest = strlen(text + end);
	if (end - start < 3) { /* the mask needs no more room than there is */
		memset(text + start, '*', end - start);
		return;
	}
	memset(text + start, '*', 3);
	memmove(text + start + 3, text + end, rest + 1);
}

static void hide_user_password(char *text)
{
	char *authority = strncmp(text, "//", 2) == 0 ? text : strstr(text, "://");
	if (!authority)
		return;
	authority = strstr(authority, "//") + 2;
	size_t length = strcspn(authority, "?#"); /* a password may have a slash in it */
	char *at = memrchr(authority, '@', length), *colon = NULL;
	if (at)
		colon = memchr(authority, ':', (size_t)(at - authority));
	if (colon)
		hide(text, (size_t)(colon + 1 - text), (size_t)(at - text));
}

static void hide_parameters(char *text)
{
	static const char *const secrets[] = { "password=", "sslpassword=", "sasl.password=",
					       "ssl.key.password=" };
	for (char *at = strchr(text, '?'); at; at = strpbrk(at + 1, "&"))
		for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++) {
			size_t name = strlen(secrets[i]);
			if (strncmp(at + 1, secrets[i], name) != 0)
				continue;
			size_t start = (size_t)(at - text) + 1 + name;
			hide(text, start, start + strcspn(text + start, "&"));
		}
}

void semel_url_show(const char *text, char *out, size_t size)
{
	char *copy = strdup(text);
	out[0] = '\0';
	if (!copy)
		return;
	hide_user_password(copy);
	hide_parameters(copy);
	size_t length = strlen(copy) < size - 1 ? strlen(copy) : size - 1;
	memcpy(out, copy, length);
	out[length] = '\0';
	free(copy);
}

void semel_url_free(struct semel_url *url)
{
	free(url->text);
	free(url->scheme);
	*url = (struct semel_url){ 0 };
}
