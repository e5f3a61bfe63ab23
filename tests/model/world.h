/* SPDX-License-Identifier: Apache-2.0 */
/* The real library in one process: a store, a local broker, a relay, two subscriptions with two
 * consumers each, and an operator; they take turns, on the machine of disk.h. */
#ifndef SEMEL_TESTS_MODEL_WORLD_H
#define SEMEL_TESTS_MODEL_WORLD_H

#include "consume/consumer.h"
#include "model/reference.h"
#include "relay/relay.h"
#include "store/store.h"

#include <sqlite3.h>

enum { CONSUMERS = 2, FILES = 4, AGGREGATES = 3, REPLAYS = 8, TUNINGS = 4 };

/* The verdict of the handlers on an event, at every run, until the test changes it. */
enum behaviour { BEHAVIOUR_GOOD, BEHAVIOUR_BAD, BEHAVIOUR_LATER, BEHAVIOURS };

/* How a subscription is run. */
struct scope_options {
	const char *scope;
	semel_guarantee guarantee;
	semel_claim_mode claim;
	semel_poison poison;
	semel_order order;
	uint8_t tuning; /* index of numbers that do not affect the promise */
	bool narrow;    /* it reads only one of the two topics */
};

/* How the relay is run, and what the broker accepts from it. */
struct relay_options {
	semel_poison poison;
	uint32_t window, attempts; /* 0: the default */
	uint8_t limit;             /* index of limits[] in world.c */
};

struct setting {
	const char *name;
	struct scope_options scopes[SCOPES];
};

extern const struct setting settings[];
extern const int setting_count;

/* Both files with their logs, and the state of the reference at that time. */
struct saved {
	bool there;
	int64_t clock_ms;
	uint64_t chance;
	struct reference reference;
	enum behaviour behaviours[EVENTS_MAX];
	bool lossy, paused[SCOPES], mixed[SCOPES];
	struct scope_options scope_options[SCOPES];
	struct relay_options relay_options;
	struct terms terms[SCOPES];
	struct {
		char *bytes;
		size_t size;
	} files[FILES];
};

struct world;

struct reader { /* the user argument of a handler */
	struct world *world;
	int scope;
};

struct world {
	char folder[64], store_url[128], broker_url[128];
	const struct setting *setting;
	int partitions;
	struct scope_options scope_options[SCOPES]; /* of consumers that start from now on */
	struct scope_options
		earlier[SCOPES]; /* before the order was changed between total and others */
	struct relay_options relay_options;
	struct terms terms[SCOPES];
	bool mixed[SCOPES];          /* some kept claims, and some did not: verify cannot count */
	semel_store *operator_store; /* of producers and operators */
	semel_relay *relay;
	semel_consumer *consumers[SCOPES][CONSUMERS];
	struct reader readers[SCOPES];
	sqlite3 *inspector;        /* a connection of its own, to both files */
	sqlite3_stmt *queries[16]; /* of inspect.c */
	int64_t version;           /* of the store, when it was read last */
	struct saved fresh;        /* the initial state */
	struct saved kept;         /* saved by STEP_SAVE */
	struct reference reference;
	enum behaviour behaviours[EVENTS_MAX];
	bool lossy; /* copies were removed, a file was restored: what is missing must be reported */
	bool paused[SCOPES];
	char won[SCOPES][EVENTS_MAX][REPLAYS][40]; /* entry whose replay was accepted */
	bool outage; /* the acting party survives when its writes fail */
	semel_error error;
	uint64_t turns;     /* of relays and consumers */
	const char *broken; /* the broken part of the promise; NULL: none */
	char detail[256];
};

/* Once per process; the folder is removed by world_end. */
bool world_begin(struct world *world);
void world_end(struct world *world);
/* Restores the initial state, with another setting and seed. */
void world_reset(struct world *world, const struct setting *setting, uint64_t seed);

/* Records the first part of the promise that is broken. */
void world_break(struct world *world, const char *broken, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Parties are opened when they are needed. False: the turn or the opening failed. */
bool world_open_operator_store(struct world *world);
bool world_relay_turn(struct world *world, bool *busy_out);
bool world_consumer_turn(struct world *world, int scope, int which, bool *busy_out);
/* Closes all parties; none of them was killed. */
void world_close_all(struct world *world);
/* Close one party, which may be dead. */
void world_drop_operator_store(struct world *world);
void world_drop_relay(struct world *world);
void world_drop_consumer(struct world *world, int scope, int which);

/* Parties that start from now on use these options; the weaker promise holds from now on. */
void world_set_scope_options(struct world *world, int scope,
			     const struct scope_options *scope_options);
void world_set_relay_options(struct world *world, const struct relay_options *relay_options);
/* The topics, in the order in which they are read. */
extern const char *const world_topics[];

/* Saves or restores files. which: bit 0 the store, bit 1 the broker; load closes all parties
 * first. */
bool world_save(struct world *world, struct saved *saved);
void world_load(struct world *world, const struct saved *saved, int which);
/* Restores everything, the clock and the reference too, as if nothing had happened since. */
void world_return(struct world *world, const struct saved *saved);
void saved_free(struct saved *saved);

/* ---- inspect.c: the tables, read without the library ---- */
void inspect_close(struct world *world);
/* Has the store changed since the last call? */
bool inspect_changed(struct world *world);
struct seen inspect_event(struct world *world, int scope, int event);
void inspect_all(struct world *world, int scope, struct seen seen[EVENTS_MAX]);
/* The nth pending dead letter; scope and event are -1 if they are not the model's. False: there is
 * none. */
bool inspect_letter(struct world *world, int nth, char entry_id_out[40], int *scope_out,
		    int *event_out);
/* The next time at which something is due; 0: nothing is. */
int64_t inspect_due(struct world *world);
/* Events that wait at the broker for the scope. */
int inspect_waiting(struct world *world, int scope, int event);
/* Is a topic held by another event than this one? */
bool inspect_held(struct world *world, int scope, int event);
/* Does a pending dead letter hold the whole topic? */
bool inspect_blocked(struct world *world, int scope);
/* Runs a statement on both files, without the library. Returns how many rows were changed. */
int inspect_execute(struct world *world, const char *sql, int64_t first, int64_t second);
int64_t inspect_number(struct world *world, const char *sql, int64_t first, int64_t second);
/* A digest of the whole state, without what differs between equal states: times, ids. */
uint64_t inspect_digest(struct world *world);

#endif
