# SPDX-License-Identifier: Apache-2.0
"""A driver is its folder and its line in the registry: without both, the rest builds and runs. Each is deleted in turn from a copy
of the tree, and what is left is built and run with --version."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helper import SCRIPTS

pytestmark = pytest.mark.slow

TREE = SCRIPTS.parent
SEAMS = ("store", "broker", "guard")
# Not deletable, and why.
NEEDED = {
    "store/sql": "it is no driver, but the statement layer that SQL stores share",
}
FOUND = sorted(str(path.relative_to(TREE / "src")) for seam in SEAMS for path in (TREE / "src" / seam).iterdir() if path.is_dir())
DRIVERS = [driver for driver in FOUND if driver not in NEEDED]
TABLE = re.compile(r"^const struct semel_\w+_driver (\w+) =", re.MULTILINE)
LINES_MAX = 6  # in a registry: an include or declaration, and an entry, for each table


def run(*words, cwd):
    done = subprocess.run(list(map(str, words)), cwd=cwd, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{words} ended with {done.returncode}\n{(done.stdout + done.stderr)[-6000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Built once, quickly, so that what follows compiles only what is touched by a deletion."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("src", "include", "cmake"):
        shutil.copytree(TREE / name, folder / name)
    shutil.copy(TREE / "CMakeLists.txt", folder)
    run("cmake", "-S", folder, "-B", folder / "build", "-G", "Ninja", "-DSEMEL_TESTS=OFF", "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_C_FLAGS=-O0 -w", cwd=folder)
    build(folder)
    return folder


def build(folder):
    run("cmake", "--build", folder / "build", "--target", "semel", cwd=folder)


def tables_of(folder):
    """The tables of functions that a driver's folder defines."""
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.c")]
    return [name for text in texts for name in TABLE.findall(text)]


def without(registry, driver, tables):
    """The registry without the lines that name the driver's folder or tables."""
    names = re.compile(rf'"{driver}/|' + "|".join(rf"\b{table}\b" for table in tables))
    lines = registry.splitlines(keepends=True)
    kept = [line for line in lines if not names.search(line)]
    assert 0 < len(lines) - len(kept) <= LINES_MAX, f"the registry names the driver in {len(lines) - len(kept)} lines"
    return "".join(kept)


@pytest.mark.xdist_group("deletable drivers")
@pytest.mark.parametrize("driver", DRIVERS)
def test_without_its_folder_and_its_line_in_the_registry_the_rest_builds(copy, tmp_path, driver):
    folder, registry = copy / "src" / driver, copy / "src" / Path(driver).parent / "registry.c"
    tables, text = tables_of(folder), registry.read_text(encoding="utf-8")
    assert tables, f"no table of functions is defined in {driver}"
    shutil.move(folder, tmp_path / "deleted")
    registry.write_text(without(text, driver, tables), encoding="utf-8")
    try:
        build(copy)
        assert run(copy / "build" / "semel", "--version", cwd=tmp_path).startswith("semel ")
    finally:
        shutil.move(tmp_path / "deleted", folder)
        registry.write_text(text, encoding="utf-8")
