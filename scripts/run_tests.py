# SPDX-License-Identifier: Apache-2.0
"""The stages of the test command, and the order in which they run.

Stages that wait (for servers, leases, time-outs) and stages that compute (compilers, the model, fuzz programs) run
beside each other, so that two processors are busy: the stages of a group run one by one, and the groups in parallel. A
stage that needs the program waits for the stage `build`.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import os
import re
import resource
import signal
import sys
import threading
import time
import traceback

from runner import FAILED, PASSED, ROOT, SKIPPED, Interrupted, Run, Stage, say, tail
from runner import servers
from suites import PYTEST_S, SANITIZED, WORKERS, build, programs_of, run_programs, run_pytest

# ---- real servers -----------------------------------------------------------------------------


SERVED = re.compile("postgres|rabbitmq|broker_kafka(?!_mock)")  # the mock cluster is no server


def on_servers(programs, wanted=True):
    """Those that talk to a server, or those that do not."""
    return {name: words for name, words in programs.items() if bool(SERVED.search(name)) == wanted}


def run_on_servers(stage, tree):
    """With the sanitizers: nothing else checks the code that talks to servers with them."""
    programs = on_servers(programs_of(stage, tree, ("contract_", "unit_")))
    for kind in servers.KINDS:
        reason = stage.servers.missing(kind)
        if reason:
            stage.counts.add(f"contract suites of {kind}", SKIPPED, reason)
            programs = {name: words for name, words in programs.items() if kind not in name}
    if programs:
        run_programs(stage, programs, extra={**SANITIZED, **stage.servers.environment()}, workers=6)


def stage_servers(stage):
    tree = build(stage, "asan")
    if tree:
        run_on_servers(stage, tree)


# What is run on a mix of store, source and broker; each is a pytest run of its own. Within it the soak comes first,
# since it takes longest, and there is time to do the rest beside it. With SEMEL_TEST_WHOLE=1 the lesser
# mixes get everything, too, and every mix all of the end-to-end tests.
FAULTS = ["tests/chaos/test_soak.py", "tests/chaos/test_hand_over.py", "tests/chaos/test_matrix.py", "tests/chaos/test_walk.py"]
ALL = "anywhere"
CORE = ALL if os.environ.get("SEMEL_TEST_WHOLE") else "anywhere and core"
OWN = ALL if os.environ.get("SEMEL_TEST_WHOLE") else "anywhere and (core or only)"
MATRIX = ("matrix and soak", [*FAULTS, "-m", ALL])
ROWS = ("rows of the matrix and soak", [*FAULTS, "-m", CORE])
STREAMS = (ROWS[0], [*FAULTS, "tests/e2e/test_streams.py", "-m", CORE])
FEATURES = ("e2e", ["tests/e2e", "-m", OWN])
PROMISE = ("promise", [*FAULTS, "tests/e2e", "-m", CORE])
CHANCE = ("soak and hand-over", [*FAULTS[:2], "-m", CORE]) if CORE != ALL else PROMISE
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
LONGEST = (OUTAGES, SOME_OUTAGES, MATRIX)  # begun first, so that no single one is left at the end
# Where there is no real Kafka: what can be tested on the mock cluster.
ON_MOCK = ("sqlite+kafka-mock", ROWS)


def kinds_of(mix):
    """The servers that it needs."""
    return [kind for kind in servers.KINDS if kind in re.split(r"\W", mix)]


def run_suite(stage, mix, suite, workers, extra=None):
    seconds = os.environ.get("SEMEL_SOAK_SECONDS", "8")
    extra = {**stage.servers.environment(), "SEMEL_TEST_MIX": mix, "SEMEL_SOAK_SECONDS": seconds, **(extra or {})}
    (name, words), started = suite, time.monotonic()
    run_pytest(stage, name, words, ROOT / "build-test", PYTEST_S + int(seconds) * 3, f" on {mix}", extra, workers)
    say(f"  {name} on {mix} ({time.monotonic() - started:.0f} s)")


SUITES_AT_ONCE, WORKERS_OF_SUITE = 4, 3  # while the last tests of one come to their end, the others go on


def stage_mixes(stage):
    """A mix is left out, by name, when one of its servers is not here."""
    possible = []
    for mix, *suites in MIXES:
        reasons = [reason for reason in map(stage.servers.missing, kinds_of(mix)) if reason]
        if not reasons:
            possible += [(mix, suite) for suite in suites]
        for name, _ in suites if reasons else ():
            stage.counts.add(f"{name} on {mix}", SKIPPED, reasons[0])
    if stage.servers.missing("kafka") and not stage.servers.missing(servers.MOCK):
        possible.append(ON_MOCK)
    possible.sort(key=lambda one: one[1] not in LONGEST)
    if possible:
        stage.at_once([functools.partial(run_suite, stage, *one, WORKERS_OF_SUITE) for one in possible], SUITES_AT_ONCE)


def stage_outages(stage):
    """They start servers of their own, and kill them."""
    for what, mix, words in ALL_OUTAGES:
        lacking = servers.what_is_missing(kinds_of(mix))
        if lacking:
            stage.counts.add(f"outages of {what}", SKIPPED, lacking)
        else:
            run_pytest(stage, "outages", words, ROOT / "build-test", PYTEST_S, f" of {what}", {"SEMEL_TEST_MIX": mix}, workers=2)


# ---- the stages -------------------------------------------------------------------------------


CHECKS = ("format", "tail", "includes", "words", "texts", "api-docs", "rows", "glossary", "ladders")


def stage_checks(stage):
    words = ["tests/checks", *(["-m", "not slow"] if stage.quick else [])]
    own_tests = functools.partial(run_pytest, stage, "checks", words, ROOT / "build-test", PYTEST_S, workers=2)
    scripts = [functools.partial(stage.check, f"check {name}", [ROOT / "scripts" / f"check-{name}"]) for name in CHECKS]
    scripts += [functools.partial(stage.check, name, [ROOT / "scripts" / name, "--check"]) for name in ("include-graph", "log-messages")]
    stage.at_once([own_tests, *scripts], 2)


def stage_build(stage):
    """With the programs that have the planted bugs, where the whole run needs them: while one stage works with a tree,
    no other one builds there."""
    build(stage, "test", ("all", "semel-planted", "semel_model") if stage.run.planted else ())


def stage_unit(stage):
    run_programs(stage, programs_of(stage, ROOT / "build-test", "unit_"))


def stage_contract(stage):
    programs = on_servers(programs_of(stage, ROOT / "build-test", "contract_"), wanted=False)
    # Kafka's groups and refusals take their time; suites on the mock cluster run once, with the sanitizers.
    run_programs(stage, {name: words for name, words in programs.items() if "kafka" not in name})


def stage_docs(stage):
    tree = ROOT / "build-test"
    stage.check("check docs", [ROOT / "scripts" / "check-docs", tree / "semel"])
    stage.check("check man pages", [ROOT / "scripts" / "check-man", tree])
    stage.check("check symbols", [ROOT / "scripts" / "check-symbols", tree])


def stage_e2e(stage):
    words = ["tests/e2e", "--deselect", "tests/e2e/test_examples.py"]
    if stage.quick:
        words += ["-m", "not slow"]
    run_pytest(stage, "e2e", words, ROOT / "build-test", PYTEST_S, workers=WORKERS)


def stage_examples(stage):
    run_pytest(stage, "examples", ["tests/e2e/test_examples.py"], ROOT / "build-test", PYTEST_S)


def stage_chaos(stage):
    run_pytest(stage, "chaos", ["tests/chaos"], ROOT / "build-test", PYTEST_S, workers=WORKERS)


def stage_asan(stage):
    tree = build(stage, "asan")
    if not tree:
        return

    def alone():
        chosen = on_servers(programs_of(stage, tree, ("unit_", "contract_")), wanted=False)
        run_programs(stage, chosen, extra=SANITIZED, suffix=" (asan)")

    def end_to_end():
        run_pytest(stage, "e2e", ["tests/e2e", "-m", "sanitize"], tree, PYTEST_S, " (asan)", SANITIZED, WORKERS)

    stage.at_once([functools.partial(run_on_servers, stage, tree), alone, end_to_end])


FUZZ_RUNS = 20000


def run_fuzzers(stage, bound, corpora, timeout_s):
    """Every fuzz program with its seeds up to the bound, two at a time. What one finds stays below build-fuzz/found/."""
    tree = build(stage, "fuzz")
    found = ROOT / "build-fuzz" / "found"

    def one(name):
        corpus, seeds = corpora / name, ROOT / "tests" / "fuzz" / "seeds" / name
        for folder in (corpus, found):
            folder.mkdir(parents=True, exist_ok=True)
        words = [tree / "tests" / "fuzz" / name, *bound, "-max_len=2000", "-timeout=60", f"-artifact_prefix={found}/{name}-",
                 corpus, *([seeds] if seeds.is_dir() else [])]
        return name, *stage.command(words, timeout_s)

    names = [source.stem for source in sorted((ROOT / "tests" / "fuzz").glob("fuzz_*.c"))] if tree else []
    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for name, code, output in pool.map(one, names):
            stage.counts.add(f"fuzz {name}", PASSED if code == 0 else FAILED, tail(output))


def stage_fuzz(stage):
    """From the same seed and for so many inputs: the seeds of old faults hold, and nothing is found at once."""
    run_fuzzers(stage, ["-seed=1", f"-runs={FUZZ_RUNS}"], stage.temporary, 300)


def stage_fuzz_long(stage):
    """From a random seed, and with the corpus of earlier runs (build-fuzz/corpus/)."""
    seconds = os.environ.get("SEMEL_FUZZ_SECONDS", "600")
    run_fuzzers(stage, [f"-max_total_time={seconds}"], ROOT / "build-fuzz" / "corpus", int(seconds) + 300)


THREADS = re.compile(r"pthread_create|thrd_create|semel_worker\w*_start|fork\(")


def threaded():
    """Names of the programs whose source starts threads."""
    for path in sorted((ROOT / "tests").rglob("test_*.c")):
        if THREADS.search(path.read_text(encoding="utf-8")):
            yield re.sub(r"[/.]", "_", str(path.relative_to(ROOT / "tests")))[: -len("_c")]


def stage_tsan(stage):
    names = [name for name in threaded() if name.startswith(("unit_", "contract_"))]
    tree = build(stage, "tsan", ("semel", *names))
    if not tree:
        return
    extra = {"TSAN_OPTIONS": "halt_on_error=0:exitcode=66"}
    programs = {name: words for name, words in programs_of(stage, tree, ("unit_", "contract_")).items() if name in names}
    # ThreadSanitizer of this age cannot place its shadow on kernels that spread addresses widely.
    for wrapper in ([], ["setarch", "-R"]):
        code, output = stage.command([*wrapper, tree / "semel", "--version"], 30, extra)
        if code == 0:
            run_programs(stage, programs, wrapper, extra, " (tsan)")
            words = ["tests/e2e/test_consume.py", "-k", "program or pipe or endpoint or maximum"]
            if not wrapper:
                run_pytest(stage, "e2e", words, tree, PYTEST_S, " (tsan)", extra, WORKERS)
            return
    stage.counts.add("threads (tsan)", SKIPPED, f"ThreadSanitizer does not start here: {tail(output, 1)}")


def tidy_key(path, common):
    return hashlib.sha256(common + path.read_bytes()).hexdigest()


def stage_tidy(stage):
    """clang-tidy over src/, two at a time; a file that did not change since it passed is not
    checked again."""
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
        code, output = stage.command(words, 300)
        if code == 0:
            stamp.touch()
        return path, code, output

    with concurrent.futures.ThreadPoolExecutor(max_workers=2) as pool:
        for path, code, output in pool.map(one, sorted(ROOT.glob("src/**/*.c"))):
            name = f"tidy {path.relative_to(ROOT)}"
            found = [line for line in output.splitlines() if " error: " in line]
            stage.counts.add(name, PASSED if code == 0 else FAILED, "\n".join(found) or tail(output, 40))


def stage_soak(stage):
    if build(stage, "test", ["semel-planted", "semel"]):
        seconds = os.environ.get("SEMEL_SOAK_SECONDS", "600")
        chosen = {key: value for key, value in os.environ.items() if key == "SEMEL_SOAK_SEED"}
        extra = {"SEMEL_SOAK_SECONDS": seconds, **chosen}
        run_pytest(stage, "soak", ["tests/chaos", "-k", "soak"], ROOT / "build-test", int(seconds) * 3 + 300, "", extra)


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


def stage_model(stage):
    """All short sequences, and long random ones, side by side; then each planted bug, until it is found."""
    tree = build(stage, "test", ["semel_model"])
    if not tree:
        return
    seconds = os.environ.get("SEMEL_MODEL_SECONDS", "60")
    seed = os.environ.get("SEMEL_MODEL_SEED", "1")
    jobs = [(f"model: {kind} sequences", ["--kind", kind, "--seconds", seconds]) for kind in ("short", "chance")]
    jobs += [(f"model: finds {bug}", ["--plant", bug, "--seconds", "300", *words.split()]) for bug, words in MODEL_PLANTS.items()]

    def one(job):
        name, words = job
        return name, *stage.command([tree / "tests" / "semel_model", "--seed", seed, *words], int(seconds) + 600)

    with concurrent.futures.ThreadPoolExecutor(max_workers=5) as pool:
        for name, code, output in pool.map(one, jobs):
            stage.counts.add(name, PASSED if code == 0 else FAILED, tail(output))


MODEL_MIXES = ("postgres+rabbitmq", "postgres+kafka", "postgres-cdc+kafka")


def stage_model_servers(stage):
    """The model's sequences on the real program and real servers (SEMEL_MODEL_SEEDS)."""
    if not build(stage, "test", ["semel", "semel_model"]):
        return
    chosen = {key: value for key, value in os.environ.items() if key in ("SEMEL_MODEL_SEEDS", "SEMEL_MODEL_STEPS")}
    for mix in MODEL_MIXES:
        lacking = next(filter(None, map(stage.servers.missing, kinds_of(mix))), "")
        if lacking:
            stage.counts.add(f"sequences on {mix}", SKIPPED, lacking)
        else:
            run_suite(stage, mix, ("sequences", ["tests/chaos/test_model_sequences.py"]), WORKERS, chosen)


# name, function, in the whole run, in `quick`, what it does
STAGES = (
    ("checks", stage_checks, True, True, "format, tail numbers, include direction and graph, words, glossary, ladders, texts, log messages, the checks' own tests"),
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
# Stages that use build-test need it built, some of them with the planted bugs.
NEED_BUILD = {"unit", "contract", "docs", "e2e", "examples", "chaos", "mixes", "outages", "tidy"}
AFTER_BUILD = NEED_BUILD | {"asan"}  # which does not need it, but most of the run does, and has the processors first
NEED_PLANTED = {"chaos", "model"}
# Stages of a group run one by one; the groups run in parallel. All others are in one group, with the first build.
GROUPS = {"checks": "checks"} | dict.fromkeys(("e2e", "mixes", "outages", "model-servers", "soak"), "mixes")
GROUPS |= dict.fromkeys(("asan", "servers", "tsan", "fuzz", "fuzz-long"), "sanitizers")


def parse_arguments():
    lines = [f"  {name:14}{'' if whole else '(on request) '}{what}" for name, _, whole, _, what in STAGES]
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Runs the tests: all of them, the quick ones, or named stages.",
        epilog="stages:\n" + "\n".join(lines) + "\n  quick         checks, build, unit, contract, docs and e2e, in under a minute",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--list", action="store_true", help="print the stages and exit")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest tests at the end, and how much of their time they computed")
    parser.add_argument("stages", nargs="*", metavar="STAGE")
    arguments = parser.parse_args()
    known = {stage[0] for stage in STAGES} | {"quick"}
    for name in arguments.stages:
        if name not in known:
            parser.exit(64, f"unknown stage {name} (stages: {' '.join(sorted(known))})\n")
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


def run_stage(run, name, function):
    stage, started = Stage(run, name), time.monotonic()
    say(f"{name} …")
    try:
        function(stage)
        stage.end()
    except Interrupted:
        return
    except Exception:  # whatever it is, the counts are still printed
        stage.counts.add(f"stage {name}", FAILED, traceback.format_exc())
    found = ", ".join(f"{count} {key}" for key, count in stage.counts.by_outcome.items() if count) or "nothing to do"
    took = time.monotonic() - started
    say(f"{name}: {found} ({took:.0f} s, {stage.used_s / max(took, 1):.1f} processors)")


def run_group(run, stages, built):
    for name, function, *_ in stages:
        while name in AFTER_BUILD and not built.wait(0.1):
            if run.ending.is_set():
                return
        if run.ending.is_set():
            return
        run_stage(run, name, function)
        if name == "build":
            built.set()


def run_stages(run, stages):
    built, groups = threading.Event(), {}
    if "build" not in {stage[0] for stage in stages}:
        built.set()
    for stage in stages:
        groups.setdefault(GROUPS.get(stage[0], "build"), []).append(stage)
    threads = [threading.Thread(target=run_group, args=(run, group, built)) for group in groups.values()]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        run.ending.set()
        run.processes.kill_all()
        for thread in threads:
            thread.join()
        raise


def interrupted(number, _frame):
    raise KeyboardInterrupt(number)


def used_s():
    """Seconds of a processor that ended children have used, servers among them."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    arguments = parse_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    run, code, started = Run(quick=arguments.stages == ["quick"]), 0, time.monotonic()
    stages = chosen_stages(arguments.stages)
    run.planted = bool(NEED_PLANTED & {stage[0] for stage in stages})
    try:
        run_stages(run, stages)
        run.check_left_over()
    except KeyboardInterrupt:
        say("interrupted")
        code = 130
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        run.close()
    for seconds, used, name in sorted(run.durations, reverse=True)[: arguments.slowest]:
        print(f"{seconds:7.1f} s, {used:6.2f} s of a processor: {name}")
    for name in run.counts.failures:
        print(f"failed: {name}")
    for name in run.counts.skips:
        print(f"skipped: {name}")
    took = time.monotonic() - started
    print(f"all stages: {took:.0f} s, {used_s() / took:.1f} processors")
    print(run.counts.line(), flush=True)
    return code or (1 if run.counts.by_outcome[FAILED] else 0)


if __name__ == "__main__":
    sys.exit(main())
