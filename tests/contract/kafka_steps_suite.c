/* SPDX-License-Identifier: Apache-2.0 */
#include "contract/kafka_steps.h"

#include "base/dynamic.h"
#include "contract/broker_steps.h"

#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct order {
	int request, error;
};

static char servers[256];
static bool is_mock;
static pid_t mock; /* 0: none */
static int orders_fd = -1, answers_fd = -1;

/* ---- the mock cluster, in its own process -----------------------------------------------------
 */

struct library {
	__typeof__(rd_kafka_conf_new) *conf_new;
	__typeof__(rd_kafka_new) *new;
	__typeof__(rd_kafka_mock_cluster_new) *cluster_new;
	__typeof__(rd_kafka_mock_cluster_bootstraps) *bootstraps;
	__typeof__(rd_kafka_mock_push_request_errors) *push_errors;
};

static void load(struct library *library)
{
	static const struct semel_dynamic_symbol symbols[] = {
		{ "rd_kafka_conf_new", offsetof(struct library, conf_new) },
		{ "rd_kafka_new", offsetof(struct library, new) },
		{ "rd_kafka_mock_cluster_new", offsetof(struct library, cluster_new) },
		{ "rd_kafka_mock_cluster_bootstraps", offsetof(struct library, bootstraps) },
		{ "rd_kafka_mock_push_request_errors", offsetof(struct library, push_errors) },
	};
	static const char *const names[] = { "librdkafka.so.1", NULL };
	static const struct semel_dynamic_library dynamic = {
		.names = names,
		.needed_for = "the mock cluster",
		.package = "librdkafka1",
		.symbols = symbols,
		.symbol_count = sizeof(symbols) / sizeof(symbols[0]),
	};
	if (semel_dynamic_load(&dynamic, library, NULL) != SEMEL_OK)
		_exit(1);
}

static void serve(int orders, int answers)
{
	struct library library;
	load(&library);
	char text[256];
	rd_kafka_t *host = library.new(RD_KAFKA_PRODUCER, library.conf_new(), text, sizeof(text));
	rd_kafka_mock_cluster_t *cluster = host ? library.cluster_new(host, 3) : NULL;
	const char *bootstraps = cluster ? library.bootstraps(cluster) : "";
	struct order order;
	if (write(answers, bootstraps, strlen(bootstraps) + 1) < 0)
		_exit(1);
	while (read(orders, &order, sizeof(order)) == sizeof(order)) {
		library.push_errors(cluster, (int16_t)order.request, 1,
				    (rd_kafka_resp_err_t)order.error);
		if (write(answers, "", 1) < 0)
			_exit(1);
	}
	_exit(0);
}

static void start(void)
{
	int orders[2], answers[2];
	if (pipe(orders) != 0 || pipe(answers) != 0)
		exit(1);
	pid_t test = getpid();
	mock = fork();
	if (mock == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != test)
			_exit(1);
		close(orders[1]);
		close(answers[0]);
		serve(orders[0], answers[1]);
	}
	close(orders[0]);
	close(answers[1]);
	orders_fd = orders[1];
	answers_fd = answers[0];
	if (mock < 0 || read(answers_fd, servers, sizeof(servers) - 1) <= 1)
		exit(1);
}

static void stop(void)
{
	kill(mock, SIGKILL);
	waitpid(mock, NULL, 0);
	close(orders_fd);
	close(answers_fd);
	mock = 0;
}

void kafka_steps_use_mock(void)
{
	is_mock = true;
}

void kafka_steps_mock_fail(int request, int error)
{
	struct order order = { request, error };
	char done;
	assert_int_equal(write(orders_fd, &order, sizeof(order)), sizeof(order));
	assert_int_equal(read(answers_fd, &done, 1), 1);
}

/* ---- either -----------------------------------------------------------------------------------
 */

bool kafka_steps_use_real(void)
{
	const char *real = getenv("SEMEL_TEST_KAFKA");
	if (!real || !real[0])
		return false;
	snprintf(servers, sizeof(servers), "%s", real);
	return true;
}

void kafka_steps_make(const char *parameters, char *url_out, size_t size)
{
	static int number;
	char topic[64];
	if (is_mock)
		start();
	snprintf(topic, sizeof(topic), "semel-test-%d-%d", (int)getpid(), ++number);
	steps_name_topic(topic);
	snprintf(url_out, size, "kafka://%s/%s%s", servers, parameters[0] ? "?" : "", parameters);
}

/* A real one is thrown away after all tests; the topics are each test's own. */
void kafka_steps_drop(void)
{
	if (mock > 0)
		stop();
}
