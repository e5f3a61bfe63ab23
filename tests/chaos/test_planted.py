# SPDX-License-Identifier: Apache-2.0
"""The checker is itself checked: six bugs that a delivery program is likely to have are built into
`semel-planted` behind SEMEL_PLANT. Each meets a scenario aimed at its window, and must be reported as
the kind of harm that it does; the same scenario without the bug must be clean."""
import os
import re
from pathlib import Path

import pytest
from program import PROGRAM, TREE
from shop import Shop

PLANTED = Path(os.environ.get("SEMEL_PLANTED", TREE / "build-planted" / "semel-planted")).absolute()
SMALL = ("--batch", "4", "--drain", "--timeout", "60s")


class PlantedShop(Shop):
    """Its program has the bug, in every run."""

    def __init__(self, folder, bug):
        self.bug = bug
        super().__init__(folder, PLANTED)

    def environment(self, extra=None):
        return {**super().environment(extra), "SEMEL_PLANT": self.bug}

    def recover(self):
        """As far as it comes: a bug that loses something may leave a drain without an end."""
        timeout = "3s" if self.bug and PLANTS[self.bug][1] == "lost" else "60s"
        runs = [("relay",), *(subscription.words for subscription in self.subscriptions)]
        for words in runs:
            done = self.run(*words, "--drain", "--timeout", timeout)
            assert self.bug or done.returncode == 0, done.stderr


# ---- scenarios --------------------------------------------------------------------------------


def consumer_dies(point, nth):
    def scenario(shop):
        shop.relay()
        shop.dies(point, nth, *shop.subscriptions[0].words, *SMALL)
    return scenario


def relay_dies(point, nth):
    def scenario(shop):
        shop.dies(point, nth, "relay", "--drain", "--window", "5")
    return scenario


def relay_starts_over_after_reading(shop):
    """Rows were read, nothing of them was sent, and the connection is lost; then the run goes on."""
    shop.run("relay", "--drain", "--timeout", "3s", "--window", "5", env={"SEMEL_FAILPOINT": "relay.after-claim:error@2"})


PLANTS = {
    "ack-before-commit": (consumer_dies("consume.after-ack", 3), "lost"),
    "mark-before-confirm": (relay_dies("relay.after-mark", 3), "lost"),
    "claim-outside-transaction": (consumer_dies("consume.after-effect", 6), "lost"),
    "new-id-on-retry": (relay_dies("relay.after-confirm", 3), "changed"),
    "high-water-mark": (relay_starts_over_after_reading, "order"),  # the store returns to the skipped rows too late
    "order-ignored-on-hand-over": (consumer_dies("consume.after-receive", 2), "order"),
}


# These need an operator's action in a certain state: tests/model finds them.
BY_MODEL = {
    "follower-left-parked", "replay-runs-the-dead", "prune-without-lock", "verify-trusts-parked", "replay-by-lost-copy",
    "two-replays-win", "from-latest-again", "no-claims-no-letters", "skip-releases-nothing", "order-changed-unchecked",
    "removed-topic-is-settled", "refused-is-published", "head-behind-copies", "new-record-starts-clean", "offset-outlives-broker",
    "removed-rows-unseen", "prune-takes-unpublished",
}


@pytest.fixture(scope="module", autouse=True)
def planted_program():
    if not PLANTED.exists():
        assert "SEMEL_PLANTED" not in os.environ, f"{PLANTED} was not built"
        pytest.skip("semel-planted is not built (try: make planted)")


def play(folder, scenario, bug):
    shop = PlantedShop(folder, bug)
    shop.by_sql("billing")
    shop.load()
    scenario(shop)
    shop.recover()
    return shop


@pytest.mark.parametrize("bug", PLANTS)
def test_the_checker_catches_the_planted_bug(tmp_path, bug):
    scenario, kind = PLANTS[bug]
    found = {problem.kind for problem in play(tmp_path, scenario, bug).problems()}
    assert kind in found, f"{bug} was not caught; found: {found or 'nothing'}"


@pytest.mark.parametrize("bug", PLANTS)
def test_without_the_bug_the_same_scenario_is_clean(tmp_path, bug):
    play(tmp_path, PLANTS[bug][0], "").check_books()


def test_every_bug_that_can_be_planted_is_tried():
    asked = set()
    for source in (TREE / "src").rglob("*.c"):
        asked |= set(re.findall(r'SEMEL_PLANTED\("([^"]+)"\)', source.read_text()))
    assert set(PLANTS) <= asked <= set(PLANTS) | BY_MODEL


def test_the_shipped_program_has_none_of_them():
    shipped, planted = PROGRAM.read_bytes(), PLANTED.read_bytes()
    for bug in (*PLANTS, "SEMEL_PLANT"):
        assert bug.encode() in planted
        assert bug.encode() not in shipped
