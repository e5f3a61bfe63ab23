# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/handlers.md, run as a reader would: top to bottom, in an empty folder."""
import os
import re
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parent.parent.parent
PROGRAM = Path(os.environ.get("SEMEL_BIN", TREE / "build" / "semel")).absolute()
BLOCK = re.compile(r"(?:^Save as `(?P<file>[^`]+)`:\n\n)?^```(?P<kind>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Reader:
    """Saves the files and runs the commands of the guide; keeps what the commands said."""

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


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("guide"))
    guide = (TREE / "docs" / "handlers.md").read_text()
    reader.read(guide.replace("8080", str(free_port())))
    return reader


def rows(reader, statement):
    connection = sqlite3.connect(reader.folder / "semel.db")
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def test_every_example_of_the_guide_runs(reader):
    assert len(reader.said) >= 7


def test_the_sql_handler_wrote_an_invoice_per_order(reader):
    assert rows(reader, "SELECT order_id, total FROM invoice ORDER BY 1") == [("ord-1", 5.0), ("ord-2", -1.0)]


def test_the_program_wrote_one_letter_named_after_the_event(reader):
    ((first,),) = rows(reader, "SELECT id FROM semel_outbox WHERE aggregate_id = 'ord-1'")
    assert [path.name for path in (reader.folder / "letters").iterdir()] == [f"{first}.json"]


def test_what_was_rejected_is_a_dead_letter_with_the_reason(reader):
    reasons = dict(rows(reader, "SELECT scope, failure_reason FROM semel_dead_letter"))
    assert sorted(reasons) == ["checks", "letters", "web"]
    assert reasons["letters"] == "order ord-2 has a negative total"
    assert reasons["checks"] == "a negative total"
    assert "answered 422" in reasons["web"]


def test_the_printed_events_pass_through_a_pipeline(reader):
    assert any(said.split() == ['"aggregateId":"ord-1"', '"aggregateId":"ord-2"'] for said in reader.said)


def test_the_upcasters_made_the_newest_version(reader):
    lines = [line for line in reader.said[-1].splitlines() if line.startswith("{")]
    assert len(lines) == 2
    for line in lines:
        assert '"type":"order.created.v3"' in line and '"currency":"EUR"' in line and '"amount":' in line
