# SPDX-License-Identifier: Apache-2.0
"""A row of docs/changes.md or docs/threat-model.md without a test that exists is found."""
import pytest

from helper import SCRIPTS, run_check, tree_with

COLUMNS = {"docs/changes.md": 5, "docs/threat-model.md": 3}
TESTS = {"tests/e2e/test_a.py": "def test_b():\n    pass\n", "tests/contract/c.c": "static void keeps(void **state)\n"}
GOOD = "`e2e/test_a.py::test_b`"


@pytest.fixture(params=COLUMNS)
def page(request):
    return request.param


def table(columns, *rows):
    """A page whose rows have these first and last cells, with as many columns as that page has."""
    lines = [f"| {first} {'| x ' * (columns - 2)}| {last} |" for first, last in [("head", "test"), *rows]]
    return "\n".join(["# Page", "", lines[0], "|---" * columns + "|", *lines[1:], ""])


def checked(folder, page, *rows):
    pages = {name: table(columns, *(rows if name == page else [("a", GOOD)])) for name, columns in COLUMNS.items()}
    return run_check("rows", tree_with(folder, {**TESTS, **pages}))


def test_rows_with_tests_pass(tmp_path, page):
    code, output = checked(tmp_path, page, ("a", GOOD), ("a \\| b", "`contract/c.c::keeps`"))
    assert code == 0 and "3 rows, 0 faults" in output


def test_a_test_that_is_not_there_is_named_with_its_line(tmp_path, page):
    code, output = checked(tmp_path, page, ("a", f"{GOOD}, `e2e/test_a.py::test_c`"))
    assert code == 1 and f"{page}:5: a: there is no test tests/e2e/test_a.py::test_c" in output


def test_a_row_without_a_test_is_named(tmp_path, page):
    code, output = checked(tmp_path, page, ("a", "later"))
    assert code == 1 and "no test" in output


def test_an_empty_cell_is_named(tmp_path, page):
    code, output = checked(tmp_path, page, ("", GOOD))
    assert code == 1 and "none of them empty" in output


def test_a_page_without_a_table_is_named(tmp_path, page):
    code, output = checked(tmp_path, page)
    assert code == 1 and f"{page}: no table is there" in output


PAGE = (SCRIPTS.parent / "docs" / "changes.md").read_text(encoding="utf-8")
SETTINGS = ["partitions", "--delay-max", "--scope", "--topic", "prefix", "--window", "--marks", "--slot", "lanes", "--from", "--order",
            "--guarantee", "--claim", "--poison", "retention", "--bind", "--attempts", "offsets"]
OBJECTS = ["RabbitMQ queue", "RabbitMQ exchange", "RabbitMQ binding", "RabbitMQ node", "Kafka topic", "group", "slot", "publication",
           "schema", "partition", "restored to an earlier time", "recreated", "renamed", "grown"]


def subjects(title):
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    return "\n".join(line.split(" | ")[0] for line in part.splitlines() if line.startswith("| "))


@pytest.mark.parametrize("title, word", [("Settings", word) for word in SETTINGS] + [("Objects", word) for word in OBJECTS])
def test_the_page_has_a_row_for_every_setting_and_every_object(title, word):
    assert word in subjects(title)
