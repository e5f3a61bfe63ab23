# SPDX-License-Identifier: Apache-2.0
"""A consumer that is suspended until another one takes over, and then resumed, changes nothing of what the other one
did."""
import signal

import pytest

from program import wait_for
from story import HANDLER, deliver, prepare, publish, relay, words

pytestmark = [pytest.mark.slow, pytest.mark.sanitize, pytest.mark.anywhere]

CONSUME = ("consume", "--scope", "billing", "--topic", "order.events", "--lease", "400ms")
AT_WORK = "echo one:$SEMEL_EVENT_ID >>ran; touch at-work; while ! [ -e go ]; do sleep 0.01; done; "


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def runs(shop):
    ran = shop.folder / "ran"
    return ran.read_text().split() if ran.exists() else []


def stop_at(shop, child, condition):
    """Suspends the child while it processes an event, and expires the leases of its claims."""
    wait_for(condition, what="the event in the handler")
    shop.freeze(child)
    shop.backend.broker.expire_consumers()
    shop.sql("UPDATE semel_inbox SET lease_until = '2000-01-01T00:00:00.000Z' WHERE status = 'CLAIMED'")


def resume(shop, child):
    (shop.folder / "go").touch()
    child.send_signal(signal.SIGCONT)
    code = child.wait(60)
    assert code == 0, child.stderr.read()


def claims(shop):
    return shop.sql("SELECT event_id, status FROM semel_inbox WHERE scope = 'billing' ORDER BY event_id")


@pytest.mark.core
def test_a_separate_claim_that_was_taken_over_leaves_no_effect(shop):
    event_id = publish(shop, "good")
    relay(shop)
    handler = ("--claim", "separate", "--sql", HANDLER.format(scope="billing"), "--drain")
    slow = shop.spawn(*CONSUME, *handler, env={"SEMEL_FAILPOINT": "consume.after-claim:pause=8000"})
    stop_at(shop, slow, lambda: claims(shop))
    shop.ok(*CONSUME, *handler)
    assert claims(shop) == [(event_id, "FAILED")]
    resume(shop, slow)
    assert words(shop) == []
    (letter,) = shop.json("dlq", "list")
    assert "in doubt" in letter["failureReason"]
    shop.ok("dlq", "replay", letter["dlqEntryId"])
    shop.ok(*CONSUME, *handler)
    assert words(shop) == ["good"]
    shop.ok("verify")


@pytest.mark.parametrize("verdict", ["exit 75", "exit 65", "exit 0"])
def test_a_call_whose_claim_was_taken_over_settles_nothing(shop, verdict):
    event_id = publish(shop, "good")
    relay(shop)
    slow = shop.spawn(*CONSUME, "--exec", AT_WORK + verdict, "--drain")
    stop_at(shop, slow, (shop.folder / "at-work").exists)
    shop.ok(*CONSUME, "--exec", "echo two:$SEMEL_EVENT_ID >>ran", "--drain")
    assert claims(shop) == [(event_id, "PROCESSED")]
    resume(shop, slow)
    assert claims(shop) == [(event_id, "PROCESSED")]
    assert runs(shop) == [f"one:{event_id}", f"two:{event_id}"]
    assert shop.json("dlq", "list") == []


@pytest.mark.core
@pytest.mark.parametrize("guarantee", ["effectively-once", "at-least-once"])
def test_a_follower_that_was_taken_over_does_not_release_the_others(shop, guarantee):
    """The head is discarded; while b is in flight here, another consumer processes b and rejects c: d stays behind c."""
    _, b, c, d = deliver(shop, ("bad", "1"), ("b", "1"), ("c", "1"), ("d", "1"))
    (letter,) = shop.json("dlq", "list")
    shop.ok("dlq", "discard", letter["dlqEntryId"])
    more = ("--guarantee", guarantee, "--drain")
    slow = shop.spawn(*CONSUME, "--exec", AT_WORK + "exit 0", *more)
    stop_at(shop, slow, (shop.folder / "at-work").exists)
    shop.ok(*CONSUME, "--exec", f"echo two:$SEMEL_EVENT_ID >>ran; [ $SEMEL_EVENT_ID != {c} ] || exit 65", *more)
    resume(shop, slow)
    assert runs(shop) == [f"one:{b}", f"two:{b}", f"two:{c}"]
    assert [entry["originalEventId"] for entry in shop.json("dlq", "list", "--status", "PENDING")] == [c]
    assert shop.sql("SELECT event_id FROM semel_dead_letter WHERE parked_behind IS NOT NULL") == [(d,)]
