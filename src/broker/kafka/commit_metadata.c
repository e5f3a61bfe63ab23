/* SPDX-License-Identifier: Apache-2.0 */
/* The metadata of a commit: "semel:N", or "semel:N:O:H", or "semel:N:O:H:O:H".
 *
 * N  records up to this offset may have been fetched; written ahead, so that it costs next to
 *    nothing. By this the next owner knows what is redelivered.
 * O  the offset of a record that was in the log, and H its hash (16 hexadecimal digits): by these
 *    the next owner checks that the log is still the same (anchor.c). */
#include "broker/kafka/kafka.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX "semel:"

static void add_anchor(char *metadata, struct semel_anchor anchor)
{
	size_t length = strlen(metadata);
	snprintf(metadata + length, SEMEL_KAFKA_COMMIT_METADATA_SIZE - length,
		 ":%" PRId64 ":%016" PRIx64, anchor.offset, anchor.hash);
}

void semel_kafka_commit_metadata_write(const struct semel_kafka_assignment *assignment,
				       int64_t fetched_to,
				       char metadata_out[SEMEL_KAFKA_COMMIT_METADATA_SIZE])
{
	snprintf(metadata_out, SEMEL_KAFKA_COMMIT_METADATA_SIZE, PREFIX "%" PRId64, fetched_to);
	if (assignment->verified.offset >= 0)
		add_anchor(metadata_out, assignment->verified);
	if (assignment->last_acked.offset >= 0 &&
	    assignment->last_acked.offset != assignment->verified.offset)
		add_anchor(metadata_out, assignment->last_acked);
}

/* The next number of the text, and behind it ':' or the end. False: there is none. */
static bool read_number(char **text, int base, uint64_t *number_out)
{
	char *end = NULL;
	if (!**text || strchr("+- \t", **text))
		return false;
	*number_out = strtoull(*text, &end, base);
	if (end == *text || (*end != ':' && *end != '\0'))
		return false;
	*text = *end ? end + 1 : end;
	return true;
}

int64_t semel_kafka_commit_metadata_read(const rd_kafka_topic_partition_t *entry,
					 struct semel_anchor anchors_out[2], uint32_t *count_out)
{
	char text[SEMEL_KAFKA_COMMIT_METADATA_SIZE], *at = text + strlen(PREFIX);
	uint64_t fetched_to = 0, offset = 0, hash = 0;
	*count_out = 0;
	if (!entry->metadata)
		return -1;
	if (entry->metadata_size <= strlen(PREFIX) || entry->metadata_size >= sizeof(text) ||
	    memcmp(entry->metadata, PREFIX, strlen(PREFIX)) != 0)
		return 0;
	memcpy(text, entry->metadata, entry->metadata_size);
	text[entry->metadata_size] = '\0';
	if (!read_number(&at, 10, &fetched_to) || fetched_to > INT64_MAX)
		return 0;
	while (*count_out < 2 && read_number(&at, 10, &offset) && offset <= INT64_MAX &&
	       read_number(&at, 16, &hash))
		anchors_out[(*count_out)++] =
			(struct semel_anchor){ .offset = (int64_t)offset, .hash = hash };
	return (int64_t)fetched_to;
}
