# SPDX-License-Identifier: Apache-2.0
"""Spans, as a collector of OTLP over HTTP receives them."""
import http.server
import json
import re
import socket
import threading
import time

import pytest
from program import wait_for
from story import HANDLER, consume, prepare, publish, relay

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector:
    """Keeps every span that it receives."""

    def __init__(self, status=200):
        self.spans, self.services, self.headers = [], set(), []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/json"
                outer.headers.append(dict(self.headers))
                for resource in body["resourceSpans"]:
                    for attribute in resource["resource"]["attributes"]:
                        outer.services.add(attribute["value"]["stringValue"])
                    for scope in resource["scopeSpans"]:
                        outer.spans += scope["spans"]
                self.send_response(status)
                self.end_headers()

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}", "OTEL_SERVICE_NAME": "shop"}

    def named(self, name):
        return [span for span in self.spans if span["name"] == name]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


def attributes(span):
    return {one["key"]: one["value"].get("stringValue", one["value"].get("intValue")) for one in span["attributes"]}


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def run_all(shop, env, *more):
    event_id = shop.publish("--payload", '{"word": "one"}', *more, env=env)
    shop.ok("relay", "--drain", env=env)
    consume(shop, env=env)
    return event_id


def test_one_trace_from_publish_to_the_claim(shop, collector):
    event_id = run_all(shop, collector.env, "--header", f"traceparent={PARENT}")
    names = {span["name"]: span for span in collector.spans}
    assert names.keys() == {"semel.publish", "semel.relay.publish", "semel.consume", "semel.dedup.try_claim"}
    assert {span["traceId"] for span in collector.spans} == {PARENT.split("-")[1]}
    for name in ("semel.publish", "semel.relay.publish", "semel.consume"):
        assert names[name]["parentSpanId"] == PARENT.split("-")[2]
    claim = names["semel.dedup.try_claim"]
    assert claim["parentSpanId"] == names["semel.consume"]["spanId"]
    values = attributes(claim)
    assert (values["consumer.scope_id"], values["event.id"], values["dedup.outcome"]) == ("billing", event_id, "claimed")
    assert values["messaging.destination.name"] == "order.events"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", values["event.week_start"])
    assert {"messaging.kafka.partition", "messaging.kafka.offset"} <= values.keys()
    assert collector.services == {"shop"}
    assert all(int(span["endTimeUnixNano"]) >= int(span["startTimeUnixNano"]) for span in collector.spans)


def test_an_event_that_a_worker_has_handled_has_one_span_of_each_kind(shop, collector):
    publish(shop, "one")
    relay(shop)
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--exec", "true", "--drain", env=collector.env)
    assert sorted(span["name"] for span in collector.spans) == ["semel.consume", "semel.dedup.try_claim"]


def test_publish_makes_and_stores_a_traceparent_where_there_is_none(shop, collector):
    run_all(shop, collector.env)
    ((headers,),) = shop.sql("SELECT headers FROM semel_outbox")
    _, trace, span, flags = json.loads(headers)["traceparent"].split("-")
    assert flags == "01" and {one["traceId"] for one in collector.spans} == {trace}
    (made,) = collector.named("semel.publish")
    assert made["spanId"] == span and "parentSpanId" not in made


def test_a_row_of_plain_sql_has_one_trace_too(shop, collector):
    shop.sql("INSERT INTO semel_outbox(aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '1', 'order.created.v1', '{\"word\":\"x\"}')")
    shop.ok("relay", "--drain", env=collector.env)
    consume(shop, env=collector.env)
    ((event_id,),) = shop.sql("SELECT id FROM semel_outbox")
    assert {span["traceId"] for span in collector.spans} == {str(event_id).replace("-", "")}
    assert len(collector.spans) == 3


def test_what_is_not_sampled_is_not_exported(shop, collector):
    run_all(shop, collector.env, "--header", f"traceparent={PARENT[:-2]}00")
    assert collector.spans == []


def test_the_span_of_a_duplicate_records_it(shop, collector):
    run_all(shop, collector.env)
    shop.ok("replay")
    consume(shop, env=collector.env)
    assert sorted(attributes(span)["dedup.outcome"] for span in collector.named("semel.dedup.try_claim")) == ["claimed", "duplicate"]


def test_without_an_endpoint_no_header_is_added(shop):
    publish(shop, "one")
    assert shop.sql("SELECT headers FROM semel_outbox") == [("{}",)]


def test_headers_for_the_collector_are_sent(shop, collector):
    run_all(shop, {**collector.env, "OTEL_EXPORTER_OTLP_HEADERS": "x-token=abc,x-team=orders"})
    assert all((one["x-token"], one["x-team"]) == ("abc", "orders") for one in collector.headers)


@pytest.mark.parametrize("kind", ["unreachable", "silent", "failing"])
def test_a_collector_that_is_unreachable_silent_or_failing_slows_nothing_down(shop, kind):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        failing = Collector(status=500)
        if kind == "unreachable":
            silent.close()
        env = failing.env if kind == "failing" else {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        for number in range(20):
            publish(shop, str(number), str(number))
        began = time.monotonic()
        shop.ok("relay", "--drain", env=env)
        assert shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'PUBLISHED'") == [(20,)]
        assert time.monotonic() - began < 30
        failing.close()


def test_spans_are_exported_while_a_consumer_runs(shop, collector):
    shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"), env=collector.env)
    publish(shop, "one")
    relay(shop)
    wait_for(lambda: collector.named("semel.consume"), what="a span while it runs")
