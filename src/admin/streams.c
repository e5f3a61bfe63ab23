/* SPDX-License-Identifier: Apache-2.0 */
/* A connection is suspended exactly while its stream waits for data. libmicrohttpd frees a stream
 * only if its connection is not suspended, so the writer may use a waiting stream without the
 * mutex; only the writer resumes the connection, as its last action. */
#include "admin/streams.h"

#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TICK_MS 1000
#define BLOCK   4096

struct stream {
	struct stream *next, *previous;
	struct semel_streams *streams;
	struct MHD_Connection *connection;
	char *authorization; /* the header that opened it, a secret; NULL: none */
	char owner[SEMEL_STREAM_OWNER_SIZE];
	bool (*fill)(struct semel_buffer *chunk, void *user);
	void *user;
	struct semel_buffer chunk;
	size_t sent;
	bool waits_for_data, is_new, ended;
};

struct semel_streams {
	struct semel_streams_options options;
	pthread_t writer;
	bool writer_runs;
	pthread_mutex_t mutex;  /* protects what follows */
	pthread_cond_t changed; /* a new stream waits for data, or a stop was requested */
	struct stream *first;
	uint32_t count;
	bool stopping;
};

/* ---- on the socket threads ------------------------------------------------------------------- */

static ssize_t stream_read(void *user, uint64_t position, char *out, size_t max)
{
	struct stream *stream = user;
	struct semel_streams *streams = stream->streams;
	size_t remaining = stream->chunk.length - stream->sent;
	size_t taken = remaining < max ? remaining : max;
	ssize_t result = (ssize_t)taken;

	(void)position;
	if (taken > 0) {
		memcpy(out, stream->chunk.data + stream->sent, taken);
		stream->sent += taken;
		return result;
	}
	pthread_mutex_lock(&streams->mutex);
	if (streams->stopping || stream->ended) {
		result = MHD_CONTENT_READER_END_OF_STREAM;
	} else {
		streams->options.library->suspend_connection(stream->connection);
		stream->waits_for_data = true;
		if (stream->is_new)
			pthread_cond_signal(&streams->changed);
	}
	pthread_mutex_unlock(&streams->mutex);
	return result;
}

static void release(struct stream *stream)
{
	if (stream->authorization)
		explicit_bzero(stream->authorization, strlen(stream->authorization));
	free(stream->authorization);
	semel_buffer_free(&stream->chunk);
	free(stream);
}

static void stream_free(void *user)
{
	struct stream *stream = user;
	struct semel_streams *streams = stream->streams;

	pthread_mutex_lock(&streams->mutex);
	if (stream->next)
		stream->next->previous = stream->previous;
	if (stream->previous)
		stream->previous->next = stream->next;
	else
		streams->first = stream->next;
	streams->count--;
	pthread_mutex_unlock(&streams->mutex);
	release(stream);
}

/* With the mutex held. */
static bool has_capacity(const struct semel_streams *streams, const char *owner)
{
	uint32_t of_owner = 0;

	for (const struct stream *stream = streams->first; stream; stream = stream->next)
		of_owner += strcmp(stream->owner, owner) == 0;
	return !streams->stopping && streams->count < streams->options.count_max &&
	       of_owner < streams->options.count_max / 2;
}

/* With the mutex held. */
static void add(struct semel_streams *streams, struct stream *stream)
{
	streams->count++;
	stream->next = streams->first;
	if (stream->next)
		stream->next->previous = stream;
	streams->first = stream;
}

static struct stream *stream_new(struct semel_streams *streams, struct MHD_Connection *connection,
				 const struct semel_http_response *response)
{
	const char *authorization = streams->options.library->lookup_connection_value(
		connection, MHD_HEADER_KIND, "Authorization");
	struct stream *stream = calloc(1, sizeof *stream);

	if (!stream)
		return NULL;
	*stream = (struct stream){ .streams = streams,
				   .connection = connection,
				   .authorization = authorization ? strdup(authorization) : NULL,
				   .fill = response->stream,
				   .user = response->stream_user,
				   .is_new = true };
	memcpy(stream->owner, response->stream_owner, sizeof stream->owner);
	pthread_mutex_lock(&streams->mutex);
	bool accepted =
		(stream->authorization || !authorization) && has_capacity(streams, stream->owner);
	if (accepted)
		add(streams, stream);
	pthread_mutex_unlock(&streams->mutex);
	if (accepted)
		return stream;
	release(stream);
	return NULL;
}

struct MHD_Response *semel_streams_response(struct semel_streams *streams,
					    struct MHD_Connection *connection,
					    const struct semel_http_response *response)
{
	struct stream *stream = stream_new(streams, connection, response);

	if (!stream)
		return NULL;
	struct MHD_Response *mhd_response = streams->options.library->create_response_from_callback(
		MHD_SIZE_UNKNOWN, BLOCK, stream_read, stream, stream_free);
	if (!mhd_response)
		stream_free(stream);
	return mhd_response;
}

/* ---- the writer ------------------------------------------------------------------------------ */

/* With the mutex held. Takes the streams that wait for data. A new stream does not wait for the
 * next round. */
static uint32_t take_waiting(struct semel_streams *streams, bool only_new,
			     struct stream *taken[SEMEL_STREAMS_MAX])
{
	uint32_t count = 0;

	for (struct stream *stream = streams->first; stream; stream = stream->next) {
		if (!stream->waits_for_data || (only_new && !stream->is_new))
			continue;
		stream->waits_for_data = false;
		taken[count++] = stream;
	}
	return count;
}

static void write_event(struct semel_streams *streams, struct stream *stream)
{
	semel_buffer_clear(&stream->chunk);
	stream->sent = 0;
	stream->is_new = false;
	stream->ended =
		!streams->options.may_continue(stream->authorization, streams->options.user) ||
		!stream->fill(&stream->chunk, stream->user) || stream->chunk.failed;
	streams->options.library->resume_connection(stream->connection);
}

/* With the mutex held. True: a second has passed since the last round; false: there is a new
 * stream, or a stop was requested. */
static bool await_round(struct semel_streams *streams, struct timespec *next_round)
{
	if (!streams->first) {
		pthread_cond_wait(&streams->changed, &streams->mutex);
		return false;
	}
	if (pthread_cond_timedwait(&streams->changed, &streams->mutex, next_round) == 0)
		return false;
	int64_t next_ms = semel_steady_ms(streams->options.env) + TICK_MS;
	*next_round = (struct timespec){ next_ms / 1000, next_ms % 1000 * 1000000 };
	return true;
}

static void *write_events(void *user)
{
	struct semel_streams *streams = user;
	struct stream *taken[SEMEL_STREAMS_MAX];
	struct timespec next_round = { 0 };

	pthread_mutex_lock(&streams->mutex);
	while (!streams->stopping) {
		bool all = await_round(streams, &next_round);
		uint32_t count = streams->stopping ? 0 : take_waiting(streams, !all, taken);
		pthread_mutex_unlock(&streams->mutex);
		for (uint32_t i = 0; i < count; i++)
			write_event(streams, taken[i]);
		pthread_mutex_lock(&streams->mutex);
	}
	pthread_mutex_unlock(&streams->mutex);
	return NULL;
}

semel_status semel_streams_start(const struct semel_streams_options *options,
				 struct semel_streams **streams_out, semel_error *error)
{
	struct semel_streams *streams = calloc(1, sizeof *streams);

	*streams_out = NULL;
	if (!streams)
		return semel_error_set(error, SEMEL_INTERNAL, "out of memory for the admin server");
	streams->options = *options;
	pthread_mutex_init(&streams->mutex, NULL);
	semel_cond_init(&streams->changed);
	if (pthread_create(&streams->writer, NULL, write_events, streams) != 0) {
		semel_streams_free(streams);
		return semel_error_set(error, SEMEL_INTERNAL, "no thread for the admin server");
	}
	streams->writer_runs = true;
	*streams_out = streams;
	return SEMEL_OK;
}

void semel_streams_stop(struct semel_streams *streams)
{
	if (!streams->writer_runs)
		return;
	pthread_mutex_lock(&streams->mutex);
	streams->stopping = true;
	pthread_cond_signal(&streams->changed);
	pthread_mutex_unlock(&streams->mutex);
	pthread_join(streams->writer, NULL);
	streams->writer_runs = false;
	pthread_mutex_lock(&streams->mutex);
	for (struct stream *stream = streams->first; stream; stream = stream->next) {
		if (!stream->waits_for_data)
			continue;
		stream->waits_for_data = false;
		streams->options.library->resume_connection(stream->connection);
	}
	pthread_mutex_unlock(&streams->mutex);
}

void semel_streams_free(struct semel_streams *streams)
{
	if (!streams)
		return;
	pthread_cond_destroy(&streams->changed);
	pthread_mutex_destroy(&streams->mutex);
	free(streams);
}
