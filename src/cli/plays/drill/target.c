/* SPDX-License-Identifier: Apache-2.0 */
/* Names and URLs of a drill; creates what they name, and removes it. See target.h for the rules. */
#include "cli/plays/drill/target.h"

#include "base/buffer.h"
#include "base/env.h"
#include "base/error.h"
#include "base/url.h"
#include "base/wake.h"
#include "broker/broker.h"
#include "event/hash.h"
#include "store/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NAME_PREFIX "semel-drill-"
#define ID_DIGITS   16
#define LOCK_FILE   "lock"
#define CHILDREN_US 300000 /* the drill's children die with it, but take a moment */
#define PAUSE_US    1000000
#define TRIES       60

/* ---- names ----------------------------------------------------------------------------------- */

static void names_of(uint64_t id, struct semel_drill_names *names_out)
{
	*names_out = (struct semel_drill_names){ .id = id };
	snprintf(names_out->name, sizeof names_out->name, NAME_PREFIX "%016" PRIx64, id);
	snprintf(names_out->topic, sizeof names_out->topic, "%s.orders", names_out->name);
	for (int i = 0; i < SEMEL_SHOP_SUBSCRIPTIONS; i++)
		snprintf(names_out->scopes[i], sizeof names_out->scopes[i], "%s.%s",
			 names_out->name, semel_shop_subscriptions[i].scope);
}

/* The hash is of the URL without its password. It identifies the broker, because what a drill has
 * left at another broker cannot be removed here. */
static uint32_t hash_broker(const char *broker)
{
	char shown[512];
	if (!broker)
		return 0;
	semel_url_redact(broker, shown, sizeof shown);
	return (uint32_t)semel_hash_aggregate(SEMEL_TEXT("broker"), semel_text_of(shown));
}

/* ---- URLs ------------------------------------------------------------------------------------ */

static const char *text_in_arena(struct semel_buffer *buffer, struct semel_arena *arena)
{
	const char *text = buffer->failed ? NULL : semel_arena_printf(arena, "%s", buffer->data);
	semel_buffer_free(buffer);
	return text;
}

/* Removes the alternate exchange, which is the user's. */
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
	return text_in_arena(&buffer, arena);
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
			       "drill does not support broker %s: (it cannot be consumed from; "
			       "use local:PATH, amqp://… or kafka://…)",
			       broker->scheme);
}

static semel_status find_trials(struct semel_drill_target *target, const struct semel_url *store,
				semel_error *error)
{
	const struct semel_store_driver *driver = NULL;
	semel_status status = semel_store_driver_find(store->scheme, &driver, error);
	if (status != SEMEL_OK)
		return status;
	target->trials = driver->trial;
	return SEMEL_OK;
}

/* The upper half of the id is random, and fits a non-negative PostgreSQL int; the lower half is a
 * hash of the broker. */
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
	names_of(choose_id(target, &broker), &target->names);
	if (!choose_store(target, &store, arena) || !choose_broker(target, &broker, arena))
		status = semel_error_set(error, SEMEL_INTERNAL, "out of memory");
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
	snprintf(path, sizeof path, "%s/" LOCK_FILE, folder);
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

static semel_status clear_broker(const char *url, const struct semel_drill_names *names,
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
		status = clear_broker(target->own_broker, &target->names, error);
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

/* ---- what earlier drills have left ----------------------------------------------------------- */

/* Removes folders, and places in the database, that have a drill's name and are not locked. Folders
 * of other users are left alone. What belongs to a drill with another broker is left for a drill
 * with that broker. */
struct cleanup {
	struct semel_drill_target *target;
	semel_drill_leftover_visitor visit;
	void *user;
	semel_error *error;
};

/* Objects at the broker are removed first; a broker in a file has none. */
static semel_status clear_broker_of(const struct cleanup *cleanup,
				    const struct semel_drill_names *names, bool *removed_out)
{
	uint32_t theirs = (uint32_t)names->id, ours = (uint32_t)cleanup->target->names.id;
	*removed_out = theirs == 0 || theirs == ours;
	if (theirs == 0 || !*removed_out)
		return SEMEL_OK;
	return clear_broker(cleanup->target->own_broker, names, cleanup->error);
}

static bool read_id(const char *name, uint64_t *id_out)
{
	size_t length = strlen(NAME_PREFIX);
	if (strncmp(name, NAME_PREFIX, length) != 0 ||
	    strspn(name + length, "0123456789abcdef") != ID_DIGITS || name[length + ID_DIGITS])
		return false;
	*id_out = strtoull(name + length, NULL, 16);
	return true;
}

/* Any user can create a folder of this name in /tmp, and change it while it is being removed, so
 * only folders that no other user can change are accepted. */
static bool is_ours(const char *folder)
{
	struct stat found;
	return lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
	       (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* -1: another process holds the lock, or the folder is not a drill's. */
static int lock_leftover(const char *folder)
{
	char path[PATH_MAX + 8];
	snprintf(path, sizeof path, "%s/" LOCK_FILE, folder);
	if (!is_ours(folder))
		return -1;
	int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* If the folder contains a store, the names at the broker follow from the folder, and are cleared
 * here; otherwise they follow from the place in the database. */
static semel_status remove_folder(const struct cleanup *cleanup, const char *parent, uint64_t id)
{
	struct semel_drill_names names;
	char folder[PATH_MAX], store[PATH_MAX + 16];
	bool removed = true;
	names_of(id, &names);
	if (snprintf(folder, sizeof folder, "%s/%s", parent, names.name) >= (int)sizeof folder)
		return SEMEL_OK;
	int fd = lock_leftover(folder);
	if (fd < 0)
		return SEMEL_OK;
	snprintf(store, sizeof store, "%s/semel.db", folder);
	semel_status status =
		access(store, F_OK) == 0 ? clear_broker_of(cleanup, &names, &removed) : SEMEL_OK;
	if (status != SEMEL_OK)
		goto unlock;
	if (removed)
		semel_sandbox_remove(folder);
	cleanup->visit(names.name, removed, cleanup->user);

unlock:
	close(fd);
	return status;
}

static semel_status remove_folders(const struct cleanup *cleanup, const char *parent)
{
	semel_status status = SEMEL_OK;
	uint64_t id = 0;
	DIR *folder = opendir(parent);
	const struct dirent *entry = NULL;
	while (folder && status == SEMEL_OK && (entry = readdir(folder)) != NULL)
		if (read_id(entry->d_name, &id) && id != cleanup->target->names.id)
			status = remove_folder(cleanup, parent, id);
	if (folder)
		closedir(folder);
	return status;
}

static semel_status remove_left_trial(const struct cleanup *cleanup,
				      struct semel_trial_session *session, uint64_t id)
{
	const struct semel_trial_functions *trials = cleanup->target->trials;
	struct semel_drill_names names;
	bool locked = false, removed = false;
	names_of(id, &names);
	semel_status status = trials->lock(session, id, &locked, cleanup->error);
	if (status != SEMEL_OK || !locked) /* its drill is still running */
		return status;
	status = clear_broker_of(cleanup, &names, &removed);
	if (status != SEMEL_OK)
		return status;
	if (removed)
		status = trials->remove(session, id, cleanup->error);
	if (status != SEMEL_OK)
		return status;
	cleanup->visit(names.name, removed, cleanup->user);
	return SEMEL_OK;
}

static semel_status remove_each_trial(const struct cleanup *cleanup,
				      struct semel_trial_session *session)
{
	const struct semel_trial_functions *trials = cleanup->target->trials;
	uint64_t id = 0;
	for (;;) {
		semel_status status = trials->next(session, id, &id, cleanup->error);
		if (status != SEMEL_OK || id == 0)
			return status;
		status = remove_left_trial(cleanup, session, id);
		if (status != SEMEL_OK)
			return status;
	}
}

static semel_status remove_trials(const struct cleanup *cleanup)
{
	const struct semel_trial_functions *trials = cleanup->target->trials;
	struct semel_trial_session *session = NULL;
	semel_status status = trials->open(cleanup->target->store, &session, cleanup->error);
	if (status != SEMEL_OK)
		return status;
	status = remove_each_trial(cleanup, session);
	trials->close(session);
	return status;
}

semel_status semel_drill_remove_leftovers(struct semel_drill_target *target, const char *parent,
					  semel_drill_leftover_visitor visit, void *user,
					  semel_error *error)
{
	const struct cleanup cleanup = {
		.target = target, .visit = visit, .user = user, .error = error
	};
	semel_status status = remove_folders(&cleanup, parent);
	if (status != SEMEL_OK || !target->own_store)
		return status;
	return remove_trials(&cleanup);
}

/* ---- the watcher ----------------------------------------------------------------------------- */

/* A process that outlives a killed drill, and clears its target. It has a session of its own, so
 * that signals to the drill's group do not reach it; it notices the end of the drill when the pipe
 * between them closes, and holds the lock of the folder until it is done. */

/* A reader of the drill's output must not wait for the watcher, and a signal to the drill must not
 * stop it. */
static void detach(void)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP };
	setsid();
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
		signal(signals[i], SIG_IGN);
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	for (int target = STDIN_FILENO; fd >= 0 && target <= STDERR_FILENO; target++)
		dup2(fd, target);
}

static void clear_target(struct semel_drill_target *target, const char *folder)
{
	semel_error error = { 0 };
	semel_sleep_us(CHILDREN_US);
	semel_status status = semel_drill_target_clear(target, &error);
	for (int i = 1; i < TRIES && status != SEMEL_OK; i++) {
		semel_sleep_us(PAUSE_US);
		status = semel_drill_target_clear(target, &error);
	}
	if (status != SEMEL_OK) /* the next drill tries again */
		return;
	semel_sandbox_remove(folder);
}

static void await_drill_exit(struct semel_drill_target target, const char *folder, int pipe_fd)
{
	char word = 0;
	ssize_t got = 0;
	detach();
	while ((got = read(pipe_fd, &word, 1)) < 0 && errno == EINTR)
		;
	if (got == 0)
		clear_target(&target, folder);
}

semel_status semel_drill_watcher_start(const struct semel_drill_target *target, const char *folder,
				       struct semel_drill_watcher *watcher_out, semel_error *error)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC) != 0)
		return semel_error_set(error, SEMEL_OUTAGE, "cannot create a pipe: %s",
				       strerror(errno));
	pid_t pid = fork();
	if (pid == 0) {
		close(ends[1]);
		await_drill_exit(*target, folder, ends[0]);
		_exit(0);
	}
	close(ends[0]);
	if (pid < 0) {
		close(ends[1]);
		return semel_error_set(error, SEMEL_OUTAGE, "cannot start a process: %s",
				       strerror(errno));
	}
	*watcher_out = (struct semel_drill_watcher){ .pid = (int)pid, .pipe_fd = ends[1] };
	return SEMEL_OK;
}

void semel_drill_watcher_stop(struct semel_drill_watcher *watcher)
{
	if (watcher->pid == 0)
		return;
	ssize_t written = write(watcher->pipe_fd, "d", 1);
	(void)written; /* it has ended already */
	close(watcher->pipe_fd);
	while (waitpid(watcher->pid, NULL, 0) < 0 && errno == EINTR)
		;
	watcher->pid = 0;
}
