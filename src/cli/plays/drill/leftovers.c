/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier drills have left behind: folders and schemas by their name, that nobody holds
 * locked. Folders of other users are left alone. One whose broker is another server than ours is
 * left for a drill with that one. */
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
	semel_drill_leftover_visitor seen;
	void *user;
	semel_error *error;
};

/* What stands at the broker goes first; without a broker at a server there is nothing. */
static semel_status clear_broker(const struct cleanup *cleanup,
				 const struct semel_drill_names *names, bool *freed_out)
{
	uint32_t theirs = (uint32_t)names->id, ours = (uint32_t)cleanup->target->names.id;
	*freed_out = theirs == 0 || theirs == ours;
	if (theirs == 0 || !*freed_out)
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

/* Anybody can make a folder of this name in /tmp, and change it while we remove what is in it. */
static bool is_ours(const char *folder)
{
	struct stat found;
	return lstat(folder, &found) == 0 && S_ISDIR(found.st_mode) && found.st_uid == geteuid() &&
	       (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

/* -1: somebody holds it, or it is no drill's. */
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

/* A folder with a store in it stands for what is at the broker; else the schema does. */
static semel_status remove_folder(const struct cleanup *cleanup, const char *parent, uint64_t id)
{
	struct semel_drill_names names;
	char folder[PATH_MAX], store[PATH_MAX + 16];
	bool freed = true;
	semel_drill_names_of(id, &names);
	if (snprintf(folder, sizeof folder, "%s/%s", parent, names.name) >= (int)sizeof folder)
		return SEMEL_OK;
	int fd = lock_leftover(folder);
	if (fd < 0)
		return SEMEL_OK;
	snprintf(store, sizeof store, "%s/semel.db", folder);
	semel_status status =
		access(store, F_OK) == 0 ? clear_broker(cleanup, &names, &freed) : SEMEL_OK;
	if (status == SEMEL_OK && freed)
		semel_sandbox_remove(folder);
	if (status == SEMEL_OK)
		cleanup->seen(names.name, freed, cleanup->user);
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

/* ---- schemas --------------------------------------------------------------------------------- */

static semel_status next_schema(void *connection, int64_t after, int64_t *id_out,
				semel_error *error)
{
	static const char sql[] =
		"SELECT min(id) FROM (SELECT ('x' || substr(nspname, 13))::bit(64)::bigint AS id"
		" FROM pg_namespace WHERE nspname ~ '^semel_drill_[0-9a-f]{16}$'"
		" AND obj_description(oid, 'pg_namespace') = '" SEMEL_DRILL_COMMENT "') AS drills"
		" WHERE id > $1::bigint";
	char number[32];
	snprintf(number, sizeof number, "%" PRId64, after);
	const char *const values[] = { number, NULL };
	return semel_shop_postgres.ask(connection, sql, values, id_out, error);
}

static semel_status remove_schema(const struct cleanup *cleanup, void *connection, uint64_t id)
{
	struct semel_drill_names names;
	bool dead = false, freed = false;
	semel_drill_names_of(id, &names);
	semel_status status = semel_drill_schema_lock(connection, id, &dead, cleanup->error);
	if (status != SEMEL_OK || !dead)
		return status;
	status = clear_broker(cleanup, &names, &freed);
	if (status == SEMEL_OK && freed)
		status = semel_drill_schema_drop(connection, &names, cleanup->error);
	if (status == SEMEL_OK)
		cleanup->seen(names.name, freed, cleanup->user);
	return status;
}

static semel_status remove_schemas(const struct cleanup *cleanup)
{
	void *connection = NULL;
	int64_t id = 0;
	semel_status status =
		semel_shop_postgres.open(cleanup->target->store, &connection, cleanup->error);
	if (status == SEMEL_OK)
		status = next_schema(connection, 0, &id, cleanup->error);
	while (status == SEMEL_OK && id > 0) {
		status = remove_schema(cleanup, connection, (uint64_t)id);
		if (status == SEMEL_OK)
			status = next_schema(connection, id, &id, cleanup->error);
	}
	semel_shop_postgres.close(connection);
	return status;
}

semel_status semel_drill_remove_leftovers(struct semel_drill_target *target, const char *parent,
					  semel_drill_leftover_visitor seen, void *user,
					  semel_error *error)
{
	const struct cleanup cleanup = {
		.target = target, .seen = seen, .user = user, .error = error
	};
	semel_status status = remove_folders(&cleanup, parent);
	return status == SEMEL_OK && target->own_store ? remove_schemas(&cleanup) : status;
}
