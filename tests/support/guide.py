# SPDX-License-Identifier: Apache-2.0
"""Pages with examples, followed as a reader would: top to bottom, in one shell, in an empty folder.

- Every ```sh block is run, unless the line `<!-- not run -->` stands before it.
- A block after "Save as `NAME`:" is that file, and is there before the first command runs.
- An ```output block is what the sh block before it must have printed; … stands for any text.
"""
import os
import re
import sqlite3
import subprocess

from program import PROGRAM, TREE

BLOCK = re.compile(
    r"(?:Save as `(?P<file>[^`\n]+)`:\n\n|^<!-- (?P<skip>not run) -->\n)?"
    r"^```(?P<kind>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
MARK = "<<< block {} >>>"


def page(name):
    return (TREE / name).read_text(encoding="utf-8")


class Reader:
    """A page and the result of running its blocks: printed[n] is the output of the nth sh block."""

    strict = True  # a command that fails ends the page

    def __init__(self, folder, environment=None):
        self.folder, self.commands, self.expected, self.printed = folder, [], [], []
        mine = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
        (folder / "bin").mkdir()
        (folder / "bin" / "semel").symlink_to(PROGRAM)
        (folder / "bin" / "python3").symlink_to("/usr/bin/python3")
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self.environment = {**mine, "PATH": path, **(environment or {})}

    def read(self, text):
        """Saves the page's files, then runs its commands."""
        for block in BLOCK.finditer(text):
            if block["file"]:
                (self.folder / block["file"]).write_text(block["text"], encoding="utf-8")
            elif block["kind"] == "sh" and not block["skip"]:
                self.commands.append(block["text"])
                self.expected.append("")
            elif block["kind"] == "output":
                self.expected[-1] += block["text"]
        self.run()

    def run(self):
        """In a session of its own, so that what was left in the background is ended with it."""
        marked = [f"echo '{MARK.format(at)}'\n{text}" for at, text in enumerate(self.commands)]
        with subprocess.Popen(
            ["sh", "-euc" if self.strict else "-uc", "\n".join(marked)], cwd=self.folder, env=self.environment, text=True,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as shell:
            output, errors = shell.communicate(timeout=600)
        self.printed = re.split(MARK.format(r"\d+") + r"\n", output)[1:]
        self.check(shell.returncode, output, errors)

    def check(self, code, output, errors):
        stopped_in = self.commands[len(self.printed) - 1] if self.printed else ""
        assert code == 0, f"{stopped_in}\nended with {code}\n{output}{errors}"

    def rows(self, statement, database="semel.db"):
        connection = sqlite3.connect(self.folder / database)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()

    def mismatches(self):
        """Blocks that did not print what the page has as their output."""
        found = []
        for command, expected, printed in zip(self.commands, self.expected, self.printed):
            pattern = ".*".join(re.escape(part) for part in expected.split("…"))
            if expected and not re.search("^" + pattern, printed, re.MULTILINE):
                found.append(f"{command}should have printed\n{expected}but printed\n{printed}")
        return found


# ---- links -------------------------------------------------------------------------------------

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} (?P<text>.*)$", re.MULTILINE)


def anchors(text):
    """The names under which the page's headings can be linked to."""
    plain = (re.sub(r"[^\w\- ]", "", heading["text"].lower()) for heading in HEADING.finditer(text))
    return {heading.replace(" ", "-") for heading in plain}


def broken_links(path):
    """Links of a page to files or headings that are not there."""
    for link in LINK.finditer(path.read_text(encoding="utf-8")):
        target = link["target"]
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if not found.exists():
            yield f"{path.name}: {target}: no such file"
        elif anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
            yield f"{path.name}: {target}: no such heading"
