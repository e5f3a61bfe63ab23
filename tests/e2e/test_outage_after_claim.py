# SPDX-License-Identifier: Apache-2.0
"""An outage between the commit of a claim and its effect is no failure of the event: the event runs, once, and becomes no
dead letter."""
import pytest
import story

pytestmark = pytest.mark.anywhere

HANDLERS = {"sql": ("--sql", story.HANDLER.format(scope="billing")), "exec": ("--exec", "echo $SEMEL_EVENT_ID >> ran")}


@pytest.mark.core
@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize("point", ["consume.after-claim", "consume.after-effect"])
@pytest.mark.parametrize("options", [("--claim", "separate"), ("--guarantee", "at-most-once")])
def test_an_outage_of_the_store_after_the_claim_makes_no_dead_letter(semel, options, point, kind):
    story.prepare(semel)
    ids = [story.publish(semel, f"word {number}", str(number)) for number in range(3)]
    story.relay(semel)
    semel.ok("consume", "--scope", "billing", "--topic", "order.events", *HANDLERS[kind], *options, "--drain",
             env={"SEMEL_FAILPOINT": f"{point}:error@1"})
    ran = (semel.folder / "ran").read_text().split() if kind == "exec" else [row[0] for row in semel.sql("SELECT id FROM effect")]
    assert sorted(ran) == sorted(ids)
    assert semel.ok("dlq", "count").strip() == "0"
    semel.ok("verify")
