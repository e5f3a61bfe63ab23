# SPDX-License-Identifier: Apache-2.0
"""What the stages are made of: a tree built, cmocka programs run, pytest run, each with its results counted.

Every test is counted once: a cmocka test by its TAP line, a pytest test by its junit record. When a program dies,
its remaining tests count as failed."""
import concurrent.futures
import itertools
import json
import re
import shutil
import xml.etree.ElementTree

from runner import FAILED, PASSED, ROOT, SKIPPED, say, tail

PYTHON = "/usr/bin/python3"

# ---- building ---------------------------------------------------------------------------------


def build(stage, preset, targets=()):
    """One tree, built; counted as one test. Returns its folder, or None."""
    tree = ROOT / ("build" if preset == "release" else f"build-{preset}")
    code, output = stage.command(["cmake", "--preset", preset], 120)
    if code == 0:
        words = ["cmake", "--build", "--preset", preset]
        words += [word for target in targets for word in ("--target", target)]
        code, output = stage.command(words, 1800)
    stage.counts.add(f"build {preset}", PASSED if code == 0 else FAILED, tail(output))
    return tree if code == 0 else None


# ---- cmocka -----------------------------------------------------------------------------------

TAP_SKIP = re.compile(r"^not ok \d+ # SKIP (?P<name>.+)$")
TAP_TEST = re.compile(r"^(?P<no>not )?ok \d+ - (?P<name>.+)$")
WHY = "# why: "
TAP_PLAN = re.compile(r"^\s*1[.][.](?P<count>\d+)$")


def read_tap(text):
    """(planned, [(name, outcome, comments)]) of a cmocka program's output."""
    planned, results, why = 0, [], []
    for line in text.splitlines():
        plan, skip, test = TAP_PLAN.match(line), TAP_SKIP.match(line), TAP_TEST.match(line)
        if plan:
            planned += int(plan["count"])
        elif skip:
            results.append((skip["name"], SKIPPED, why))
            why = []
        elif line.startswith(WHY):  # a test prints this before it is skipped
            why = [line.removeprefix(WHY)]
        elif test:
            results.append((test["name"], FAILED if test["no"] else PASSED, []))
        elif line.startswith("# ") and results and results[-1][1] != SKIPPED:
            results[-1][2].append(line[2:])
    return planned, results


def count_program(counts, name, code, output):
    """Counts one cmocka program, also when it crashed."""
    planned, results = read_tap(output)
    for test, outcome, comments in results:
        counts.add(f"{name}: {test}", outcome, "\n".join(comments))
    ending = "did not end in time" if code is None else f"ended with {code}"
    for number in range(len(results) + 1, planned + 1):
        counts.add(f"{name}: test {number} of {planned}", FAILED, f"{ending}\n{tail(output, 30)}")
    reported = any(outcome == FAILED for _, outcome, _ in results)
    if code != 0 and len(results) >= planned and not reported:
        counts.add(f"{name}: ends well", FAILED, f"{ending}\n{tail(output, 60)}")


def programs_of(stage, tree, prefix):
    """{name: command} of the cmocka programs in a build tree whose names start so."""
    words = ["ctest", "--test-dir", tree, "--show-only=json-v1"]
    code, output = stage.command(words, 60)
    if code != 0:
        return {}
    listed = json.loads(output)["tests"]
    missing = [str(tree / "not-built")]
    return {t["name"]: t.get("command", missing) for t in listed if t["name"].startswith(prefix)}


PROGRAM_S = 900  # Kafka's suite waits for its groups for minutes


def run_programs(stage, programs, wrapper=(), extra=None, suffix="", workers=3):
    """All of them, several at a time: many wait more than they compute."""
    extra = dict(extra or {}, CMOCKA_MESSAGE_OUTPUT="TAP")

    def one(name):
        return name, *stage.command([*wrapper, *programs[name]], PROGRAM_S, extra)

    if not programs:
        stage.counts.add(f"cmocka programs{suffix}", FAILED, "there are none")
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        for name, code, output in pool.map(one, sorted(programs)):
            count_program(stage.counts, name + suffix, code, output)


# ---- pytest -----------------------------------------------------------------------------------


def count_junit(stage, path, suite):
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{suite}: {case.get('classname')}.{case.get('name')}"
        used = [float(found.get("value")) for found in case.iter("property") if found.get("name") == "processor_s"]
        stage.run.durations.append((float(case.get("time", 0)), sum(used), name))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            stage.counts.add(name, FAILED)
        elif skipped is not None:
            stage.counts.add(name, SKIPPED, skipped.get("message"))
        else:
            stage.counts.add(name, PASSED)


WORKERS = 10  # nine tenths of its time a test waits, so there may be more than processors
FOLDERS = itertools.count(1)  # pytest empties its folder, so those that run side by side have one each
PYTEST_S = 2700  # for a run that hangs: on one busy processor the end-to-end tests take ten minutes


def run_pytest(stage, name, words, tree, timeout_s, suffix="", extra=None, workers=0):
    """A pytest run on the programs of a build tree, by several workers at once where it says so."""
    record = stage.temporary / re.sub(r"\W", "-", f"{name}{suffix}.xml")
    environment = {
        "SEMEL": str(tree / "semel"),
        "SEMEL_BIN": str(tree / "semel"),
        "SEMEL_BUILD": str(tree),
        "SEMEL_PLANTED": str(tree / "semel-planted"),
        **(extra or {}),
    }
    folder = stage.temporary / f"pytest-{next(FOLDERS)}"
    folder.mkdir(mode=0o711)
    base = ["-q", "-p", "no:cacheprovider", f"--junitxml={record}", f"--basetemp={folder}"]
    if workers:
        base += ["-n", str(workers)]
    code, output = stage.command([PYTHON, "-m", "pytest", *base, *words], timeout_s, environment)
    if record.exists() and code in (0, 1):
        count_junit(stage, record, f"{name}{suffix}")
        if code == 1:
            say(tail(output[max(0, output.find("= FAILURES")) :], 200))
    else:
        ending = "did not end in time" if code is None else f"pytest ended with {code}"
        stage.counts.add(f"{name}{suffix}", FAILED, f"{ending}\n{tail(output)}")
    if code == 0:
        shutil.rmtree(folder, ignore_errors=True)  # it may be in memory


SANITIZED = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}

