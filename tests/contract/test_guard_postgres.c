/* SPDX-License-Identifier: Apache-2.0 */
/* The inbox of a PostgreSQL store keeps the contract of guards. */
#include "contract/guard_suite.h"

#include "contract/postgres_steps.h"

static semel_store *inbox_store;

static struct semel_guard *make(void)
{
	struct semel_guard *guard = NULL;
	postgres_make(store_url);
	inbox_store = store_open_one();
	assert_ok(semel_guard_open("inbox:", inbox_store, &guard, NULL));
	return guard;
}

static void drop(void)
{
	semel_store_close(inbox_store);
	postgres_drop();
}

static semel_store *store(void)
{
	return inbox_store;
}

int main(void)
{
	const struct guard_suite_factory inbox = { "guard contract: inbox on postgres", make, drop,
						   store };
	return postgres_is_missing(inbox.name) ? 0 : guard_suite_run(&inbox);
}
