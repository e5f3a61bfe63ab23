# SPDX-License-Identifier: Apache-2.0
"""What is true on PostgreSQL alone: roles as the guide gives them, relays that share, and a relay that slept too long."""
import re
import signal
import time
from pathlib import Path

import mix
import pytest
from program import TREE, wait_for

pytestmark = pytest.mark.skipif(mix.STORE != "postgres", reason="of PostgreSQL alone")
ROLES = ("semel_producer", "semel_relay_role", "semel_consumer")
PUBLISH = "SELECT semel_publish('order.created.v1', 'order', ?, '{\"total\": 5}')"


def grants():
    """The block of the guide that begins with the producer's rights."""
    page = Path(TREE, "docs", "postgresql.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.S)
    return next(block for block in blocks if "semel_producer" in block)


def url_of(semel, user):
    return re.sub(r"//[^@]*@", f"//{user}@", str(semel.store))


@pytest.fixture
def shop(semel):
    semel.sql("CREATE TABLE invoice (id text PRIMARY KEY)")
    return semel


def test_the_roles_of_the_guide_are_enough(shop):
    for role in ROLES:
        shop.sql(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    shop.sql(grants())
    shop.sql("GRANT INSERT ON invoice TO semel_consumer")
    producer = url_of(shop, "semel_producer")
    shop.ok("publish", "--type", "order.created.v1", "--aggregate", "order:o1", "--payload", '{"total": 5}',
            env={"SEMEL_STORE": producer})
    connection = mix.connect(mix.Database(producer))
    connection.execute(PUBLISH, ("o2",))
    connection.commit()
    connection.close()
    shop.ok("relay", "--drain", env={"SEMEL_STORE": url_of(shop, "semel_relay_role")})
    shop.ok("consume", "--scope", "billing", "--topic", "order.events", "--drain",
            "--sql", "INSERT INTO invoice VALUES (:aggregate_id)", env={"SEMEL_STORE": url_of(shop, "semel_consumer")})
    assert sorted(shop.sql("SELECT id FROM invoice")) == [("o1",), ("o2",)]


def test_a_password_is_not_shown(semel):
    shown = semel.ok("init", env={"SEMEL_STORE": url_of(semel, "semel:sesame")})
    assert "sesame" not in shown and "***" in shown


def lanes(shop):
    return dict(shop.sql("SELECT owner, count(*) FROM semel_lease WHERE owner <> '' GROUP BY owner"))


def test_two_relays_share_the_lanes_and_one_takes_over_from_the_other(shop):
    first, second = shop.spawn("relay"), shop.spawn("relay")
    wait_for(lambda: sorted(lanes(shop).values()) == [8, 8], 30)
    first.send_signal(signal.SIGKILL)
    first.wait()
    for number in range(50):
        shop.sql(PUBLISH, f"o{number}")
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 30)
    assert second.poll() is None


def test_a_relay_that_was_stopped_for_longer_than_its_lease_marks_nothing(shop):
    stopped = shop.spawn("relay", "--lease", "1s", env={"SEMEL_FAILPOINT": "relay.after-confirm:pause=4000@1"})
    wait_for(lambda: lanes(shop), 30)
    shop.sql(PUBLISH, "o1")
    (before,) = lanes(shop)
    wait_for(lambda: shop.place.log(), 30)  # confirmed, and not marked
    stopped.send_signal(signal.SIGSTOP)
    other = shop.spawn("relay", "--lease", "1s")
    wait_for(lambda: before not in lanes(shop), 30)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 30)
    marked = shop.sql("SELECT published_at FROM semel_outbox")
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: len(lanes(shop)) == 2, 30)  # it came back, and took its share anew
    assert shop.sql("SELECT published_at FROM semel_outbox") == marked
    assert other.poll() is None


def test_a_commit_is_published_at_once(shop):
    shop.spawn("relay")
    wait_for(lambda: lanes(shop), 30)
    for number in range(20):
        shop.sql(PUBLISH, f"o{number}")
        time.sleep(0.05)  # the relay sleeps in between
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 30)
    ((slow,),) = shop.sql("SELECT count(*) FROM semel_outbox WHERE published_at - created_at > interval '500 ms'")
    assert slow <= 2  # polling alone would take a second for each
