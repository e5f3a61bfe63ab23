# SPDX-License-Identifier: Apache-2.0
"""What people do to the outbox, the publication and the slot while a relay reads the change stream, or between two of them."""
import signal

import mix
import pytest
from program import wait_for
from stream import PATIENCE, Outbox

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]


@pytest.fixture
def stream(semel):
    stream = Outbox(semel)
    stream.init()
    with stream.ended():
        yield stream


def log_end(stream):
    return stream.semel.sql("SELECT pg_current_wal_insert_lsn()::text")[0][0]


def is_settled(stream, position):
    """What was committed up to there is settled, and the slot knows it."""
    return stream.semel.sql(f"SELECT confirmed_flush_lsn >= '{position}' FROM pg_replication_slots WHERE slot_name = ?",
                            stream.slot)[0][0]


# ---- rows that are gone ----------------------------------------------------------------------------------


def test_a_row_that_is_deleted_before_its_mark_holds_nothing_up(stream):
    relay = stream.start()
    stream.wait_until_read()
    relay.send_signal(signal.SIGSTOP)
    stream.insert(1, "gone")
    stream.semel.sql("DELETE FROM semel_outbox")
    both = mix.connect(stream.semel.store)
    stream.insert(1, "brief", 1, both)
    both.execute("DELETE FROM semel_outbox")
    both.commit()
    both.close()
    stream.insert(3)
    end = log_end(stream)
    relay.send_signal(signal.SIGCONT)
    wait_for(lambda: stream.waiting() == 0, PATIENCE / 2, "the marks")
    wait_for(lambda: is_settled(stream, end), PATIENCE / 2, "the slot to move on")
    assert "were deleted from the outbox" in relay.log()
    assert stream.semel.stop(relay) == 0
    assert stream.arrived() == {"gone": [1], "brief": [1], "a": [1, 2, 3]}
