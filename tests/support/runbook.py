# SPDX-License-Identifier: Apache-2.0
"""A runbook, followed as an operator on call would: the problem is there, the placeholders of the page are set,
and every ```sh block is run as it is. Commands may well find a problem; they may not be invalid."""
import guide
from program import PROGRAM

# Wrong options and settings, and faults of the program: no page should make a reader type such a thing.
MISTAKES = {2, 64, 70, 78, 126, 127}
RECORD_EXIT_CODE = """#!/bin/sh
"{program}" "$@"
code=$?
echo "$code $*" >> "{calls}"
exit $code
"""


class RunbookReader(guide.Reader):
    strict = False

    def __init__(self, folder, environment):
        super().__init__(folder, environment)
        self.calls = folder / "bin" / "calls"
        self.calls.touch()
        program = folder / "bin" / "semel"
        program.unlink()
        program.write_text(RECORD_EXIT_CODE.format(program=PROGRAM, calls=self.calls), encoding="utf-8")
        program.chmod(0o755)

    def follow(self, name, since="", until=None):
        """The whole page, or what stands from one heading to another, where something has to happen in between."""
        text = guide.page(f"docs/runbooks/{name}.md")
        assert since in text and (until is None or until in text)
        text = since + text.partition(since)[2] if since else text
        self.commands, self.expected, self.printed = [], [], []
        self.read(text.partition(until)[0] if until else text)
        assert self.commands, "the page has no command to run"
        return self

    def codes(self):
        """Of every run of semel: how it ended, and its words."""
        lines = [line.partition(" ") for line in self.calls.read_text(encoding="utf-8").splitlines()]
        return [(int(code), words) for code, _, words in lines]

    def check(self, code, output, errors):
        mistakes = [(code, words) for code, words in self.codes() if code in MISTAKES]
        assert not mistakes and ": not found" not in errors and "command not found" not in errors, f"{mistakes}\n{output}{errors}"
        assert "unbound" not in errors and "not set" not in errors, errors

    def answer(self, word):
        """What the only block that begins so, or has such a line, printed."""
        (printed,) = [printed for command, printed in zip(self.commands, self.printed) if word in command]
        return printed


def sql_blocks(name):
    """For a page that asks the database itself."""
    return [block["text"] for block in guide.BLOCK.finditer(guide.page(f"docs/runbooks/{name}.md")) if block["kind"] == "sql"]
