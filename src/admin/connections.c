/* SPDX-License-Identifier: Apache-2.0 */
#include "admin/connections.h"

#include "base/error.h"
#include "base/wake.h"
#include "observe/log.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#define TICK_MS       1000
#define FOREVER_MS    (INT64_MAX / 2)
#define FRESH_MS      5000
#define WARN_EVERY_MS 60000
#define STALLED_MS    2000 /* a response without progress for this long is dropped */
#define BUCKETS       256
#define ADDRESSES_MAX 8192
#define RECENT_PART   8  /* this part of the recent connections is forgotten every second */
#define QUOTA_PART    10 /* of the capacity: beyond it an address is evicted first */
#define RESERVED_PART 4  /* this part of the capacity is for connections without a response yet */

/* The key: an IPv4 address in IPv6 form, or the first 64 bits of an IPv6 address, because one site
 * has all addresses of a /64. */
struct address {
	struct address *next;
	struct in6_addr key;
	uint32_t count, waiting; /* of connections that are not aborted */
	uint32_t open;           /* aborted or not */
	uint32_t recent;         /* opened recently; decays every second */
};

struct connection {
	struct connection *next, *previous;
	struct address *address;
	int fd;
	enum semel_connection_state state;
	int64_t opened_ms, progress_ms, deadline_ms; /* steady */
	uint64_t acknowledged;                       /* bytes, at progress_ms */
	uint64_t response_bytes;
	uint32_t requests;
	bool trusted, answered, aborted;
};

struct semel_connections {
	struct semel_connections_options options;
	struct semel_wake *wake;
	pthread_t thread;
	bool thread_runs;
	pthread_mutex_t mutex; /* protects what follows */
	struct connection *first;
	struct address *addresses[BUCKETS], overflow;
	uint32_t address_count;
	uint32_t count; /* of connections that are not aborted */
	uint64_t response_bytes;
	bool evicted;      /* since the last warning */
	int64_t warned_ms; /* steady; 0: never */
};

/* ---- addresses ------------------------------------------------------------------------------- */

static void read_address(const struct sockaddr *given, struct in6_addr *key_out)
{
	*key_out = (struct in6_addr){ 0 };
	if (given && given->sa_family == AF_INET6) {
		const struct sockaddr_in6 *six = (const void *)given;
		bool is_ipv4 = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);
		memcpy(key_out, &six->sin6_addr, is_ipv4 ? 16 : 8);
	} else if (given && given->sa_family == AF_INET) {
		const struct sockaddr_in *four = (const void *)given;
		key_out->s6_addr[10] = key_out->s6_addr[11] = 0xff;
		memcpy(key_out->s6_addr + 12, &four->sin_addr, 4);
	}
}

static uint32_t bucket_of(const struct in6_addr *key)
{
	uint32_t hash = 2166136261U;

	for (size_t i = 0; i < sizeof *key; i++)
		hash = (hash ^ key->s6_addr[i]) * 16777619U;
	return hash % BUCKETS;
}

/* With the mutex held. Beyond the maximum of addresses, the others share one entry. */
static struct address *find_address(struct semel_connections *connections,
				    const struct sockaddr *given)
{
	struct in6_addr key;

	read_address(given, &key);
	struct address **bucket = &connections->addresses[bucket_of(&key)];
	for (struct address *address = *bucket; address; address = address->next)
		if (memcmp(&address->key, &key, sizeof key) == 0)
			return address;
	struct address *address =
		connections->address_count < ADDRESSES_MAX ? calloc(1, sizeof *address) : NULL;
	if (!address)
		return &connections->overflow;
	connections->address_count++;
	address->key = key;
	address->next = *bucket;
	*bucket = address;
	return address;
}

/* With the mutex held. Reduces the recent counts; frees addresses without connections or a recent
 * count. */
static void age_addresses(struct semel_connections *connections)
{
	connections->overflow.recent -=
		(connections->overflow.recent + RECENT_PART - 1) / RECENT_PART;
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (struct address **link = &connections->addresses[i]; *link;) {
			struct address *address = *link;
			address->recent -= (address->recent + RECENT_PART - 1) / RECENT_PART;
			if (address->recent > 0 || address->open > 0) {
				link = &address->next;
				continue;
			}
			*link = address->next;
			connections->address_count--;
			free(address);
		}
}

/* ---- eviction -------------------------------------------------------------------------------- */

static bool has_unsent(int fd)
{
	int bytes = 0;

	return ioctl(fd, SIOCOUTQ, &bytes) == 0 && bytes > 0;
}

/* With the mutex held. libmicrohttpd sees the end of the connection and closes it. What is left of
 * a response that makes progress is still delivered; one that the client does not read is dropped.
 */
static void abort_connection(struct semel_connections *connections, struct connection *connection)
{
	struct linger abort = { .l_onoff = 1 };
	int64_t still_ms = semel_steady_ms(connections->options.env) - connection->progress_ms;

	connection->aborted = true;
	connections->count--;
	connections->response_bytes -= connection->response_bytes;
	connection->response_bytes = 0;
	connection->address->count--;
	connection->address->waiting -= connection->state == SEMEL_CONNECTION_WAITS;
	if (connection->fd < 0)
		return;
	if (still_ms > STALLED_MS && has_unsent(connection->fd))
		setsockopt(connection->fd, SOL_SOCKET, SO_LINGER, &abort, sizeof abort);
	shutdown(connection->fd, SHUT_RDWR);
}

/* By how much the connection's address exceeds the quota; recent connections count too. Below the
 * quota all addresses are equal, because otherwise a client with many addresses would evict clients
 * with one. */
static uint32_t excess_of(const struct connection *connection, uint32_t quota)
{
	uint32_t weight = connection->address->count + connection->address->recent;

	return weight > quota ? weight - quota : 0;
}

/* Was it opened just now, and has it had no response yet, as a health probe? */
static bool is_fresh(const struct connection *connection, int64_t now_ms)
{
	return !connection->trusted && !connection->answered &&
	       now_ms - connection->opened_ms < FRESH_MS;
}

static bool is_evictable(const struct connection *connection, const struct address *of)
{
	return !connection->aborted && (!of || connection->address == of) &&
	       connection->state != SEMEL_CONNECTION_WAITS &&
	       connection->state != SEMEL_CONNECTION_STREAMS;
}

struct search {
	int64_t now_ms;
	uint32_t quota;   /* connections of one address */
	bool spare_fresh; /* fresh connections do not exceed their part of the capacity */
};

/* The connection with the lowest rank is evicted first. */
static int rank_of(const struct search *search, const struct connection *connection)
{
	if (connection->trusted)
		return 2;
	if (!is_fresh(connection, search->now_ms))
		return 0;
	return search->spare_fresh ? 3 : 1;
}

static bool precedes(const struct search *search, const struct connection *one,
		     const struct connection *other)
{
	int rank = rank_of(search, one), other_rank = rank_of(search, other);

	if (rank != other_rank)
		return rank < other_rank;
	uint32_t excess = excess_of(one, search->quota),
		 other_excess = excess_of(other, search->quota);
	if (excess != other_excess)
		return excess > other_excess;
	return one->progress_ms < other->progress_ms;
}

/* With the mutex held. The list has the newest first, so among equals the oldest is evicted. */
static void evict_one(struct semel_connections *connections, const struct address *of,
		      const struct connection *newcomer)
{
	uint32_t capacity =
		of ? connections->options.per_address_max : connections->options.count_max;
	struct search search = { .now_ms = newcomer->opened_ms,
				 .quota = connections->options.count_max / QUOTA_PART };
	struct connection *worst = NULL;
	uint32_t fresh = 0;

	for (struct connection *one = connections->first; one; one = one->next)
		fresh += is_evictable(one, of) && is_fresh(one, search.now_ms);
	search.spare_fresh = fresh <= capacity / RESERVED_PART;
	for (struct connection *one = connections->first; one; one = one->next)
		if (one != newcomer && is_evictable(one, of) &&
		    (!worst || !precedes(&search, worst, one)))
			worst = one;
	if (!worst)
		return;
	abort_connection(connections, worst);
	connections->evicted = true;
}

/* With the mutex held. Responses that clients do not read stay in memory, so their bytes are
 * bounded. */
static void bound_responses(struct semel_connections *connections, const struct connection *newest)
{
	while (connections->response_bytes > connections->options.response_bytes_max) {
		struct connection *worst = NULL;
		for (struct connection *one = connections->first; one; one = one->next)
			if (!one->aborted && one != newest && one->response_bytes > 0 &&
			    (!worst || one->progress_ms <= worst->progress_ms))
				worst = one;
		if (!worst)
			return;
		abort_connection(connections, worst);
	}
}

/* ---- callbacks of libmicrohttpd -------------------------------------------------------------- */

/* With the mutex held. */
static void admit(struct semel_connections *connections, struct connection *connection)
{
	const struct semel_connections_options *options = &connections->options;

	connection->next = connections->first;
	if (connection->next)
		connection->next->previous = connection;
	connections->first = connection;
	connections->count++;
	connection->address->open++;
	connection->address->recent++;
	if (++connection->address->count > options->per_address_max)
		evict_one(connections, connection->address, connection);
	if (connections->count > options->count_max)
		evict_one(connections, NULL, connection);
}

static void open_connection(struct semel_connections *connections,
			    struct MHD_Connection *connection, void **context)
{
	const struct semel_microhttpd *library = connections->options.library;
	const union MHD_ConnectionInfo *info =
		library->get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
	int fd = info ? info->connect_fd : -1;
	struct connection *opened = calloc(1, sizeof *opened);

	*context = opened;
	if (!opened) { /* it cannot be counted, so it is closed */
		if (fd >= 0)
			shutdown(fd, SHUT_RDWR);
		return;
	}
	opened->fd = fd;
	opened->opened_ms = opened->progress_ms = semel_steady_ms(connections->options.env);
	opened->deadline_ms = opened->progress_ms + connections->options.request_ms;
	info = library->get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
	pthread_mutex_lock(&connections->mutex);
	opened->address = find_address(connections, info ? info->client_addr : NULL);
	admit(connections, opened);
	pthread_mutex_unlock(&connections->mutex);
}

static void close_connection(struct semel_connections *connections, struct connection *closed)
{
	if (!closed)
		return;
	pthread_mutex_lock(&connections->mutex);
	if (!closed->aborted) {
		closed->fd = -1;
		abort_connection(connections, closed);
	}
	if (closed->next)
		closed->next->previous = closed->previous;
	if (closed->previous)
		closed->previous->next = closed->next;
	else
		connections->first = closed->next;
	closed->address->open--;
	pthread_mutex_unlock(&connections->mutex);
	free(closed);
}

void semel_connections_notice(void *user, struct MHD_Connection *connection, void **context,
			      enum MHD_ConnectionNotificationCode code)
{
	if (code == MHD_CONNECTION_NOTIFY_STARTED)
		open_connection(user, connection, context);
	else
		close_connection(user, *context);
}

/* ---- requests and responses ------------------------------------------------------------------ */

/* Locks the mutex and returns the connection; NULL, without the lock, if it is unknown. */
static struct connection *lock_connection(struct semel_connections *connections,
					  struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = connections->options.library->get_connection_info(
		connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	struct connection *found = info ? info->socket_context : NULL;

	if (found)
		pthread_mutex_lock(&connections->mutex);
	return found;
}

static int64_t allowed_ms(const struct semel_connections_options *options,
			  enum semel_connection_state state)
{
	switch (state) {
	case SEMEL_CONNECTION_RECEIVES:
		return options->request_ms;
	case SEMEL_CONNECTION_SENDS:
		return options->response_ms;
	case SEMEL_CONNECTION_IDLE:
		return options->idle_ms;
	case SEMEL_CONNECTION_WAITS:
	case SEMEL_CONNECTION_STREAMS:
		break;
	}
	return FOREVER_MS;
}

void semel_connection_move(struct semel_connections *connections, struct MHD_Connection *connection,
			   enum semel_connection_state state, uint64_t bytes)
{
	struct connection *moved = lock_connection(connections, connection);

	if (!moved)
		return;
	moved->progress_ms = semel_steady_ms(connections->options.env);
	moved->deadline_ms = moved->progress_ms + allowed_ms(&connections->options, state);
	moved->requests += state == SEMEL_CONNECTION_RECEIVES;
	moved->answered = moved->answered || state == SEMEL_CONNECTION_IDLE;
	if (!moved->aborted) {
		moved->address->waiting -= moved->state == SEMEL_CONNECTION_WAITS;
		moved->address->waiting += state == SEMEL_CONNECTION_WAITS;
		connections->response_bytes += bytes - moved->response_bytes;
		moved->response_bytes = bytes;
		if (bytes > 0)
			bound_responses(connections, moved);
	}
	moved->state = state;
	pthread_mutex_unlock(&connections->mutex);
}

void semel_connection_trust(struct semel_connections *connections,
			    struct MHD_Connection *connection, bool trusted)
{
	struct connection *found = lock_connection(connections, connection);

	if (!found)
		return;
	found->trusted = trusted;
	pthread_mutex_unlock(&connections->mutex);
}

bool semel_connection_can_wait(struct semel_connections *connections,
			       struct MHD_Connection *connection)
{
	struct connection *found = lock_connection(connections, connection);

	if (!found)
		return false;
	bool may = found->address->waiting < connections->options.waiting_per_address_max;
	pthread_mutex_unlock(&connections->mutex);
	return may;
}

bool semel_connection_is_last_response(struct semel_connections *connections,
				       struct MHD_Connection *connection)
{
	const struct semel_connections_options *options = &connections->options;
	struct connection *found = lock_connection(connections, connection);

	if (!found)
		return true;
	bool nearly_full =
		connections->count > options->count_max - options->count_max / RESERVED_PART ||
		found->address->count >
			options->per_address_max - options->per_address_max / RESERVED_PART;
	bool last = found->requests >= options->requests_max || (nearly_full && !found->trusted);
	pthread_mutex_unlock(&connections->mutex);
	return last;
}

void semel_connection_address(struct semel_connections *connections,
			      struct MHD_Connection *connection,
			      char address_out[SEMEL_CLIENT_ADDRESS_SIZE])
{
	struct connection *found = lock_connection(connections, connection);

	address_out[0] = '\0';
	if (!found)
		return;
	if (found->address != &connections->overflow)
		inet_ntop(AF_INET6, &found->address->key, address_out, SEMEL_CLIENT_ADDRESS_SIZE);
	pthread_mutex_unlock(&connections->mutex);
}

/* ---- deadlines ------------------------------------------------------------------------------- */

/* Has the client acknowledged bytes since the last check, or is there nothing to acknowledge? Also
 * true on a kernel that does not report this; then only the longer deadline of a response applies.
 */
static bool makes_progress(struct connection *connection)
{
	struct tcp_info info = { 0 };
	socklen_t size = sizeof info;

	if (connection->fd < 0 || !has_unsent(connection->fd) ||
	    getsockopt(connection->fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
	    size < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked)
		return true;
	bool moved = info.tcpi_bytes_acked != connection->acknowledged;
	connection->acknowledged = info.tcpi_bytes_acked;
	return moved;
}

static bool is_overdue(const struct semel_connections *connections, struct connection *connection,
		       int64_t now_ms)
{
	if (connection->state == SEMEL_CONNECTION_SENDS ||
	    connection->state == SEMEL_CONNECTION_STREAMS) {
		if (makes_progress(connection))
			connection->progress_ms = now_ms;
		else if (now_ms - connection->progress_ms > connections->options.stall_ms)
			return true;
	}
	return now_ms > connection->deadline_ms;
}

/* With the mutex held. True at most once a minute, so that clients cannot flood the log. */
static bool must_warn(struct semel_connections *connections, int64_t now_ms)
{
	bool soon = connections->warned_ms != 0 && now_ms - connections->warned_ms < WARN_EVERY_MS;

	if (!connections->evicted || soon)
		return false;
	connections->evicted = false;
	connections->warned_ms = now_ms;
	return true;
}

void semel_connections_check(struct semel_connections *connections)
{
	int64_t now_ms = semel_steady_ms(connections->options.env);

	pthread_mutex_lock(&connections->mutex);
	for (struct connection *one = connections->first; one; one = one->next)
		if (!one->aborted && is_overdue(connections, one, now_ms))
			abort_connection(connections, one);
	age_addresses(connections);
	bool warn = must_warn(connections, now_ms);
	pthread_mutex_unlock(&connections->mutex);
	if (warn)
		semel_log(SEMEL_LOG_WARN, "admin: too many connections, evicting some", NULL);
}

static void *keep_checking(void *user)
{
	struct semel_connections *connections = user;

	while (!semel_wake_is_notified(connections->wake)) {
		semel_wake_sleep(connections->wake, TICK_MS);
		semel_connections_check(connections);
	}
	return NULL;
}

/* ---- starting and stopping ------------------------------------------------------------------- */

semel_status semel_connections_start(const struct semel_connections_options *options,
				     struct semel_connections **connections_out, semel_error *error)
{
	struct semel_connections *connections = calloc(1, sizeof *connections);

	*connections_out = NULL;
	if (!connections)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the admin server");
	connections->options = *options;
	pthread_mutex_init(&connections->mutex, NULL);
	semel_status status = semel_wake_new(&connections->wake, error);
	if (status != SEMEL_OK)
		goto free_connections;
	if (pthread_create(&connections->thread, NULL, keep_checking, connections) != 0) {
		status = semel_error_set(error, SEMEL_INTERNAL, "no thread for the admin server");
		goto free_connections;
	}
	connections->thread_runs = true;
	*connections_out = connections;
	return SEMEL_OK;

free_connections:
	semel_connections_free(connections);
	return status;
}

void semel_connections_stop(struct semel_connections *connections)
{
	if (!connections->thread_runs)
		return;
	semel_wake_notify(connections->wake);
	pthread_join(connections->thread, NULL);
	connections->thread_runs = false;
}

void semel_connections_free(struct semel_connections *connections)
{
	if (!connections)
		return;
	semel_wake_free(connections->wake);
	for (uint32_t i = 0; i < BUCKETS; i++)
		while (connections->addresses[i]) {
			struct address *address = connections->addresses[i];
			connections->addresses[i] = address->next;
			free(address);
		}
	pthread_mutex_destroy(&connections->mutex);
	free(connections);
}
