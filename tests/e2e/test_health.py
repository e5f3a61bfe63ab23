# SPDX-License-Identifier: Apache-2.0
"""Whether /readyz is honest, and whether the numbers at /metrics tell where the time goes and what is stuck."""
import json
import re
import signal

import pytest
from program import TREE, wait_for
from story import deliver, prepare
from test_run import ask, start, subscription, write

pytestmark = pytest.mark.anywhere
SOON = "300ms"


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def serve(semel, **config):
    config = write(semel, admin={"listen": "127.0.0.1:0", "ready-stall": SOON}, **config)
    child = semel.spawn("--config", config, "serve")
    return child.stdout.readline().split()[2]


def reasons(url):
    status, text = ask(f"{url}/readyz")
    told = json.loads(text)["reasons"]
    assert status == (503 if told else 200)
    return told


def wait_for_reason(url, words):
    return wait_for(lambda: [reason for reason in reasons(url) if words in reason], 60, f"red, because {words}")


def wait_for_green(url):
    wait_for(lambda: reasons(url) == [], 60, "green")


def numbers(url):
    """Samples by name and labels."""
    lines = [line for line in ask(f"{url}/metrics")[1].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


# ---- readiness ------------------------------------------------------------------------------------


def test_it_is_red_when_no_relay_holds_the_lease_of_what_waits_and_green_when_idle(shop):
    url = serve(shop)
    relay = shop.spawn("relay", "--lease", "1s")
    wait_for(lambda: numbers(url)["semel_lanes_unheld"] == 0, 60, "a relay holds every lane")
    shop.stop(relay, signal.SIGKILL)
    wait_for(lambda: numbers(url)["semel_lanes_unheld"] > 0, 60, "the lease has run out")
    assert reasons(url) == []  # nothing waits, so nobody is missed
    shop.publish()
    assert len(wait_for_reason(url, "lanes have no relay")) == 1
    wait_for_reason(url, "none published for")
    assert numbers(url)["semel_ready"] == 0
    shop.ok("relay", "--drain")
    wait_for_green(url)
    assert numbers(url)["semel_ready"] == 1


def test_an_event_of_long_ago_that_was_committed_just_now_is_not_old(shop):
    config = write(shop, admin={"listen": "127.0.0.1:0", "ready-stall": "1h"})
    url = shop.spawn("--config", config, "serve").stdout.readline().split()[2]
    shop.publish("--time", "2020-01-01T00:00:00Z")
    assert reasons(url) == []
    told = numbers(url)
    assert told['semel_outbox_events{state="waiting"}'] == 1 and told["semel_outbox_unpublished_age_seconds"] < 3600


@pytest.mark.only("postgres")
def test_it_is_red_when_one_lane_is_lost_while_all_others_move(shop):
    url = serve(shop)
    for _ in range(3):
        shop.sql("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload)"
                 " SELECT 'order', n::text, 'x', '{}' FROM generate_series(1, 400) n")

    def one_moves_and_the_reason():
        shop.sql("UPDATE semel_outbox SET status = 'PUBLISHED', published_at = now() WHERE id ="
                 " (SELECT max(id) FROM semel_outbox WHERE status = 'NEW')")
        return [reason for reason in reasons(url) if "lanes have no relay" in reason and "none published for" not in reason]

    assert wait_for(one_moves_and_the_reason, 60, "red for the lanes alone")


def test_it_is_red_when_the_tables_are_old_also_while_it_runs(shop):
    url = serve(shop)
    wait_for_green(url)
    shop.sql("UPDATE semel_schema SET version = version - 100")
    wait_for_reason(url, "init")
    assert numbers(url)["semel_ready"] == 0
    assert reasons(serve(shop))[0].count("the tables")
    shop.sql("UPDATE semel_schema SET version = version + 100")
    wait_for_green(url)


@pytest.mark.only("postgres")
def test_it_is_red_when_the_slot_is_over_its_budget(shop):
    slot = f"h_{shop.store.rpartition('/')[2].split('?')[0]}"
    url = serve(shop, relay={"source": "cdc", "slot": slot, "slot-budget": 4096})
    wait_for_green(url)
    assert "semel_slot_retained_bytes" not in numbers(url)
    shop.ok("init", "--cdc", "--slot", slot)
    try:
        shop.sql("CREATE TABLE filler AS SELECT repeat('x', 1000) FROM generate_series(1, 100)")
        wait_for_reason(url, "more than its budget")
        assert numbers(url)["semel_slot_retained_bytes"] > 4096
    finally:
        shop.sql("SELECT pg_drop_replication_slot(?)", slot)
    wait_for_green(url)


# ---- numbers --------------------------------------------------------------------------------------


def test_numbers_tell_where_the_time_goes_and_what_is_stuck(shop):
    deliver(shop, ("bad", "1"), ("good", "2"), ("behind", "1"))
    child, url = start(shop, relay={}, subscriptions=[subscription("billing")])
    shop.publish("--payload", '{"word": "more"}', aggregate="order:3")
    steps = ("read", "publish", "confirm", "mark", "receive", "claim", "effect", "commit", "ack")
    wait_for(lambda: all(numbers(url).get(f'semel_step_seconds_total{{step="{step}"}}', 0) > 0 for step in steps), 60,
             "every step has taken time")
    told = numbers(url)
    assert told['semel_up{part="store"}'] == told['semel_up{part="broker"}'] == told["semel_ready"] == 1
    assert [name for name in told if re.fullmatch(r'semel_build_info\{version="\d+\.\d+\.\d+"\}', name)]
    assert told['semel_held_events{scope="billing",state="parked"}'] == 1
    assert told["semel_dlq_pending"] == 1 and told["semel_dlq_pending_age_seconds"] >= 0
    assert told['semel_outbox_events{state="waiting"}'] >= 0 and told['semel_subscription_paused{scope="billing"}'] == 0
    shop.stop(child)


def test_every_number_is_on_the_page_and_no_other(shop):
    declared = set(re.findall(r"^# TYPE (semel_\w+) ", ask(f"{serve(shop)}/metrics")[1], re.MULTILINE))
    page = (TREE / "docs/admin.md").read_text()
    table = page[page.index("### Every number"):]
    told = set(re.findall(r"^\| `(semel_\w+)", table[:table.index("\n## ")], re.MULTILINE))
    assert len(declared) > 30 and declared == told
