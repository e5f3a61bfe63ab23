/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/onlooker.h"

#include "base/error.h"

static semel_status refuse(void *user, const char *topic, int32_t partition, bool granted,
			   int64_t *next_out, semel_error *error)
{
	(void)user;
	(void)granted;
	*next_out = -1;
	return semel_error_set(error, SEMEL_LEASE_LOST, "partition %d of %s is only looked at here",
			       (int)partition, topic);
}

static void ignore(void *user, const char *topic, int32_t partition)
{
	(void)user;
	(void)topic;
	(void)partition;
}

static semel_status look(void *user, const char *scope, const char *topic, int32_t partition,
			 int64_t *next_out, semel_error *error)
{
	semel_store *store = ((struct semel_onlooker *)user)->store;
	struct semel_position position = { .scope = semel_text_of(scope),
					   .topic = semel_text_of(topic),
					   .partition = partition };
	semel_status status = store->driver->position_get(store, &position, error);
	*next_out = position.next;
	return status;
}

void semel_onlooker_attend(struct semel_onlooker *onlooker, struct semel_broker *broker,
			   semel_store *store)
{
	*onlooker = (struct semel_onlooker){ .store = store };
	onlooker->keeper = (struct semel_keeper){
		.user = onlooker, .take = refuse, .release = ignore, .look = look
	};
	semel_broker_keep(broker, &onlooker->keeper);
}
