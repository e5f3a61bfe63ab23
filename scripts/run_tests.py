# SPDX-License-Identifier: Apache-2.0
"""Runs the stages of the test command, quick ones first, and sums up what they found.

Every test of every suite is counted once: a cmocka test by its TAP line, a pytest test by its
junit record, a check as one. A program that dies takes the tests it still owed with it, as failed.
Everything is written under one temporary folder, which goes with the run however that ends, and
what a stage leaves running is ended and counted against it.
"""
import argparse
import concurrent.futures
import ctypes
import hashlib
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))

import servers  # noqa: E402
from sandbox import MARK, Sandbox  # noqa: E402

PYTHON = "/usr/bin/python3"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


class Tally:
    """What was found so far. Failures are shown where they happen, skips again at the end."""

    def __init__(self):
        self.counts = {PASSED: 0, FAILED: 0, SKIPPED: 0}
        self.failures, self.skips = [], []

    def add(self, name, outcome, detail=""):
        self.counts[outcome] += 1
        if outcome == FAILED:
            self.failures.append(name)
            print(f"  FAILED {name}", flush=True)
            if detail:
                print("    " + detail.rstrip().replace("\n", "\n    "), flush=True)
        elif outcome == SKIPPED:
            self.skips.append(f"{name}: {detail or 'no reason given'}")

    def line(self):
        return ", ".join(f"{self.counts[key]} {key}" for key in (PASSED, FAILED, SKIPPED))


class Processes:
    """Children run in sessions of their own, and orphans come to us: so all can be ended."""

    def __init__(self):
        pr_set_child_subreaper = 36
        ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
        self.spared = set()  # that shall outlive a stage

    def descendants(self):
        """Living processes below this one: {pid: command line}."""
        parents, commands = {}, {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (OSError, IndexError):
                continue
            if fields[0] not in "ZX" and int(entry.name) not in self.spared:
                parents[int(entry.name)] = int(fields[1])
                commands[int(entry.name)] = command.strip()
        found, wave = {}, {os.getpid()}
        while wave:
            wave = {pid for pid, parent in parents.items() if parent in wave and pid not in found}
            found.update({pid: commands[pid] for pid in wave})
        return found

    def left_over(self, patience_s=20.0):
        """What is still running after a stage, given a moment to end by itself."""
        until = time.monotonic() + patience_s
        while self.descendants() and time.monotonic() < until:
            time.sleep(0.05)
        self.reap()
        return self.descendants()

    def end_all(self):
        for _ in range(20):
            alive = self.descendants()
            if not alive:
                break
            for pid in alive:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
        self.reap()

    @staticmethod
    def reap():
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


class Run:
    """One run of the test command: the tally, the temporary folder, and how commands are called."""

    def __init__(self, quick):
        self.quick = quick
        self.tally = Tally()
        self.processes = Processes()
        self.sandbox = Sandbox()  # its watcher clears up after us, also when we are killed
        self.processes.spared.add(self.sandbox.watcher.pid)
        self.temporary = self.sandbox.folder
        self.environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SEMEL", "CMOCKA", "PYTEST", "PYTHON"))
        }
        self.environment.update(
            TMPDIR=str(self.temporary),
            PYTHONDONTWRITEBYTECODE="1",
            SEMEL_TREE=str(ROOT),
            LC_ALL="C.UTF-8",
            **{MARK: str(self.temporary)},
        )

    def command(self, words, timeout_s, extra=None):
        """Returns (exit code, output). The code is None when the time ran out."""
        environment = dict(self.environment, **(extra or {}))
        with tempfile.TemporaryFile(dir=self.temporary) as log:
            try:
                child = subprocess.Popen(
                    [str(word) for word in words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )
            except OSError as problem:
                return 127, str(problem)
            try:
                code = child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                code = None
            log.seek(0)
            return code, log.read().decode(errors="replace")

    def check(self, name, words, timeout_s=300, extra=None):
        """A command that is one test: exit code 0 is a pass."""
        code, output = self.command(words, timeout_s, extra)
        if code is None:
            output += f"\nnot finished after {timeout_s} s"
        self.tally.add(name, PASSED if code == 0 else FAILED, tail(output))
        return code == 0

    def close(self):
        self.processes.end_all()
        self.sandbox.close()


def tail(text, lines=80):
    kept = text.rstrip().splitlines()[-lines:]
    return "\n".join(kept)


# ---- building ---------------------------------------------------------------------------------


def build(run, preset, targets=()):
    """One tree, built; counted as one test."""
    tree = ROOT / ("build" if preset == "release" else f"build-{preset}")
    code, output = run.command(["cmake", "--preset", preset], 120)
    if code == 0:
        words = ["cmake", "--build", "--preset", preset]
        for target in targets:
            words += ["--target", target]
        code, output = run.command(words, 1800)
    run.tally.add(f"build {preset}", PASSED if code == 0 else FAILED, tail(output))
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
        elif line.startswith(WHY):  # a test says so before it is skipped
            why = [line.removeprefix(WHY)]
        elif test:
            results.append((test["name"], FAILED if test["no"] else PASSED, []))
        elif line.startswith("# ") and results and results[-1][1] != SKIPPED:
            results[-1][2].append(line[2:])
    return planned, results


def tally_program(tally, name, code, output):
    """Counts one cmocka program, also when it died half-way."""
    planned, results = read_tap(output)
    for test, outcome, comments in results:
        tally.add(f"{name}: {test}", outcome, "\n".join(comments))
    ending = "did not end in time" if code is None else f"ended with {code}"
    for number in range(len(results) + 1, planned + 1):
        tally.add(f"{name}: test {number} of {planned}", FAILED, f"{ending}\n{tail(output, 30)}")
    told = any(outcome == FAILED for _, outcome, _ in results)
    if code != 0 and len(results) >= planned and not told:
        tally.add(f"{name}: ends well", FAILED, f"{ending}\n{tail(output, 60)}")


def programs_of(run, tree, prefix):
    """{name: command} of the cmocka programs in a build tree whose names start so."""
    words = ["ctest", "--test-dir", tree, "--show-only=json-v1"]
    code, output = run.command(words, 60)
    if code != 0:
        return {}
    listed = json.loads(output)["tests"]
    missing = [str(tree / "not-built")]
    return {t["name"]: t.get("command", missing) for t in listed if t["name"].startswith(prefix)}


PROGRAM_S = 900  # Kafka's suite waits for its groups for minutes


def run_programs(run, programs, wrapper=(), extra=None, suffix="", workers=3):
    """All of them, several at a time: some wait more than they work."""
    extra = dict(extra or {}, CMOCKA_MESSAGE_OUTPUT="TAP")

    def one(name):
        return name, *run.command([*wrapper, *programs[name]], PROGRAM_S, extra)

    if not programs:
        run.tally.add(f"cmocka programs{suffix}", FAILED, "there are none")
    with concurrent.futures.ThreadPoolExecutor(max_workers=workers) as pool:
        for name, code, output in pool.map(one, sorted(programs)):
            tally_program(run.tally, name + suffix, code, output)


# ---- pytest -----------------------------------------------------------------------------------


def tally_junit(tally, path, stage, suffix):
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        name = f"{stage}{suffix}: {case.get('classname')}.{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            tally.add(name, FAILED)
        elif skipped is not None:
            tally.add(name, SKIPPED, skipped.get("message"))
        else:
            tally.add(name, PASSED)


WORKERS = 6  # most of a test's time it waits, so there may be more than processors
FOLDERS = itertools.count(1)  # pytest empties its folder, so runs side by side have one each
PYTEST_S = 1800  # for what has come to a stop: on one busy processor the end-to-end tests take ten minutes


def run_pytest(run, stage, words, tree, timeout_s, suffix="", extra=None, workers=0):
    """A pytest run on the programs of a build tree, by several workers at once where it says so."""
    record = run.temporary / re.sub(r"\W", "-", f"{stage}{suffix}.xml")
    environment = {
        "SEMEL": str(tree / "semel"),
        "SEMEL_BIN": str(tree / "semel"),
        "SEMEL_BUILD": str(tree),
        "SEMEL_PLANTED": str(tree / "semel-planted"),
        **(extra or {}),
    }
    folder = run.temporary / f"pytest-{next(FOLDERS)}"
    folder.mkdir(mode=0o711)
    base = ["-q", "-p", "no:cacheprovider", f"--junitxml={record}", f"--basetemp={folder}"]
    if workers:
        base += ["-n", str(workers)]
    code, output = run.command([PYTHON, "-B", "-m", "pytest", *base, *words], timeout_s, environment)
    if record.exists() and code in (0, 1):
        tally_junit(run.tally, record, stage, suffix)
        if code == 1:
            print(tail(output[max(0, output.find("= FAILURES")) :], 200), flush=True)
    else:
        ending = "did not end in time" if code is None else f"pytest ended with {code}"
        run.tally.add(f"{stage}{suffix}", FAILED, f"{ending}\n{tail(output)}")


SANITIZED = {
    "ASAN_OPTIONS": "abort_on_error=0:detect_leaks=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}

# ---- real servers -----------------------------------------------------------------------------


SERVED = re.compile("postgres|rabbitmq|broker_kafka(?!_mock)")  # the mock cluster is none


def on_servers(programs, wanted=True):
    """Those that talk to a server, or those that do not."""
    return {name: words for name, words in programs.items() if bool(SERVED.search(name)) == wanted}


def with_servers(run, kinds, names, job):
    """Each is started once; the tests make databases, virtual hosts and the like there."""
    lacking = servers.what_is_missing(kinds)
    if lacking:
        for name in names:
            run.tally.add(name, SKIPPED, lacking)
        return
    with Sandbox(run.temporary) as sandbox:
        job(servers.Servers(sandbox, kinds).environment())


def all_at_once(parts):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for part in [pool.submit(part) for part in parts]:
            part.result()


def run_on_servers(run, tree, beside=()):
    """With the sanitizers: what is said to a server is checked nowhere else at that depth. Such suites wait more
    than they work, so there is time to do others beside them."""
    programs = on_servers(programs_of(run, tree, ("contract_", "unit_")))
    lacking = {kind: servers.what_is_missing([kind]) for kind in servers.KINDS}
    for kind, reason in lacking.items():
        if reason:
            run.tally.add(f"contract suites of {kind}", SKIPPED, reason)
            programs = {name: words for name, words in programs.items() if kind not in name}

    def job(places):
        def suites():
            run_programs(run, programs, extra={**SANITIZED, **places}, workers=6)
        all_at_once([suites, *beside])

    there = [kind for kind in servers.KINDS if not lacking[kind]]
    if there:
        with_servers(run, there, [], job)
    else:
        all_at_once(beside)


def stage_servers(run):
    tree = build(run, "asan")
    if tree:
        run_on_servers(run, tree)


# What is run on a mix of store, source and broker; each is a pytest run of its own. The soak comes first,
# since it takes longest, and there is time to do the rest beside it. With SEMEL_TEST_WHOLE=1 the lesser
# mixes get everything, too, and every mix all of the end-to-end tests.
STORM = ["tests/chaos/test_soak.py", "tests/chaos/test_hand_over.py", "tests/chaos/test_matrix.py", "tests/chaos/test_walk.py"]
ALL = "anywhere"
CORE = ALL if os.environ.get("SEMEL_TEST_WHOLE") else "anywhere and core"
OWN = ALL if os.environ.get("SEMEL_TEST_WHOLE") else "anywhere and (core or only)"
MATRIX = ("matrix and soak", [*STORM, "-m", ALL])
ROWS = ("rows of the matrix and soak", [*STORM, "-m", CORE])
STREAMS = (ROWS[0], [*STORM, "tests/e2e/test_streams.py", "-m", CORE])
FEATURES = ("e2e", ["tests/e2e", "-m", OWN])
PROMISE = ("promise", [*STORM, "tests/e2e", "-m", CORE])
CHANCE = ("soak and hand-over", [*STORM[:2], "-m", CORE]) if CORE != ALL else PROMISE
OUTAGES = ("outages", ["tests/chaos", "-m", "only and not slow"])
PAIR = ("e2e of the pair", ["tests/e2e/test_adopt.py", "tests/e2e/test_kafka_transactions.py",
                            "tests/e2e/test_kafka_refused_batch.py"])
# Kafka and the slot: some of them, and all on request (stage outages). Each file starts servers of its own.
LOG_OUTAGES = ["tests/chaos/test_kafka.py", "tests/chaos/test_kafka_partitions.py", "tests/chaos/test_cdc.py", "--dist", "loadfile"]
SOME_OUTAGES = ("outages", [*LOG_OUTAGES, "-m", "core"])
ALL_OUTAGES = (("Kafka and of the slot", "postgres-cdc+kafka", LOG_OUTAGES),
               ("a RabbitMQ that is restored", "postgres+rabbitmq", ["tests/chaos/test_broker_restored.py"]),
               ("streams", "postgres+rabbitmq-stream", ["tests/chaos/test_stream_cluster.py", "--dist", "loadfile"]))
MIXES = (
    ("postgres+rabbitmq", MATRIX, FEATURES, OUTAGES),
    ("sqlite+rabbitmq", PROMISE),
    ("postgres+rabbitmq-stream", STREAMS),
    ("postgres+local", PROMISE),
    ("sqlite+kafka", FEATURES),
    ("postgres+kafka", PAIR, CHANCE),
    ("postgres-cdc+kafka", ROWS, SOME_OUTAGES),
    ("postgres-cdc+rabbitmq", CHANCE),
)
# Where no real Kafka can be had: what of it can be shown on one that is played.
PLAYED = ("sqlite+kafka-mock", [ROWS])


def kinds_of(mix):
    """The servers that it needs."""
    return [kind for kind in servers.KINDS if kind in re.split(r"\W", mix)]


def run_suite(run, mix, suite, there, workers):
    seconds = os.environ.get("SEMEL_SOAK_SECONDS", "8")
    extra = {**there, "SEMEL_TEST_MIX": mix, "SEMEL_SOAK_SECONDS": seconds}
    (name, words), started = suite, time.monotonic()
    run_pytest(run, name, words, ROOT / "build-test", PYTEST_S + int(seconds) * 3, f" on {mix}", extra, workers)
    print(f"  {name} on {mix} ({time.monotonic() - started:.0f} s)", flush=True)


def run_suites(run, suites, there):
    """Two at a time: while the last test of one comes to its end, the other one goes on."""
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for suite in [pool.submit(run_suite, run, mix, suite, there, WORKERS - 2) for mix, suite in suites]:
            suite.result()


def stage_mixes(run):
    """All servers are started once. A mix is left out, by name, when one of its servers is not here."""
    kinds = [kind for kind in servers.KINDS if any(kind in kinds_of(mix) for mix, *_ in MIXES)]
    lacking = {kind: servers.what_is_missing([kind]) for kind in kinds}
    possible = []
    for mix, *suites in MIXES:
        reasons = [lacking[kind] for kind in kinds_of(mix) if lacking[kind]]
        if not reasons:
            possible.append((mix, suites))
        for name, _ in suites if reasons else ():
            run.tally.add(f"{name} on {mix}", SKIPPED, reasons[0])

    def job(there):
        run_suites(run, [(mix, suite) for mix, suites in possible for suite in suites], there)

    started = [kind for kind in kinds if not lacking[kind]]
    if lacking["kafka"] and not servers.what_is_missing([servers.MOCK]):
        possible.append(PLAYED)
        started.append(servers.MOCK)
    if possible:
        with_servers(run, started, [], job)


def stage_outages(run):
    """They start servers of their own, and do them harm."""
    for what, mix, words in ALL_OUTAGES:
        lacking = servers.what_is_missing(kinds_of(mix))
        if lacking:
            run.tally.add(f"outages of {what}", SKIPPED, lacking)
        else:
            run_pytest(run, "outages", words, ROOT / "build-test", PYTEST_S, f" of {what}", {"SEMEL_TEST_MIX": mix}, workers=2)


# ---- the stages -------------------------------------------------------------------------------


def stage_checks(run):
    for name in ("format", "tail", "includes", "words", "texts", "api-docs", "rows"):
        run.check(f"check {name}", [ROOT / "scripts" / f"check-{name}"])
    words = ["tests/checks", *(["-m", "not slow"] if run.quick else [])]
    run_pytest(run, "checks", words, ROOT / "build-test", PYTEST_S, workers=2)


def stage_build(run):
    build(run, "test")


def stage_unit(run):
    run_programs(run, programs_of(run, ROOT / "build-test", "unit_"))


def stage_contract(run):
    programs = on_servers(programs_of(run, ROOT / "build-test", "contract_"), wanted=False)
    # Kafka's groups and refusals take their time; suites on the mock cluster run once, with the sanitizers.
    run_programs(run, {name: words for name, words in programs.items() if "kafka" not in name})


def stage_docs(run):
    tree = ROOT / "build-test"
    run.check("check docs", [ROOT / "scripts" / "check-docs", tree / "semel"])
    run.check("check man pages", [ROOT / "scripts" / "check-man", tree])
    run.check("check symbols", [ROOT / "scripts" / "check-symbols", tree])


def stage_e2e(run):
    words = ["tests/e2e", "--deselect", "tests/e2e/test_examples.py"]
    if run.quick:
        words += ["-m", "not slow"]
    run_pytest(run, "e2e", words, ROOT / "build-test", PYTEST_S, workers=WORKERS)


def stage_examples(run):
    run_pytest(run, "examples", ["tests/e2e/test_examples.py"], ROOT / "build-test", PYTEST_S)


def stage_chaos(run):
    if build(run, "test", ["semel-planted", "semel_model"]):
        run_pytest(run, "chaos", ["tests/chaos"], ROOT / "build-test", PYTEST_S, workers=WORKERS)


def stage_asan(run):
    tree = build(run, "asan")
    if not tree:
        return

    def programs():
        chosen = on_servers(programs_of(run, tree, ("unit_", "contract_")), wanted=False)
        run_programs(run, chosen, extra=SANITIZED, suffix=" (asan)")

    def end_to_end():
        run_pytest(run, "e2e", ["tests/e2e", "-m", "sanitize"], tree, PYTEST_S, " (asan)", SANITIZED, WORKERS)

    run_on_servers(run, tree, beside=(programs, end_to_end))


FUZZ_RUNS = 20000


def run_fuzzers(run, bound, corpora, timeout_s):
    """Every fuzz program with its seeds up to the bound, two at a time. What one finds stays below build-fuzz/found/."""
    tree = build(run, "fuzz")
    found = ROOT / "build-fuzz" / "found"

    def one(name):
        corpus, seeds = corpora / name, ROOT / "tests" / "fuzz" / "seeds" / name
        for folder in (corpus, found):
            folder.mkdir(parents=True, exist_ok=True)
        words = [tree / "tests" / "fuzz" / name, *bound, "-max_len=2000", "-timeout=60", f"-artifact_prefix={found}/{name}-",
                 corpus, *([seeds] if seeds.is_dir() else [])]
        return name, *run.command(words, timeout_s)

    names = [source.stem for source in sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.c"))] if tree else []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, code, output in pool.map(one, names):
            run.tally.add(f"fuzz {name}", PASSED if code == 0 else FAILED, tail(output))


def stage_fuzz(run):
    """From the same seed and for so many inputs: the seeds of old faults hold, and nothing is found at once."""
    run_fuzzers(run, ["-seed=1", f"-runs={FUZZ_RUNS}"], run.temporary, 300)


def stage_fuzz_long(run):
    """With chance, and with what earlier runs have learned (build-fuzz/corpus/)."""
    seconds = os.environ.get("SEMEL_FUZZ_SECONDS", "600")
    run_fuzzers(run, [f"-max_total_time={seconds}"], ROOT / "build-fuzz" / "corpus", int(seconds) + 300)


THREADS = re.compile(r"pthread_create|thrd_create|semel_workers_start|fork\(")


def threaded(programs):
    """Those whose source starts threads."""
    sources = {}
    for path in (ROOT / "tests").rglob("test_*.c"):
        name = re.sub(r"[/.]", "_", str(path.relative_to(ROOT / "tests")))[: -len("_c")]
        sources[name] = path.read_text(encoding="utf-8")
    return {n: c for n, c in programs.items() if THREADS.search(sources.get(n, ""))}


def stage_tsan(run):
    tree = build(run, "tsan")
    if not tree:
        return
    extra = {"TSAN_OPTIONS": "halt_on_error=0:exitcode=66"}
    programs = threaded(programs_of(run, tree, ("unit_", "contract_")))
    # ThreadSanitizer of this age cannot place its shadow on kernels that spread addresses widely.
    for wrapper in ([], ["setarch", "-R"]):
        code, output = run.command([*wrapper, tree / "semel", "--version"], 30, extra)
        if code == 0:
            run_programs(run, programs, wrapper, extra, " (tsan)")
            words = ["tests/e2e/test_consume.py", "-k", "program or pipe or endpoint or maximum"]
            if not wrapper:
                run_pytest(run, "e2e", words, tree, PYTEST_S, " (tsan)", extra, WORKERS)
            return
    run.tally.add("threads (tsan)", SKIPPED, f"ThreadSanitizer does not start here: {tail(output, 1)}")


def tidy_key(path, common):
    return hashlib.sha256(common + path.read_bytes()).hexdigest()


def stage_tidy(run):
    """clang-tidy over src/, two at a time; a file that did not change since it passed is not
    looked at again."""
    tree = ROOT / "build-test"
    headers = sorted([*ROOT.glob("src/**/*.h"), *ROOT.glob("include/**/*.h"), ROOT / ".clang-tidy"])
    common = b"".join(path.read_bytes() for path in headers)
    stamps = tree / "tidy"
    stamps.mkdir(parents=True, exist_ok=True)

    def one(path):
        stamp = stamps / tidy_key(path, common)
        if stamp.exists():
            return path, 0, ""
        words = ["clang-tidy", "--quiet", "-p", tree, path]
        code, output = run.command(words, 300)
        if code == 0:
            stamp.touch()
        return path, code, output

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for path, code, output in pool.map(one, sorted(ROOT.glob("src/**/*.c"))):
            name = f"tidy {path.relative_to(ROOT)}"
            found = [line for line in output.splitlines() if " error: " in line]
            run.tally.add(name, PASSED if code == 0 else FAILED, "\n".join(found) or tail(output, 40))


def stage_soak(run):
    if build(run, "test", ["semel-planted", "semel"]):
        seconds = os.environ.get("SEMEL_SOAK_SECONDS", "600")
        chosen = {key: value for key, value in os.environ.items() if key == "SEMEL_SOAK_SEED"}
        extra = {"SEMEL_SOAK_SECONDS": seconds, **chosen}
        run_pytest(run, "soak", ["tests/chaos", "-k", "soak"], ROOT / "build-test", int(seconds) * 3 + 300, "", extra)


# Bugs that were there once, or that a step could meet, planted: the model has to find each of them. What it is to do often, so
# that this does not take long.
MODEL_PLANTS = {
    "follower-left-parked": "", "replay-runs-the-dead": "", "prune-without-lock": "", "verify-trusts-parked": "",
    "replay-by-lost-copy": "--setting skip --without change --without drop --often lose --often dlq-replay --often replay",
    "two-replays-win": "--often dlq-replay --without change",
    "from-latest-again": "--often change:0",
    "no-claims-no-letters": "--setting park-key --often change:1",
    "skip-releases-nothing": "--setting park-key --often change:2",
    "order-changed-unchecked": "--setting total --often change:3",
    "removed-topic-is-settled": "--often change:4 --without drop",
    "refused-is-published": "--often change:5",
    "head-behind-copies": "--setting total --often replay --often change:0",
    "new-record-starts-clean": "--often drop:1", "offset-outlives-broker": "--often drop:2",
    "removed-rows-unseen": "--often drop:4", "prune-takes-unpublished": "--often prune",
}


def stage_model(run):
    """All short sequences, and long ones by chance, side by side; then each planted bug, until it is found."""
    tree = build(run, "test", ["semel_model"])
    if not tree:
        return
    seconds = os.environ.get("SEMEL_MODEL_SECONDS", "60")
    seed = os.environ.get("SEMEL_MODEL_SEED", "1")
    jobs = [(f"model: {kind} sequences", ["--kind", kind, "--seconds", seconds]) for kind in ("short", "chance")]
    jobs += [(f"model: finds {bug}", ["--plant", bug, "--seconds", "300", *words.split()]) for bug, words in MODEL_PLANTS.items()]

    def one(job):
        name, words = job
        return name, *run.command([tree / "tests" / "semel_model", "--seed", seed, *words], int(seconds) + 600)

    with concurrent.futures.ThreadPoolExecutor(max_workers=5) as pool:
        for name, code, output in pool.map(one, jobs):
            run.tally.add(name, PASSED if code == 0 else FAILED, tail(output))


MODEL_MIXES = ("postgres+rabbitmq", "postgres+kafka", "postgres-cdc+kafka")


def stage_model_servers(run):
    """The model's sequences on the real program and real servers (SEMEL_MODEL_SEEDS)."""
    if not build(run, "test", ["semel", "semel_model"]):
        return
    chosen = {key: value for key, value in os.environ.items() if key in ("SEMEL_MODEL_SEEDS", "SEMEL_MODEL_STEPS")}
    suite = ("sequences", ["tests/chaos/test_model_sequences.py"])
    for mix in MODEL_MIXES:
        names = [f"sequences on {mix}"]
        with_servers(run, kinds_of(mix), names, lambda there, mix=mix: run_suite(run, mix, suite, {**there, **chosen}, WORKERS))


# name, function, in the whole run, in `quick`, what it does
STAGES = (
    ("checks", stage_checks, True, True, "format, tail numbers, include direction, words, texts, the checks' own tests"),
    ("build", stage_build, True, True, "release build, warnings are errors"),
    ("unit", stage_unit, True, True, "cmocka, mirrors src/"),
    ("contract", stage_contract, True, True, "one suite per seam, for every driver"),
    ("docs", stage_docs, True, True, "docs, man pages and exported symbols are in step with the program"),
    ("e2e", stage_e2e, True, True, "pytest on the built program (in quick: without the slow ones)"),
    ("examples", stage_examples, True, False, "the C examples, built from an installed copy"),
    ("chaos", stage_chaos, True, False, "failure matrix, short soak, planted bugs"),
    ("model", stage_model, True, False, "sequences of steps explored, and planted bugs found (SEMEL_MODEL_SECONDS, 60)"),
    ("asan", stage_asan, True, False, "AddressSanitizer and UndefinedBehaviorSanitizer, on real servers too"),
    ("servers", stage_servers, False, False, "of these the contract suites on real PostgreSQL, RabbitMQ and Kafka"),
    ("tsan", stage_tsan, True, False, "ThreadSanitizer, on the tests with threads"),
    ("fuzz", stage_fuzz, True, False, "every fuzz program for some seconds"),
    ("fuzz-long", stage_fuzz_long, False, False, "every fuzz program for ten minutes (SEMEL_FUZZ_SECONDS, 600)"),
    ("tidy", stage_tidy, False, False, "clang-tidy over src/"),
    ("mixes", stage_mixes, True, False, "matrix, hand-over, soak, e2e and outages on mixes of store and broker"),
    ("outages", stage_outages, False, False, "all outages of Kafka, of the replication slot and of streams in a cluster"),
    ("model-servers", stage_model_servers, False, False, "the model's sequences on PostgreSQL with RabbitMQ and Kafka"),
    ("soak", stage_soak, False, False, "the long soak (SEMEL_SOAK_SECONDS, 600)"),
)
# Stages that look at build-test need it built.
NEED_BUILD = {"unit", "contract", "docs", "e2e", "examples", "mixes", "outages", "tidy"}


def parse_arguments():
    lines = [f"  {name:14}{'' if whole else '(on request) '}{what}" for name, _, whole, _, what in STAGES]
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Runs the tests: all of them, the quick ones, or named stages.",
        epilog="stages, in their order:\n" + "\n".join(lines) + "\n  quick         checks … e2e, in under a minute",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the stages and end")
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    arguments = parser.parse_args()
    known = {stage[0] for stage in STAGES} | {"quick"}
    for name in arguments.stages:
        if name not in known:
            parser.exit(64, f"no stage is called {name}; there are: {' '.join(sorted(known))}\n")
    if arguments.list:
        print("\n".join(lines))
        parser.exit(0)
    return arguments


def chosen_stages(names):
    if not names:
        return [stage for stage in STAGES if stage[2]]
    chosen = [s for s in STAGES if s[0] in names or ("quick" in names and s[3])]
    if "build" not in {s[0] for s in chosen} and NEED_BUILD & {s[0] for s in chosen}:
        chosen.insert(0, next(stage for stage in STAGES if stage[0] == "build"))
    return chosen


def worked():
    """Seconds of a processor that our children used and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_stage(run, name, function):
    before, started, used = dict(run.tally.counts), time.monotonic(), worked()
    print(f"{name} …", flush=True)
    try:
        function(run)
    except Exception:  # whatever it is, the sum is still told
        run.tally.add(f"stage {name}", FAILED, traceback.format_exc())
    left = run.processes.left_over()
    if left:
        run.tally.add(f"{name} leaves nothing running", FAILED, "\n".join(left.values()))
        run.processes.end_all()
    found = {key: run.tally.counts[key] - before[key] for key in before}
    told = ", ".join(f"{count} {key}" for key, count in found.items() if count) or "nothing to do"
    took = time.monotonic() - started
    print(f"{name}: {told} ({took:.0f} s, {(worked() - used) / max(took, 1):.1f} processors)", flush=True)


def interrupted(number, _frame):
    raise KeyboardInterrupt(number)


def main():
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    run, code = Run(quick=arguments.stages == ["quick"]), 0
    try:
        for name, function, *_ in chosen_stages(arguments.stages):
            run_stage(run, name, function)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        code = 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        run.close()
    for name in run.tally.failures:
        print(f"failed: {name}")
    for name in run.tally.skips:
        print(f"skipped: {name}")
    print(run.tally.line(), flush=True)
    return code or (1 if run.tally.counts[FAILED] else 0)


if __name__ == "__main__":
    sys.exit(main())
