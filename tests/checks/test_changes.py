# SPDX-License-Identifier: Apache-2.0
"""A row of docs/changes.md without a test that exists is found."""
import pytest

from helper import SCRIPTS, run_check, tree_with

HEAD = "# Changes\n\n| changed | happens | does | says | test |\n|---|---|---|---|---|\n"
TESTS = {"tests/e2e/test_a.py": "def test_b():\n    pass\n", "tests/contract/c.c": "static void keeps(void **state)\n"}


def checked(folder, *rows):
    return run_check("changes", tree_with(folder, {**TESTS, "docs/changes.md": HEAD + "\n".join(rows) + "\n"}))


def test_rows_with_tests_pass(tmp_path):
    code, output = checked(tmp_path, "| a | b | c | d | `e2e/test_a.py::test_b` |", "| a \\| b | b | c | d | `contract/c.c::keeps` |")
    assert code == 0 and "2 rows, 0 faults" in output


def test_a_test_that_is_not_there_is_named_with_its_line(tmp_path):
    code, output = checked(tmp_path, "| a | b | c | d | `e2e/test_a.py::test_b`, `e2e/test_a.py::test_c` |")
    assert code == 1 and "docs/changes.md:5: a: there is no test tests/e2e/test_a.py::test_c" in output


def test_a_row_without_a_test_is_named(tmp_path):
    code, output = checked(tmp_path, "| a | b | c | d | later |")
    assert code == 1 and "no test" in output


def test_an_empty_cell_is_named(tmp_path):
    code, output = checked(tmp_path, "| a | b |  | d | `e2e/test_a.py::test_b` |")
    assert code == 1 and "none of them empty" in output


PAGE = (SCRIPTS.parent / "docs" / "changes.md").read_text(encoding="utf-8")
SETTINGS = ["partitions", "--delay-max", "--scope", "--topic", "prefix", "--window", "--marks", "--slot", "lanes", "--from", "--order",
            "--guarantee", "--claim", "--poison", "retention", "--bind", "--attempts", "offsets"]
OBJECTS = ["RabbitMQ queue", "RabbitMQ exchange", "RabbitMQ binding", "RabbitMQ node", "Kafka topic", "group", "slot", "publication",
           "schema", "partition", "restored to an earlier time", "made anew", "renamed", "grown"]


def subjects(title):
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(line.split(" | ")[0] for line in part.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("title, word", [("Settings", word) for word in SETTINGS] + [("Objects", word) for word in OBJECTS])
def test_the_page_has_a_row_for_every_setting_and_every_object(title, word):
    assert word in subjects(title)
