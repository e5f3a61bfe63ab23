# SPDX-License-Identifier: Apache-2.0
"""Reads a guide as its reader would: saves its files and runs its commands, top to bottom, in an empty folder."""
import os
import re
import sqlite3
import subprocess
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("SEMEL_BIN", TREE / "build" / "semel")).absolute()
BLOCK = re.compile(r"(?:^Save as `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


class Reader:
    """Keeps what the commands said: `said` has the standard output of each block of kind sh."""

    def __init__(self, folder):
        self.folder, self.said = folder, []
        mine = {key: value for key, value in os.environ.items() if not key.startswith("SEMEL_")}
        (folder / "bin").mkdir()
        (folder / "bin" / "semel").symlink_to(PROGRAM)
        (folder / "bin" / "python3").symlink_to("/usr/bin/python3")
        self.environment = {**mine, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}

    def run(self, commands):
        """In a session of its own, so that a server in the background is ended with it."""
        with subprocess.Popen(
            ["sh", "-euc", commands], cwd=self.folder, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as shell:
            output, errors = shell.communicate(timeout=60)
        assert shell.returncode == 0, f"{commands}\nended with {shell.returncode}\n{output}{errors}"
        self.said.append(output)

    def read(self, guide):
        for block in BLOCK.finditer(guide):
            if block["file"]:
                (self.folder / block["file"]).write_text(block["text"])
            elif block["kind"] == "sh":
                self.run(block["text"])

    def rows(self, statement, database="semel.db"):
        connection = sqlite3.connect(self.folder / database)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()
