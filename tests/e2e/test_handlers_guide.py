# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/handlers.md, run as a reader would: top to bottom, in an empty folder."""
import pytest
from guide import TREE, Reader
from sandbox import free_port


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = Reader(tmp_path_factory.mktemp("guide"))
    guide = (TREE / "docs" / "handlers.md").read_text()
    reader.read(guide.replace("8080", str(free_port())))
    return reader


def test_every_example_of_the_guide_runs(reader):
    assert len(reader.printed) >= 7


def test_the_sql_handler_wrote_an_invoice_per_order(reader):
    assert reader.rows("SELECT order_id, total FROM invoice ORDER BY 1") == [("ord-1", 5.0), ("ord-2", -1.0)]


def test_the_program_wrote_one_letter_named_after_the_event(reader):
    ((first,),) = reader.rows("SELECT id FROM semel_outbox WHERE aggregate_id = 'ord-1'")
    assert [path.name for path in (reader.folder / "letters").iterdir()] == [f"{first}.json"]


def test_what_was_rejected_is_a_dead_letter_with_the_reason(reader):
    reasons = dict(reader.rows("SELECT scope, failure_reason FROM semel_dead_letter"))
    assert sorted(reasons) == ["checks", "letters", "web"]
    assert reasons["letters"] == "order ord-2 has a negative total"
    assert reasons["checks"] == "a negative total"
    assert "answered 422" in reasons["web"]


def test_the_printed_events_pass_through_a_pipeline(reader):
    assert any(printed.split() == ['"aggregateId":"ord-1"', '"aggregateId":"ord-2"'] for printed in reader.printed)


def test_the_upcasters_made_the_newest_version(reader):
    lines = [line for line in reader.printed[-1].splitlines() if line.startswith("{")]
    assert len(lines) == 2
    for line in lines:
        assert '"type":"order.created.v3"' in line and '"currency":"EUR"' in line and '"amount":' in line
