# SPDX-License-Identifier: Apache-2.0
"""At most once: a crash may lose an effect; it never causes a second run, and never blocks other events."""
import socket

import pytest

from program import wait_for
from story import HANDLER, mend, prepare, publish, relay

pytestmark = pytest.mark.anywhere

ONCE = ("--guarantee", "at-most-once")


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def handler(shop, kind):
    if kind == "sql":
        return ("--sql", HANDLER.format(scope="billing"))
    return ("--exec", "grep -q bad && ! [ -e mended ] && exit 65; echo $SEMEL_EVENT_ID >>ran")


def run(shop, kind, *more, **options):
    return shop.run("consume", "--scope", "billing", "--topic", "order.events", *handler(shop, kind), *ONCE, "--drain", *more,
                    **options)


def ran(shop, kind):
    if kind == "sql":
        return [row[0] for row in shop.sql("SELECT id FROM effect ORDER BY number")]
    path = shop.folder / "ran"
    return path.read_text().split() if path.exists() else []


@pytest.mark.parametrize("kind", ["sql", "exec"])
@pytest.mark.parametrize("point", ["consume.after-claim", "consume.after-effect", "consume.after-commit", "consume.after-ack"])
def test_a_replayed_head_that_is_lost_in_a_crash_releases_its_followers(shop, kind, point):
    ids = [publish(shop, word) for word in ("bad", "second", "third")]
    relay(shop)
    assert run(shop, kind).returncode == 0
    assert ran(shop, kind) == []
    mend(shop)
    (shop.folder / "mended").touch()
    shop.ok("dlq", "replay", "--all")
    assert run(shop, kind, env={"SEMEL_FAILPOINT": f"{point}:kill"}).returncode == -9
    assert run(shop, kind).returncode == 0
    assert ran(shop, kind) in (ids, ids[1:])
    assert shop.sql("SELECT * FROM semel_hold") == []


@pytest.mark.core
@pytest.mark.parametrize("kind", ["sql", "exec"])
def test_a_crash_costs_the_effect_of_one_follower_at_most(shop, kind):
    ids = [publish(shop, word, aggregate) for aggregate in "123456" for word in ("bad", "good")]
    relay(shop)
    assert run(shop, kind).returncode == 0
    for entry in shop.json("dlq", "list"):
        shop.ok("dlq", "discard", entry["dlqEntryId"])
    assert run(shop, kind, env={"SEMEL_FAILPOINT": "consume.after-claim:kill"}).returncode == -9
    assert run(shop, kind).returncode == 0
    assert len(ids[1::2]) - 1 <= len(set(ran(shop, kind))) == len(ran(shop, kind))


def test_a_call_that_is_not_answered_in_time_is_not_repeated(shop):
    publish(shop, "good")
    relay(shop)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        child = shop.spawn("consume", "--scope", "billing", "--topic", "order.events", "--http", url, "--handler-timeout", "300ms",
                           *ONCE, "--drain")
        with server.accept()[0]:
            wait_for(lambda: shop.json("dlq", "list"), what="a dead letter")
            assert child.wait(30) == 0
            server.settimeout(0)
            with pytest.raises(BlockingIOError):
                server.accept()
    (letter,) = shop.json("dlq", "list")
    assert "in doubt" in letter["failureReason"]
