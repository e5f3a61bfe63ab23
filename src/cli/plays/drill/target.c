/* SPDX-License-Identifier: Apache-2.0 */
/* Names and URLs of a drill; creates what they name, and removes it. See target.h for the rules. */
#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/url.h"
#include "broker/broker.h"
#include "cli/plays/drill/names.h"
#include "event/hash.h"
#include "store/store.h"

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
	snprintf(names_out->topic, sizeof names_out->topic, "%s.orders", names_out->name);
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		snprintf(names_out->scopes[i], sizeof names_out->scopes[i], "%s.%s",
			 names_out->name, semel_shop_subscriptions[i].scope);
}

/* Of the URL without its password. What a drill has left at another broker cannot be removed here.
 */
static uint32_t hash_broker(const char *broker)
{
	char shown[512];
	if (!broker)
		return 0;
	semel_url_redact(broker, shown, sizeof shown);
	return (uint32_t)semel_hash_aggregate(SEMEL_TEXT("broker"), semel_text_of(shown));
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static const char *keep(struct semel_buffer *buffer, struct semel_arena *arena)
{
	const char *kept = buffer->failed ? NULL : semel_arena_printf(arena, "%s", buffer->data);
	semel_buffer_free(buffer);
	return kept;
}

/* Without the alternate exchange: that one is the user's. */
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
	if (target->trials)
		target->own_store = target->trials->url(url, target->names.id, arena);
	else
		target->parent_folder = folder_of(url->path, arena);
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

/* A drill consumes what it has published, so the broker must be one that delivers. */
static semel_status check_broker(const struct semel_url *broker, semel_error *error)
{
	if (is(broker, "local") || is(broker, "amqp") || is(broker, "amqps") || is(broker, "kafka"))
		return SEMEL_OK;
	return semel_error_set(error, SEMEL_CONFIG,
			       "no drill for a broker of the kind %s: (it delivers nothing back; "
			       "try local:PATH, amqp://… or kafka://…)",
			       broker->scheme);
}

static semel_status find_trials(struct semel_drill_target *target, const struct semel_url *store,
				semel_error *error)
{
	const struct semel_store_driver *driver = NULL;
	semel_status status = semel_store_driver_find(store->scheme, &driver, error);
	if (status == SEMEL_OK)
		target->trials = driver->trial;
	return status;
}

/* The upper half of the id is random, and fits a PostgreSQL int that is not negative; the lower
 * half is a hash of the broker. */
static uint64_t choose_id(const struct semel_drill_target *target, const struct semel_url *broker)
{
	uint64_t chance = semel_random(semel_env_system()) >> 33;
	return chance << 32 | (is(broker, "local") ? 0 : hash_broker(target->broker));
}

semel_status semel_drill_target_choose(struct semel_drill_target *target, struct semel_arena *arena,
				       semel_error *error)
{
	struct semel_url store = { 0 }, broker = { 0 };
	target->lock_fd = -1;
	semel_status status = semel_url_parse(target->store, &store, error);
	if (status != SEMEL_OK)
		goto free_urls;
	status = semel_url_parse(target->broker, &broker, error);
	if (status != SEMEL_OK)
		goto free_urls;
	status = find_trials(target, &store, error);
	if (status != SEMEL_OK)
		goto free_urls;
	status = check_broker(&broker, error);
	if (status != SEMEL_OK)
		goto free_urls;
	semel_drill_names_of(choose_id(target, &broker), &target->names);
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

/* ---- the place in the database --------------------------------------------------------------- */

static semel_status create_trial(struct semel_drill_target *target, semel_error *error)
{
	bool locked = false;
	semel_status status = target->trials->open(target->store, &target->lock_session, error);
	if (status != SEMEL_OK)
		return status;
	status = target->trials->lock(target->lock_session, target->names.id, &locked, error);
	if (status != SEMEL_OK)
		return status;
	return target->trials->create(target->lock_session, target->names.id, error);
}

static semel_status remove_trial(struct semel_drill_target *target, semel_error *error)
{
	struct semel_trial_session *session = NULL;
	semel_status status = target->trials->open(target->store, &session, error);
	if (status != SEMEL_OK)
		goto close_session;
	status = target->trials->remove(session, target->names.id, error);
close_session:
	target->trials->close(session);
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
	if (status != SEMEL_OK)
		return status;
	if (broker->driver->remove)
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
	semel_status status = SEMEL_OK;
	if (target->own_broker)
		status = reach_broker(target->own_broker, error);
	if (status != SEMEL_OK || !target->own_store)
		return status;
	return create_trial(target, error);
}

semel_status semel_drill_target_clear(struct semel_drill_target *target, semel_error *error)
{
	semel_status status = SEMEL_OK;
	if (target->own_broker)
		status = semel_drill_broker_clear(target->own_broker, &target->names, error);
	if (status != SEMEL_OK || !target->own_store)
		return status;
	return remove_trial(target, error);
}

void semel_drill_target_unlock(struct semel_drill_target *target)
{
	if (target->lock_session)
		target->trials->close(target->lock_session);
	if (target->lock_fd >= 0)
		close(target->lock_fd);
	target->lock_session = NULL;
	target->lock_fd = -1;
}
