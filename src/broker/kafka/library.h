/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of librdkafka that we use, loaded when the first kafka: URL is opened. */
#ifndef SEMEL_BROKER_KAFKA_LIBRARY_H
#define SEMEL_BROKER_KAFKA_LIBRARY_H

#include <semel/status.h>

#include <librdkafka/rdkafka.h>

/* One row per function; the type is that of the header. */
#define SEMEL_KAFKA_FUNCTIONS(ROW)                                                                 \
	ROW(conf_new)                                                                              \
	ROW(conf_destroy)                                                                          \
	ROW(conf_set)                                                                              \
	ROW(conf_set_events)                                                                       \
	ROW(conf_interceptor_add_on_new)                                                           \
	ROW(interceptor_add_on_request_sent)                                                       \
	ROW(interceptor_add_on_response_received)                                                  \
	ROW(conf_set_log_cb)                                                                       \
	ROW(new)                                                                                   \
	ROW(destroy)                                                                               \
	ROW(destroy_flags)                                                                         \
	ROW(err2str)                                                                               \
	ROW(version)                                                                               \
	ROW(version_str)                                                                           \
	ROW(fatal_error)                                                                           \
	ROW(purge)                                                                                 \
	ROW(outq_len)                                                                              \
	ROW(topic_new)                                                                             \
	ROW(topic_destroy)                                                                         \
	ROW(topic_name)                                                                            \
	ROW(metadata)                                                                              \
	ROW(metadata_destroy)                                                                      \
	ROW(produceva)                                                                             \
	ROW(headers_new)                                                                           \
	ROW(headers_destroy)                                                                       \
	ROW(header_add)                                                                            \
	ROW(header_remove)                                                                         \
	ROW(header_get_all)                                                                        \
	ROW(header_get_last)                                                                       \
	ROW(msg_partitioner_consistent)                                                            \
	ROW(msg_partitioner_fnv1a)                                                                 \
	ROW(msg_partitioner_murmur2)                                                               \
	ROW(message_headers)                                                                       \
	ROW(message_detach_headers)                                                                \
	ROW(message_latency)                                                                       \
	ROW(message_timestamp)                                                                     \
	ROW(message_destroy)                                                                       \
	ROW(message_errstr)                                                                        \
	ROW(error_code)                                                                            \
	ROW(error_string)                                                                          \
	ROW(error_destroy)                                                                         \
	ROW(queue_new)                                                                             \
	ROW(queue_destroy)                                                                         \
	ROW(queue_get_main)                                                                        \
	ROW(queue_get_consumer)                                                                    \
	ROW(queue_get_partition)                                                                   \
	ROW(queue_forward)                                                                         \
	ROW(queue_poll)                                                                            \
	ROW(queue_io_event_enable)                                                                 \
	ROW(consume_batch_queue)                                                                   \
	ROW(event_type)                                                                            \
	ROW(event_destroy)                                                                         \
	ROW(event_error)                                                                           \
	ROW(event_error_string)                                                                    \
	ROW(event_error_is_fatal)                                                                  \
	ROW(event_message_next)                                                                    \
	ROW(event_topic_partition_list)                                                            \
	ROW(event_CreateTopics_result)                                                             \
	ROW(event_DeleteTopics_result)                                                             \
	ROW(event_DeleteGroups_result)                                                             \
	ROW(event_DescribeConfigs_result)                                                          \
	ROW(topic_partition_list_new)                                                              \
	ROW(topic_partition_list_add)                                                              \
	ROW(topic_partition_list_copy)                                                             \
	ROW(topic_partition_list_destroy)                                                          \
	ROW(subscribe)                                                                             \
	ROW(assign)                                                                                \
	ROW(incremental_assign)                                                                    \
	ROW(incremental_unassign)                                                                  \
	ROW(assignment_lost)                                                                       \
	ROW(committed)                                                                             \
	ROW(commit)                                                                                \
	ROW(commit_queue)                                                                          \
	ROW(consumer_close)                                                                        \
	ROW(consumer_poll)                                                                         \
	ROW(offsets_for_times)                                                                     \
	ROW(NewTopic_new)                                                                          \
	ROW(NewTopic_destroy)                                                                      \
	ROW(CreateTopics)                                                                          \
	ROW(CreateTopics_result_topics)                                                            \
	ROW(DeleteTopic_new)                                                                       \
	ROW(DeleteTopic_destroy)                                                                   \
	ROW(DeleteTopics)                                                                          \
	ROW(DeleteTopics_result_topics)                                                            \
	ROW(DeleteGroup_new)                                                                       \
	ROW(DeleteGroup_destroy)                                                                   \
	ROW(DeleteGroups)                                                                          \
	ROW(DeleteGroups_result_groups)                                                            \
	ROW(topic_result_error)                                                                    \
	ROW(topic_result_error_string)                                                             \
	ROW(topic_result_name)                                                                     \
	ROW(AdminOptions_new)                                                                      \
	ROW(AdminOptions_destroy)                                                                  \
	ROW(AdminOptions_set_operation_timeout)                                                    \
	ROW(AdminOptions_set_request_timeout)                                                      \
	ROW(ConfigResource_new)                                                                    \
	ROW(ConfigResource_destroy)                                                                \
	ROW(ConfigResource_error)                                                                  \
	ROW(ConfigResource_configs)                                                                \
	ROW(ConfigEntry_name)                                                                      \
	ROW(ConfigEntry_value)                                                                     \
	ROW(DescribeConfigs)                                                                       \
	ROW(DescribeConfigs_result_resources)                                                      \
	ROW(group_result_error)                                                                    \
	ROW(error_is_retriable)                                                                    \
	ROW(error_txn_requires_abort)                                                              \
	ROW(init_transactions)                                                                     \
	ROW(begin_transaction)                                                                     \
	ROW(commit_transaction)                                                                    \
	ROW(abort_transaction)

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has its own */
#define SEMEL_KAFKA_MEMBER(name) __typeof__(rd_kafka_##name) *name;

struct semel_kafka_library {
	SEMEL_KAFKA_FUNCTIONS(SEMEL_KAFKA_MEMBER)
};

typedef __typeof__(rd_kafka_msg_partitioner_murmur2) semel_kafka_partitioner;

/* Any thread. CONFIG: librdkafka is not installed. The table lives until the process ends. */
semel_status semel_kafka_library_get(const struct semel_kafka_library **library_out,
				     semel_error *error);

#endif
