/* SPDX-License-Identifier: Apache-2.0 */
/* The contract of a store: what waits in a scope for something else than an operator, and other
 * reads that the proof needs. */
#include "contract/store_steps.h"
#include "store/rules.h"

#include <stdio.h>
#include <string.h>

#define BILLING SEMEL_TEXT("billing")

static char lines[2048];

static const char *or_dash(struct semel_text text)
{
	return semel_text_shown_or(text, "-");
}

static semel_status append_wait(const struct semel_wait *wait, void *user)
{
	static const char *const kinds[] = { "parked", "hold", "replay", "claim" };
	size_t length = strlen(lines);
	(void)user;
	snprintf(lines + length, sizeof(lines) - length, "%s %s %s:%s %s %s %s%s\n",
		 kinds[wait->kind], or_dash(wait->event_id), or_dash(wait->key.type),
		 or_dash(wait->key.id),
		 wait->state == SEMEL_HOLD_NONE ? "-" : semel_hold_state_name(wait->state),
		 or_dash(wait->head_id), semel_dead_status_name(wait->letter),
		 wait->settled ? "+" : "");
	return SEMEL_OK;
}

static const char *waits(semel_store *store)
{
	lines[0] = '\0';
	assert_ok(store->driver->holds->waits_each(store, BILLING, append_wait, NULL, NULL));
	return lines;
}

static void park(semel_store *store, const char *id, const char *aggregate, const char *behind)
{
	struct semel_event event = store_event(id, aggregate);
	char entry_id[64];
	snprintf(entry_id, sizeof(entry_id), "p-%s", id);
	struct semel_dead_letter_row entry = store_dead(entry_id, &event);
	entry.parked_behind = semel_text_of(behind);
	store_begin(store);
	assert_ok(store->driver->dead_letters->parked_add(store_tx(store), &entry, NULL));
	store_commit(store);
}

static void hold(semel_store *store, const char *type, const char *id, const char *head,
		 enum semel_hold_state state)
{
	struct semel_hold row = { .aggregate_type = semel_text_of(type),
				  .aggregate_id = semel_text_of(id),
				  .head_id = semel_text_of(head),
				  .state = state };
	store_begin(store);
	assert_ok(store->driver->holds->put(store_tx(store), BILLING, &row, NULL));
	store_commit(store);
}

static void add_dead_letter(semel_store *store, const char *id, const char *aggregate)
{
	struct semel_event event = store_event(id, aggregate);
	char entry_id[64];
	snprintf(entry_id, sizeof(entry_id), "d-%s", id);
	(void)store_add_dead_letter(store, store_dead(entry_id, &event));
}

static void move(semel_store *store, const char *id, enum semel_dead_status status)
{
	char entry_id[64];
	snprintf(entry_id, sizeof(entry_id), "d-%s", id);
	struct semel_dead_letter_row entry = { .entry_id = semel_text_of(entry_id),
					       .scope = BILLING };
	store_begin(store);
	assert_ok(store->driver->dead_letters->move(store_tx(store), &entry, status, NULL,
						    STORE_NOW, NULL));
	store_commit(store);
}

static void a_parked_event_without_a_hold_is_reported(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	assert_string_equal(waits(store), "");
	park(store, "e2", "a", "e1");
	assert_string_equal(waits(store), "parked e2 order:a - - ANY\n");
	semel_store_close(store);
}

static void what_waits_behind_a_pending_dead_letter_waits_for_an_operator(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	add_dead_letter(store, "e1", "a");
	hold(store, "order", "a", "e1", SEMEL_HOLD_DEAD);
	park(store, "e2", "a", "e1");
	assert_string_equal(waits(store), "");
	move(store, "e1", SEMEL_DEAD_DISCARDED);
	assert_string_equal(waits(store), "parked e2 order:a dead e1 DISCARDED\n"
					  "hold e1 order:a dead e1 DISCARDED\n");
	semel_store_close(store);
}

static void a_hold_in_retry_is_reported_and_so_is_what_waits_behind_it(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	hold(store, "order", "a", "e1", SEMEL_HOLD_RETRY);
	park(store, "e2", "a", "e1");
	hold(store, "order", "b", "e3", SEMEL_HOLD_RELEASED);
	park(store, "e4", "b", "e3");
	assert_string_equal(waits(store), "parked e2 order:a retry e1 ANY\n"
					  "parked e4 order:b released e3 ANY\n"
					  "hold e1 order:a retry e1 ANY\n");
	semel_store_close(store);
}

static void a_hold_of_the_topic_keeps_every_aggregate(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	hold(store, "", "order.events", "e1", SEMEL_HOLD_RETRY);
	park(store, "e2", "a", "e1");
	assert_string_equal(waits(store), "parked e2 :order.events retry e1 ANY\n"
					  "hold e1 :order.events retry e1 ANY\n");
	semel_store_close(store);
}

static void a_replay_that_is_parked_waits_like_any_other(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	add_dead_letter(store, "e1", "a");
	move(store, "e1", SEMEL_DEAD_REPLAYED);
	add_dead_letter(store, "e2", "a");
	hold(store, "order", "a", "e2", SEMEL_HOLD_DEAD);
	assert_string_equal(waits(store), "replay e1 order:a - - REPLAYED\n");
	park(store, "e1", "a", "e2");
	assert_string_equal(waits(store), "");
	semel_store_close(store);
}

static void a_replay_is_reported_until_it_is_settled(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	add_dead_letter(store, "e1", "a");
	hold(store, "order", "a", "e1", SEMEL_HOLD_DEAD);
	assert_string_equal(waits(store), "");
	move(store, "e1", SEMEL_DEAD_REPLAYED);
	assert_string_equal(waits(store), "hold e1 order:a dead e1 REPLAYED\n"
					  "replay e1 order:a - - REPLAYED\n");
	store_begin(store);
	assert_ok(store->driver->dead_letters->settle(store_tx(store), BILLING, SEMEL_TEXT("e1"), 1,
						      STORE_NOW, NULL));
	store_commit(store);
	assert_string_equal(waits(store), "hold e1 order:a dead e1 REPLAYED+\n");
	semel_store_close(store);
}

static void a_claim_that_is_not_finished_is_reported(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_inbox_claim busy = store_claim("e1");
	busy.status = SEMEL_INBOX_CLAIMED;
	busy.owner = "worker";
	busy.lease_until_ms = STORE_NOW + 30000;
	store_claim_now(store, busy);
	store_claim_now(store, store_claim("e2"));
	assert_string_equal(waits(store), "claim e1 -:- - - ANY\n");
	add_dead_letter(store, "e0", "a");
	hold(store, "order", "a", "e0", SEMEL_HOLD_DEAD);
	park(store, "e1", "a", "e0"); /* its second copy: it waits like any other */
	assert_string_equal(waits(store), "");
	semel_store_close(store);
}

static void a_key_that_is_held_already_is_left_alone(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_hold row = { .aggregate_type = SEMEL_TEXT("order"),
				  .aggregate_id = SEMEL_TEXT("a"),
				  .head_id = SEMEL_TEXT("e1"),
				  .state = SEMEL_HOLD_RETRY };
	bool added = false;
	store_begin(store);
	assert_ok(store->driver->holds->add(store_tx(store), BILLING, &row, &added, NULL));
	assert_true(added);
	row.state = SEMEL_HOLD_RELEASED;
	assert_ok(store->driver->holds->add(store_tx(store), BILLING, &row, &added, NULL));
	assert_false(added);
	store_commit(store);
	assert_string_equal(waits(store), "hold e1 order:a retry e1 ANY\n");
	semel_store_close(store);
}

/* ---- other reads ----------------------------------------------------------------------------- */

static void topics_with_claims_are_known(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	bool has = true;
	assert_ok(store->driver->inbox->has_topic(store, SEMEL_TEXT("order.events"), &has, NULL));
	assert_false(has);
	store_claim_now(store, store_claim("e1"));
	assert_ok(store->driver->inbox->has_topic(store, store_claim("e1").topic, &has, NULL));
	assert_true(has);
	semel_store_close(store);
}

static void append_topic(struct semel_text topic, void *user)
{
	size_t length = strlen(lines);
	(void)user;
	snprintf(lines + length, sizeof(lines) - length, "%s\n", semel_text_shown(topic));
}

static void the_topics_of_the_newest_events_are_reported_once_each(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	lines[0] = '\0';
	assert_ok(store->driver->outbox->topics_each(store, append_topic, NULL, NULL));
	assert_string_equal(lines, "");
	store_publish(store, "e1", "a", "e2", "b", NULL);
	assert_ok(store->driver->outbox->topics_each(store, append_topic, NULL, NULL));
	assert_string_equal(lines, "order.events\n");
	semel_store_close(store);
}

static semel_status append_routing(struct semel_text id, struct semel_text routing_key, void *user)
{
	size_t length = strlen(lines);
	(void)user;
	snprintf(lines + length, sizeof(lines) - length, "%s %s\n", semel_text_shown(id),
		 semel_text_shown(routing_key));
	return SEMEL_OK;
}

static void an_event_has_a_routing_key_which_is_its_type_unless_it_names_one(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct semel_event event = store_event("e2", "a");
	event.routing_key = SEMEL_TEXT("eu.order");
	store_begin(store);
	assert_ok(store->driver->outbox->insert(store_tx(store), &event, 1, NULL));
	store_commit(store);
	store_publish(store, "e1", "a", NULL);
	lines[0] = '\0';
	assert_ok(store->driver->outbox->routing_each(store, append_routing, NULL, NULL));
	char wanted[128];
	snprintf(wanted, sizeof(wanted), "e1 %s\ne2 eu.order\n",
		 semel_text_shown(store_event("e1", "a").type));
	assert_string_equal(lines, wanted);
	semel_store_close(store);
}

static void one_event_is_selected_by_its_id(void **state)
{
	(void)state;
	semel_store *store = store_open_one();
	struct store_relay relay;
	struct semel_outbox_row rows[4];
	struct semel_arena *arena = semel_arena_new(1024);
	struct semel_outbox_batch batch = {
		.arena = arena, .rows = rows, .capacity = 4, .bytes_max = 1 << 20
	};
	const struct semel_outbox_filter filter = { .id = "e2" };
	store_publish(store, "e1", "a", "e2", "b", "e3", "c", NULL);
	assert_ok(store->driver->outbox->select(store, &filter, 0, &batch, NULL));
	assert_int_equal(batch.count, 0);
	store_relay_open(&relay, store, "r");
	store_relay_fetch(&relay, 0);
	store_relay_published(&relay, "e1");
	store_relay_published(&relay, "e2");
	assert_ok(store->driver->outbox->select(store, &filter, 0, &batch, NULL));
	assert_int_equal(batch.count, 1);
	assert_string_equal(rows[0].event.id.data, "e2");
	store_relay_close(&relay);
	semel_arena_free(arena);
	semel_store_close(store);
}

static const struct CMUnitTest tests[] = {
	cmocka_unit_test(a_parked_event_without_a_hold_is_reported),
	cmocka_unit_test(what_waits_behind_a_pending_dead_letter_waits_for_an_operator),
	cmocka_unit_test(a_hold_in_retry_is_reported_and_so_is_what_waits_behind_it),
	cmocka_unit_test(a_hold_of_the_topic_keeps_every_aggregate),
	cmocka_unit_test(a_replay_that_is_parked_waits_like_any_other),
	cmocka_unit_test(a_replay_is_reported_until_it_is_settled),
	cmocka_unit_test(a_claim_that_is_not_finished_is_reported),
	cmocka_unit_test(a_key_that_is_held_already_is_left_alone),
	cmocka_unit_test(topics_with_claims_are_known),
	cmocka_unit_test(the_topics_of_the_newest_events_are_reported_once_each),
	cmocka_unit_test(an_event_has_a_routing_key_which_is_its_type_unless_it_names_one),
	cmocka_unit_test(one_event_is_selected_by_its_id),
};
const struct store_tests store_waits_tests = { tests, sizeof(tests) / sizeof(tests[0]) };
