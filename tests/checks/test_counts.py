# SPDX-License-Identifier: Apache-2.0
"""The counts at the end are right, too, when a test program crashes, skips or leaks."""
import helper  # noqa: F401 - puts scripts/ on the path
from runner import FAILED, PASSED, SKIPPED, Counts
from suites import count_program, read_tap

WHOLE = "1..3\nok 1 - one\nnot ok 2 - two\n# 0x1 != 0x2\nnot ok 3 # SKIP three\n"


def counted(code, output):
    counts = Counts()
    count_program(counts, "program", code, output)
    return tuple(counts.by_outcome[key] for key in (PASSED, FAILED, SKIPPED))


def test_each_tap_line_is_one_test():
    assert counted(1, WHOLE) == (1, 1, 1)


def test_comments_belong_to_the_test_above_them():
    assert read_tap(WHOLE)[1][1] == ("two", FAILED, ["0x1 != 0x2"])


def test_tests_that_a_crashed_program_did_not_run_have_failed():
    assert counted(-6, "1..5\nok 1 - one\n") == (1, 4, 0)


def test_a_program_that_fails_after_its_tests_has_failed():
    assert counted(23, "1..1\nok 1 - one\nLeakSanitizer: detected\n") == (1, 1, 0)


def test_a_program_that_dies_before_its_plan_has_failed():
    assert counted(127, "error while loading shared libraries\n") == (0, 1, 0)


def test_a_program_that_does_not_end_has_failed():
    assert counted(None, "1..2\nok 1 - one\n") == (1, 1, 0)


def test_other_output_of_a_program_is_no_test():
    assert counted(0, "1..1\nokay\n# remark\nok 1 - one\n") == (1, 0, 0)


def test_skips_keep_their_names():
    counts = Counts()
    count_program(counts, "program", 0, "1..1\nnot ok 1 # SKIP three\n")
    assert counts.skips == ["program: three: no reason given"]
    assert counts.line() == "0 passed, 0 failed, 1 skipped"


def test_a_skipped_test_reports_its_own_reason_and_not_that_of_its_group():
    counts = Counts()
    count_program(counts, "program", 0, "1..1\n# why: no server\nnot ok 1 # SKIP three\n# ok - without\n")
    assert counts.skips == ["program: three: no server"]
