/* SPDX-License-Identifier: Apache-2.0 */
/* Opens, runs, loses and restores the parties of the model. */
#include "model/world.h"

#include "model/disk.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEGIN_MS INT64_C(1767225600000) /* 2026-01-01 */

static const char *const file_names[FILES] = { "store.db", "store.db-wal", "broker.db",
					       "broker.db-wal" };
const char *const world_topics[] = { "order.events", "extra.events", NULL };
static const char *const topic_alone[] = { "order.events", NULL };

/* Numbers that may change between starts, and differ between two parties that run at the same
 * time. */
static const struct {
	uint32_t attempts, immediate, batch;
	int64_t first_delay_ms, delay_max_ms, strict_wait_ms, prefetch_bytes;
	bool from_latest;
} tunings[TUNINGS] = {
	{ 3, 1, 0, 1000, 2000, 3000, 0, false },
	{ 2, 2, 1, 1000, 1000, 1000, 4096, true },
	{ 5, 1, 2, 4000, 64000, 9000, 0, false },
	{ 1, 1, 0, 1000, 2000, 3000, 0, true },
};

/* What the broker accepts from the relay. The last one (LIMIT_PARTITIONS) names another number of
 * partitions, and is refused completely. */
static const char *const limits[] = { "", "&max-message=20", "&max-length=1", "" };
enum { LIMIT_PARTITIONS = 3 };

#define SAME_TX(poison, order)                                                                     \
	{                                                                                          \
		"mail", SEMEL_EFFECTIVELY_ONCE, SEMEL_CLAIM_SAME_TX, poison, order, 0, false       \
	}
#define SEPARATE(poison, order)                                                                    \
	{                                                                                          \
		"pay", SEMEL_EFFECTIVELY_ONCE, SEMEL_CLAIM_SEPARATE, poison, order, 0, false       \
	}
#define AT_MOST(poison, order)                                                                     \
	{                                                                                          \
		"pay", SEMEL_AT_MOST_ONCE, SEMEL_CLAIM_SAME_TX, poison, order, 0, false            \
	}
#define AT_LEAST(poison, order)                                                                    \
	{                                                                                          \
		"mail", SEMEL_AT_LEAST_ONCE, SEMEL_CLAIM_SAME_TX, poison, order, 0, false          \
	}

const struct setting settings[] = {
	{ "park-key",
	  { SAME_TX(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_AGGREGATE),
	    SEPARATE(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_AGGREGATE) } },
	{ "block",
	  { SAME_TX(SEMEL_POISON_BLOCK, SEMEL_ORDER_AGGREGATE),
	    SEPARATE(SEMEL_POISON_BLOCK, SEMEL_ORDER_AGGREGATE) } },
	{ "skip",
	  { SAME_TX(SEMEL_POISON_SKIP, SEMEL_ORDER_AGGREGATE),
	    SEPARATE(SEMEL_POISON_SKIP, SEMEL_ORDER_AGGREGATE) } },
	{ "strict",
	  { SAME_TX(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_STRICT),
	    SEPARATE(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_STRICT) } },
	{ "total",
	  { SAME_TX(SEMEL_POISON_BLOCK, SEMEL_ORDER_TOTAL),
	    SEPARATE(SEMEL_POISON_SKIP, SEMEL_ORDER_TOTAL) } },
	{ "at-most-once",
	  { SAME_TX(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_AGGREGATE),
	    AT_MOST(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_AGGREGATE) } },
	{ "at-least-once",
	  { AT_LEAST(SEMEL_POISON_PARK_KEY, SEMEL_ORDER_AGGREGATE),
	    AT_MOST(SEMEL_POISON_SKIP, SEMEL_ORDER_STRICT) } },
};
const int setting_count = (int)(sizeof settings / sizeof settings[0]);

void world_break(struct world *world, const char *broken, const char *format, ...)
{
	va_list arguments;

	if (world->broken)
		return;
	world->broken = broken;
	va_start(arguments, format);
	vsnprintf(world->detail, sizeof world->detail, format, arguments);
	va_end(arguments);
}

/* ---- handlers -------------------------------------------------------------------------------- */

static bool apply(semel_context *context, const char *scope, int event)
{
	sqlite3 *db = semel_tx_sqlite(semel_context_tx(context));
	sqlite3_stmt *statement = NULL;

	if (sqlite3_prepare_v2(db, "INSERT INTO effect (scope, event) VALUES (?1, ?2)", -1,
			       &statement, NULL) != SQLITE_OK)
		return false;
	sqlite3_bind_text(statement, 1, scope, -1, SQLITE_STATIC);
	sqlite3_bind_int(statement, 2, event);
	bool done = sqlite3_step(statement) == SQLITE_DONE;
	sqlite3_finalize(statement);
	return done;
}

/* A run by a killed party does not count: none of it is committed. */
static semel_verdict handle(const semel_event *event, semel_context *context, void *user)
{
	const struct reader *reader = user;
	struct world *world = reader->world;
	int number = atoi(semel_event_payload(event, NULL));

	if (!disk_is_dead()) {
		struct seen seen = inspect_event(world, reader->scope, number);
		const char *broken = reference_run(&world->reference, reader->scope, number,
						   &world->terms[reader->scope], &seen);
		if (broken)
			world_break(world, broken, "event %d at %s", number + 1,
				    world->scope_options[reader->scope].scope);
	}
	switch (world->behaviours[number]) {
	case BEHAVIOUR_BAD:
		return SEMEL_REJECT;
	case BEHAVIOUR_LATER:
		return SEMEL_RETRY;
	case BEHAVIOUR_GOOD:
	case BEHAVIOURS:
		break;
	}
	return apply(context, world->scope_options[reader->scope].scope, number) ? SEMEL_DONE
										 : SEMEL_RETRY;
}

/* ---- parties --------------------------------------------------------------------------------- */

bool world_open_operator_store(struct world *world)
{
	if (!world->operator_store &&
	    semel_store_open_in(disk_env(), world->store_url, &world->operator_store,
				&world->error) != SEMEL_OK)
		world->operator_store = NULL;
	return world->operator_store != NULL;
}

/* Names another number of partitions only if both topics exist: a new topic would be created with
 * it. */
static void write_relay_url(struct world *world, char url_out[160])
{
	bool other = world->relay_options.limit == LIMIT_PARTITIONS &&
		     inspect_number(world, "SELECT count(*) FROM b.semel_topic", 0, 0) == 2;

	snprintf(url_out, 160, "local:%s/broker.db?partitions=%d&busy-timeout=0%s", world->folder,
		 other ? 3 - world->partitions : world->partitions,
		 limits[world->relay_options.limit]);
}

bool world_relay_turn(struct world *world, bool *busy_out)
{
	char broker_url[160];
	semel_relay_options options = { .store = world->store_url,
					.broker = broker_url,
					.poison = world->relay_options.poison,
					.window = world->relay_options.window,
					.attempts = world->relay_options.attempts,
					.first_delay_ms = 1000,
					.delay_max_ms = 2000,
					.poll_ms = 1 };
	int64_t pause_ms = 0;

	write_relay_url(world, broker_url);

	*busy_out = false;
	world->turns++;
	if (!world->relay &&
	    semel_relay_open_in(disk_env(), &options, &world->relay, &world->error) != SEMEL_OK)
		return false;
	disk_clock_ms += 2; /* it polls for rows now and then */
	return semel_relay_step(world->relay, busy_out, &pause_ms, &world->error) == SEMEL_OK &&
	       pause_ms == 0;
}

/* Is the scope subscribed to both topics? --from applies only to a new subscription. */
static bool is_subscribed(struct world *world, int scope)
{
	char sql[192];

	snprintf(sql, sizeof sql,
		 "SELECT count(*) = 4 FROM (SELECT topic FROM b.semel_subscription WHERE scope ="
		 " '%s' UNION ALL SELECT topic FROM semel_subscription_topic WHERE scope = '%s')",
		 world->scope_options[scope].scope, world->scope_options[scope].scope);
	return inspect_number(world, sql, 0, 0) > 0;
}

/* The order cannot change between total and others while something is held: an operator would
 * restore the earlier options. */
static bool go_back(struct world *world, int scope)
{
	bool refused = world->error.status == SEMEL_CONFIG;

	if (refused)
		world->scope_options[scope] = world->earlier[scope];
	return refused;
}

static bool open_consumer(struct world *world, int scope, semel_consumer **out)
{
	const struct scope_options *scope_options = &world->scope_options[scope];
	uint8_t tuning = scope_options->tuning % TUNINGS;
	semel_consumer_options options = {
		.store = world->store_url,
		.broker = world->broker_url,
		.scope = scope_options->scope,
		.topics = scope_options->narrow ? topic_alone : world_topics,
		.guarantee = scope_options->guarantee,
		.claim = scope_options->claim,
		.poison = scope_options->poison,
		.order = scope_options->order,
		.attempts = tunings[tuning].attempts,
		.immediate = tunings[tuning].immediate,
		.batch = tunings[tuning].batch,
		.first_delay_ms = tunings[tuning].first_delay_ms,
		.delay_max_ms = tunings[tuning].delay_max_ms,
		.strict_wait_ms = tunings[tuning].strict_wait_ms,
		.prefetch_bytes = tunings[tuning].prefetch_bytes,
		.from_latest = tunings[tuning].from_latest && is_subscribed(world, scope)
	};
	semel_consumer *consumer = NULL;

	if (semel_consumer_open_in(disk_env(), &options, &consumer, &world->error) != SEMEL_OK)
		return false;
	if (semel_consumer_handle(consumer, handle, &world->readers[scope], &world->error) !=
		    SEMEL_OK ||
	    semel_consumer_prepare(consumer, 0, &world->error) != SEMEL_OK) {
		go_back(world, scope);
		semel_consumer_close(consumer);
		return false;
	}
	*out = consumer;
	return true;
}

bool world_consumer_turn(struct world *world, int scope, int which, bool *busy_out)
{
	semel_consumer **consumer = &world->consumers[scope][which];
	int64_t pause_ms = 0;

	*busy_out = false;
	world->turns++;
	if (!*consumer && !open_consumer(world, scope, consumer))
		return false;
	disk_clock_ms += 2;
	if (semel_consumer_step(*consumer, busy_out, &pause_ms, &world->error) == SEMEL_OK)
		return pause_ms == 0;
	if (go_back(world, scope))
		world_drop_consumer(world, scope, which);
	return false;
}

void world_drop_operator_store(struct world *world)
{
	semel_store_close(world->operator_store);
	world->operator_store = NULL;
}

void world_drop_relay(struct world *world)
{
	semel_relay_close(world->relay);
	world->relay = NULL;
}

void world_drop_consumer(struct world *world, int scope, int which)
{
	semel_consumer_close(world->consumers[scope][which]);
	world->consumers[scope][which] = NULL;
}

void world_close_all(struct world *world)
{
	disk_act();
	world_drop_operator_store(world);
	world_drop_relay(world);
	for (int scope = 0; scope < SCOPES; scope++)
		for (int which = 0; which < CONSUMERS; which++)
			world_drop_consumer(world, scope, which);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void path_of(const struct world *world, const char *name, char path_out[128])
{
	snprintf(path_out, 128, "%s/%s", world->folder, name);
}

void saved_free(struct saved *saved)
{
	for (int i = 0; i < FILES; i++)
		free(saved->files[i].bytes);
	*saved = (struct saved){ 0 };
}

static bool read_whole(const char *path, char **bytes_out, size_t *size_out)
{
	struct stat facts;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	*bytes_out = NULL;
	*size_out = 0;
	if (fd < 0)
		return true; /* a log that was never written */
	bool read_all = fstat(fd, &facts) == 0;
	if (read_all && facts.st_size > 0) {
		*size_out = (size_t)facts.st_size;
		*bytes_out = malloc(*size_out);
		read_all = *bytes_out && read(fd, *bytes_out, *size_out) == (ssize_t)*size_out;
	}
	close(fd);
	return read_all;
}

bool world_save(struct world *world, struct saved *saved)
{
	char path[128];
	bool read_all = true;

	saved_free(saved);
	for (int i = 0; i < FILES && read_all; i++) {
		path_of(world, file_names[i], path);
		read_all = read_whole(path, &saved->files[i].bytes, &saved->files[i].size);
	}
	saved->there = read_all;
	saved->clock_ms = disk_clock_ms;
	saved->chance = disk_chance();
	saved->reference = world->reference;
	memcpy(saved->behaviours, world->behaviours, sizeof saved->behaviours);
	memcpy(saved->paused, world->paused, sizeof saved->paused);
	memcpy(saved->mixed, world->mixed, sizeof saved->mixed);
	memcpy(saved->scope_options, world->scope_options, sizeof saved->scope_options);
	memcpy(saved->terms, world->terms, sizeof saved->terms);
	saved->relay_options = world->relay_options;
	saved->lossy = world->lossy;
	return read_all;
}

static void write_whole(const char *path, const char *bytes, size_t size)
{
	unlink(path);
	if (!bytes)
		return;
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, bytes, size) != (ssize_t)size)
		abort();
	close(fd);
}

void world_load(struct world *world, const struct saved *saved, int which)
{
	char path[128];

	world_close_all(world);
	inspect_close(world);
	for (int i = 0; i < FILES; i++) {
		if (!(which & 1 << i / 2))
			continue;
		path_of(world, file_names[i], path);
		write_whole(path, saved->files[i].bytes, saved->files[i].size);
	}
	if (which & 1) {
		path_of(world, "store.db-shm", path);
		unlink(path);
	}
	if (which & 2) {
		path_of(world, "broker.db-shm", path);
		unlink(path);
	}
}

void world_return(struct world *world, const struct saved *saved)
{
	world_load(world, saved, 3);
	disk_clock_ms = saved->clock_ms;
	disk_seed(saved->chance);
	world->reference = saved->reference;
	memcpy(world->behaviours, saved->behaviours, sizeof world->behaviours);
	memcpy(world->paused, saved->paused, sizeof world->paused);
	memset(world->won, 0, sizeof world->won);
	memcpy(world->mixed, saved->mixed, sizeof world->mixed);
	memcpy(world->scope_options, saved->scope_options, sizeof world->scope_options);
	memcpy(world->terms, saved->terms, sizeof world->terms);
	world->relay_options = saved->relay_options;
	world->lossy = saved->lossy;
	world->broken = NULL;
}

static struct terms terms_of(const struct scope_options *scope_options)
{
	bool tracked = scope_options->guarantee != SEMEL_AT_LEAST_ONCE;

	return (struct terms){
		.once_at_most = scope_options->guarantee == SEMEL_AT_MOST_ONCE ||
				(tracked && scope_options->claim == SEMEL_CLAIM_SEPARATE),
		.may_lose = scope_options->guarantee == SEMEL_AT_MOST_ONCE,
		.tracked = tracked,
		.in_order = scope_options->poison != SEMEL_POISON_SKIP,
		.whole_topic = scope_options->order == SEMEL_ORDER_TOTAL,
	};
}

static void set_terms(struct world *world)
{
	for (int i = 0; i < SCOPES; i++) {
		world->scope_options[i] = world->earlier[i] = world->setting->scopes[i];
		world->terms[i] = terms_of(&world->scope_options[i]);
		world->mixed[i] = false;
	}
	world->relay_options = (struct relay_options){ 0 };
}

void world_set_scope_options(struct world *world, int scope,
			     const struct scope_options *scope_options)
{
	struct terms *terms = &world->terms[scope], then = terms_of(scope_options);

	world->mixed[scope] = world->mixed[scope] || terms->tracked != then.tracked;
	*terms = terms_weaker(terms, &then);
	if ((scope_options->order == SEMEL_ORDER_TOTAL) !=
	    (world->scope_options[scope].order == SEMEL_ORDER_TOTAL))
		world->earlier[scope] = world->scope_options[scope];
	world->scope_options[scope] = *scope_options;
}

void world_set_relay_options(struct world *world, const struct relay_options *relay_options)
{
	world->relay_options = *relay_options;
	for (int i = 0; i < SCOPES; i++) { /* a relay holds aggregates, not topics */
		world->terms[i].in_order &= relay_options->poison != SEMEL_POISON_SKIP;
		world->terms[i].whole_topic &= relay_options->limit == 0;
	}
}

void world_reset(struct world *world, const struct setting *setting, uint64_t seed)
{
	saved_free(&world->kept);
	world_load(world, &world->fresh, 3);
	disk_clock_ms = BEGIN_MS;
	disk_seed(seed);
	world->setting = setting;
	set_terms(world);
	/* Two partitions, where they are allowed, so that two consumers can share them. */
	world->partitions = setting->scopes[0].order == SEMEL_ORDER_TOTAL ? 1 : 2;
	snprintf(world->broker_url, sizeof world->broker_url,
		 "local:%s/broker.db?partitions=%d&busy-timeout=0", world->folder,
		 world->partitions);
	world->reference = (struct reference){ 0 };
	memset(world->behaviours, 0, sizeof world->behaviours);
	memset(world->paused, 0, sizeof world->paused);
	memset(world->won, 0, sizeof world->won);
	world->lossy = false;
	world->broken = NULL;
	world->detail[0] = '\0';
}

bool world_begin(struct world *world)
{
	const char *places[] = { "/dev/shm", getenv("TMPDIR"), "/tmp" };
	bool made = false;

	*world = (struct world){ .setting = settings };
	for (size_t i = 0; i < sizeof places / sizeof places[0] && !made; i++) {
		if (!places[i] || strlen(places[i]) > 32)
			continue;
		snprintf(world->folder, sizeof world->folder, "%s/semel-model-XXXXXX", places[i]);
		made = mkdtemp(world->folder) != NULL;
	}
	snprintf(world->store_url, sizeof world->store_url, "sqlite:%s/store.db?busy-timeout=0",
		 world->folder);
	snprintf(world->broker_url, sizeof world->broker_url,
		 "local:%s/broker.db?partitions=1&busy-timeout=0", world->folder);
	for (int i = 0; i < SCOPES; i++)
		world->readers[i] = (struct reader){ world, i };
	disk_clock_ms = BEGIN_MS;
	if (!made || semel_store_init(world->store_url, &world->error) != SEMEL_OK)
		return false;
	struct semel_broker *broker = NULL;
	if (semel_broker_open(world->broker_url, disk_env(), 1, &broker, &world->error) != SEMEL_OK)
		return false;
	semel_broker_close(broker);
	inspect_execute(world,
			"CREATE TABLE effect (number INTEGER PRIMARY KEY AUTOINCREMENT, "
			"scope TEXT NOT NULL, event INTEGER NOT NULL)",
			0, 0);
	inspect_execute(world, "PRAGMA main.wal_checkpoint(TRUNCATE)", 0, 0);
	inspect_execute(world, "PRAGMA b.wal_checkpoint(TRUNCATE)", 0, 0);
	inspect_close(world);
	return world_save(world, &world->fresh);
}

void world_end(struct world *world)
{
	char command[96];

	world_close_all(world);
	inspect_close(world);
	saved_free(&world->fresh);
	saved_free(&world->kept);
	snprintf(command, sizeof command, "rm -rf %s", world->folder);
	if (system(command) != 0)
		fprintf(stderr, "cannot remove %s\n", world->folder);
}
