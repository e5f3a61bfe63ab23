/* SPDX-License-Identifier: Apache-2.0 */
/* Names and URLs of a drill, made and taken away again. See target.h for the rules. */
#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/url.h"
#include "broker/broker.h"
#include "cli/plays/drill/names.h"
#include "event/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */

void semel_drill_names_of(uint64_t id, struct semel_drill_names *names_out)
{
	*names_out = (struct semel_drill_names){ .id = id };
	snprintf(names_out->name, sizeof names_out->name, SEMEL_DRILL_PREFIX "%016" PRIx64, id);
	snprintf(names_out->schema, sizeof names_out->schema, "semel_drill_%016" PRIx64, id);
	snprintf(names_out->topic, sizeof names_out->topic, "%s.orders", names_out->name);
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		snprintf(names_out->scopes[i], sizeof names_out->scopes[i], "%s.%s",
			 names_out->name, semel_shop_subscriptions[i].scope);
}

/* Which broker, without its password: drills at another one are not ours to clear. */
static uint32_t broker_mark(const char *broker)
{
	char shown[512];
	if (!broker)
		return 0;
	semel_url_redact(broker, shown, sizeof shown);
	return (uint32_t)semel_hash_aggregate(SEMEL_TEXT("broker"), semel_text_of(shown));
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static bool is_unreserved(char letter)
{
	return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') ||
	       (letter >= '0' && letter <= '9') || strchr("-._~", letter) != NULL;
}

static void append_encoded(struct semel_buffer *buffer, const char *text)
{
	for (; *text; text++)
		if (is_unreserved(*text))
			semel_buffer_append(buffer, text, 1);
		else
			semel_buffer_printf(buffer, "%%%02X", (unsigned char)*text);
}

static const char *keep(struct semel_buffer *buffer, struct semel_arena *arena)
{
	const char *kept = buffer->failed ? NULL : semel_arena_printf(arena, "%s", buffer->data);
	semel_buffer_free(buffer);
	return kept;
}

/* With the schema as the only place where names are looked up. Of two parameters of one name libpq
 * takes the last, so what the user has set stands in ours too. */
static const char *in_schema(const struct semel_url *url, const char *schema,
			     struct semel_arena *arena)
{
	struct semel_buffer buffer = { 0 };
	const char *set = semel_url_param(url, "options");
	if (!set)
		set = getenv("PGOPTIONS");
	semel_buffer_printf(&buffer, "%s%coptions=", url->text, strchr(url->text, '?') ? '&' : '?');
	if (set && set[0]) {
		append_encoded(&buffer, set);
		append_encoded(&buffer, " ");
	}
	append_encoded(&buffer, "-csearch_path=");
	append_encoded(&buffer, schema);
	return keep(&buffer, arena);
}

/* Without the exchange that catches what nobody takes: that one is the user's. */
static const char *without_alternate(const struct semel_url *url, struct semel_arena *arena)
{
	static const char name[] = "alternate-exchange=";
	struct semel_buffer buffer = { 0 };
	size_t length = strcspn(url->text, "?");
	char joint = '?';
	semel_buffer_append(&buffer, url->text, length);
	for (const char *at = url->text + length; *at;) {
		at++; /* the ? or & */
		length = strcspn(at, "&");
		if (strncmp(at, name, strlen(name)) != 0) {
			semel_buffer_append(&buffer, &joint, 1);
			semel_buffer_append(&buffer, at, length);
			joint = '&';
		}
		at += length;
	}
	return keep(&buffer, arena);
}

static const char *folder_of(const char *path, struct semel_arena *arena)
{
	char *copy = semel_arena_printf(arena, "%s", path);
	return copy ? dirname(copy) : NULL;
}

static bool is(const struct semel_url *url, const char *scheme)
{
	return strcmp(url->scheme, scheme) == 0;
}

static bool choose_store(struct semel_drill_target *target, const struct semel_url *url,
			 struct semel_arena *arena)
{
	if (is(url, "sqlite"))
		target->parent_folder = folder_of(url->path, arena);
	else
		target->own_store = in_schema(url, target->names.schema, arena);
	return target->parent_folder || target->own_store;
}

static bool choose_broker(struct semel_drill_target *target, const struct semel_url *url,
			  struct semel_arena *arena)
{
	if (!is(url, "local"))
		target->own_broker = without_alternate(url, arena);
	else if (!target->parent_folder)
		target->parent_folder = folder_of(url->path, arena);
	return target->own_broker || target->parent_folder;
}

static semel_status check_kinds(const struct semel_url *store, const struct semel_url *broker,
				semel_error *error)
{
	if (!is(store, "sqlite") && !is(store, "postgres") && !is(store, "postgresql"))
		return semel_error_set(error, SEMEL_CONFIG,
				       "there is no drill for a store of the kind %s: yet (try "
				       "sqlite:PATH or postgres://…)",
				       store->scheme);
	if (!is(broker, "local") && !is(broker, "amqp") && !is(broker, "amqps") &&
	    !is(broker, "kafka"))
		return semel_error_set(error, SEMEL_CONFIG,
				       "there is no drill for a broker of the kind %s: it cannot "
				       "bring back what it was given (try local:PATH, amqp://… or "
				       "kafka://…)",
				       broker->scheme);
	return SEMEL_OK;
}

semel_status semel_drill_target_choose(struct semel_drill_target *target, struct semel_arena *arena,
				       semel_error *error)
{
	struct semel_url store = { 0 }, broker = { 0 };
	target->lock_fd = -1;
	semel_status status = semel_url_parse(target->store, &store, error);
	if (status == SEMEL_OK)
		status = semel_url_parse(target->broker, &broker, error);
	if (status == SEMEL_OK)
		status = check_kinds(&store, &broker, error);
	if (status != SEMEL_OK)
		goto free_urls;
	uint64_t chance =
		semel_random(semel_env_system()) >> 33; /* a PostgreSQL int, not below 0 */
	uint32_t mark = is(&broker, "local") ? 0 : broker_mark(target->broker);
	semel_drill_names_of(chance << 32 | mark, &target->names);
	if (!choose_store(target, &store, arena) || !choose_broker(target, &broker, arena))
		status = semel_error_set(error, SEMEL_INTERNAL, "no memory");
free_urls:
	semel_url_free(&store);
	semel_url_free(&broker);
	return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

semel_status semel_drill_target_lock(struct semel_drill_target *target, const char *folder,
				     semel_error *error)
{
	char path[PATH_MAX + 8];
	snprintf(path, sizeof path, "%s/" SEMEL_DRILL_LOCK, folder);
	target->lock_fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (target->lock_fd >= 0 && flock(target->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_OUTAGE, "cannot lock %s: %s", path, strerror(errno));
}

/* ---- the schema ------------------------------------------------------------------------------ */

/* The lock is had before there is anything to lock, and lives as long as the connection. */
semel_status semel_drill_schema_lock(void *connection, uint64_t id, bool *had_out,
				     semel_error *error)
{
	char number[16];
	int64_t had = 0;
	snprintf(number, sizeof number, "%" PRIu32, (uint32_t)(id >> 32));
	const char *const values[] = { SEMEL_DRILL_LOCK_CLASS, number, NULL };
	semel_status status = semel_shop_postgres.ask(
		connection, "SELECT pg_try_advisory_lock($1::int, $2::int)::int", values, &had,
		error);
	*had_out = had != 0;
	return status;
}

static semel_status make_schema(struct semel_drill_target *target, semel_error *error)
{
	char sql[256];
	bool had = false;
	semel_status status =
		semel_shop_postgres.open(target->store, &target->lock_connection, error);
	if (status == SEMEL_OK)
		status = semel_drill_schema_lock(target->lock_connection, target->names.id, &had,
						 error);
	if (status != SEMEL_OK)
		return status;
	/* A name of ours: letters and digits, nothing to quote. */
	snprintf(sql, sizeof sql,
		 "BEGIN; CREATE SCHEMA %s; COMMENT ON SCHEMA %s IS '" SEMEL_DRILL_COMMENT
		 "'; COMMIT",
		 target->names.schema, target->names.schema);
	semel_error why = { 0 };
	status = semel_shop_postgres.execute(target->lock_connection, sql, NULL, &why);
	if (status == SEMEL_OK)
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "a schema for the drill cannot be made: %.200s (the user of --store "
			       "needs CREATE on the database for it)",
			       why.text);
}

semel_status semel_drill_schema_drop(void *connection, const struct semel_drill_names *names,
				     semel_error *error)
{
	char sql[192];
	snprintf(sql, sizeof sql,
		 "SET client_min_messages = warning; SET lock_timeout = '60s'; DROP SCHEMA IF "
		 "EXISTS %s CASCADE",
		 names->schema);
	return semel_shop_postgres.execute(connection, sql, NULL, error);
}

static semel_status clear_schema(struct semel_drill_target *target, semel_error *error)
{
	void *connection = NULL;
	semel_status status = semel_shop_postgres.open(target->store, &connection, error);
	if (status == SEMEL_OK)
		status = semel_drill_schema_drop(connection, &target->names, error);
	semel_shop_postgres.close(connection);
	return status;
}

/* ---- the broker ------------------------------------------------------------------------------ */

semel_status semel_drill_broker_clear(const char *url, const struct semel_drill_names *names,
				      semel_error *error)
{
	struct semel_broker *broker = NULL;
	const char *scopes[SEMEL_SHOP_SUBSCRIPTIONS + 1] = { NULL };
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		scopes[i] = names->scopes[i];
	semel_status status = semel_broker_open(url, semel_env_system(), 1, &broker, error);
	if (status == SEMEL_OK && broker->driver->remove)
		status = broker->driver->remove(broker, names->topic, scopes, error);
	semel_broker_close(broker);
	return status;
}

static semel_status reach_broker(const char *url, semel_error *error)
{
	struct semel_broker *broker = NULL;
	semel_status status = semel_broker_open(url, semel_env_system(), 1, &broker, error);
	semel_broker_close(broker);
	return status;
}

/* ---- all of it ------------------------------------------------------------------------------- */

semel_status semel_drill_target_create(struct semel_drill_target *target, semel_error *error)
{
	semel_status status =
		target->own_broker ? reach_broker(target->own_broker, error) : SEMEL_OK;
	if (status == SEMEL_OK && target->own_store)
		status = make_schema(target, error);
	return status;
}

semel_status semel_drill_target_clear(struct semel_drill_target *target, semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (target->own_broker)
		status = semel_drill_broker_clear(target->own_broker, &target->names, error);
	if (status == SEMEL_OK && target->own_store)
		status = clear_schema(target, error);
	return status;
}

void semel_drill_target_unlock(struct semel_drill_target *target)
{
	if (target->lock_connection)
		semel_shop_postgres.close(target->lock_connection);
	if (target->lock_fd >= 0)
		close(target->lock_fd);
	target->lock_connection = NULL;
	target->lock_fd = -1;
}
