# SPDX-License-Identifier: Apache-2.0
"""A RabbitMQ whose disk is put back to an earlier time under relays and consumers that run: what it had confirmed since is
lost, what was acked since is there again. On request."""
import json
import shlex
import shutil
import subprocess

import pytest
from workload import LEASE, RETRIES, at, attached_to, effects, read_log, spawn_logged
from program import wait_for
from rabbitmq_server import RabbitMQ
from servers import Servers
from shop import Shop

pytestmark = [pytest.mark.only("postgres"), pytest.mark.only("rabbitmq"), pytest.mark.slow]


@pytest.fixture
def node(sandbox):
    started = RabbitMQ(sandbox).start()
    yield started
    started.close()


@pytest.fixture
def shop(sandbox, node, tmp_path):
    with attached_to(at(Servers(sandbox, ["postgres"]), rabbitmq=node.endpoints())):
        fresh = Shop(tmp_path)
        fresh.by_sql("billing", *LEASE, *RETRIES)
        yield fresh
        fresh.close()


def copy(source, target):
    """With owners and modes."""
    subprocess.run(["cp", "-a", source, target], check=True)


def verify(shop, code):
    done = shop.run("verify", "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_broker_that_is_restored_to_an_earlier_time_is_brought_up_by_what_verify_prints(shop, node):
    disk, backup = node.folder / "mnesia", node.folder / "backup"
    relay = spawn_logged(shop, "relay", *LEASE, *RETRIES, "--attempts", "1000")
    billing = spawn_logged(shop, *shop.subscriptions[0].words)
    shop.load(aggregates=5, each=2)
    wait_for(lambda: effects(shop) == 10, 60, "both at work")
    assert shop.stop(billing) == 0
    shop.load(aggregates=5, each=1)  # in the backup, and acked after it
    shop.relay()
    node.stop()
    copy(disk, backup)
    node.start()
    billing = spawn_logged(shop, *shop.subscriptions[0].words)
    wait_for(lambda: effects(shop) == 15, 60, "what is in the backup")
    assert shop.stop(billing) == 0
    shop.load(aggregates=3, each=1)  # confirmed after the backup, and not consumed before it is back
    shop.relay()
    node.kill()
    shutil.rmtree(disk)
    copy(backup, disk)
    node.start()
    billing = spawn_logged(shop, *shop.subscriptions[0].words)
    shop.load(aggregates=5, each=1)
    wait_for(lambda: effects(shop) == 20, 120, "new events, while what came twice is skipped")
    assert shop.stop(billing) == 0, read_log(shop)
    report = verify(shop, 1)
    assert [scope["missing"] for scope in report["scopes"]] == [3]
    (command,) = [each["command"] for each in report["advice"] if each["problem"] == "missing"]
    shop.ok(*shlex.split(command)[1:])
    assert shop.stop(relay) == 0, read_log(shop)
    shop.consume(shop.subscriptions[0])
    assert effects(shop) == 23 and shop.dead_letters() == 0
    verify(shop, 0)
