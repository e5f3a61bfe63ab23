/* SPDX-License-Identifier: Apache-2.0 */
/* Removes what earlier drills have left behind: folders and places in the database that have a
 * drill's name and are not locked. Folders of other users are left alone. What belongs to a drill
 * with another broker stays for a drill with that one. */
#include "base/error.h"
#include "cli/plays/drill/names.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGITS 16

struct cleanup {
	struct semel_drill_target *target;
	semel_drill_leftover_visitor visit;
	void *user;
	semel_error *error;
};

/* Objects at the broker are removed first; a broker in a file has none. */
static semel_status clear_broker(const struct cleanup *cleanup,
				 const struct semel_drill_names *names, bool *removed_out)
{
	uint32_t theirs = (uint32_t)names->id, ours = (uint32_t)cleanup->target->names.id;
	*removed_out = theirs == 0 || theirs == ours;
	if (theirs == 0 || !*removed_out)
		return SEMEL_OK;
	return semel_drill_broker_clear(cleanup->target->own_broker, names, cleanup->error);
}

/* ---- folders --------------------------------------------------------------------------------- */

static bool read_id(const char *name, uint64_t *id_out)
{
	size_t length = strlen(SEMEL_DRILL_PREFIX);
	if (strncmp(name, SEMEL_DRILL_PREFIX, length) != 0 ||
	    strspn(name + length, "0123456789abcdef") != DIGITS || name[length + DIGITS])
		return false;
	*id_out = strtoull(name + length, NULL, 16);
	return true;
}

/* Any user can create a folder of this name in /tmp, and change it while it is being removed. */
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
	snprintf(path, sizeof path, "%s/" SEMEL_DRILL_LOCK, folder);
	if (!is_ours(folder))
		return -1;
	int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* The names at the broker follow from a folder with a store in it, otherwise from the place in the
 * database. */
static semel_status remove_folder(const struct cleanup *cleanup, const char *parent, uint64_t id)
{
	struct semel_drill_names names;
	char folder[PATH_MAX], store[PATH_MAX + 16];
	bool removed = true;
	semel_drill_names_of(id, &names);
	if (snprintf(folder, sizeof folder, "%s/%s", parent, names.name) >= (int)sizeof folder)
		return SEMEL_OK;
	int fd = lock_leftover(folder);
	if (fd < 0)
		return SEMEL_OK;
	snprintf(store, sizeof store, "%s/semel.db", folder);
	semel_status status =
		access(store, F_OK) == 0 ? clear_broker(cleanup, &names, &removed) : SEMEL_OK;
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

/* ---- in the database ------------------------------------------------------------------------- */

static semel_status remove_trial(const struct cleanup *cleanup, struct semel_trial_session *session,
				 uint64_t id)
{
	const struct semel_trial_functions *trials = cleanup->target->trials;
	struct semel_drill_names names;
	bool locked = false, removed = false;
	semel_drill_names_of(id, &names);
	semel_status status = trials->lock(session, id, &locked, cleanup->error);
	if (status != SEMEL_OK || !locked) /* its drill is alive */
		return status;
	status = clear_broker(cleanup, &names, &removed);
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
		status = remove_trial(cleanup, session, id);
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
