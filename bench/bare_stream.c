/* SPDX-License-Identifier: Apache-2.0 */
/* The limit that a relay on the change stream is measured against: reads pgoutput with libpq alone
 * and counts the rows. It confirms nothing, so the same backlog is there for the next one.
 *
 *     bare_stream DATABASE SLOT PUBLICATION EVENTS PAUSE_US
 *
 * PAUSE_US: before each read so much time for data to gather; 0 reads whatever is there at once.
 * Prints events per second. */
#include <libpq-fe.h>

#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define HEADER 25 /* before a message of pgoutput */

static void die(PGconn *database, const char *what)
{
	fprintf(stderr, "bare_stream: %s failed: %s", what, PQerrorMessage(database));
	exit(1);
}

static double now_s(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void wait_and_read(PGconn *database, useconds_t pause_us)
{
	struct pollfd readable = { .fd = PQsocket(database), .events = POLLIN };
	if (poll(&readable, 1, 30000) <= 0)
		die(database, "waiting for rows");
	if (pause_us > 0)
		usleep(pause_us);
	if (PQconsumeInput(database) == 0)
		die(database, "reading");
}

static void count_rows(PGconn *database, uint64_t events, useconds_t pause_us)
{
	for (uint64_t seen = 0; seen < events;) {
		char *message = NULL;
		int length = PQgetCopyData(database, &message, 1);
		if (length < 0)
			die(database, "the stream");
		if (length == 0)
			wait_and_read(database, pause_us);
		seen += length > HEADER && message[0] == 'w' && message[HEADER] == 'I';
		PQfreemem(message);
	}
}

int main(int count, char **words)
{
	const char *const names[] = { "dbname", "replication", NULL };
	char command[512];
	if (count != 6) {
		fprintf(stderr, "bare_stream DATABASE SLOT PUBLICATION EVENTS PAUSE_US\n");
		return 64;
	}
	const char *const values[] = { words[1], "database", NULL };
	PGconn *database = PQconnectdbParams(names, values, 1);
	snprintf(command, sizeof command,
		 "START_REPLICATION SLOT \"%s\" LOGICAL 0/0 (proto_version '1',"
		 " publication_names '%s')",
		 words[2], words[3]);
	uint64_t events = strtoull(words[4], NULL, 10);
	double begin = now_s();
	PGresult *result = PQexec(database, command);
	if (PQresultStatus(result) != PGRES_COPY_BOTH)
		die(database, "starting the stream");
	PQclear(result);
	count_rows(database, events, (useconds_t)strtoul(words[5], NULL, 10));
	printf("%.0f\n", (double)events / (now_s() - begin));
	PQfinish(database);
	return 0;
}
