/* SPDX-License-Identifier: Apache-2.0 */
/* With a claim that is committed before the effect, an outage between both leaves the claim of an
 * event that did not run. It is remembered here until the store answers again: one at most, since
 * such events run one by one.
 *
 * - The effect was rolled back for certain: the claim is returned, and the event runs again.
 * - Nobody knows whether the effect was committed: the claim tells, where it is finished with the
 *   effect. At most once it is finished before, and the event becomes a dead letter in doubt.
 */
#include "base/error.h"
#include "consume/consumer.h"
#include "consume/task_table.h"
#include "observe/log.h"

#include <stdlib.h>

#define ARENA_BLOCK 4096

struct semel_unfinished_claim {
	struct semel_arena *arena;
	struct semel_delivery delivery;
	struct semel_text entry_id;
	bool head, doubt;
};

void semel_unfinished_claim_free(struct semel_unfinished_claim *unfinished)
{
	if (!unfinished)
		return;
	semel_arena_free(unfinished->arena);
	free(unfinished);
}

void semel_unfinished_claim_note(struct semel_consumer *consumer, const struct semel_item *item,
				 bool doubt)
{
	struct semel_unfinished_claim *unfinished = calloc(1, sizeof *unfinished);

	if (unfinished) {
		unfinished->arena = semel_arena_new(ARENA_BLOCK);
		unfinished->head = item->head;
		unfinished->doubt = doubt;
	}
	if (!unfinished || !unfinished->arena ||
	    !semel_delivery_copy(unfinished->arena, item->delivery, &unfinished->delivery)) {
		semel_log(SEMEL_LOG_ERROR, "no memory for an event that did not run",
			  &(struct semel_log_fields){
				  .message_id = semel_text_shown(item->delivery->event.id),
				  .consumer = semel_text_shown(consumer->scope) });
		semel_unfinished_claim_free(unfinished);
		return;
	}
	unfinished->entry_id =
		semel_arena_text(unfinished->arena, item->entry_id.data, item->entry_id.length);
	semel_unfinished_claim_free(consumer->unfinished);
	consumer->unfinished = unfinished;
}

/* In the open transaction. */
static semel_status write_down(struct semel_consumer *consumer, semel_error *error)
{
	struct semel_unfinished_claim *unfinished = consumer->unfinished;
	struct semel_item *item =
		semel_items_make(consumer, &unfinished->delivery, 1, consumer->arena);

	if (!item)
		return semel_error_set(error, SEMEL_INTERNAL, "no memory for an item");
	if (!unfinished->doubt)
		return semel_claim_release(consumer, &item->claim, error);
	item->entry_id = unfinished->entry_id;
	item->head = unfinished->head;
	item->runs++;
	item->status = SEMEL_HANDLER_REJECT;
	item->reason = "in doubt: the store went away while the effect was committed; look whether "
		       "the effect happened, then replay or discard";
	semel_item_move(item, SEMEL_ITEM_ADMITTED);
	return semel_settle_dead(consumer, item, consumer->arena, error);
}

semel_status semel_unfinished_claim_resolve(struct semel_consumer *consumer, semel_error *error)
{
	const struct semel_store_driver *driver = consumer->store->driver;

	if (!consumer->unfinished)
		return SEMEL_OK;
	semel_status status = driver->begin(consumer->store, error);
	if (status != SEMEL_OK)
		return status;
	status = write_down(consumer, error);
	if (status != SEMEL_OK) {
		driver->rollback(consumer->store);
		return status;
	}
	status = driver->commit(consumer->store, error);
	if (status == SEMEL_OK) {
		semel_unfinished_claim_free(consumer->unfinished);
		consumer->unfinished = NULL;
	}
	return status;
}
