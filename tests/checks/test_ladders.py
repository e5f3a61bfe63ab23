# SPDX-License-Identifier: Apache-2.0
"""Code that continues only while the status is OK is a ladder; the ladders left are counted, and may not become more."""
import pytest
from helper import run_check, tree_with


def checked(folder, body, allowed=""):
    text = f"semel_status f(void)\n{{\n\t{body}\n}}\n"
    return run_check("ladders", tree_with(folder, {"src/a/a.c": text, "scripts/ladders-allowed": allowed}))


@pytest.mark.parametrize("body", [
    "if (status == SEMEL_OK)\n\t\tstatus = next();",
    "if (status == SEMEL_OK) {\n\t\tcount++;\n\t\tstatus = next();\n\t}",
    "if (status == SEMEL_OK && wanted)\n\t\tstatus = next();",
    "if (status == SEMEL_OK && (wanted || late))\n\t\tstatus = next();",
    "if (wanted && state->status == SEMEL_OK)\n\t\tstate->status = next();",
    "if (status == SEMEL_OK)\n\t\tclose(x);",
    "if (status == SEMEL_OK && (status = one()) == SEMEL_OK)\n\t\tstatus = next();",
    "return status == SEMEL_OK ? next(a, (b)) : status;",
    "return status != SEMEL_OK ? status : next();",
    "status = status == SEMEL_OK && wanted ? next() : status;",
    "close(status == SEMEL_OK ? next(a ? b : c) : status, 1);",
    "return wanted ? status : status == SEMEL_OK ? next() : status;",
])
def test_a_rung_is_found(tmp_path, body):
    code, output = checked(tmp_path, body)
    assert code == 1 and "src/a/a.c:3: a ladder" in output and "1 rungs" in output


@pytest.mark.parametrize("body", [
    "if (status != SEMEL_OK)\n\t\treturn status;",
    "if (status != SEMEL_OK)\n\t\tgoto close_x;",
    "if (status == SEMEL_OK)\n\t\treturn status;",
    "if (status == SEMEL_OK)\n\t\tcount++;",
    "if (next() == SEMEL_OK)\n\t\tclose(x);",
    "if (status == SEMEL_OK || status == SEMEL_GONE)\n\t\tclose(x);",
    "while (status == SEMEL_OK && !done)\n\t\tstatus = next();",
    "/* if (status == SEMEL_OK) status = next(); */",
    "use(status == SEMEL_OK ? error : NULL);",
    "use(status == SEMEL_OK ? \"done\" : name_of(status), close(x));",
    "return status != SEMEL_OK ? set(error) : status;",
    "return next() == SEMEL_OK ? close(x) : 1;",
    "return status == SEMEL_OK || late ? close(x) : status;",
    "status = found ? next() : SEMEL_OK;",
    "return status == SEMEL_OK && found ? SEMEL_OK : next();",
])
def test_other_conditions_are_none(tmp_path, body):
    assert checked(tmp_path, body)[0] == 0


def test_what_is_left_has_a_number_and_a_reason_and_only_falls(tmp_path):
    rung = "if (status == SEMEL_OK)\n\t\tstatus = next();"
    assert checked(tmp_path, rung, "# number path reason\n1 src/a/a.c the first error of several\n")[0] == 0
    code, output = checked(tmp_path, f"{rung}\n\t{rung}", "1 src/a/a.c the first error of several\n")
    assert code == 1 and output.count("a ladder") == 2
    code, output = checked(tmp_path, rung, "2 src/a/a.c the first error of several\n")
    assert code == 1 and "ladders-allowed:1: the number is 1 now: src/a/a.c" in output
    code, output = checked(tmp_path, rung, "1 src/a/a.c\n")
    assert code == 1 and "number path reason" in output


def test_a_line_for_a_folder_is_the_limit_of_its_files(tmp_path):
    rung = "if (status == SEMEL_OK)\n\t\tstatus = next();"
    assert checked(tmp_path, rung, "3 src/a/ not done yet\n")[0] == 0
    assert checked(tmp_path, rung, "0 src/a/a.c done\n3 src/a/ not done yet\n")[0] == 1
    assert checked(tmp_path, f"{rung}\n\t{rung}", "1 src/ not done yet\n")[0] == 1
