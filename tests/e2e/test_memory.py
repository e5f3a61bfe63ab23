# SPDX-License-Identifier: Apache-2.0
"""Memory is bounded by a batch, not by what is handed over."""
import json
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
