# SPDX-License-Identifier: Apache-2.0
"""Memory is bounded by the size of a batch, not by the size of the input."""
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MIB = 1024 * 1024


def peak_bytes(child):
    status = Path(f"/proc/{child.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024


def test_a_large_batch_needs_little_memory(semel):
    def peak_of(count):
        child = semel.spawn("publish", "--batch", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        event = {"type": "t.v1", "aggregateType": "a", "payload": {"fill": "x" * 1000}}
        for number in range(count):
            child.stdin.write(json.dumps({**event, "aggregateId": str(number)}) + "\n")
        child.stdin.flush()  # all but the last pipeful has been read now
        peak = peak_bytes(child)
        child.stdin.close()
        assert child.wait(60) == 0
        return peak

    little, much = peak_of(5000), peak_of(40000)
    assert much - little < 4 * MIB


def test_a_claim_maps_no_memory_of_its_own(semel):
    """In batches of 100 the heap has no room for 20 pages of SQLite: they were mapped, and touched, for each event."""
    events = 2000
    event = {"type": "t.v1", "aggregateType": "a", "payload": {"fill": "x" * 200}}
    lines = "\n".join(json.dumps({**event, "aggregateId": str(number % 100)}) for number in range(events))
    semel.run("publish", "--batch", input=lines, check=True)
    semel.run("relay", "--drain", check=True)
    child = semel.spawn("consume", "--scope", "s", "--topic", "a.events", "--sql", "SELECT 1", "--batch", "100", "--drain",
                        stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    assert used.ru_minflt < 4 * events
