# SPDX-License-Identifier: Apache-2.0
"""The files of SQLite and the local broker, deleted, replaced or restored under running relays and consumers."""
import json
import os
import shlex
import signal

import pytest
from program import wait_for
from story import HANDLER, prepare, publish, words

pytestmark = [pytest.mark.anywhere, pytest.mark.only("sqlite"), pytest.mark.only("local")]


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


def consumer(*more):
    return ("consume", "--scope", "billing", "--topic", "order.events", "--sql", HANDLER.format(scope="billing"), "--lease", "500ms", *more)


def start_both(shop):
    relay = shop.spawn("relay", env={"SEMEL_LOG_LEVEL": "warn"})
    billing = shop.spawn(*consumer(), env={"SEMEL_LOG_LEVEL": "warn"})
    publish(shop, "hello", "0")
    wait_for(lambda: "hello" in words(shop), what="the first effect")
    return relay, billing


def files_of(path):
    return [path.with_name(path.name + end) for end in ("", "-wal", "-shm") if path.with_name(path.name + end).exists()]


def replace(path, copy=None):
    """As an operator does it under running processes: with the backup, or with nothing."""
    for file in files_of(path):
        file.unlink()
    if copy:
        os.rename(copy, path)


def backup(shop, path):
    copy = shop.folder / "backup.db"
    shop.sql(f"VACUUM INTO '{copy}'", database=path)
    return copy


def verify(shop, code=0):
    done = shop.run("verify", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def apply_remedy(shop):
    """Runs the command that verify prints for missing events."""
    (command,) = [each["command"] for each in verify(shop, 1)["advice"] if each["problem"] == "missing"]
    return shop.ok(*shlex.split(command)[1:])


def missing(shop):
    (scope,) = verify(shop, 1)["scopes"]
    return scope["missingIds"]


def stop(shop, *children):
    """Returns their logs."""
    for child in children:
        assert shop.stop(child) == 0, shop.outputs()
    return [child.stderr.read() for child in children]


@pytest.mark.parametrize("restored", [False, True], ids=["deleted", "restored"])
def test_the_brokers_file_is_replaced_and_its_events_are_recovered(shop, restored):
    relay, billing = start_both(shop)
    copy = backup(shop, shop.broker) if restored else None
    shop.freeze(billing)
    lost = publish(shop, "lost", "1")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", lost), what="its mark")
    replace(shop.broker, copy)
    publish(shop, "second", "2")
    billing.send_signal(signal.SIGCONT)
    wait_for(lambda: "second" in words(shop), what="an event through the new file")
    assert all("was deleted or replaced" in log for log in stop(shop, relay, billing))
    assert missing(shop) == [lost]
    apply_remedy(shop)
    shop.ok(*consumer("--drain"))
    assert words(shop) == ["hello", "second", "lost"]
    verify(shop)


def test_the_store_is_restored_to_an_earlier_time_and_has_every_effect_once(shop):
    relay, billing = start_both(shop)
    shop.freeze(billing)
    undone = publish(shop, "undone", "1")
    wait_for(lambda: shop.sql("SELECT 1 FROM semel_outbox WHERE id = ? AND status = 'PUBLISHED'", undone), what="its mark")
    copy = backup(shop, shop.store)
    billing.send_signal(signal.SIGCONT)
    wait_for(lambda: "undone" in words(shop))
    replace(shop.store, copy)
    assert words(shop) == ["hello"]
    publish(shop, "second", "2")
    wait_for(lambda: "second" in words(shop), what="an event of the restored file")
    assert all("was deleted or replaced" in log for log in stop(shop, relay, billing))
    assert missing(shop) == [undone]
    apply_remedy(shop)
    shop.ok(*consumer("--drain"))
    assert sorted(words(shop)) == ["hello", "second", "undone"]
    verify(shop)
