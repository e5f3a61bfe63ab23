/* SPDX-License-Identifier: Apache-2.0 */
#include "proof/position_reader.h"

#include "base/error.h"

static semel_status refuse(void *user, const char *topic, int32_t partition, bool granted,
			   int64_t *next_out, semel_error *error)
{
	(void)user;
	(void)granted;
	*next_out = -1;
	return semel_error_set(error, SEMEL_LEASE_LOST,
			       "partition %d of %s is only inspected by this process",
			       (int)partition, topic);
}

static void ignore(void *user, const char *topic, int32_t partition)
{
	(void)user;
	(void)topic;
	(void)partition;
}

static semel_status get_position(void *user, const char *scope, const char *topic,
				 int32_t partition, int64_t *next_out, semel_error *error)
{
	semel_store *store = ((struct semel_position_reader *)user)->store;
	struct semel_position position = { .scope = semel_text_of(scope),
					   .topic = semel_text_of(topic),
					   .partition = partition };
	semel_status status = store->driver->inbox->position_get(store, &position, error);
	*next_out = position.next;
	return status;
}

void semel_position_reader_attach(struct semel_position_reader *position_reader,
				  struct semel_broker *broker, semel_store *store)
{
	*position_reader = (struct semel_position_reader){ .store = store };
	position_reader->offset_store = (struct semel_offset_store){
		.user = position_reader, .acquire = refuse, .release = ignore, .get = get_position
	};
	semel_broker_set_offset_store(broker, &position_reader->offset_store);
}
