/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker keeps the contract of brokers. */
#include "contract/broker_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[64];

static void make(char url_out[BROKER_SUITE_URL_SIZE])
{
	snprintf(folder, sizeof(folder), "/tmp/semel-broker-XXXXXX");
	if (mkdtemp(folder) == NULL)
		abort();
	snprintf(url_out, BROKER_SUITE_URL_SIZE, "local:%s/broker.db?max-message=100000", folder);
}

static void drop(void)
{
	static const char *const suffixes[] = { "", "-wal", "-shm" };
	char path[128];
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/broker.db%s", folder, suffixes[i]);
		unlink(path);
	}
	rmdir(folder);
}

int main(void)
{
	const struct broker_suite_factory local = {
		.name = "broker contract: local",
		.make = make,
		.drop = drop,
		.refused_payload_size = 100001,
		.follows_env = true,
		.has_leases = true,
	};
	return broker_suite_run(&local);
}
