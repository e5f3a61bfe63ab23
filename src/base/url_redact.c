/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of a URL may appear in a message, a log or a row.
 *
 * - Nothing here searches for secrets. Only what is known to be public is copied: a known scheme, a
 *   user, hosts and ports, a path, parameters of a list. "***" replaces everything else.
 * - If a URL can be read in two ways, everything that is a secret in either of them is hidden: a
 *   password ends at the last @ of the text, wherever that is.
 * - After the first hidden parameter nothing is shown: a secret that was not encoded may continue
 *   there.
 * - Users of http: and https: may be keys, as may long parts of their paths, and all parameters.
 */
#include "base/url.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define HIDDEN       "***"
#define LETTERS      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
#define DIGITS       "0123456789"
#define UNRESERVED   LETTERS DIGITS "-._~"
#define PORT_MAX     5 /* digits */
#define SHOWN_SIZE   1024
#define PIECE_MIN    4
#define PIECE_MAX    64
#define WEB_PART_MAX 20 /* bytes: a longer part of a path may be a key */

enum kind { KIND_NONE, KIND_FILE, KIND_SERVER, KIND_WEB };

static const struct {
	const char *scheme;
	enum kind kind;
} schemes[] = {
	{ "sqlite", KIND_FILE },       { "local", KIND_FILE },  { "postgres", KIND_SERVER },
	{ "postgresql", KIND_SERVER }, { "amqp", KIND_SERVER }, { "amqps", KIND_SERVER },
	{ "kafka", KIND_SERVER },      { "http", KIND_WEB },    { "https", KIND_WEB },
};

/* Parameters of our own schemes and of libpq whose values are not secret. */
static const char *const open_params[] = {
	"alternate-exchange",
	"application_name",
	"busy-timeout",
	"cacert",
	"cert",
	"channel_binding",
	"client.id",
	"client.rack",
	"compression.codec",
	"compression.type",
	"connect_timeout",
	"create-topics",
	"dbname",
	"dead-letter-topics",
	"group.instance.id",
	"gssencmode",
	"heartbeat",
	"host",
	"hostaddr",
	"keepalives",
	"linger.ms",
	"max-length",
	"max-message",
	"offsets",
	"partitions",
	"port",
	"prefix",
	"queue-type",
	"replication",
	"sasl.mechanism",
	"sasl.mechanisms",
	"sasl.password-file",
	"sasl.username",
	"security.protocol",
	"session.timeout.ms",
	"single-active",
	"socket.timeout.ms",
	"ssl.ca.location",
	"ssl.certificate.location",
	"ssl.key.location",
	"sslcert",
	"sslkey",
	"sslmode",
	"sslrootcert",
	"target_session_attrs",
	"tcp_user_timeout",
	"user",
};

struct redaction {
	char *out;
	size_t size, length;
	bool has_hidden; /* something was left out */
};

static void put(struct redaction *redaction, const char *text, size_t length)
{
	size_t capacity = redaction->size - 1 - redaction->length;
	size_t taken = length < capacity ? length : capacity;
	memcpy(redaction->out + redaction->length, text, taken);
	redaction->length += taken;
}

static void hide(struct redaction *redaction)
{
	put(redaction, HIDDEN, strlen(HIDDEN));
	redaction->has_hidden = true;
}

/* ---- what is public -------------------------------------------------------------------------- */

/* True if the text consists of these letters and of percent escapes. */
static bool is_made_of(const char *text, size_t length, const char *letters)
{
	static const char hex[] = DIGITS "ABCDEFabcdef";
	for (size_t i = 0; i < length; i++) {
		if (text[i] == '\0')
			return false;
		if (text[i] == '%' && i + 2 < length && strchr(hex, text[i + 1]) &&
		    strchr(hex, text[i + 2]))
			i += 2;
		else if (!strchr(letters, text[i]))
			return false;
	}
	return true;
}

/* An IPv6 address without brackets. */
static bool is_address(const char *text, size_t length)
{
	const char *colon = memchr(text, ':', length);
	return colon && memchr(colon + 1, ':', length - (size_t)(colon + 1 - text)) &&
	       strspn(text, DIGITS "ABCDEFabcdef:.") >= length;
}

/* A name, an address or an address in brackets; then nothing, or a port. */
static bool is_host(const char *text, size_t length)
{
	if (is_address(text, length))
		return true;
	const char *bracket = text[0] == '[' ? memchr(text, ']', length) : NULL;
	size_t host = bracket ? (size_t)(bracket - text) + 1 : 0;
	if (bracket && !is_made_of(text + 1, host - 2, UNRESERVED ":"))
		return false;
	while (!bracket && host < length && text[host] != ':')
		host++;
	if (!bracket && !is_made_of(text, host, UNRESERVED))
		return false;
	if (host == length)
		return true;
	size_t digits = length - host - 1;
	return text[host] == ':' && digits > 0 && digits <= PORT_MAX &&
	       strspn(text + host + 1, DIGITS) >= digits;
}

static bool are_hosts(const char *text, size_t length)
{
	for (size_t at = 0; at <= length; at++) {
		size_t host = at;
		while (host < length && text[host] != ',')
			host++;
		if (!is_host(text + at, host - at))
			return false;
		at = host;
	}
	return true;
}

static bool is_open_param(const char *text, size_t length)
{
	const char *equals = memchr(text, '=', length);
	size_t name = equals ? (size_t)(equals - text) : length;
	for (size_t i = 0; equals && i < sizeof open_params / sizeof *open_params; i++)
		if (strlen(open_params[i]) == name && memcmp(open_params[i], text, name) == 0)
			return is_made_of(equals + 1, length - name - 1, UNRESERVED "/,:+*");
	return false;
}

/* ---- the parts ------------------------------------------------------------------------------- */

static void redact_params(struct redaction *redaction, const char *text, enum kind kind)
{
	while (*text) { /* a ? or & */
		size_t length = 1 + strcspn(text + 1, "&");
		put(redaction, text, 1);
		if (kind == KIND_WEB || !is_open_param(text + 1, length - 1)) {
			hide(redaction);
			return;
		}
		put(redaction, text + 1, length - 1);
		text += length;
	}
}

static void redact_path(struct redaction *redaction, const char *text, enum kind kind)
{
	while (*text == '/') {
		size_t length = strcspn(text + 1, "/?#");
		put(redaction, text++, 1);
		if (!is_made_of(text, length, UNRESERVED)) {
			hide(redaction);
			return;
		}
		if (kind == KIND_WEB && length >= WEB_PART_MAX)
			hide(redaction);
		else
			put(redaction, text, length);
		text += length;
	}
	if (*text == '?')
		redact_params(redaction, text, kind);
	else if (*text)
		hide(redaction);
}

/* Writes the user, the password (hidden), and the @ that ends them. */
static bool redact_user(struct redaction *redaction, const char *text, const char *last,
			enum kind kind)
{
	size_t user = strcspn(text, ":@");
	bool known = kind != KIND_WEB && is_made_of(text, user, UNRESERVED);
	if (known)
		put(redaction, text, user);
	if (known && text + user != last)
		put(redaction, ":", 1);
	if (!known || text + user != last)
		hide(redaction);
	if (known || kind == KIND_WEB)
		put(redaction, "@", 1);
	return known || kind == KIND_WEB;
}

static void redact_server(struct redaction *redaction, const char *text, enum kind kind)
{
	size_t slashes = strncmp(text, "//", 2) == 0 ? 2 : 0;
	put(redaction, text, slashes);
	text += slashes;
	const char *last = strrchr(text, '@');
	const char *ambiguous_from =
		last ? text + strcspn(text, kind == KIND_WEB ? "/?#" : "?") : NULL;
	/* Before this @ there is a ?: it may be part of a password, or begin the parameters. */
	if (last && ambiguous_from < last) {
		hide(redaction);
		return;
	}
	if (last && !redact_user(redaction, text, last, kind))
		return;
	text = last ? last + 1 : text;
	size_t hosts = strcspn(text, "/?#");
	if (!are_hosts(text, hosts)) {
		hide(redaction);
		return;
	}
	put(redaction, text, hosts);
	redact_path(redaction, text + hosts, kind);
}

/* A path may contain an @, but a text that seems to be a URL of another kind is not shown. */
static void redact_file(struct redaction *redaction, const char *text)
{
	size_t length = strcspn(text, "?");
	const char *at = strrchr(text, '@');
	bool settings = memchr(text, '=', length) && memchr(text, ' ', length);
	if (settings || (at && (strncmp(text, "//", 2) == 0 || memchr(text, ':', length)))) {
		hide(redaction);
		return;
	}
	put(redaction, text, length);
	redact_params(redaction, text + length, KIND_FILE);
}

/* True for what may be a file name without its scheme. */
static bool is_plain(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < 0x80 && !strchr(UNRESERVED "/ ", *text))
			return false;
	return true;
}

static enum kind kind_of(const char *text, size_t length)
{
	for (size_t i = 0; text[length] == ':' && i < sizeof schemes / sizeof *schemes; i++)
		if (strlen(schemes[i].scheme) == length &&
		    strncasecmp(schemes[i].scheme, text, length) == 0)
			return schemes[i].kind;
	return KIND_NONE;
}

static void redact(struct redaction *redaction, const char *text)
{
	size_t length = strcspn(text, ":");
	enum kind kind = kind_of(text, length);
	if (kind == KIND_NONE && is_plain(text)) {
		put(redaction, text, strlen(text));
		return;
	}
	if (kind == KIND_NONE) {
		hide(redaction);
		return;
	}
	put(redaction, text, length + 1);
	if (kind == KIND_FILE)
		redact_file(redaction, text + length + 1);
	else
		redact_server(redaction, text + length + 1, kind);
}

bool semel_url_redact(const char *text, char *out, size_t size)
{
	struct redaction redaction = { .out = out, .size = size };
	redact(&redaction, text);
	out[redaction.length] = '\0';
	return !redaction.has_hidden;
}

bool semel_url_has_secret(const char *text)
{
	char shown[SHOWN_SIZE];
	return kind_of(text, strcspn(text, ":")) != KIND_NONE &&
	       !semel_url_redact(text, shown, sizeof shown);
}

const char *semel_word_redact(const char *word, char *out, size_t size)
{
	if (strchr(word, '@') || strstr(word, "//"))
		semel_url_redact(word, out, size);
	else
		snprintf(out, size, "%s", word);
	return out;
}

/* Compares pieces, since the text may contain the rest decoded, or escaped in another way. */
bool semel_url_has_leaked(const char *url, const char *text)
{
	char shown[SHOWN_SIZE];
	semel_url_redact(url, shown, sizeof shown);
	for (size_t length; *url; url += length) {
		char piece[PIECE_MAX];
		length = strspn(url, UNRESERVED);
		snprintf(piece, sizeof piece, "%.*s", (int)length, url);
		if (length >= PIECE_MIN && strstr(text, piece) && !strstr(shown, piece))
			return true;
		length += length == 0;
	}
	return false;
}

/* True if user and password, as the drivers' libraries read them, contain no @ / ?. Otherwise a
 * piece of them would be taken for a host, a port or a name, and appear in the library's
 * messages. */
bool semel_url_is_unambiguous(const char *text)
{
	size_t length = strcspn(text, ":");
	bool amqp = strncasecmp(text, "amqp", 4) == 0;
	if (kind_of(text, length) != KIND_SERVER)
		return true;
	text += length + 1;
	text += strncmp(text, "//", 2) == 0 ? 2 : 0;
	size_t authority = strcspn(text, "/?"), path = strcspn(text, "?");
	const char *at = memchr(text, '@', authority);
	if (!at && memchr(text, '@', path))
		return false;
	if (!at && amqp && strchr(text, '@')) /* none of its parameters has one */
		return false;
	if (at && !is_made_of(text, strcspn(text, ":@"), UNRESERVED "!$&()*+,;"))
		return false;
	const char *hosts = at ? at + 1 : text;
	return are_hosts(hosts, authority - (size_t)(hosts - text));
}
