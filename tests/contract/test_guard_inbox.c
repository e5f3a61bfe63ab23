/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox of the store keeps the contract of guards. */
#include "contract/guard_suite.h"

#include "contract/store_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];
static semel_store *inbox_store;

static struct semel_guard *make(void)
{
	struct semel_guard *guard = NULL;
	snprintf(folder, sizeof(folder), "/tmp/semel-guard-XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	snprintf(store_url, sizeof(store_url), "sqlite:%s/store.db", folder);
	inbox_store = store_open_one();
	assert_ok(semel_guard_open("inbox:", inbox_store, &guard, NULL));
	return guard;
}

static void drop(void)
{
	static const char *const suffixes[] = { "", "-wal", "-shm" };
	char name[128];
	semel_store_close(inbox_store);
	for (int i = 0; i < 3; i++) {
		snprintf(name, sizeof(name), "%s/store.db%s", folder, suffixes[i]);
		unlink(name);
	}
	rmdir(folder);
}

static semel_store *store(void)
{
	return inbox_store;
}

int main(void)
{
	const struct guard_suite_factory inbox = { "guard contract: inbox", make, drop, store };
	return guard_suite_run(&inbox);
}
