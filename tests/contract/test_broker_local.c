/* SPDX-License-Identifier: Apache-2.0 */
/* The local broker keeps the contract of brokers. */
#include "contract/broker_steps.h"
#include "contract/broker_suite.h"

static void make(char url_out[BROKER_SUITE_URL_SIZE])
{
	steps_folder_make("?max-message=100000", url_out, BROKER_SUITE_URL_SIZE);
}

int main(void)
{
	const struct broker_suite_factory local = {
		.name = "broker contract: local",
		.make = make,
		.drop = steps_folder_drop,
		.refused_payload_size = 100001,
		.follows_env = true,
		.has_leases = true,
	};
	return broker_suite_run(&local);
}
