/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/access.h"

#include "base/error.h"
#include "base/sha256.h"
#include "base/text.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- the listen address ---------------------------------------------------------------------- */

static void classify(struct semel_listen_address *listen)
{
	struct in_addr four;
	struct in6_addr six;

	if (inet_pton(AF_INET, listen->address, &four) == 1) {
		uint32_t bits = ntohl(four.s_addr);
		listen->is_loopback = bits >> 24 == 127;
		listen->is_wildcard = bits == 0;
	} else if (inet_pton(AF_INET6, listen->address, &six) == 1) {
		listen->is_ipv6 = true;
		listen->is_loopback = IN6_IS_ADDR_LOOPBACK(&six);
		listen->is_wildcard = IN6_IS_ADDR_UNSPECIFIED(&six);
	} else {
		listen->address[0] = '\0';
	}
}

semel_status semel_listen_parse(const char *text, struct semel_listen_address *listen_out,
				semel_error *error)
{
	const char *colon = strrchr(text, ':');
	size_t length = colon ? (size_t)(colon - text) : 0;
	bool bracketed = length > 2 && text[0] == '[' && text[length - 1] == ']';
	long long port = 0;

	*listen_out = (struct semel_listen_address){ 0 };
	if (bracketed)
		text++, length -= 2;
	if (length > 0 && length < SEMEL_ADDRESS_SIZE &&
	    semel_text_to_int64(colon + 1, 0, 65535, &port)) {
		memcpy(listen_out->address, text, length);
		if (strcmp(listen_out->address, "localhost") == 0)
			snprintf(listen_out->address, SEMEL_ADDRESS_SIZE, "127.0.0.1");
		listen_out->port = (uint16_t)port;
		classify(listen_out);
	}
	if (listen_out->address[0] == '\0' || listen_out->is_ipv6 != bracketed)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"%s is not an address with a port (for example: 127.0.0.1:8082 or "
			"[::1]:8082)",
			bracketed ? text - 1 : text);
	return SEMEL_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

/* The words of a line. */
struct words {
	const char *at[4]; /* one more than a line may have */
	size_t lengths[4];
	size_t count;
};

static struct words split(const char *line, size_t length)
{
	struct words words = { .count = 0 };
	const char *end = line + length;

	while (words.count < sizeof words.at / sizeof *words.at) {
		while (line < end && (*line == ' ' || *line == '\t'))
			line++;
		const char *word = line;
		while (line < end && *line != ' ' && *line != '\t')
			line++;
		if (word == line)
			break;
		words.at[words.count] = word;
		words.lengths[words.count++] = (size_t)(line - word);
	}
	return words;
}

static bool is_word(const struct words *words, size_t at, const char *expected)
{
	return at < words->count && words->lengths[at] == strlen(expected) &&
	       memcmp(words->at[at], expected, words->lengths[at]) == 0;
}

static bool is_name(const char *word, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (!isascii(word[i]) || (!isalnum(word[i]) && !strchr("._-", word[i])))
			return false;
	return length > 0 && length < SEMEL_TOKEN_NAME_SIZE;
}

/* Does the word resemble a token? In a line with its words in the wrong order the token would be
 * shown as a name. */
static bool is_like_a_token(const char *word, size_t length)
{
	size_t at = 0;

	while (at < length && isxdigit((unsigned char)word[at]))
		at++;
	return length >= SEMEL_TOKEN_MIN && at == length;
}

/* A token without a name is named by part of its hash, which does not depend on its line. */
static void name_token(struct semel_token *token, const char *name, size_t length)
{
	uint8_t digest[SEMEL_SHA256_SIZE];

	if (name) {
		memcpy(token->name, name, length);
		token->name[length] = '\0';
		return;
	}
	semel_sha256(token->text, strlen(token->text), digest);
	snprintf(token->name, sizeof token->name, "token:%02x%02x%02x%02x", digest[0], digest[1],
		 digest[2], digest[3]);
}

/* Names are unique because the audit log identifies users by them; tokens are unique because a line
 * gives its token one role. */
static semel_status check_unique(const struct semel_tokens *tokens, const struct semel_token *token,
				 semel_error *error)
{
	if (strcmp(token->name, SEMEL_NAME_LOOPBACK) == 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the token name " SEMEL_NAME_LOOPBACK
				       " is reserved for requests without a token");
	for (size_t i = 0; i < tokens->count; i++) {
		if (strcmp(tokens->all[i].text, token->text) == 0)
			return semel_error_set(
				error, SEMEL_CONFIG,
				"the token of %s occurs twice (create one for each user)",
				tokens->all[i].name);
		if (strcmp(tokens->all[i].name, token->name) == 0)
			return semel_error_set(error, SEMEL_CONFIG, "two tokens have the name %s",
					       token->name);
	}
	return SEMEL_OK;
}

static semel_status store_token(struct semel_tokens *tokens, const struct words *words, bool named,
				enum semel_role role, semel_error *error)
{
	size_t last = words->count - 1;
	struct semel_token token = { .text = strndup(words->at[last], words->lengths[last]),
				     .role = role };

	if (!token.text)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for a token");
	name_token(&token, named ? words->at[1] : NULL, named ? words->lengths[1] : 0);
	semel_status status = check_unique(tokens, &token, error);
	if (status != SEMEL_OK)
		goto free_token;
	tokens->all[tokens->count++] = token;
	return SEMEL_OK;

free_token:
	explicit_bzero(token.text, words->lengths[last]);
	free(token.text);
	return status;
}

/* "TOKEN", "ROLE TOKEN" or "ROLE NAME TOKEN". */
static semel_status add_token(struct semel_tokens *tokens, const char *line, size_t length,
			      semel_error *error)
{
	struct words words = split(line, length);
	bool reads = is_word(&words, 0, "read");
	bool has_role = words.count > 1 && (reads || is_word(&words, 0, "operate"));
	bool named = has_role && words.count == 3;

	if (words.count > (size_t)(1 + has_role + named) ||
	    (named && (!is_name(words.at[1], words.lengths[1]) ||
		       is_like_a_token(words.at[1], words.lengths[1]))))
		return semel_error_set(error, SEMEL_CONFIG,
				       "a line of the token file is not TOKEN, ROLE TOKEN or ROLE "
				       "NAME TOKEN (ROLE is read or operate; NAME has up to %d "
				       "letters, digits, dots, dashes and underscores, and does "
				       "not use the form of a token)",
				       SEMEL_TOKEN_NAME_SIZE - 1);
	if (words.lengths[words.count - 1] < SEMEL_TOKEN_MIN)
		return semel_error_set(
			error, SEMEL_CONFIG,
			"a token has fewer than %d characters (run: openssl rand -hex "
			"32)",
			SEMEL_TOKEN_MIN);
	if (tokens->count == SEMEL_TOKENS_MAX)
		return semel_error_set(error, SEMEL_CONFIG, "more than %d tokens in the token file",
				       SEMEL_TOKENS_MAX);
	return store_token(tokens, &words, named, reads ? SEMEL_ROLE_READ : SEMEL_ROLE_OPERATE,
			   error);
}

semel_status semel_tokens_parse(const char *text, struct semel_tokens *tokens_out,
				semel_error *error)
{
	*tokens_out = (struct semel_tokens){ 0 };
	while (*text) {
		const char *line = text + strspn(text, " \t\r");
		size_t whole = strcspn(line, "\n"), length = whole;
		while (length > 0 && strchr(" \t\r", line[length - 1]))
			length--;
		semel_status status = length > 0 && line[0] != '#'
					      ? add_token(tokens_out, line, length, error)
					      : SEMEL_OK;
		if (status != SEMEL_OK)
			return status;
		text = line + whole + (line[whole] == '\n');
	}
	if (tokens_out->count == 0)
		return semel_error_set(error, SEMEL_CONFIG,
				       "the token file is empty (run: openssl rand -hex 32)");
	return SEMEL_OK;
}

void semel_tokens_free(struct semel_tokens *tokens)
{
	for (size_t i = 0; i < tokens->count; i++) {
		explicit_bzero(tokens->all[i].text, strlen(tokens->all[i].text));
		free(tokens->all[i].text);
	}
	tokens->count = 0;
}

/* Compares every given byte, whatever the result. */
static bool equals_secret(const char *given, const char *secret)
{
	size_t given_length = strlen(given), secret_length = strlen(secret);
	unsigned difference = given_length != secret_length;

	for (size_t i = 0; i < given_length; i++)
		difference |= (unsigned char)given[i] ^ (unsigned char)secret[i % secret_length];
	return difference == 0;
}

const struct semel_token *semel_tokens_find(const struct semel_tokens *tokens, const char *header)
{
	const struct semel_token *found = NULL;

	if (!header || strncasecmp(header, "Bearer ", 7) != 0)
		return NULL;
	header += 7 + strspn(header + 7, " ");
	for (size_t i = 0; i < tokens->count; i++)
		if (equals_secret(header, tokens->all[i].text))
			found = &tokens->all[i];
	return found;
}

/* ---- Host and Origin ------------------------------------------------------------------------- */

/* "name:port", or "name" where the port is the default of the scheme. */
static bool is_host(const char *host, const char *name, const struct semel_listen_address *listen)
{
	char full[300];

	snprintf(full, sizeof full, strchr(name, ':') ? "[%s]:%u" : "%s:%u", name, listen->port);
	if (strcasecmp(host, full) == 0)
		return true;
	return (listen->port == 80 || listen->port == 443) &&
	       strncasecmp(host, full, strlen(host)) == 0 && full[strlen(host)] == ':' &&
	       strrchr(full, ':') == full + strlen(host);
}

/* If the server listens on every address, any literal IP address is its own; a name is not. */
static bool is_literal(const char *host, const struct semel_listen_address *listen)
{
	struct semel_listen_address parsed;

	return semel_listen_parse(host, &parsed, NULL) == SEMEL_OK && parsed.port == listen->port;
}

bool semel_host_is_ours(const char *host, const struct semel_listen_address *listen,
			const char *const *hosts)
{
	if (!host)
		return false;
	if (is_host(host, listen->address, listen) || is_host(host, "localhost", listen))
		return true;
	for (size_t i = 0; hosts && hosts[i]; i++)
		if (is_host(host, hosts[i], listen))
			return true;
	return listen->is_wildcard && is_literal(host, listen);
}

bool semel_origin_is_ours(const char *origin, const char *host)
{
	if (!origin)
		return true;
	const char *name = strstr(origin, "://");
	return name && host && strcasecmp(name + 3, host) == 0;
}
