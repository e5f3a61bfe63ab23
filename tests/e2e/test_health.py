# SPDX-License-Identifier: Apache-2.0
"""Whether /readyz is correct, and whether the metrics show where the time goes and what is stuck."""
import json
import re
import signal

import pytest
from program import TREE, wait_for
from story import deliver, prepare
from test_run import ask, start, subscription, write

pytestmark = pytest.mark.anywhere
READY_STALL = "300ms"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def serve(semel, **config):
    config = write(semel, admin={"listen": "127.0.0.1:0", "ready-stall": READY_STALL}, **config)
    child = semel.spawn("--config", config, "serve")
    return child.stdout.readline().split()[2]


def reasons(url):
    status, text = ask(f"{url}/readyz")
    found = json.loads(text)["reasons"]
    assert status == (503 if found else 200)
    return found


def wait_for_reason(url, words):
    return wait_for(lambda: [reason for reason in reasons(url) if words in reason], 60, f"not ready, because {words}")


def wait_until_ready(url):
    wait_for(lambda: reasons(url) == [], 60, "ready")


def samples(url):
    """Samples by name and labels."""
    lines = [line for line in ask(f"{url}/metrics")[1].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# ---- readiness ------------------------------------------------------------------------------------


def test_it_is_unready_when_events_wait_and_no_relay_holds_their_lease_and_ready_when_idle(shop):
    url = serve(shop)
    relay = shop.spawn("relay", "--lease", "1s")
    wait_for(lambda: samples(url)["semel_lanes_unheld"] == 0, 60, "a relay holds every lane")
    shop.stop(relay, signal.SIGKILL)
    wait_for(lambda: samples(url)["semel_lanes_unheld"] > 0, 60, "the lease has run out")
    assert reasons(url) == []  # nothing waits, so no relay is missing
    shop.publish()
    assert len(wait_for_reason(url, "lanes have no relay")) == 1
    wait_for_reason(url, "none published for")
    assert samples(url)["semel_ready"] == 0
    shop.ok("relay", "--drain")
    wait_until_ready(url)
    assert samples(url)["semel_ready"] == 1


def test_the_age_of_an_event_is_counted_from_its_commit(shop):
    config = write(shop, admin={"listen": "127.0.0.1:0", "ready-stall": "1h"})
    url = shop.spawn("--config", config, "serve").stdout.readline().split()[2]
    shop.publish("--time", "2020-01-01T00:00:00Z")
    assert reasons(url) == []
    values = samples(url)
    assert values['semel_outbox_events{state="waiting"}'] == 1 and values["semel_outbox_unpublished_age_seconds"] < 3600


@pytest.mark.only("postgres")
def test_it_is_unready_when_one_lane_has_no_relay_while_the_others_move(shop):
    url = serve(shop)
    for _ in range(3):
        shop.sql("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                 " SELECT 'order', n::text, 'x', '{}' FROM generate_series(1, 400) n")

    def publish_one_and_read_reasons():
        shop.sql("UPDATE semel_outbox SET status = 'PUBLISHED', published_at = now() WHERE id ="
                 " (SELECT max(id) FROM semel_outbox WHERE status = 'NEW')")
        return [reason for reason in reasons(url) if "lanes have no relay" in reason and "none published for" not in reason]

    assert wait_for(publish_one_and_read_reasons, 60, "not ready for the lanes alone")


def test_it_is_unready_when_the_tables_are_old_also_while_it_runs(shop):
    url = serve(shop)
    wait_until_ready(url)
    shop.sql("UPDATE semel_schema SET version = version - 100")
    wait_for_reason(url, "init")
    assert samples(url)["semel_ready"] == 0
    assert reasons(serve(shop))[0].count("the tables")
    shop.sql("UPDATE semel_schema SET version = version + 100")
    wait_until_ready(url)


@pytest.mark.only("postgres")
def test_it_is_unready_when_the_slot_is_over_its_budget(shop):
    slot = f"h_{shop.store.rpartition('/')[2].split('?')[0]}"
    url = serve(shop, relay={"source": "cdc", "slot": slot, "slot-budget": 4096})
    wait_until_ready(url)
    assert "semel_slot_retained_bytes" not in samples(url)
    shop.ok("init", "--cdc", "--slot", slot)
    try:
        shop.sql("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100)")
        wait_for_reason(url, "more than its budget")
        assert samples(url)["semel_slot_retained_bytes"] > 4096
    finally:
        shop.sql("SELECT pg_drop_replication_slot(?)", slot)
    wait_until_ready(url)


# ---- metrics --------------------------------------------------------------------------------------


def test_metrics_show_where_the_time_goes_and_what_is_stuck(shop):
    deliver(shop, ("bad", "1"), ("good", "2"), ("behind", "1"))
    child, url = start(shop, relay={}, subscriptions=[subscription("billing")])
    shop.publish("--payload", '{"word": "more"}', aggregate="order:3")
    steps = ("read", "publish", "confirm", "mark", "receive", "claim", "effect", "commit", "ack")
    wait_for(lambda: all(samples(url).get(f'semel_step_seconds_total{{step="{step}"}}', 0) > 0 for step in steps), 60,
             "every step has taken time")
    values = samples(url)
    assert values['semel_up{part="store"}'] == values['semel_up{part="broker"}'] == values["semel_ready"] == 1
    assert [name for name in values if re.fullmatch(r'semel_build_info\{version="\d+\.\d+\.\d+"\}', name)]
    assert values['semel_held_events{scope="billing",state="parked"}'] == 1
    assert values["semel_dlq_pending"] == 1 and values["semel_dlq_pending_age_seconds"] >= 0
    assert values['semel_outbox_events{state="waiting"}'] >= 0 and values['semel_subscription_paused{scope="billing"}'] == 0
    shop.stop(child)


def test_every_metric_is_on_the_page_and_no_other(shop):
    declared = set(re.findall(r"^# TYPE (semel_\w+) ", ask(f"{serve(shop)}/metrics")[1], re.MULTILINE))
    page = (TREE / "docs/admin.md").read_text()
    table = page[page.index("### Every number"):]
    documented = set(re.findall(r"^\| `(semel_\w+)", table[:table.index("\n## ")], re.MULTILINE))
    assert len(declared) > 30 and declared == documented
