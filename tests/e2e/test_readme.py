# SPDX-License-Identifier: Apache-2.0
"""The README, followed from its first line to its last: its commands print what it says, and have that effect."""
import guide
import pytest
from program import PROGRAM, TREE

PACKAGE = """Name: semel
Description: the tree under test
Version: 0
Cflags: -I{tree}/include
Libs: -L{build} -lsemel -Wl,-rpath,{build}
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    folder = tmp_path_factory.mktemp("readme")
    (folder / "semel.pc").write_text(PACKAGE.format(tree=TREE, build=PROGRAM.parent))
    reader = guide.Reader(folder, {"PKG_CONFIG_PATH": str(folder)})
    reader.read(guide.page("README.md"))
    return reader


def test_the_quick_start_prints_what_it_says(reader):
    assert [text for text in reader.expected if text], "the page shows no output at all"
    assert reader.mismatches() == []


def test_every_order_has_one_invoice_in_the_end(reader):
    orders = reader.rows("SELECT id, total FROM orders ORDER BY id")
    assert [name for name, _ in orders] == [f"ord-{number}" for number in range(1, 7)]
    assert reader.rows("SELECT order_id, total FROM invoice ORDER BY order_id") == orders


def test_the_refused_order_left_no_event(reader):
    assert reader.rows("SELECT count(*) FROM semel_outbox WHERE aggregate_id = 'ord-2'") == [(1,)]


def test_every_link_of_the_pages_leads_somewhere():
    pages = [TREE / "README.md", *sorted((TREE / "docs").glob("*.md"))]
    assert [fault for path in pages for fault in guide.broken_links(path)] == []
