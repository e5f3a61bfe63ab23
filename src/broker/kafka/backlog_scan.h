/* SPDX-License-Identifier: Apache-2.0 */
/* What waits for a subscription, partition by partition (backlog_scan.c).
 *
 * To change here: a scan reads offsets and changes nothing, neither at the cluster nor in an
 * assignment. inspect.c answers backlog and find_event from it. */
#ifndef SEMEL_BROKER_KAFKA_BACKLOG_SCAN_H
#define SEMEL_BROKER_KAFKA_BACKLOG_SCAN_H

#include <semel/status.h>

#include <stddef.h>
#include <stdint.h>

struct semel_kafka;
struct semel_kafka_assignment;

struct semel_kafka_offset_range {
	const char *topic; /* full name; lives as long as the broker */
	uint32_t tier;
	int32_t partition;
	int64_t from, end;
	const struct semel_kafka_assignment *assignment; /* NULL: it is not ours */
};

struct semel_kafka_backlog_scan {
	struct semel_kafka_offset_range *ranges;
	size_t count;
};

/* Of all partitions of the scope's topics; free it also after a failure. */
semel_status semel_kafka_backlog_scan_run(struct semel_kafka *kafka, const char *scope,
					  const char *const *topics,
					  struct semel_kafka_backlog_scan *scan_out,
					  semel_error *error);
void semel_kafka_backlog_scan_free(struct semel_kafka_backlog_scan *scan);

#endif
