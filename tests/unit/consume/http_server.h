/* SPDX-License-Identifier: Apache-2.0 */
/* An HTTP server for the tests: one thread, one connection at a time, kept alive; it gives the
 * answer that the test has set and keeps the last request. */
#ifndef SEMEL_TESTS_HTTP_SERVER_H
#define SEMEL_TESTS_HTTP_SERVER_H

#include "base/buffer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

struct http_server {
	int listener, stop_fd;
	pthread_t thread;
	pthread_mutex_t lock;
	struct semel_buffer request; /* the last one; under the lock, as all below */
	char *answer;                /* NULL: never; "": the connection is closed instead */
	int connections, requests;
};

static inline bool server_waits(struct http_server *server, int fd)
{
	struct pollfd waits[] = { { .fd = fd, .events = POLLIN },
				  { .fd = server->stop_fd, .events = POLLIN } };
	return poll(waits, 2, -1) > 0 && waits[1].revents == 0;
}

static inline size_t server_request_size(const struct semel_buffer *request)
{
	const char *end = strstr(request->data, "\r\n\r\n");
	if (end == NULL)
		return SIZE_MAX;
	const char *length = strcasestr(request->data, "\r\nContent-Length:");
	size_t body = length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0;
	return (size_t)(end - request->data) + 4 + body;
}

/* False: the connection is to be closed. */
static inline bool server_answers(struct http_server *server, int fd, struct semel_buffer *request)
{
	pthread_mutex_lock(&server->lock);
	server->requests++;
	semel_buffer_clear(&server->request);
	semel_buffer_append(&server->request, request->data, request->length);
	char *answer = server->answer != NULL ? strdup(server->answer) : NULL;
	pthread_mutex_unlock(&server->lock);
	semel_buffer_clear(request);
	if (answer == NULL)
		return server_waits(server, -1);
	size_t length = strlen(answer);
	bool sent = length > 0 && send(fd, answer, length, MSG_NOSIGNAL) == (ssize_t)length;
	free(answer);
	return sent;
}

static inline void server_talks(struct http_server *server, int fd)
{
	struct semel_buffer request = { 0 };
	char chunk[4096];
	while (server_waits(server, fd)) {
		ssize_t got = recv(fd, chunk, sizeof chunk, 0);
		if (got <= 0)
			break;
		semel_buffer_append(&request, chunk, (size_t)got);
		if (request.length >= server_request_size(&request) &&
		    !server_answers(server, fd, &request))
			break;
	}
	semel_buffer_free(&request);
	close(fd);
}

static inline void *server_serves(void *argument)
{
	struct http_server *server = argument;
	while (server_waits(server, server->listener)) {
		int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0)
			continue;
		pthread_mutex_lock(&server->lock);
		server->connections++;
		pthread_mutex_unlock(&server->lock);
		server_talks(server, fd);
	}
	return NULL;
}

/* Listens on a free port; url_out gets "http://127.0.0.1:PORT/events". */
static inline bool server_listen(struct http_server *server, char *url_out, size_t size)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof address;
	*server = (struct http_server){ .listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0),
					.stop_fd = eventfd(0, EFD_CLOEXEC) };
	pthread_mutex_init(&server->lock, NULL);
	if (bind(server->listener, (struct sockaddr *)&address, length) != 0 ||
	    listen(server->listener, 8) != 0 ||
	    getsockname(server->listener, (struct sockaddr *)&address, &length) != 0)
		return false;
	snprintf(url_out, size, "http://127.0.0.1:%d/events", ntohs(address.sin_port));
	return pthread_create(&server->thread, NULL, server_serves, server) == 0;
}

static inline void server_answer_with(struct http_server *server, const char *answer)
{
	pthread_mutex_lock(&server->lock);
	free(server->answer);
	server->answer = answer != NULL ? strdup(answer) : NULL;
	pthread_mutex_unlock(&server->lock);
}

static inline void server_stop(struct http_server *server)
{
	eventfd_write(server->stop_fd, 1);
	pthread_join(server->thread, NULL);
	close(server->listener);
	close(server->stop_fd);
	semel_buffer_free(&server->request);
	free(server->answer);
	pthread_mutex_destroy(&server->lock);
}

#endif
