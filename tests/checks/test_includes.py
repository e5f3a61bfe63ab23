# SPDX-License-Identifier: Apache-2.0
"""The table of rooms in ARCHITECTURE.md, tried row by row."""
import pytest

from helper import run_check, tree_with

CONTRACT = "/* To change here: nothing. */\n"

ALLOWED = [
    ("src/base/url.c", '"base/text.h"'),
    ("src/base/url.c", "<semel/status.h>"),
    ("src/observe/log.c", '"base/text.h"'),
    ("src/event/event.c", '"observe/log.h"'),
    ("src/store/store.h", '"event/event.h"'),
    ("src/guard/guard.h", '"store/store.h"'),
    ("src/store/registry.c", '"store/sqlite/sqlite.h"'),
    ("src/store/sqlite/outbox.c", '"store/sqlite/sqlite.h"'),
    ("src/store/sqlite/outbox.c", '"store/store.h"'),
    ("src/store/sqlite/outbox.c", "<sqlite3.h>"),
    ("src/guard/inbox/inbox.c", '"store/store.h"'),
    ("src/relay/pipeline.c", '"outbox/outbox.h"'),
    ("src/consume/batch.c", '"guard/guard.h"'),
    ("src/cli/commands/relay.c", '"broker/broker.h"'),
    ("src/cli/plays/drill/target.c", '"store/trial.h"'),
    ("src/broker/local/local.c", '"base/sqlite_file.h"'),
    ("include/semel/relay.h", "<semel/status.h>"),
    ("include/semel/relay.h", "<stdint.h>"),
    ("examples/producer.c", "<sqlite3.h>"),
    ("tests/unit/base/test_url.c", '"consume/retry.h"'),
]

FORBIDDEN = [
    ("src/base/url.c", '"event/event.h"'),
    ("src/base/url.c", "<semel/event.h>"),
    ("src/observe/log.c", '"event/event.h"'),
    ("src/event/event.c", '"store/store.h"'),
    ("src/store/store.h", '"broker/broker.h"'),
    ("src/store/store.h", '"guard/guard.h"'),
    ("src/store/other.c", '"store/sqlite/sqlite.h"'),
    ("src/store/sqlite/outbox.c", '"store/postgres/postgres.h"'),
    ("src/store/sqlite/outbox.c", '"broker/broker.h"'),
    ("src/store/sqlite/outbox.c", '"relay/lanes.h"'),
    ("src/broker/local/local.c", '"store/store.h"'),
    ("src/relay/pipeline.c", '"store/sqlite/sqlite.h"'),
    ("src/relay/pipeline.c", '"consume/retry.h"'),
    ("src/relay/pipeline.c", "<sqlite3.h>"),
    ("src/proof/verify.c", '"outbox/outbox.h"'),
    ("src/deadletter/replay.c", '"cli/arguments/options.h"'),
    ("src/cli/commands/relay.c", '"broker/local/local.h"'),
    ("src/cli/plays/shop/shop.c", '"store/postgres/postgres.h"'),
    ("src/cli/plays/shop/shop.c", "<libpq-fe.h>"),
    ("src/cli/main.c", "<sqlite3.h>"),
    ("src/cli/main.c", '"base/sqlite_file.h"'),
    ("src/consume/batch.c", "<yaml.h>"),
    ("src/newroom/x.c", '"relay/lanes.h"'),
    ("include/semel/relay.h", '"base/text.h"'),
    ("include/semel/relay.h", "<sqlite3.h>"),
    ("examples/producer.c", '"base/text.h"'),
]


@pytest.mark.parametrize("path, target", ALLOWED)
def test_includes_along_the_direction_pass(tmp_path, path, target):
    code, output = run_check("includes", tree_with(tmp_path, {path: f"#include {target}\n{CONTRACT}"}))
    assert code == 0, output


@pytest.mark.parametrize("path, target", FORBIDDEN)
def test_includes_against_the_direction_are_named(tmp_path, path, target):
    code, output = run_check("includes", tree_with(tmp_path, {path: f"\n#include {target}\n"}))
    assert code == 1 and f"{path}:2:" in output


@pytest.mark.parametrize(
    "path, call",
    [
        ("src/relay/lanes.c", "time(NULL)"),
        ("src/consume/retry.c", "getrandom(&x, sizeof x, 0)"),
        ("src/store/sqlite/open.c", "usleep(1)"),
        ("src/base/arena.c", "abort()"),
        ("src/relay/relay.c", "exit(1)"),
    ],
)
def test_calls_that_belong_to_other_rooms_are_named(tmp_path, path, call):
    text = f"void f(void)\n{{\n\t{call};\n}}\n"
    code, output = run_check("includes", tree_with(tmp_path, {path: text}))
    assert code == 1 and f"{path}:3:" in output


@pytest.mark.parametrize(
    "path, text",
    [
        ("src/base/env.c", "clock_gettime(CLOCK_MONOTONIC, &now)"),
        ("src/cli/main.c", "exit(64)"),
        ("src/relay/relay.c", "/* time() */ env->random(env->user)"),
        ("src/relay/relay.c", 'log("exit(1)"), (void)row.time'),
    ],
)
def test_other_calls_pass(tmp_path, path, text):
    files = {path: f"void f(void)\n{{\n\t{text};\n}}\n{CONTRACT}"}
    code, output = run_check("includes", tree_with(tmp_path, files))
    assert code == 0, output


def test_a_room_whose_comments_do_not_say_what_may_be_changed_is_named(tmp_path):
    files = {"src/relay/relay.h": CONTRACT, "src/relay/lanes.c": "", "src/store/sqlite/open.c": "", "src/store/store.h": CONTRACT}
    code, output = run_check("includes", tree_with(tmp_path, files))
    assert code == 1 and "src/store/sqlite: " in output
    assert "src/relay: " not in output and "src/store: " not in output
