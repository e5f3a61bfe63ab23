# SPDX-License-Identifier: Apache-2.0
"""Paths of a machine and hosts of registries are found wherever they stand."""
import pytest

from helper import run_check, tree_with

# Put together here, so that the check does not find them in this file.
WORDS = ["/" + "work/main/x", "see /" + "root/.profile", "/" + "home/me", "FROM ghcr" + ".io/x"]
WORDS += ["http://pypi" + ".org/simple", "<" * 7 + " HEAD"]


@pytest.mark.parametrize("word", WORDS)
def test_a_word_that_does_not_belong_is_named_with_its_line(tmp_path, word):
    code, output = run_check("words", tree_with(tmp_path, {"docs/a.md": f"fine\n{word}\n"}))
    assert code == 1 and "docs/a.md:2:" in output


@pytest.mark.parametrize("word", ["tests/unit/root/x", "https://example.org", "======"])
def test_other_words_pass(tmp_path, word):
    code, output = run_check("words", tree_with(tmp_path, {"docs/a.md": word + "\n"}))
    assert code == 0, output


def test_a_source_without_its_spdx_line_is_named(tmp_path):
    code, output = run_check("words", tree_with(tmp_path, {"src/a.c": "int x;\n"}))
    assert code == 1 and "src/a.c:1: no SPDX" in output
