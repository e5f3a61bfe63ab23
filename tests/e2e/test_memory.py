# SPDX-License-Identifier: Apache-2.0
"""Memory is bounded by a batch, not by what is handed over."""
import json
import os
import subprocess

from program import PROGRAM

MIB = 1024 * 1024


def peak_bytes(semel, words, text):
    """Resident memory at its highest, of a run that must succeed."""
    with open(semel.folder / "input", "w", encoding="utf-8") as file:
        file.write(text)
    with open(semel.folder / "input", encoding="utf-8") as file:
        child = subprocess.Popen([PROGRAM, *words], cwd=semel.folder, env=semel.environment(), stdin=file,
                                 stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss * 1024


def test_a_large_batch_needs_little_memory(semel):
    def lines(count):
        event = {"type": "t.v1", "aggregateType": "a", "payload": {"fill": "x" * 1000}}
        return "".join(json.dumps({**event, "aggregateId": str(number)}) + "\n" for number in range(count))

    little = peak_bytes(semel, ["publish", "--batch"], lines(1000))
    much = peak_bytes(semel, ["publish", "--batch"], lines(40000))
    assert much - little < 8 * MIB
