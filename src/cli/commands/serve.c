/* SPDX-License-Identifier: Apache-2.0 */
/* `semel serve`: the admin server alone. */
#include "base/wake.h"
#include "cli/arguments/admin_options.h"
#include "cli/process/notify.h"
#include "cli/process/signals.h"

#include <stdio.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FOR_EVER_MS (INT64_C(24) * 3600 * 1000)

static void stop(void *wake)
{
	semel_wake_notify(wake);
}

static void wait_for_end(struct semel_wake *wake, struct semel_admin *admin, int hangup)
{
	semel_notify("READY=1");
	while (!semel_wake_is_notified(wake)) {
		uint64_t hangups = 0;
		if (read(hangup, &hangups, sizeof hangups) > 0)
			semel_admin_reload_tokens(admin);
		semel_wake_sleep(wake, FOR_EVER_MS);
	}
}

static semel_status run(struct semel_invocation *invocation)
{
	semel_error *error = &invocation->error;
	struct semel_admin_options options = semel_admin_options_read(invocation);
	struct semel_admin *admin = NULL;
	struct semel_wake *wake = NULL;
	int hangup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	semel_status status = semel_wake_new(&wake, error);
	if (status != SEMEL_OK)
		goto close_hangup;
	status = semel_admin_start(&options, &admin, error);
	if (status != SEMEL_OK)
		goto free_wake;
	semel_signals_watch(stop, wake, semel_args_duration_ms(invocation->args, "grace"));
	semel_wake_watch_fd(wake, hangup);
	semel_signals_watch_hangup(hangup);
	printf("listening on %s\n", semel_admin_url(admin));
	fflush(stdout);
	wait_for_end(wake, admin, hangup);
	semel_signals_forget();
	semel_admin_stop(admin);

free_wake:
	semel_wake_free(wake);
close_hangup:
	close(hangup);
	return status;
}

static const struct semel_example examples[] = {
	{ "semel serve", "on http://127.0.0.1:8082" },
	{ "curl -s http://127.0.0.1:8082/api/admin/dlq/count", "count pending dead letters" },
	{ 0 },
};

const struct semel_command semel_command_serve = {
	.name = "serve",
	.run = run,
	.group = SEMEL_GROUP_OPERATE,
	.summary = "serve the admin API, the page, metrics and health over HTTP",
	.options = semel_admin_rows,
	.details =
		"On an address beyond loopback a token and TLS are required. A token with the role "
		"read can only read; one with the role operate can also replay, discard, pause and "
		"resume. On SIGHUP the "
		"token file is read again; an invalid one changes nothing. The API is described at "
		"/api/openapi.json, metrics are at /metrics, health at /livez and /readyz. Relays "
		"and consumers run in other processes; while the store is unreachable, the server "
		"reports that and keeps running. The section admin of the config file accepts "
		"these options as keys.",
	.examples = examples,
	.config_part = SEMEL_CONFIG_PART_ADMIN,
};
