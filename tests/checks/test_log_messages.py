# SPDX-License-Identifier: Apache-2.0
"""The page of the log's messages is read from the code, in whatever form a call has its message."""
import subprocess
import sys

import pytest
from helper import SCRIPTS, tree_with

CALL = 'void f(int x)\n{\n\tsemel_log(SEMEL_LOG_WARN, %s, &fields);\n}\n'
ROW = "| the relay polls | warn | `src/a/a.c` |"


def messages(root, *words):
    done = subprocess.run([sys.executable, "-B", SCRIPTS / "log-messages", "--root", root, *words],
                          capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def page_of(folder, text):
    return messages(tree_with(folder, {"src/a/a.c": text}))


@pytest.mark.parametrize("text", [
    CALL % '"the relay polls"',
    CALL % '"the relay "\n\t\t"polls"',
    "static const char *const texts[] = { [1] = \"the relay polls\" };\n" + CALL % "texts[x]",
    'static void report(int a, const char *what)\n{\n\tsemel_log(SEMEL_LOG_WARN, what, &fields);\n}\nvoid g(void)\n{\n\treport(1, "the relay polls");\n}\n',
    'static const struct row rows[] = {\n\t[1] = { SEMEL_LOG_WARN, "the relay polls", "x" },\n};\n'
    "void f(int x)\n{\n\tsemel_log(rows[x].level, rows[x].message, &fields);\n}\n",
    'static int report(const char *what)\n{\n\tsemel_log(SEMEL_LOG_WARN, what, &fields);\n}\nint g(void)\n{\n\treturn report("the relay polls");\n}\n',
])
def test_a_message_is_found_with_its_level_and_file(tmp_path, text):
    code, output = page_of(tmp_path, text)
    assert code == 0 and ROW in output.splitlines()


def test_both_of_two_are_found(tmp_path):
    _, output = page_of(tmp_path, CALL % 'x ? "the relay polls" : "the relay waits"')
    assert ROW in output and ROW.replace("polls", "waits") in output


def test_a_message_that_cannot_be_found_is_a_fault(tmp_path):
    code, output = page_of(tmp_path, CALL % "text_of(x)")
    assert code == 1 and "src/a/a.c:3: the message of the log cannot be found" in output


def test_an_outdated_page_is_found_and_updated(tmp_path):
    root = tree_with(tmp_path, {"src/a/a.c": CALL % '"the relay polls"', "docs/log-messages.md": "old\n"})
    assert messages(root, "--check") == (1, "docs/log-messages.md is out of date (run scripts/log-messages --fix)\n")
    assert messages(root, "--fix")[0] == 0
    assert messages(root, "--check") == (0, "")
    assert ROW in (root / "docs/log-messages.md").read_text()


def test_a_message_that_varies_is_a_fault(tmp_path):
    code, output = page_of(tmp_path, CALL % '"lane %" PRIu64 " is read"')
    assert code == 1 and "src/a/a.c: a message of the log varies" in output


def test_what_varies_is_in_the_detail(tmp_path):
    code, output = page_of(tmp_path, 'void f(int x)\n{\n\tsemel_log_detail(SEMEL_LOG_WARN, "the relay polls", "lane %d", x);\n}\n')
    assert code == 0 and ROW in output.splitlines()
