# SPDX-License-Identifier: Apache-2.0
"""The jars of the tests' Kafka come from a registry: none is used without a check of its sum."""
import hashlib
import sys

import pytest

from helper import SCRIPTS

sys.path.insert(0, str(SCRIPTS.parent / "tests" / "support"))

import kafka_server  # noqa: E402
from sandbox import Missing  # noqa: E402

MAVEN = """#!/bin/sh
for word; do case $word in -DoutputDirectory=*) folder=${word#*=} ;; esac; done
mkdir "$folder" && printf %s "$JAR" >"$folder/good.jar"
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """With a registry of one jar, whose bytes are in JAR."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("java", "#!/bin/sh\n"), ("mvn", MAVEN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    listed = tmp_path / "list"
    listed.write_text(f"# a comment\n{hashlib.sha256(b'good').hexdigest()}  good.jar\n")
    monkeypatch.setattr(kafka_server, "LIST", listed)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("JAR", "good")
    return programs


def test_the_jars_are_fetched_once_and_kept_in_the_users_cache(machine, tmp_path):
    folder = kafka_server.jars()
    assert folder == tmp_path / "cache" / "semel-test" / f"kafka-{kafka_server.VERSION}"
    assert (folder / "good.jar").read_text() == "good"
    (machine / "mvn").write_text("#!/bin/sh\nexit 1\n")
    assert kafka_server.jars() == folder
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, "lock"]


def test_another_jar_than_the_listed_one_is_refused_by_name(machine, monkeypatch):
    monkeypatch.setenv("JAR", "bad")
    with pytest.raises(Missing, match=r"good\.jar"):
        kafka_server.jars()
    assert not (kafka_server.cache() / f"kafka-{kafka_server.VERSION}").exists()


@pytest.mark.parametrize("change", [lambda folder: (folder / "good.jar").write_text("bad"),
                                   lambda folder: (folder / "more.jar").write_text("more"),
                                   lambda folder: (folder / "good.jar").unlink()])
def test_a_cache_that_was_changed_is_fetched_again(machine, change):
    change(kafka_server.jars())
    folder = kafka_server.jars()
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("good.jar", "good")]


def test_without_the_registry_the_reason_is_the_error_of_maven(machine):
    (machine / "mvn").write_text("#!/bin/sh\necho '[ERROR] cannot reach the registry'\nexit 1\n")
    with pytest.raises(Missing, match="cannot reach the registry"):
        kafka_server.jars()


def test_every_listed_sum_is_one():
    assert len(kafka_server.listed()) > 50
    assert all(len(digest) == 64 for digest in kafka_server.listed().values())
