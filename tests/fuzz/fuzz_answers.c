/* SPDX-License-Identifier: Apache-2.0 */
/* What others answer: an HTTP endpoint, a program of --pipe, RabbitMQ's management plugin. And what
 * an endpoint is asked with: the headers of any event. libcurl and the child are played; the first
 * byte chooses. */
#include "base/child.h"
#include "base/curl.h"
#include "base/json.h"
#include "broker/rabbitmq/rabbitmq.h"
#include "consume/handler.h"
#include "diagnose/finding.h"
#include "observe/log.h"

#include "fuzz.h"

#include <ctype.h>
#include <jansson.h>
#include <stdarg.h>
#include <strings.h>

static struct {
	const uint8_t *data;
	size_t size;
	long code;
	curl_off_t retry_after;
	CURLcode result;
	size_t (*write)(char *, size_t, size_t, void *);
	void *user;
	CURLMsg message;
} played;

static const struct semel_event event = { .id = SEMEL_TEXT_CONST("id-1"),
					  .type = SEMEL_TEXT_CONST("order.created.v1"),
					  .aggregate_type = SEMEL_TEXT_CONST("order"),
					  .aggregate_id = SEMEL_TEXT_CONST("7"),
					  .topic = SEMEL_TEXT_CONST("orders"),
					  .routing_key = SEMEL_TEXT_CONST("orders"),
					  .headers = SEMEL_TEXT_CONST("{}"),
					  .content_type = SEMEL_TEXT_CONST("application/json"),
					  .payload = SEMEL_TEXT_CONST("{}") };

bool semel_log_is_enabled(enum semel_log_level level)
{
	(void)level;
	return false;
}

void semel_log(enum semel_log_level level, const char *message, const struct semel_log_fields *more)
{
	(void)level;
	(void)message;
	(void)more;
}

void semel_log_detail(enum semel_log_level level, const char *message, const char *format, ...)
{
	(void)level;
	(void)message;
	(void)format;
}

/* ---- libcurl, faked ---------------------------------------------------------------------------
 */

static int handle; /* easy, multi and URL */

static void *give_handle(void)
{
	return &handle;
}

static void take_handle(void *taken)
{
	(void)taken;
}

static CURLcode set_option(CURL *easy, CURLoption option, ...)
{
	va_list list;
	(void)easy;
	va_start(list, option);
	if (option == CURLOPT_WRITEFUNCTION)
		played.write = va_arg(list, size_t(*)(char *, size_t, size_t, void *));
	else if (option == CURLOPT_WRITEDATA)
		played.user = va_arg(list, void *);
	va_end(list);
	return CURLE_OK;
}

static CURLcode get_info(CURL *easy, CURLINFO info, ...)
{
	va_list list;
	(void)easy;
	va_start(list, info);
	if (info == CURLINFO_RESPONSE_CODE)
		*va_arg(list, long *) = played.code;
	else if (info == CURLINFO_RETRY_AFTER)
		*va_arg(list, curl_off_t *) = played.retry_after;
	va_end(list);
	return CURLE_OK;
}

static const char *strerror_of(CURLcode code)
{
	(void)code;
	return "played";
}

static CURLMcode take_easy(CURLM *multi, CURL *easy)
{
	(void)multi;
	(void)easy;
	return CURLM_OK;
}

/* In pieces, each in memory of its own size. */
static CURLMcode perform(CURLM *multi, int *running)
{
	size_t at = 0, step = played.size > 600 ? 299 : 7;
	(void)multi;
	*running = 0;
	while (at < played.size) {
		size_t length = played.size - at < step ? played.size - at : step;
		char *piece = fuzz_copy(played.data + at, length);
		size_t taken = played.write(piece, 1, length, played.user);
		free(piece);
		if (taken != length) {
			played.result = CURLE_WRITE_ERROR;
			break;
		}
		at += length;
	}
	return CURLM_OK;
}

static CURLMsg *read_message(CURLM *multi, int *left)
{
	(void)multi;
	*left = 0;
	played.message = (CURLMsg){ .msg = CURLMSG_DONE, .data.result = played.result };
	return &played.message;
}

static CURLMcode close_multi(CURLM *multi)
{
	(void)multi;
	return CURLM_OK;
}

static CURLUcode set_url(CURLU *url, CURLUPart part, const char *text, unsigned int flags)
{
	(void)url;
	(void)part;
	(void)text;
	(void)flags;
	return CURLUE_OK;
}

static CURLUcode get_url(CURLU *url, CURLUPart part, char **text_out, unsigned int flags)
{
	(void)url;
	(void)part;
	(void)flags;
	*text_out = strdup("http");
	return CURLUE_OK;
}

static bool begins_with(const char *line, const char *name)
{
	return strncasecmp(line, name, strlen(name)) == 0;
}

/* Whoever is asked believes these of whoever may call; an event may not. */
static void check_line(const char *line)
{
	static const char *const denied[] = { "authorization",
					      "cookie",
					      "host",
					      "x-forwarded-",
					      "webhook-signature",
					      "content-length",
					      "transfer-encoding",
					      "proxy-" };
	size_t name = strcspn(line, ":;");
	PROMISE(name > 0 && line[name] != '\0');
	for (size_t i = 0; i < name; i++)
		PROMISE(isalnum((unsigned char)line[i]) || strchr("!#$%&'*+-.^_`|~", line[i]));
	for (size_t i = 0; line[i] != '\0'; i++)
		PROMISE((unsigned char)line[i] >= ' ' || line[i] == '\t');
	for (size_t i = 0; i < sizeof denied / sizeof *denied; i++)
		PROMISE(!begins_with(line, denied[i]) ||
			(line[strlen(denied[i])] != ':' && line[strlen(denied[i])] != ';' &&
			 denied[i][strlen(denied[i]) - 1] != '-'));
}

static struct curl_slist *append_line(struct curl_slist *list, const char *line)
{
	struct curl_slist *added = calloc(1, sizeof *added), *last = list;
	PROMISE(added);
	check_line(line);
	added->data = strdup(line);
	while (last && last->next)
		last = last->next;
	if (last)
		last->next = added;
	return list ? list : added;
}

static void free_lines(struct curl_slist *list)
{
	while (list) {
		struct curl_slist *next = list->next;
		free(list->data);
		free(list);
		list = next;
	}
}

static const struct semel_curl curl = {
	.easy_init = give_handle,
	.easy_setopt = set_option,
	.easy_getinfo = get_info,
	.easy_strerror = strerror_of,
	.easy_reset = take_handle,
	.easy_cleanup = take_handle,
	.multi_init = give_handle,
	.multi_add_handle = take_easy,
	.multi_remove_handle = take_easy,
	.multi_perform = perform,
	.multi_info_read = read_message,
	.multi_cleanup = close_multi,
	.slist_append = append_line,
	.slist_free_all = free_lines,
	.url = (CURLU * (*)(void)) give_handle,
	.url_set = set_url,
	.url_get = get_url,
	.url_cleanup = (void (*)(CURLU *))take_handle,
	.free = free,
};

semel_status semel_curl_get(const struct semel_curl **curl_out, semel_error *error)
{
	(void)error;
	*curl_out = &curl;
	return SEMEL_OK;
}

/* ---- an endpoint ------------------------------------------------------------------------------
 */

static void ask_endpoint(const struct semel_event *asked, struct semel_outcome *outcome_out)
{
	const struct semel_outside_options options = { .target = "http://127.0.0.1/",
						       .timeout_ms = 1000,
						       .scope = "s" };
	struct semel_outside *outside = NULL;
	PROMISE(semel_outside_http.open(&options, &outside, NULL) == SEMEL_OK);
	semel_outside_http.run(outside, asked, 1, outcome_out);
	semel_outside_http.close(outside);
	PROMISE(memchr(outcome_out->reason, '\0', sizeof outcome_out->reason));
	PROMISE((outcome_out->status == SEMEL_OK) == (outcome_out->reason[0] == '\0'));
	PROMISE(outcome_out->retry_after_ms >= 0 && outcome_out->retry_after_ms <= 3600000);
}

/* Two bytes of status, eight of Retry-After, one of curl's own failure; then the body. */
static void try_endpoint(const uint8_t *data, size_t size)
{
	struct semel_outcome outcome;
	if (size < 11)
		return;
	memcpy(&played.retry_after, data + 2, sizeof played.retry_after);
	played.code = (data[0] << 8 | data[1]) % 1000;
	played.result = data[10] % 4 == 3 ? (CURLcode)(data[10] % 94) : CURLE_OK;
	played.data = data + 11;
	played.size = size - 11;
	bool answered = played.result == CURLE_OK;
	ask_endpoint(&event, &outcome);
	if (answered)
		PROMISE((outcome.status == SEMEL_OK) == (played.code >= 200 && played.code < 300));
	else
		PROMISE(outcome.status != SEMEL_OK && outcome.status != SEMEL_HANDLER_REJECT);
	if (semel_text_is_utf8(semel_text_from(played.data, played.size)))
		PROMISE(semel_text_is_utf8(semel_text_of(outcome.reason)));
}

static void try_headers(const uint8_t *data, size_t size)
{
	struct semel_event strange = event;
	struct semel_outcome outcome;
	char *copy = fuzz_copy(data, size);
	strange.headers = semel_text_from(copy, size);
	played.code = 200;
	played.result = CURLE_OK;
	played.size = 0;
	if (semel_event_check(&strange, NULL) == SEMEL_OK)
		ask_endpoint(&strange, &outcome);
	free(copy);
}

/* ---- a program --------------------------------------------------------------------------------
 */

struct semel_child {
	int nothing;
};

static struct semel_child child;
static struct semel_text line;

semel_status semel_child_start(const struct semel_child_options *plan,
			       struct semel_child **child_out, semel_error *error)
{
	(void)plan;
	(void)error;
	*child_out = &child;
	return SEMEL_OK;
}

enum semel_child_result semel_child_communicate(
	struct semel_child *talking, const struct semel_child_communication *communication)
{
	(void)talking;
	PROMISE(communication->input.length > 1 && semel_json_is_valid(communication->input));
	return SEMEL_CHILD_LINE;
}

struct semel_text semel_child_output(const struct semel_child *talking)
{
	(void)talking;
	return line;
}

void semel_child_stderr(const struct semel_child *silent, char *text_out, size_t size)
{
	(void)silent;
	snprintf(text_out, size, "%s", "");
}

void semel_child_clear_stderr(struct semel_child *silent)
{
	(void)silent;
}

bool semel_child_has_exited(struct semel_child *running)
{
	(void)running;
	return false;
}

void semel_child_describe_exit(const struct semel_child *running, char *text_out, size_t size)
{
	(void)running;
	snprintf(text_out, size, "ended");
}

int semel_child_exit_code(const struct semel_child *ended)
{
	(void)ended;
	return 0;
}

void semel_child_end(struct semel_child *running, int64_t patience_ms)
{
	(void)running;
	(void)patience_ms;
}

static bool has_text(const json_t *answer, const char *name, const char *wanted)
{
	const json_t *value = json_object_get(answer, name);
	return json_is_string(value) && json_string_length(value) == strlen(wanted) &&
	       memcmp(json_string_value(value), wanted, strlen(wanted)) == 0;
}

/* It is done only where the whole line is that answer, for this event. */
static void try_program(const uint8_t *data, size_t size)
{
	const struct semel_outside_options options = { .target = "x",
						       .timeout_ms = 1000,
						       .scope = "s" };
	struct semel_outside *outside = NULL;
	struct semel_outcome outcome;
	char *copy = fuzz_copy(data, size);
	line = semel_text_from(copy, size);
	PROMISE(semel_outside_pipe.open(&options, &outside, NULL) == SEMEL_OK);
	semel_outside_pipe.run(outside, &event, 1, &outcome);
	semel_outside_pipe.close(outside);
	json_t *answer = json_loadb(copy, size, 0, NULL);
	bool ours = has_text(answer, "id", "id-1");
	PROMISE((outcome.status == SEMEL_OK) == (ours && has_text(answer, "verdict", "done")));
	PROMISE((outcome.status == SEMEL_HANDLER_REJECT) ==
		(ours && has_text(answer, "verdict", "reject")));
	PROMISE(memchr(outcome.reason, '\0', sizeof outcome.reason));
	json_decref(answer);
	free(copy);
}

/* ---- the management plugin ---------------------------------------------------------------------
 */

semel_status semel_fetch_run(const struct semel_fetch *fetch, long *code_out,
			     struct semel_buffer *body, semel_error *error)
{
	(void)error;
	PROMISE(played.size <= fetch->body_max);
	semel_buffer_append(body, played.data, played.size);
	*code_out = 200;
	return SEMEL_OK;
}

semel_status semel_rabbit_queue_name(const struct semel_rabbit_subscription *subscription,
				     uint32_t number, char name_out[SEMEL_RABBIT_NAME_SIZE],
				     semel_error *error)
{
	(void)error;
	snprintf(name_out, SEMEL_RABBIT_NAME_SIZE, "%s.%s.%u", subscription->topic,
		 subscription->scope, number);
	return SEMEL_OK;
}

semel_status semel_rabbit_partitions_of(struct semel_rabbit *rabbit, const char *scope,
					const char *topic, uint32_t *partitions_out,
					semel_error *error)
{
	(void)rabbit;
	(void)scope;
	(void)topic;
	(void)error;
	*partitions_out = 1 + played.size % 2;
	return SEMEL_OK;
}

/* Not called: AMQP's part of an examination. */
const struct semel_broker_driver semel_rabbit_driver = { 0 };

semel_status semel_rabbit_send_confirmed(struct semel_rabbit *rabbit,
					 const struct semel_rabbit_outgoing *outgoing,
					 semel_error *error)
{
	(void)rabbit;
	(void)outgoing;
	(void)error;
	return SEMEL_OK;
}

void semel_rabbit_lock(struct semel_broker *broker)
{
	(void)broker;
}

semel_status semel_rabbit_unlock(struct semel_broker *broker, semel_status status)
{
	(void)broker;
	return status;
}

static void count_finding(const struct semel_finding *finding, void *user)
{
	(*(size_t *)user)++;
	PROMISE(finding->text && finding->text[0] != '\0' && strlen(finding->text) < 4096);
	PROMISE(finding->severity == SEMEL_SEVERITY_FINE || finding->remedy);
}

static void try_management(const uint8_t *data, size_t size)
{
	char host[] = "mq", vhost[] = "a b/%", user[] = "u";
	struct semel_rabbit rabbit = {
		.settings = { .host = host, .vhost = vhost, .user = user, .password = user }
	};
	const char *const topics[] = { "orders", NULL };
	const struct semel_subscribe_options options = { .scope = "billing",
							 .topics = topics,
							 .bind = size % 3 ? "order.#" : NULL };
	size_t findings = 0;
	const struct semel_examination examination = { .report = count_finding, .user = &findings };
	played.data = data;
	played.size = size;
	semel_rabbit_examine_nodes(&rabbit, &examination);
	findings = 0;
	semel_rabbit_examine_bindings((struct semel_broker *)&rabbit, &options, &examination);
	PROMISE(findings > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0)
		return 0;
	switch (data[0] % 4) {
	case 0:
		try_endpoint(data + 1, size - 1);
		break;
	case 1:
		try_headers(data + 1, size - 1);
		break;
	case 2:
		try_program(data + 1, size - 1);
		break;
	default:
		try_management(data + 1, size - 1);
	}
	return 0;
}
