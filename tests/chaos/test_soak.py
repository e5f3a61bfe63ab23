# SPDX-License-Identifier: Apache-2.0
"""A short soak; `make soak` makes it a long one."""
import os
import random

import pytest
from soak import soak

pytestmark = [pytest.mark.anywhere, pytest.mark.core]

SECONDS = float(os.environ.get("SEMEL_SOAK_SECONDS", "25"))


def test_whatever_is_killed_or_stopped_nothing_is_lost_or_doubled(tmp_path):
    seed = int(os.environ.get("SEMEL_SOAK_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"to see it again: tests/chaos/soak.py --seconds {SECONDS:g} --seed {seed}")
    found, happened = soak(tmp_path, SECONDS, seed)
    print(happened)
    assert not found, "\n".join(found)
