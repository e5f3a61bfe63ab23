# SPDX-License-Identifier: Apache-2.0
"""The examples, as a user meets them: built from an installed copy, and run with the installed
program. The copy is moved after its installation, so nothing in it may depend on its first path."""
import json
import os
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TREE = Path(__file__).resolve().parent.parent.parent
HEADERS = sorted(path.name for path in (TREE / "include" / "semel").glob("*.h"))
CMAKE_USER = """
cmake_minimum_required(VERSION 3.25)
project(user LANGUAGES C)
find_package(semel 0.1 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
foreach(kind shared static)
  foreach(program producer consumer)
    add_executable(${program}_${kind} ${program}.c)
    target_link_libraries(${program}_${kind} PRIVATE semel::${kind} PkgConfig::SQLITE)
  endforeach()
endforeach()
"""


def run(*words, code=0, **options):
    """Standard output of a command that must end with this code."""
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=900, check=False, **options
    )
    assert done.returncode == code, f"{words} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """`make install` into one folder, which is then moved."""
    folder = tmp_path_factory.mktemp("installed")
    run("make", "-C", TREE, "install", f"PREFIX={folder / 'made'}")
    (folder / "made").rename(folder / "moved")
    return folder / "moved"


def found_in(prefix, pattern):
    found = sorted(prefix.glob(pattern))
    assert found, f"{pattern} is not installed"
    return found[0]


@pytest.fixture(scope="module")
def environment(prefix):
    package = found_in(prefix, "lib/**/pkgconfig/semel.pc").parent
    return dict(
        os.environ,
        PKG_CONFIG_PATH=str(package),
        LD_LIBRARY_PATH=str(package.parent),
        PATH=f"{prefix / 'bin'}:{os.environ['PATH']}",
    )


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("examples") / "examples"
    shutil.copytree(TREE / "examples", folder, ignore=shutil.ignore_patterns("producer", "consumer"))
    return folder


@pytest.fixture(scope="module")
def by_make(environment, sources):
    run("make", "-C", sources, "CFLAGS=-Wall -Wextra -Werror", env=environment)
    return {"producer": sources / "producer", "consumer": sources / "consumer"}


@pytest.fixture(scope="module")
def by_cmake(prefix, environment, sources):
    (sources / "CMakeLists.txt").write_text(CMAKE_USER)
    tree = sources / "tree"
    run("cmake", "-S", sources, "-B", tree, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}", env=environment)
    run("cmake", "--build", tree, env=environment)
    return tree


class Shop:
    """One shop: its database, its broker, and the programs at work on them."""

    def __init__(self, folder, programs, environment):
        self.database, self.broker = folder / "shop.db", folder / "broker.db"
        self.programs = programs
        self.environment = dict(
            environment, SEMEL_STORE=f"sqlite:{self.database}", SEMEL_BROKER=f"local:{self.broker}"
        )

    def order(self, name, cents, code=0):
        return run(self.programs["producer"], self.database, name, cents, code=code, env=self.environment)

    def bill(self):
        return run(self.programs["consumer"], self.database, self.broker, 30, env=self.environment)

    def semel(self, *words, code=0):
        return run("semel", *words, code=code, env=self.environment)

    def rows(self, sql):
        connection = sqlite3.connect(self.database)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()


@pytest.fixture
def shop(tmp_path, by_make, environment):
    return Shop(tmp_path, by_make, environment)


def test_everything_a_user_needs_is_installed(prefix):
    assert os.access(prefix / "bin" / "semel", os.X_OK)
    for pattern in ("lib/**/libsemel.so", "lib/**/libsemel.so.0", "lib/**/libsemel.a"):
        found_in(prefix, pattern)
    found_in(prefix, "lib/**/cmake/semel/semelConfig.cmake")
    found_in(prefix, "share/man/man1/semel.1*")
    found_in(prefix, "share/bash-completion/completions/semel")
    assert sorted(path.name for path in (prefix / "include" / "semel").iterdir()) == HEADERS


def test_nothing_that_is_only_for_tests_is_installed(prefix):
    names = [path.name for path in prefix.rglob("*")]
    assert not [name for name in names if "planted" in name or "test" in name]


@pytest.mark.parametrize("header", HEADERS)
@pytest.mark.parametrize("language", ["c", "c++"])
def test_every_header_can_be_included_alone(environment, tmp_path, header, language):
    source = tmp_path / "alone"
    source.write_text(f"#include <semel/{header}>\n")
    flags = run("pkg-config", "--cflags", "semel", env=environment).split()
    run("clang", "-x", language, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", *flags, source)


def test_the_package_has_the_version_of_the_program(environment):
    version = run("pkg-config", "--modversion", "semel", env=environment).strip()
    assert version in run("semel", "--version", env=environment)


def test_each_order_gets_one_invoice_and_a_follow_up(shop):
    shop.order("ord-1", 4200)
    shop.order("ord-2", 100)
    shop.semel("relay", "--drain")
    assert shop.bill().startswith("2 invoices, 0 duplicates")

    assert shop.rows("SELECT order_id, total_cents FROM invoice ORDER BY 1") == [("ord-1", 4200), ("ord-2", 100)]
    events = dict(shop.rows("SELECT event_type || ' ' || aggregate_id, id FROM semel_outbox"))
    assert sorted(events) == [
        "invoice.written.v1 ord-1", "invoice.written.v1 ord-2", "order.created.v1 ord-1", "order.created.v1 ord-2",
    ]
    cause = events["order.created.v1 ord-1"]
    headers = shop.rows(f"SELECT headers FROM semel_outbox WHERE id = '{events['invoice.written.v1 ord-1']}'")
    assert json.loads(headers[0][0])["causationId"] == cause


def test_a_refused_order_leaves_no_event(shop):
    shop.order("ord-1", 4200)
    shop.order("ord-2", 0, code=65)
    shop.order("ord-1", 9900, code=65)
    assert shop.rows("SELECT id, total_cents FROM orders") == [("ord-1", 4200)]
    assert shop.rows("SELECT aggregate_id, payload FROM semel_outbox") == [("ord-1", '{"total_cents":4200}')]


def test_an_event_that_comes_again_is_not_billed_again(shop):
    shop.order("ord-1", 4200)
    shop.semel("relay", "--drain")
    shop.bill()
    shop.semel("replay", "--type", "order.created.v1")
    shop.semel("relay", "--drain")
    assert shop.bill().startswith("0 invoices, 1 duplicates")
    assert shop.rows("SELECT count(*) FROM invoice") == [(1,)]


def test_an_order_that_cannot_be_billed_is_a_dead_letter_with_its_reason(shop):
    shop.order("ord-1", 4200)
    shop.semel("publish", "--type", "order.created.v1", "--aggregate", "order:ord-9", "--payload", "{}")
    shop.semel("relay", "--drain")
    assert shop.bill().startswith("1 invoices")
    letters = json.loads(shop.semel("dlq", "list", "--json"))
    assert [letter["sourceService"] for letter in letters] == ["billing"]
    assert "cannot bill order ord-9" in letters[0]["failureReason"]


def test_verify_agrees_with_the_books(shop):
    for number in range(20):
        shop.order(f"ord-{number}", 100 + number)
    shop.semel("relay", "--drain")
    shop.bill()
    shop.semel("relay", "--drain")
    shop.semel("verify", "--scope", "billing")


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_find_package_gives_both_libraries(tmp_path, by_cmake, environment, kind):
    programs = {name: by_cmake / f"{name}_{kind}" for name in ("producer", "consumer")}
    shop = Shop(tmp_path, programs, environment)
    shop.order("ord-1", 4200)
    shop.semel("relay", "--drain")
    assert shop.bill().startswith("1 invoices")
    linked = run("ldd", programs["producer"], env=environment)
    assert ("libsemel" in linked) == (kind == "shared")
