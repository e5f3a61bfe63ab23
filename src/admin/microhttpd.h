/* SPDX-License-Identifier: Apache-2.0 */
/* libmicrohttpd, loaded when the admin server starts: with its TLS library it is too heavy for a
 * relay that serves nothing. */
#ifndef SEMEL_ADMIN_MICROHTTPD_H
#define SEMEL_ADMIN_MICROHTTPD_H

#include <semel/status.h>

#include <microhttpd.h>

struct semel_microhttpd {
	__typeof__(MHD_start_daemon) *start_daemon;
	__typeof__(MHD_stop_daemon) *stop_daemon;
	__typeof__(MHD_queue_response) *queue_response;
	__typeof__(MHD_create_response_from_buffer) *create_response_from_buffer;
	__typeof__(MHD_create_response_from_callback) *create_response_from_callback;
	__typeof__(MHD_add_response_header) *add_response_header;
	__typeof__(MHD_destroy_response) *destroy_response;
	__typeof__(MHD_lookup_connection_value) *lookup_connection_value;
	__typeof__(MHD_get_connection_values) *get_connection_values;
	__typeof__(MHD_get_connection_info) *get_connection_info;
	__typeof__(MHD_suspend_connection) *suspend_connection;
	__typeof__(MHD_resume_connection) *resume_connection;
	__typeof__(MHD_is_feature_supported) *is_feature_supported;
};

/* CONFIG, naming the package, when the library is missing. */
semel_status semel_microhttpd_load(const struct semel_microhttpd **library_out, semel_error *error);

#endif
