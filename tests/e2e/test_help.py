# SPDX-License-Identifier: Apache-2.0
"""Help, man pages, completion and reference are made from one set of tables, and agree."""
import re
import subprocess

from program import PROGRAM, TREE

WIDTH = 100


def commands(bare):
    """The names in the program's help, under its headings of commands."""
    text = bare.ok("--help").partition("\nGlobal options:")[0]
    return re.findall(r"^  ([a-z]+) ", text, re.MULTILINE)


def test_the_program_explains_itself(bare):
    text = bare.ok("--help")
    assert text.startswith("Usage: semel ")
    for name in ("init", "publish", "relay", "consume", "subscriptions", "failpoints"):
        assert f"\n  {name} " in text
    assert text == bare.ok("-h") == bare.ok("help")


def test_every_command_explains_itself_with_an_example(bare):
    for name in commands(bare):
        text = bare.ok(name, "--help")
        assert text.startswith(f"Usage: semel {name}"), name
        assert "Examples:" in text or "Commands:" in text, name
        assert text == bare.ok("help", name)


def test_help_fits_a_terminal(bare):
    for name in ["--help", *commands(bare)]:
        words = [name] if name == "--help" else [name, "--help"]
        for line in bare.ok(*words).splitlines():
            assert len(line) <= WIDTH, line


def test_help_needs_nothing_else_to_be_right(bare):
    assert bare.ok("consume", "--help", "--store", "nonsense")


def test_the_version_is_printed(bare):
    header = (TREE / "include" / "semel" / "version.h").read_text()
    version = re.search(r'SEMEL_VERSION "(.*)"', header).group(1)
    assert bare.ok("--version") == f"semel {version}\n"


def test_a_closed_standard_output_ends_the_program_quietly(bare):
    done = subprocess.run(
        ["bash", "-c", f"'{PROGRAM}' --help | true; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, check=False, cwd=bare.folder,
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_full_disk_under_standard_output_is_reported(bare):
    for words in (("--help",), ("run", "--sample")):  # one that fits into a buffer, and one that does not
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = bare.run(*words, stdout=full)
        assert done.returncode == 75 and "standard output" in done.stderr


def test_every_command_has_a_man_page(bare):
    (bare.folder / "man").mkdir()
    bare.ok("man", "--output", "man")
    pages = {path.name for path in (bare.folder / "man").iterdir()}
    assert pages == {"semel.1"} | {f"semel-{name}.1" for name in commands(bare)}


def test_the_man_page_has_every_option(bare):
    for name in commands(bare):
        options = set(re.findall(r"^ +(?:-., )?(--[a-z-]+)", bare.ok(name, "--help"), re.MULTILINE))
        page = bare.ok("man", name).replace("\\-", "-")
        assert {option for option in options if option not in page} == set(), name


def completed(bare, line):
    script = (
        f"source <('{PROGRAM}' completion bash); COMP_WORDS=({line}); "
        "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _semel; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=bare.folder)
    return done.stdout.split()


def test_the_completion_knows_commands_options_and_choices(bare):
    assert completed(bare, "semel pub") == ["publish"]
    assert set(completed(bare, "semel ''")) >= set(commands(bare))
    assert completed(bare, "semel --store sqlite:x rel") == ["relay"]
    assert completed(bare, "semel publish --payl") == ["--payload"]
    assert completed(bare, "semel consume --poison ''") == ["park-key", "block", "skip"]
    assert "--broker" in completed(bare, "semel relay --")


def test_failpoints_are_listed_for_people_and_programs(bare):
    rows = bare.json("failpoints")
    assert {"publish.before-commit", "relay.after-confirm", "consume.after-commit"} <= {row["name"] for row in rows}
    assert all(set(row) == {"name", "party", "window", "outcome"} for row in rows)
    text = bare.ok("failpoints")
    assert all(row["name"] in text and row["outcome"] in text for row in rows)
