# SPDX-License-Identifier: Apache-2.0
"""docs/c-api.md has what the headers declare, no less and no more."""
from helper import run_check, tree_with
from public_api import public_functions

STATUS = "typedef enum semel_status {\n\tSEMEL_OK,\n\tSEMEL_STATUS_COUNT\n} semel_status;\n"
HEADER = "SEMEL_API MUST_CHECK semel_status semel_thing_do(int a) PRINTF(1, 2);\n"


def check(tmp_path, document):
    files = {"include/semel/status.h": STATUS, "include/semel/a.h": HEADER, "docs/c-api.md": document}
    return run_check("api-docs", tree_with(tmp_path, files))


def test_the_name_of_a_function_is_found_behind_its_attributes(tmp_path):
    tree_with(tmp_path, {"include/semel/a.h": HEADER})
    assert public_functions(tmp_path) == {"semel_thing_do": "a.h"}


def test_a_complete_page_passes(tmp_path):
    code, output = check(tmp_path, "`semel_thing_do` answers `SEMEL_OK`.\n")
    assert code == 0, output


def test_a_function_that_is_not_mentioned_is_named(tmp_path):
    code, output = check(tmp_path, "`SEMEL_OK`\n")
    assert code == 1 and "does not mention semel_thing_do (a.h)" in output


def test_a_status_that_is_not_mentioned_is_named(tmp_path):
    code, output = check(tmp_path, "`semel_thing_do`\n")
    assert code == 1 and "does not mention SEMEL_OK" in output


def test_names_that_do_not_exist_are_named(tmp_path):
    code, output = check(tmp_path, "`semel_thing_do` `SEMEL_OK` `semel_thing_undo` `SEMEL_NEVER`\n")
    assert code == 1 and "semel_thing_undo" in output and "SEMEL_NEVER" in output
