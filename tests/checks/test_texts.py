# SPDX-License-Identifier: Apache-2.0
"""A text from outside is no C string: what the compiler refuses, and what the check finds beyond that."""
import re
import shutil
import subprocess

import pytest

from helper import SCRIPTS, run_check, tree_with

TREE = SCRIPTS.parent
HEAD = '#include "base/text.h"\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\nextern int f(struct semel_text t);\n'


def function(body):
    return HEAD + "int f(struct semel_text t)\n{\n\t" + body + "\n}\n"


def project_flags():
    """Those that every build has, whatever its preset."""
    text = re.sub(r"#[^\n]*", "", (TREE / "CMakeLists.txt").read_text(encoding="utf-8"))
    return re.search(r"target_compile_options\(semel_options INTERFACE\n(.*?)\)", text, re.DOTALL).group(1).split()


PLANTED = ['return strcmp(t.data, "order");', 'return strncmp(t.data, "order", t.length);', 'return strstr(t.data, "order") != 0;',
           "return (int)strlen(t.data);", 'return strcasecmp(t.data, "order");', "return atoi(t.data);",
           "return strdup(t.data) != 0;", "const char *string = t.data; return *string;", 'struct semel_text u = { "order", 5 }; return u.length != t.length;']


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("body", PLANTED)
def test_a_c_string_function_on_a_text_does_not_compile(tmp_path, compiler, body):
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    words = [compiler, "-std=c17", "-D_GNU_SOURCE", *project_flags(), f"-I{TREE}/src", "-fsyntax-only"]
    for text, compiles in ((function(body), False), (function('return semel_text_equals_string(t, "order");'), True)):
        (tmp_path / "x.c").write_text(text)
        done = subprocess.run([*words, tmp_path / "x.c"], capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) == compiles, done.stderr
        assert compiles or "pointer-sign" in done.stderr


FOUND = {
    'return strcmp(semel_text_string(t), "order");': "strcmp of a text",
    'return strncmp(semel_text_chars(t), "order", t.length);': "strncmp of a text",
    'return strstr("order", semel_text_shown(t)) != 0;': "strstr of a text",
    "return atoi(semel_text_to_string(t));": "atoi of a text",
    "return f(t) + *(const char *)t.data;": "a cast to char *",
    "const char *at = semel_text_chars(t); return *at;": "without the length",
    "return *json_string_value(value);": "json_string_value",
    'return printf("%s", t.data);': "%s",
    'return printf("%.*s", (int)t.length, t.data);': "%s",
}


@pytest.mark.parametrize("body", FOUND)
def test_what_the_compiler_accepts_is_found(tmp_path, body):
    root = tree_with(tmp_path, {"src/event/x.c": function(body)})
    if "printf" in body:
        shutil.copytree(TREE / "src" / "base", root / "src" / "base", ignore=lambda _, names: set(names) - {"text.h"})
        (root / "include").mkdir()
    code, output = run_check("texts", root)
    assert code == 1 and FOUND[body] in output, output


@pytest.mark.parametrize("body", ['return semel_text_equals_string(t, "order");', 'return memcmp(semel_text_chars(t), "order", t.length);',
                                  'return printf("%.*s", (int)t.length, semel_text_chars(t));', 'return strcmp("order", "a");'])
def test_what_is_right_passes(tmp_path, body):
    code, output = run_check("texts", tree_with(tmp_path, {"src/event/x.c": function(body)}))
    assert code == 0, output


def test_an_exception_has_a_reason_and_excuses_something(tmp_path):
    root = tree_with(tmp_path, {"src/event/x.c": function('return strcmp(semel_text_string(t), "order");'),
                                "scripts/texts-allowed": "string src/event/x.c:f our own word\n"})
    assert run_check("texts", root) == (0, "1 files, 0 texts taken for C strings\n")
    (root / "scripts" / "texts-allowed").write_text("string src/event/x.c:f\n")
    assert "reason" in run_check("texts", root)[1]
    (root / "scripts" / "texts-allowed").write_text("string src/event/x.c:f our own word\nstring src/event/y.c nothing\n")
    code, output = run_check("texts", root)
    assert code == 1 and "src/event/y.c excuses nothing" in output
