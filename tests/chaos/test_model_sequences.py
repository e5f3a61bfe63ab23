# SPDX-License-Identifier: Apache-2.0
"""The sequences of tests/model, by chance from a seed, on the real program and any mix of store and broker: slower, on the
machine's clock, and without what only a test's own disk can do (time that passes, copies that are lost, files that are put
back). They are judged as a walk is (test_walk.py)."""
import json
import os
import subprocess

import pytest
from program import TREE
from test_walk import AGGREGATES, SCOPES, SHAPES, WINDOWS, Walk

MODEL = os.path.join(os.environ.get("SEMEL_BUILD", TREE / "build-test"), "tests", "semel_model")
SEEDS = [int(word) for word in os.environ.get("SEMEL_MODEL_SEEDS", "11 12 13 14").split()]
LENGTH = os.environ.get("SEMEL_MODEL_STEPS", "25")
NAMES = list(SCOPES)

pytestmark = [
    pytest.mark.anywhere,
    pytest.mark.skipif(not os.path.exists(MODEL), reason="semel_model is not built (scripts/test model-servers does)"),
]


def sequence_of(seed):
    words = [MODEL, "--kind", "print", "--seed", str(seed), "--steps", LENGTH]
    return [json.loads(line) for line in subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()]


class ModelWalk(Walk):
    """The steps come from the model, and nothing is left to chance but where within a window it dies."""

    def window(self, step, kind):
        if step["fault"] == "none":
            return None
        return step["at"] if step["at"] in WINDOWS[kind] else WINDOWS[kind][step["number"] % len(WINDOWS[kind])]

    def nth_letter(self, step):
        entries = self.letters("--status", "PENDING")
        return entries[step["a"]] if step["a"] < len(entries) else None

    def selected(self, step):
        words = ["--aggregate", AGGREGATES[step["b"] % 3 - 1]] if step["b"] % 3 else []
        return words + (["--max", "1"] if step["c"] % 2 else [])

    def do_publish(self, step):
        payload = json.dumps({"poison": step["b"] % 3 > 0})
        self.ids.append(self.semel.publish("--payload", payload, aggregate=AGGREGATES[step["a"] % 2]))
        self.path.append(f"semel publish --aggregate {AGGREGATES[step['a'] % 2]} --payload '{payload}'  # {self.ids[-1]}")

    def do_relay(self, step):
        self.run("relay", "--drain", kill=self.window(step, "relay"))

    def do_consume(self, step):
        self.drain(NAMES[step["a"] % 2], self.window(step, "consume"))

    def do_verdict(self, step):
        if self.ids and step["b"] % 3 == 0:
            self.cure_one(self.ids[step["a"] % len(self.ids)])

    def do_dlq_replay(self, step):
        entry = self.nth_letter(step)
        if entry:
            self.asked[entry["sourceService"]][entry["originalEventId"]] += 1
            self.run("dlq", "replay", entry["dlqEntryId"], kill=self.window(step, "dlq"))

    def do_dlq_discard(self, step):
        entry = self.nth_letter(step)
        if entry:
            self.given_up[entry["sourceService"]].add(entry["originalEventId"])
            self.run("dlq", "discard", entry["dlqEntryId"])

    def do_replay(self, step):
        scope = ["--scope", NAMES[step["a"] % 3 - 1]] if step["a"] % 3 else []
        self.run("replay", *self.selected(step), *scope, kill=self.window(step, "replay"))

    def do_reprocess(self, step):
        scope = NAMES[step["a"] % 2]
        self.asked[scope].update(self.ids)
        self.run("replay", *self.selected(step), "--scope", scope, "--reprocess", kill=self.window(step, "replay"))

    def do_prune(self, _step):
        self.prune()

    def do_pause(self, step):
        scope = NAMES[step["a"] % 2]
        self.run("subscriptions", "resume" if scope in self.paused else "pause", scope)
        self.paused ^= {scope}

    def do_lose(self, _step):
        self.lose_copies()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sequence_of_the_model_can_be_brought_to_an_end(tmp_path, seed):
    walk = ModelWalk(tmp_path, list(SHAPES)[seed % len(SHAPES)], seed)
    try:
        for step in sequence_of(seed):
            do = getattr(walk, "do_" + step["step"].replace("-", "_"), None)
            if do:
                do(step)
        walk.bring_to_an_end()
        walk.heal()
        walk.bring_to_an_end()  # what was healed may have failed once more
        walk.check()
    finally:
        walk.semel.close()
