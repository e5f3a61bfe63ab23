# SPDX-License-Identifier: Apache-2.0
"""A word that the glossary retires stays out of the code, and a tag has one definition."""
import pytest
from helper import run_check, tree_with

PAGE = """# Glossary
<!-- retired words: begin -->
| retired | use instead | allowed in |
|---|---|---|
| look, looks | read, inspect | |
| slot | entry | `src/store/` |
<!-- retired words: end -->
"""


def checked(folder, files, page=PAGE):
    return run_check("glossary", tree_with(folder, {"docs/glossary.md": page, **files}))


@pytest.mark.parametrize("text", [
    "int look_at(void);", "int a_look;", "/* It looks at the row. */", "// Look!", 'say("a look");', '#include "x/look.c"',
    "#define LOOK 1",
])
@pytest.mark.parametrize("name", [
    "src/a/a.c", "include/semel/a.h", "tests/unit/a/test_a.c", "tests/e2e/test_a.py", "src/a/a.sql", "src/a/a.js", "src/a/a.html",
    "bench/a.py", "examples/a.sh", "scripts/run",
])
def test_a_retired_word_is_found_in_names_comments_and_strings(tmp_path, name, text):
    code, said = checked(tmp_path, {name: text})
    assert code == 1 and f"{name}:1: " in said and "is retired; use read, inspect" in said


@pytest.mark.parametrize("text", ["int lookup(void);", "int outlook;", "/* looked */"])
def test_a_part_of_another_word_is_none(tmp_path, text):
    assert checked(tmp_path, {"src/a/a.c": text})[0] == 0


def test_a_word_stays_in_the_rooms_where_it_has_its_one_meaning(tmp_path):
    assert checked(tmp_path, {"src/store/a.c": "int slot;"})[0] == 0
    assert checked(tmp_path, {"src/broker/a.c": "int slot;"})[0] == 1


def test_an_exception_has_a_reason_and_excuses_something(tmp_path):
    look = {"src/a/a.c": "int look;"}
    assert checked(tmp_path, {**look, "scripts/glossary-allowed": "# word path reason\nlook src/a/a.c the name of a column\n"})[0] == 0
    code, said = checked(tmp_path, {"scripts/glossary-allowed": "look src/a/a.c the name of a column\n", "src/a/a.c": "int x;"})
    assert code == 1 and "glossary-allowed:1: no longer needed: look src/a/a.c" in said
    code, said = checked(tmp_path, {**look, "scripts/glossary-allowed": "look src/a/a.c\n"})
    assert code == 1 and "word path reason" in said


@pytest.mark.parametrize("kind", ["struct", "enum", "union", "typedef struct"])
def test_a_tag_is_defined_once(tmp_path, kind):
    one, other = f"{kind} semel_crew {{\n\tint a;\n}}", f"\n{kind} semel_crew {{\n\tint b;\n}};"
    code, said = checked(tmp_path, {"src/a/a.h": one, "src/b/b.c": other})
    assert code == 1 and "src/b/b.c:2: semel_crew is defined twice (the other one: src/a/a.h:1)" in said


def test_a_tag_may_be_declared_and_used_anywhere(tmp_path):
    assert checked(tmp_path, {"src/a/a.h": "struct semel_crew {\n\tint a;\n};", "src/b/b.c": "struct semel_crew;\nstruct semel_crew x;"})[0] == 0


@pytest.mark.parametrize("page, complaint", [
    ("# Glossary\n", "are missing"),
    (PAGE.replace("| look, looks | read, inspect | |", "| look | |"), "not of the form"),
    (PAGE.replace("| slot |", "| look |"), "look is retired twice"),
])
def test_a_table_that_cannot_be_read_is_a_fault(tmp_path, page, complaint):
    code, said = checked(tmp_path, {}, page)
    assert code == 1 and complaint in said
