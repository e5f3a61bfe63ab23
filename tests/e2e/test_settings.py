# SPDX-License-Identifier: Apache-2.0
"""The config file gives a command its defaults; the command line takes precedence."""
import json

import pytest

from mix import SERIAL

pytestmark = pytest.mark.anywhere

CONFIG = """
relay: { window: 7 }
subscriptions:
  - scope: billing
    topics: [order.events]
    sql: "INSERT INTO invoice (order_id) VALUES (:aggregate_id)"
    handler-version: "3"
  - scope: audit
    topics: [order.events]
    sql: ["INSERT INTO audit (note) VALUES ('a' || :id)", "INSERT INTO audit (note) VALUES ('b' || :id)"]
    upcasters:
      - { from: order.created.v1, to: order.created.v2, sql: "json_set(:payload, '$.version', 2)" }
"""


@pytest.fixture
def shop(semel):
    (semel.folder / "semel.yaml").write_text(CONFIG)
    semel.sql("CREATE TABLE invoice (order_id TEXT)")
    semel.sql(f"CREATE TABLE audit (number {SERIAL}, note TEXT)")
    semel.publish(aggregate="order:a")
    semel.ok("--config", "semel.yaml", "relay", "--drain")
    return semel


@pytest.mark.core
def test_a_subscription_of_the_config_needs_only_its_scope(shop):
    assert shop.ok("--config", "semel.yaml", "consume", "--scope", "billing", "--drain").startswith("done 1, duplicate 0")
    assert shop.sql("SELECT order_id FROM invoice") == [("a",)]
    assert shop.sql("SELECT handler_version FROM semel_inbox") == [("3",)]


def test_a_list_of_statements_runs_in_order(shop):
    shop.ok("consume", "--scope", "audit", "--drain", env={"SEMEL_CONFIG": "semel.yaml"})
    assert [note[0] for (note,) in shop.sql("SELECT note FROM audit ORDER BY number")] == ["a", "b"]


def test_the_command_line_takes_precedence_over_the_config(shop):
    done = shop.run("--config", "semel.yaml", "consume", "--scope", "audit", "--print", "--drain", check=True)
    (envelope,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert envelope["payload"] == {"version": 2}
    assert shop.sql("SELECT count(*) FROM audit") == [(0,)]
    assert "done 1" in done.stderr


def test_a_scope_that_is_not_in_the_config_needs_all_options(shop):
    assert "--topic" in shop.fails(64, "--config", "semel.yaml", "consume", "--scope", "other", "--print", "--drain")
