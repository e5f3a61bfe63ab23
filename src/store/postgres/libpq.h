/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of libpq that we use, loaded when the first PostgreSQL store is opened: with its
 * TLS and Kerberos it would double the memory of a process that never needs it. */
#ifndef SEMEL_STORE_POSTGRES_LIBPQ_H
#define SEMEL_STORE_POSTGRES_LIBPQ_H

#include <semel/status.h>

#include <libpq-fe.h>

/* name, result, parameters: the table below and the list of symbols are made from these rows. */
#define SEMEL_LIBPQ_FUNCTIONS(F)                                                                   \
	F(conninfoParse, PQconninfoOption *, (const char *conninfo, char **message_out))           \
	F(conninfoFree, void, (PQconninfoOption * options))                                        \
	F(connectdbParams, PGconn *,                                                               \
	  (const char *const *keywords, const char *const *values, int expand))                    \
	F(finish, void, (PGconn * connection))                                                     \
	F(status, ConnStatusType, (const PGconn *connection))                                      \
	F(transactionStatus, PGTransactionStatusType, (const PGconn *connection))                  \
	F(errorMessage, char *, (const PGconn *connection))                                        \
	F(socket, int, (const PGconn *connection))                                                 \
	F(backendPID, int, (const PGconn *connection))                                             \
	F(parameterStatus, const char *, (const PGconn *connection, const char *name))             \
	F(serverVersion, int, (const PGconn *connection))                                          \
	F(setNoticeProcessor, PQnoticeProcessor,                                                   \
	  (PGconn * connection, PQnoticeProcessor processor, void *user))                          \
	F(exec, PGresult *, (PGconn * connection, const char *sql))                                \
	F(execParams, PGresult *,                                                                  \
	  (PGconn * connection, const char *sql, int count, const Oid *types,                      \
	   const char *const *values, const int *lengths, const int *formats, int format))         \
	F(prepare, PGresult *,                                                                     \
	  (PGconn * connection, const char *name, const char *sql, int count, const Oid *types))   \
	F(execPrepared, PGresult *,                                                                \
	  (PGconn * connection, const char *name, int count, const char *const *values,            \
	   const int *lengths, const int *formats, int format))                                    \
	F(sendQuery, int, (PGconn * connection, const char *sql))                                  \
	F(sendQueryParams, int,                                                                    \
	  (PGconn * connection, const char *sql, int count, const Oid *types,                      \
	   const char *const *values, const int *lengths, const int *formats, int format))         \
	F(sendQueryPrepared, int,                                                                  \
	  (PGconn * connection, const char *name, int count, const char *const *values,            \
	   const int *lengths, const int *formats, int format))                                    \
	F(setSingleRowMode, int, (PGconn * connection))                                            \
	F(getResult, PGresult *, (PGconn * connection))                                            \
	F(isBusy, int, (PGconn * connection))                                                      \
	F(consumeInput, int, (PGconn * connection))                                                \
	F(flush, int, (PGconn * connection))                                                       \
	F(sslInUse, int, (PGconn * connection))                                                    \
	F(putCopyData, int, (PGconn * connection, const char *bytes, int length))                  \
	F(getCopyData, int, (PGconn * connection, char **bytes_out, int async))                    \
	F(notifies, PGnotify *, (PGconn * connection))                                             \
	F(enterPipelineMode, int, (PGconn * connection))                                           \
	F(exitPipelineMode, int, (PGconn * connection))                                            \
	F(pipelineSync, int, (PGconn * connection))                                                \
	F(pipelineStatus, PGpipelineStatus, (const PGconn *connection))                            \
	F(resultStatus, ExecStatusType, (const PGresult *result))                                  \
	F(resultErrorField, char *, (const PGresult *result, int field))                           \
	F(resultErrorMessage, char *, (const PGresult *result))                                    \
	F(cmdStatus, char *, (PGresult * result))                                                  \
	F(cmdTuples, char *, (PGresult * result))                                                  \
	F(ntuples, int, (const PGresult *result))                                                  \
	F(nparams, int, (const PGresult *result))                                                  \
	F(getvalue, char *, (const PGresult *result, int row, int column))                         \
	F(getlength, int, (const PGresult *result, int row, int column))                           \
	F(getisnull, int, (const PGresult *result, int row, int column))                           \
	F(unescapeBytea, unsigned char *, (const unsigned char *text, size_t *length_out))         \
	F(clear, void, (PGresult * result))                                                        \
	F(freemem, void, (void *memory))

/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration has its own */
#define SEMEL_LIBPQ_MEMBER(name, result, parameters) result(*name) parameters;

struct semel_libpq {
	SEMEL_LIBPQ_FUNCTIONS(SEMEL_LIBPQ_MEMBER)
};

/* Complete once semel_libpq_load has returned OK, and constant from then on. */
extern struct semel_libpq semel_libpq;

/* Any thread. CONFIG when it is not installed. */
semel_status semel_libpq_load(semel_error *error);

#endif
