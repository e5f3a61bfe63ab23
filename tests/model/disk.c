/* SPDX-License-Identifier: Apache-2.0 */
/* A virtual file system for SQLite, around the one of the machine: it returns the test's time, and
 * fails the writes of a killed party. Nothing is synced: the folder is in memory, and is removed
 * after the test. */
#include "model/disk.h"

#include <sqlite3.h>
#include <string.h>

#define JULIAN_1970_MS INT64_C(210866760000000)

int64_t disk_clock_ms;

static uint64_t chance;

/* The party that is acting. Only one acts at a time, so there is one record. */
static struct acting {
	bool dead;
	int commits_left;
	int failpoint, hits_left;
	int standstill; /* the failpoint where it pauses */
	void (*meanwhile)(void *user);
	void *user;
} acting;

/* ---- time and chance ------------------------------------------------------------------------- */

static int64_t read_clock(void *user)
{
	(void)user;
	return disk_clock_ms;
}

/* SplitMix64 */
static uint64_t next_random(void *user)
{
	(void)user;
	uint64_t mixed = chance += UINT64_C(0x9e3779b97f4a7c15);
	mixed = (mixed ^ mixed >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	mixed = (mixed ^ mixed >> 27) * UINT64_C(0x94d049bb133111eb);
	return mixed ^ mixed >> 31;
}

static void pass_time(void *user, int64_t wait_ms)
{
	(void)user;
	disk_clock_ms += wait_ms > 0 ? wait_ms : 0;
}

void disk_seed(uint64_t seed)
{
	chance = seed;
}

uint64_t disk_chance(void)
{
	return chance;
}

const struct semel_env *disk_env(void)
{
	static const struct semel_env env = { .now_ms = read_clock,
					      .steady_ms = read_clock,
					      .random = next_random,
					      .advance = pass_time };
	return &env;
}

/* ---- kills ----------------------------------------------------------------------------------- */

void disk_act(void)
{
	acting.dead = false;
	acting.commits_left = DISK_NEVER;
	acting.failpoint = DISK_NEVER;
	acting.standstill = DISK_NEVER;
}

void disk_kill_after(int commits)
{
	acting.commits_left = commits;
}

void disk_kill_at(int failpoint, int nth)
{
	acting.failpoint = failpoint;
	acting.hits_left = nth;
}

void disk_meanwhile(int failpoint, void (*act)(void *user), void *user)
{
	acting.standstill = failpoint;
	acting.meanwhile = act;
	acting.user = user;
}

bool disk_is_dead(void)
{
	return acting.dead;
}

static void see_failpoint(enum semel_failpoint point, void *user)
{
	(void)user;
	if ((int)point == acting.failpoint && --acting.hits_left == 0)
		acting.dead = true;
	if ((int)point != acting.standstill)
		return;
	acting.standstill = DISK_NEVER;
	struct acting stopped = acting;
	disk_act();
	stopped.meanwhile(stopped.user);
	acting = stopped;
}

/* Called before a commit writes anything: if the party is to be killed here, all its writes fail
 * from now on. */
static int see_commit(void *user)
{
	(void)user;
	if (acting.commits_left == 0)
		acting.dead = true;
	if (acting.commits_left > 0)
		acting.commits_left--;
	return 0;
}

static int see_connection(sqlite3 *db, char **message, const struct sqlite3_api_routines *api)
{
	(void)message;
	(void)api;
	sqlite3_commit_hook(db, see_commit, NULL);
	return SQLITE_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

struct file {
	sqlite3_file base;
	sqlite3_file *real; /* after this struct, in the same allocation */
};

static sqlite3_file *real_of(sqlite3_file *file)
{
	return ((struct file *)file)->real;
}

static int close_file(sqlite3_file *file)
{
	return real_of(file)->pMethods->xClose(real_of(file));
}

static int read_file(sqlite3_file *file, void *bytes, int count, sqlite3_int64 at)
{
	return real_of(file)->pMethods->xRead(real_of(file), bytes, count, at);
}

static int write_file(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 at)
{
	if (acting.dead)
		return SQLITE_IOERR_WRITE;
	return real_of(file)->pMethods->xWrite(real_of(file), bytes, count, at);
}

static int truncate_file(sqlite3_file *file, sqlite3_int64 size)
{
	if (acting.dead)
		return SQLITE_IOERR_TRUNCATE;
	return real_of(file)->pMethods->xTruncate(real_of(file), size);
}

static int sync_file(sqlite3_file *file, int flags)
{
	(void)file;
	(void)flags;
	return SQLITE_OK;
}

static int size_file(sqlite3_file *file, sqlite3_int64 *size)
{
	return real_of(file)->pMethods->xFileSize(real_of(file), size);
}

static int lock_file(sqlite3_file *file, int level)
{
	return real_of(file)->pMethods->xLock(real_of(file), level);
}

static int unlock_file(sqlite3_file *file, int level)
{
	return real_of(file)->pMethods->xUnlock(real_of(file), level);
}

static int check_lock(sqlite3_file *file, int *out)
{
	return real_of(file)->pMethods->xCheckReservedLock(real_of(file), out);
}

static int control_file(sqlite3_file *file, int code, void *argument)
{
	return real_of(file)->pMethods->xFileControl(real_of(file), code, argument);
}

static int sector_size(sqlite3_file *file)
{
	return real_of(file)->pMethods->xSectorSize(real_of(file));
}

static int characteristics(sqlite3_file *file)
{
	return real_of(file)->pMethods->xDeviceCharacteristics(real_of(file));
}

static int map_shared(sqlite3_file *file, int page, int size, int extend, void volatile **out)
{
	return real_of(file)->pMethods->xShmMap(real_of(file), page, size, extend, out);
}

static int lock_shared(sqlite3_file *file, int offset, int count, int flags)
{
	return real_of(file)->pMethods->xShmLock(real_of(file), offset, count, flags);
}

static void barrier_shared(sqlite3_file *file)
{
	real_of(file)->pMethods->xShmBarrier(real_of(file));
}

static int unmap_shared(sqlite3_file *file, int remove)
{
	return real_of(file)->pMethods->xShmUnmap(real_of(file), remove);
}

static const sqlite3_io_methods methods = {
	.iVersion = 2,
	.xClose = close_file,
	.xRead = read_file,
	.xWrite = write_file,
	.xTruncate = truncate_file,
	.xSync = sync_file,
	.xFileSize = size_file,
	.xLock = lock_file,
	.xUnlock = unlock_file,
	.xCheckReservedLock = check_lock,
	.xFileControl = control_file,
	.xSectorSize = sector_size,
	.xDeviceCharacteristics = characteristics,
	.xShmMap = map_shared,
	.xShmLock = lock_shared,
	.xShmBarrier = barrier_shared,
	.xShmUnmap = unmap_shared,
};

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *out, int flags,
		     int *flags_out)
{
	sqlite3_vfs *machine = vfs->pAppData;
	struct file *file = (struct file *)out;

	file->real = (sqlite3_file *)(file + 1);
	file->base.pMethods = NULL;
	int code = machine->xOpen(machine, name, file->real, flags, flags_out);
	if (code == SQLITE_OK)
		file->base.pMethods = &methods;
	return code;
}

static int current_time(sqlite3_vfs *vfs, sqlite3_int64 *time_ms)
{
	(void)vfs;
	*time_ms = JULIAN_1970_MS + disk_clock_ms;
	return SQLITE_OK;
}

void disk_setup(void)
{
	static sqlite3_vfs disk;
	sqlite3_vfs *machine = sqlite3_vfs_find(NULL);

	disk = *machine;
	disk.zName = "model";
	disk.szOsFile = (int)sizeof(struct file) + machine->szOsFile;
	disk.pAppData = machine;
	disk.pNext = NULL;
	disk.xOpen = open_file;
	disk.xCurrentTimeInt64 = current_time;
	disk_act();
	sqlite3_vfs_register(&disk, 1);
	sqlite3_auto_extension((void (*)(void))see_connection);
	semel_failpoints_watch(see_failpoint, NULL);
}
