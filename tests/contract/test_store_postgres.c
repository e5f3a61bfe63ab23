/* SPDX-License-Identifier: Apache-2.0 */
/* The PostgreSQL store keeps the contract of stores, and what is true of PostgreSQL alone. */
#include "contract/postgres_steps.h"

int main(void)
{
	const struct store_suite_factory postgres = { "store contract: postgres", postgres_make,
						      postgres_drop };
	return postgres_is_missing(postgres.name) ? 0 : store_suite_run(&postgres);
}
