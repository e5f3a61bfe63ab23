# SPDX-License-Identifier: Apache-2.0
"""The numbers that keep the tail short are measured as a reader would count them."""
import pytest

from helper import run_check, tree_with
from c_source import functions_of


def only(text):
    found = functions_of(text)
    assert len(found) == 1, [function.name for function in found]
    return found[0]


@pytest.mark.parametrize(
    "declaration, count",
    [
        ("int f(void);", 0),
        ("int f(int a, char (*b)(int, int), struct s c[2]);", 3),
        ("void f(const char *format, ...) __attribute__((format(printf, 1, 2)));", 1),
        ("API MUST_CHECK status\nf(int a, int b);", 2),
        ("struct table { status (*slot)(int a, int b, int c); };", 3),
        ("typedef void (*seen)(const struct x *x, void *user);", 2),
    ],
)
def test_parameters_are_counted_in_every_form_of_declaration(declaration, count):
    assert only(declaration).parameters == count


def test_lines_are_counted_from_the_head_to_the_closing_brace():
    function = only("static int\nf(int a)\n{\n\treturn a;\n}\n")
    assert (function.name, function.lines) == ("f", 5)


@pytest.mark.parametrize(
    "body, depth",
    [
        ("return 1;", 0),
        ("if (a) b();", 1),
        ("if (a) b(); else if (c) d(); else e();", 1),
        ("for (;;) if (a) while (b) c();", 3),
        ("do { if (a) b(); } while (c);", 2),
        ("switch (a) { case 1: if (b) c(); break; default: d(); }", 2),
        ("struct s x = { .a = { 1, 2 } }; f((struct s){ 1 });", 0),
        ("each_member(a, key, value) { if (b) c(); }", 2),
        ("each_member(a, key, value) if (b) c();", 2),
        ("again: if (a) goto again;", 1),
        ("int x = a ? b : c; return x;", 0),
        ("{ a(); }", 1),
        ('log("{ if (x) {"); /* { { { */ char c = \'{\';', 0),
    ],
)
def test_nesting_is_counted_by_control_structures(body, depth):
    assert only(f"void f(void)\n{{\n{body}\n}}").nesting == depth


def test_preprocessor_lines_and_tables_are_passed_over():
    text = '#define LOOP(x) \\\n\tfor (;;) {\nstatic const struct row rows[] = { { "a", f(1) } };\n'
    assert functions_of(text) == []


def test_functions_inside_extern_c_are_seen():
    text = 'extern "C" {\nint f(int a);\n}\n'
    assert only(text).parameters == 1


def long_function(lines):
    return "void f(void)\n{\n" + "\tg();\n" * (lines - 3) + "}\n"


@pytest.mark.parametrize(
    "text, rule",
    [
        (long_function(71), "function 71"),
        ("int x;\n" * 801, "file 801"),
        ("/* " + "ä" * 98 + " */\n", "line 104"),
        ("\t" * 12 + "f(1);\n", "line 101"),
        ("int f(int a, int b, int c, int d, int e, int f, int g);\n", "parameters 7"),
        ("void f(void)\n{\nif(a)if(b)if(c)if(d)if(e)g();\n}\n", "nesting 5"),
    ],
)
def test_what_is_one_too_many_is_named(tmp_path, text, rule):
    code, output = run_check("tail", tree_with(tmp_path, {"src/base/a.c": text}))
    assert code == 1 and rule in output


def test_what_is_at_the_limit_passes(tmp_path):
    text = long_function(70) + "int x;\n" * 730
    code, output = run_check("tail", tree_with(tmp_path, {"src/base/a.c": text}))
    assert code == 0, output


def test_an_exception_with_a_reason_passes(tmp_path):
    files = {
        "src/base/a.c": long_function(71),
        "scripts/tail-allowed": "function src/base/a.c:f a table in disguise\n",
    }
    code, output = run_check("tail", tree_with(tmp_path, files))
    assert code == 0, output


@pytest.mark.parametrize("line", ["function src/base/a.c:f", "width src/base/a.c because"])
def test_an_exception_without_a_reason_is_refused(tmp_path, line):
    files = {"src/base/a.c": long_function(71), "scripts/tail-allowed": line + "\n"}
    assert run_check("tail", tree_with(tmp_path, files))[0] == 1


def test_an_exception_that_is_no_longer_needed_is_a_fault(tmp_path):
    files = {
        "src/base/a.c": long_function(70),
        "scripts/tail-allowed": "function src/base/a.c:f a table in disguise\n",
    }
    code, output = run_check("tail", tree_with(tmp_path, files))
    assert code == 1 and "no longer needed" in output
