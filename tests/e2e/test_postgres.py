# SPDX-License-Identifier: Apache-2.0
"""Only on PostgreSQL: relays that share the lanes, a relay that is suspended for too long, settings of the database."""
import json
import re
import shutil
import signal
import subprocess
import urllib.request

import mix
import pytest
from program import wait_for

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres")]
PUBLISH = "SELECT semel_publish('order.created.v1', 'order', ?, '{\"total\": 5}')"


def url_of(semel, user):
    return re.sub(r"//[^@]*@", f"//{user}@", str(semel.store))


@pytest.fixture
def shop(semel):
    semel.sql("CREATE TABLE invoice (id text PRIMARY KEY)")
    semel.backend.witness("order.events")
    return semel


@pytest.mark.parametrize("column", ["aggregate_type", "aggregate_id"])
def test_a_name_that_no_index_can_hold_is_refused_where_it_is_written(shop, column):
    row = {"aggregate_type": "order", "aggregate_id": "1", column: "n" * 1025}
    with pytest.raises(mix.REFUSED, match=f"{column} must not be longer than 1024 bytes"):
        shop.sql("INSERT INTO semel_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES (?, ?, 'a.v1', '{}')", *row.values())


def test_a_password_is_not_shown(semel):
    shown = semel.ok("init", env={"SEMEL_STORE": url_of(semel, "semel:sesame")})
    assert "sesame" not in shown and "***" in shown
    for password in ("ses#ame", "ses%23ame", "ses%3Fame", "ses%40ame", "ses%2Fame"):
        shown = semel.ok("init", env={"SEMEL_STORE": url_of(semel, f"semel:{password}")})
        assert "ame" not in shown.replace("name", "") and "***" in shown
    for password in ("ses?ame", "ses@ame", "ses/ame"):  # libpq would use the rest as host or database, and print it
        shown = semel.fails(78, "init", env={"SEMEL_STORE": url_of(semel, f"semel:{password}")})
        assert "ses" not in shown.replace("password", "").replace("parses", "") and "%40 for @" in shown


def lanes(shop):
    return dict(shop.sql("SELECT owner, count(*) FROM semel_lease WHERE owner <> '' GROUP BY owner"))


def test_two_relays_share_the_lanes_and_one_takes_over_from_the_other(shop):
    first, second = shop.spawn("relay"), shop.spawn("relay")
    wait_for(lambda: sorted(lanes(shop).values()) == [8, 8], 60)
    first.send_signal(signal.SIGKILL)
    first.wait()
    for number in range(50):
        shop.sql(PUBLISH, f"o{number}")
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 60)
    assert second.poll() is None


def test_a_relay_that_was_stopped_for_longer_than_its_lease_marks_nothing(shop):
    stopped = shop.spawn("relay", "--lease", "1s", env={"SEMEL_FAILPOINT": "relay.after-confirm:pause=4000@1"})
    wait_for(lambda: lanes(shop), 60)
    shop.backend.witness("order.events")
    shop.sql(PUBLISH, "o1")
    (before,) = lanes(shop)
    wait_for(lambda: shop.backend.log(), 60)  # confirmed, and not marked
    stopped.send_signal(signal.SIGSTOP)
    other = shop.spawn("relay", "--lease", "1s")
    wait_for(lambda: before not in lanes(shop), 60)
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 60)
    marked = shop.sql("SELECT published_at FROM semel_outbox")
    stopped.send_signal(signal.SIGCONT)
    wait_for(lambda: len(lanes(shop)) == 2, 60)  # it was resumed, and acquired its share again
    assert shop.sql("SELECT published_at FROM semel_outbox") == marked
    assert other.poll() is None


def test_a_commit_is_published_at_once(shop):
    """The relay polls only every ten minutes here: it publishes because the commit wakes it."""
    shop.spawn("relay", "--poll", "10m")
    wait_for(lambda: lanes(shop), 60)
    for number in range(20):
        shop.sql(PUBLISH, f"o{number}")
        wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 60)


def test_marks_touch_no_index(shop):
    """HOT updates, as the server counts them. The test waits for the relay: a page has room for the new versions of
    some of its rows at a time, and gets it back when these are marked."""
    shop.spawn("relay")
    wait_for(lambda: lanes(shop), 60)
    connection = mix.connect(shop.store)
    for number in range(300):
        connection.execute("SELECT semel_publish('order.created.v1', 'order', ?, ?)", (f"o{number % 50}", "x" * 300))
        connection.commit()
        if number % 3 == 2:
            wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 60)
    connection.close()

    def counted():
        ((changed, hot),) = shop.sql("SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'semel_outbox'")
        return (changed, hot) if changed >= 300 else None
    changed, hot = wait_for(counted, 60)
    assert hot >= 0.8 * changed


def test_settings_of_the_database_change_nothing(semel):
    """Whatever is set for the database, every event is processed once and unchanged."""
    name = str(semel.store).rpartition("/")[2]
    for setting in ("default_transaction_isolation = 'serializable'", "DateStyle = 'German'", "TimeZone = 'Pacific/Apia'",
                    "IntervalStyle = 'sql_standard'", "standard_conforming_strings = off", "bytea_output = 'escape'",
                    "client_encoding = 'LATIN1'", "extra_float_digits = 0", "array_nulls = off"):
        semel.sql(f"ALTER DATABASE {name} SET {setting}")
    semel.sql("CREATE TABLE invoice (id text PRIMARY KEY, payload text, at timestamptz)")
    payload = '{"word": "naïve \\\\ \' café"}'
    moment = "2026-11-15T12:00:00Z"
    semel.ok("publish", "--type", "t.v1", "--aggregate", "order:o1", "--payload", payload, "--time", moment)
    bytes_file = semel.folder / "bytes"
    bytes_file.write_bytes(b"\x00\xff\\x")
    semel.ok("publish", "--type", "t.v1", "--aggregate", "order:o2", "--payload", f"@{bytes_file}", "--content-type", "image/png")
    semel.ok("relay", "--drain")
    consume = ("consume", "--scope", "billing", "--topic", "order.events", "--drain", "--sql",
               "INSERT INTO invoice VALUES (:aggregate_id, encode(convert_to('it''s ', 'UTF8'), 'escape') || :type, :time::timestamptz)")
    semel.ok(*consume)
    semel.ok(*consume)
    assert semel.sql("SELECT payload FROM semel_outbox WHERE aggregate_id = 'o1'") == [(payload,)]
    assert semel.sql("SELECT encode(payload_bytes, 'hex') FROM semel_outbox WHERE aggregate_id = 'o2'") == [("00ff5c78",)]
    assert semel.sql(f"SELECT id, payload FROM invoice WHERE at = '{moment}'") == [("o1", "it's t.v1")]
    assert semel.sql("SELECT count(*) FROM invoice") == [(2,)]
    semel.ok("verify", "--scope", "billing")


def test_a_policy_that_hides_rows_from_the_relay_is_an_error_and_not_a_loss(shop):
    role = "policed_" + str(shop.store).rpartition("/")[2].split("?")[0]
    shop.sql(f"CREATE ROLE {role} LOGIN; GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT SELECT ON semel_outbox_seq TO {role}")
    shop.sql("ALTER TABLE semel_outbox ENABLE ROW LEVEL SECURITY")
    shop.sql("CREATE POLICY own ON semel_outbox USING (aggregate_id = 'none')")
    shop.publish()
    complaint = shop.fails(78, "relay", "--drain", env={"SEMEL_STORE": url_of(shop, role)})
    shop.sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert "row-level security" in complaint


def test_a_database_that_cannot_hold_every_event_is_refused(semel):
    name = str(semel.store).rpartition("/")[2] + "_latin"
    mix.run_autocommit(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
    try:
        complaint = semel.fails(78, "init", env={"SEMEL_STORE": re.sub(r"/[^/]*$", f"/{name}", str(semel.store))})
        assert "LATIN1" in complaint and "UTF8" in complaint
    finally:
        mix.run_autocommit(f"DROP DATABASE {name}")


def test_a_transaction_that_is_open_for_long_is_named_in_the_log(shop):
    """It holds the watermark back: the relay cannot pass a number that the transaction may have drawn."""
    log = shop.folder / "log"
    with open(log, "wb") as output:
        shop.spawn("relay", stdout=output, stderr=output)
    old = mix.connect(shop.store)
    ((pid, _),) = old.execute("SELECT pg_backend_pid(), pg_current_xact_id()::text").fetchall()

    def is_named():
        shop.sql(PUBLISH, "o1")
        return re.search(rf"waiting for \d+ s: pid {pid}, .* query since 20\d\d-\S+Z", log.read_text())
    wait_for(is_named, 150, "its name")  # logged once a minute: at first another process may have the oldest
    old.close()
    wait_for(lambda: shop.sql("SELECT count(*) FROM semel_outbox WHERE status = 'NEW'") == [(0,)], 60)


HOUR_AHEAD = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t id, struct timespec *time)
{
	int (*real)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	int done = real(id, time);
	if (id == CLOCK_REALTIME)
		time->tv_sec += 3600;
	return done;
}
"""


def test_relays_whose_clocks_differ_share_the_lanes_and_keep_them(shop, tmp_path):
    """By the clock that is ahead every lease of the other relay would have expired."""
    if not shutil.which("cc"):
        pytest.skip("cc: not installed")
    library = tmp_path / "hour_ahead.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", library, "-", "-ldl"], input=HOUR_AHEAD, text=True, check=True)
    right, ahead = shop.spawn("relay"), shop.spawn("relay", env={"LD_PRELOAD": str(library)})
    wait_for(lambda: sorted(lanes(shop).values()) == [8, 8], 60)

    def epochs():
        return shop.sql("SELECT sum(epoch) FROM semel_lease")[0][0]

    def renewals():
        return shop.sql("SELECT min(xmin::text::bigint) FROM semel_relay")[0][0]
    before = epochs()
    for _ in range(4):  # both relays have renewed their leases again
        seen = renewals()
        wait_for(lambda last=seen: renewals() > last, 60)
    assert epochs() == before and sorted(lanes(shop).values()) == [8, 8]
    assert right.poll() is None and ahead.poll() is None


def test_the_admin_server_answers_after_its_connections_were_cut(shop):
    child = shop.spawn("serve", "--listen", "127.0.0.1:0")
    url = child.stdout.readline().split()[2]

    def count():
        with urllib.request.urlopen(f"{url}/api/admin/dlq/count", timeout=30) as answer:
            return json.load(answer)

    assert count() == {"count": 0}
    shop.sql("SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"  # and waited for: not in the middle of an answer
             " WHERE datname = current_database() AND pid <> pg_backend_pid()")
    assert count() == {"count": 0}
