# SPDX-License-Identifier: Apache-2.0
"""The graph of the rooms on the page is the one of the code."""
import subprocess
import sys

from helper import SCRIPTS, tree_with

PAGE = """# Architecture
<!-- made by scripts/include-graph --fix: begin -->
<!-- made by scripts/include-graph --fix: end -->
The end.
"""
CODE = {
    "src/base/text.h": "", "src/store/store.h": '#include "base/text.h"\n', "src/store/registry.c": '#include "store/sqlite/driver.h"\n',
    "src/store/sqlite/driver.h": '#include "store/store.h"\n', "src/outbox/outbox.h": '#include "store/store.h"\n#include "base/text.h"\n',
    "src/cli/commands/run.c": '#include "outbox/outbox.h"\n#include "store/store.h"\n#include "cli/command.h"\n', "src/cli/command.h": "",
    "ARCHITECTURE.md": PAGE,
}


def graph(root, *words):
    done = subprocess.run([sys.executable, "-B", SCRIPTS / "include-graph", "--root", root, *words],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_rooms_and_drivers_are_drawn_without_arrows_that_a_longer_path_implies(tmp_path):
    _, output = graph(tree_with(tmp_path, CODE))
    lines = output.splitlines()
    assert "  outbox --> store" in lines and '  store_sqlite["store/sqlite"] --> store' in lines
    assert "  cli --> outbox" in lines and "  cli --> store" not in lines  # there is a path by the outbox
    assert "| cli | outbox, store |" in lines and "| outbox | base, store |" in lines and "| base | – |" in lines


def test_a_registry_which_names_the_drivers_is_left_out(tmp_path):
    assert "| store | base |" in graph(tree_with(tmp_path, CODE))[1]


def test_an_outdated_page_is_found_and_updated(tmp_path):
    root = tree_with(tmp_path, CODE)
    assert graph(root, "--check") == (1, "ARCHITECTURE.md: the include graph is out of date (run scripts/include-graph --fix)\n")
    assert graph(root, "--fix")[0] == 0
    assert graph(root, "--check") == (0, "")
    page = (root / "ARCHITECTURE.md").read_text()
    assert page.startswith("# Architecture\n") and page.endswith("The end.\n") and "outbox --> store" in page
    (root / "src/base/text.h").write_text('#include "store/store.h"\n')
    assert graph(root, "--check")[0] == 1


def test_a_page_without_the_marks_is_a_fault(tmp_path):
    code, output = graph(tree_with(tmp_path, {**CODE, "ARCHITECTURE.md": "# Architecture\n"}), "--check")
    assert code == 1 and "are missing" in output
