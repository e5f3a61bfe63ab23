# SPDX-License-Identifier: Apache-2.0
"""An outage between a separate claim and its effect is not the event's failure: the effect was
rolled back for certain, so the event runs again."""
import pytest
import story

pytestmark = pytest.mark.anywhere


@pytest.mark.core
@pytest.mark.parametrize("promise", [("--claim", "separate"), ("--guarantee", "at-most-once")])
def test_an_outage_of_the_store_after_the_claim_makes_no_dead_letter(semel, promise):
    story.prepare(semel)
    for number in range(3):
        story.publish(semel, f"word {number}", str(number))
    story.relay(semel)
    story.consume(semel, "billing", *promise, env={"SEMEL_FAILPOINT": "consume.after-effect:error@1"})
    assert sorted(story.words(semel)) == ["word 0", "word 1", "word 2"]
    assert semel.ok("dlq", "count").strip() == "0"
    semel.ok("verify")
