/* SPDX-License-Identifier: Apache-2.0 */
/* `semel init`: creates or upgrades the tables, and prints whether it did or they are up to
 * date. */
#include "base/url.h"
#include "cli/arguments/adopt.h"
#include "cli/arguments/command.h"
#include "cli/commands/slot.h"

#include <semel/store.h>
#include <stdio.h>

static semel_status run(struct semel_invocation *invocation)
{
	semel_error before = { 0 };
	semel_store *store = NULL;
	semel_status found = semel_store_open(invocation->store, &store, &before);
	semel_store_close(store);
	semel_status status = semel_store_init(invocation->store, &invocation->error);
	if (status != SEMEL_OK)
		return status;
	char shown[512]; /* a URL may hold a password */
	semel_url_redact(invocation->store, shown, sizeof(shown));
	printf(found == SEMEL_OK ? "the tables in %s are up to date\n"
				 : "created or upgraded the tables in %s\n",
	       shown);
	status = semel_adopt_apply(invocation);
	if (status != SEMEL_OK)
		return status;
	return semel_slot_create(invocation, stdout);
}

static const struct semel_option options[] = { SEMEL_OPTION_CDC, SEMEL_OPTION_SLOT, { 0 } };

static const struct semel_example examples[] = {
	{ "semel init", "create the tables in semel.db, in the current folder" },
	{ "semel init --store sqlite:shop.db", "create them beside the tables of an application" },
	{ "semel init --store postgres://app@db/shop --cdc",
	  "and a replication slot for the change stream" },
	{ 0 },
};

const struct semel_command semel_command_init = {
	.name = "init",
	.run = run,
	.group = SEMEL_GROUP_START,
	.summary = "create or upgrade the tables in the store",
	.details =
		"Safe to run twice, and from two processes at the same time. The tables begin "
		"with semel_ and are beside the application's own. A file that does not exist is "
		"created. If the config file has an adopt section, rows inserted into the table "
		"that it names become events from now on.",
	.options = options,
	.examples = examples,
};
