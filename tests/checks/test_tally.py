# SPDX-License-Identifier: Apache-2.0
"""The sum at the end is right also when a test program dies, skips or leaks."""
import helper  # noqa: F401 - puts scripts/ on the path
from runner import FAILED, PASSED, SKIPPED, Tally
from suites import read_tap, tally_program

WHOLE = "1..3\nok 1 - one\nnot ok 2 - two\n# 0x1 != 0x2\nnot ok 3 # SKIP three\n"


def counted(code, output):
    tally = Tally()
    tally_program(tally, "program", code, output)
    return tuple(tally.counts[key] for key in (PASSED, FAILED, SKIPPED))


def test_each_tap_line_is_one_test():
    assert counted(1, WHOLE) == (1, 1, 1)


def test_comments_belong_to_the_test_above_them():
    assert read_tap(WHOLE)[1][1] == ("two", FAILED, ["0x1 != 0x2"])


def test_tests_that_a_dead_program_still_owed_have_failed():
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
    tally = Tally()
    tally_program(tally, "program", 0, "1..1\nnot ok 1 # SKIP three\n")
    assert tally.skips == ["program: three: no reason given"]
    assert tally.line() == "0 passed, 0 failed, 1 skipped"


def test_a_skipped_test_tells_why_and_not_what_its_group_says():
    tally = Tally()
    tally_program(tally, "program", 0, "1..1\n# why: no server\nnot ok 1 # SKIP three\n# ok - without\n")
    assert tally.skips == ["program: three: no server"]
