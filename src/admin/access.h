/* SPDX-License-Identifier: Apache-2.0 */
/* Access control: listen address, Host and Origin, tokens and roles. Pure.
 *
 * - Beyond loopback nothing is served without token and TLS.
 * - The Host header must name this server, so that a foreign page whose name was pointed at this
 *   machine (DNS rebinding) gets nothing. A change requested by a page of another origin is
 *   refused.
 * - The time to compare a secret does not depend on how much of it is right.
 */
#ifndef SEMEL_ADMIN_ACCESS_H
#define SEMEL_ADMIN_ACCESS_H

#include <semel/status.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SEMEL_ADDRESS_SIZE    64
#define SEMEL_TOKENS_MAX      128
#define SEMEL_TOKEN_MIN       16
#define SEMEL_TOKEN_NAME_SIZE 65
#define SEMEL_NAME_LOOPBACK   "loopback" /* the user where no token is required */

enum semel_role { SEMEL_ROLE_NONE, SEMEL_ROLE_READ, SEMEL_ROLE_OPERATE };

struct semel_listen_address {
	char address[SEMEL_ADDRESS_SIZE]; /* without brackets */
	uint16_t port;
	bool is_ipv6;
	bool is_loopback;
	bool is_wildcard;
};

struct semel_token {
	char *text;
	char name[SEMEL_TOKEN_NAME_SIZE]; /* of its line, or "token:" and 8 digits of its hash */
	enum semel_role role;
};

struct semel_tokens {
	struct semel_token all[SEMEL_TOKENS_MAX];
	size_t count;
};

/* Parses "127.0.0.1:8082" or "[::1]:8082". CONFIG if it is not an address with a port. */
semel_status semel_listen_parse(const char *text, struct semel_listen_address *listen_out,
				semel_error *error);
/* Parses lines of "TOKEN", "ROLE TOKEN" or "ROLE NAME TOKEN"; ROLE is read or operate, the default
 * is operate. Blank lines and # lines are skipped. CONFIG if there is no token, if one is too
 * short, or if a name or a token is not unique. Free it also after a failure. */
semel_status semel_tokens_parse(const char *text, struct semel_tokens *tokens_out,
				semel_error *error);
void semel_tokens_free(struct semel_tokens *tokens);
/* The token of "Bearer TOKEN", or NULL; header may be NULL. */
const struct semel_token *semel_tokens_find(const struct semel_tokens *tokens, const char *header);

/* hosts: additional names, NULL-terminated; may be NULL. */
bool semel_host_is_ours(const char *host, const struct semel_listen_address *listen,
			const char *const *hosts);
/* For requests that change something: true without Origin (not a browser), or with our own. */
bool semel_origin_is_ours(const char *origin, const char *host);

#endif
