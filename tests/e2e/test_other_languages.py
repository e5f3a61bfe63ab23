# SPDX-License-Identifier: Apache-2.0
"""The guide for other languages, followed section by section, as far as their clients are installed."""
import importlib.util
import os
import re
import shutil
import subprocess

import guide
import mix
import pytest

pytestmark = [pytest.mark.anywhere, pytest.mark.only("postgres"), pytest.mark.only("rabbitmq")]
PAGE = guide.page("docs/other-languages.md")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))
PREPARE = PAGE.partition("\n## ")[0]


def module(name):
    return lambda: importlib.util.find_spec(name) is not None


def jdbc():
    return shutil.which("java") and os.path.exists(os.environ.get("PGJDBC", "/usr/share/java/postgresql.jar"))


def runs(*words):
    def tried():
        if not shutil.which(words[0]):
            return False
        return subprocess.run(words, capture_output=True, stdin=subprocess.DEVNULL, check=False).returncode == 0
    return tried


# section: what it needs, and whether that is installed
LANGUAGES = {
    "Python, psycopg2": ("psycopg2", module("psycopg2")),
    "Python, psycopg 3": ("psycopg (python3-psycopg)", module("psycopg")),
    "Java, JDBC": ("java and libpostgresql-jdbc-java", jdbc),
    "JavaScript, node-postgres": ("node and its module pg", runs("node", "-e", "require('pg')")),
    "Go, pgx": ("go and github.com/jackc/pgx/v5", runs("go", "list", "github.com/jackc/pgx/v5")),
    "Consuming and producing without Semel: RabbitMQ with pika": ("pika", module("pika")),
}


def test_every_section_with_a_program_is_tried():
    assert set(LANGUAGES) == {name for name, text in SECTIONS.items() if "Save as" in text}


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_program_does_what_the_page_says(bare, tmp_path, language):
    needs, is_installed = LANGUAGES[language]
    if not is_installed():
        pytest.skip(f"{needs}: not installed")
    folder = tmp_path / "reader"
    folder.mkdir()
    settings = {key: os.environ[key] for key in ("PGJDBC", "NODE_PATH") if key in os.environ}
    reader = guide.Reader(folder, {**settings, **bare.backend.environment()})
    reader.read(PREPARE + SECTIONS[language])
    assert any(reader.expected) and reader.mismatches() == []
    ((events, rows),) = bare.sql("SELECT (SELECT count(*) FROM semel_outbox), (SELECT count(*) FROM audit)")
    assert events == 1 and rows == (2 if "pika" in language else 1)
    if "pika" not in language:
        assert bare.sql("SELECT total FROM orders JOIN semel_outbox ON aggregate_id = orders.id") == [(5,)]
