# SPDX-License-Identifier: Apache-2.0
"""The examples of pages under docs/, and the files under packaging/, are run as they are."""
import re
import shutil
import subprocess

import guide
import pytest
from program import PROGRAM, TREE

HANDLERS = {
    "--sql": ["--sql", "SELECT :id"],
    "--exec": ["--exec", "true"],
    "--http": ["--http", "http://127.0.0.1:9/"],
    "--print": ["--print"],
}


@pytest.mark.parametrize("name", ["docs/concepts.md", "docs/sql.md", "docs/operations.md"])
def test_the_examples_print_what_the_page_says(tmp_path, name):
    reader = guide.Reader(tmp_path)
    reader.read(guide.page(name))
    assert [text for text in reader.expected if text], "the page shows no output at all"
    assert reader.mismatches() == []


def workloads():
    """Handler and settings of each line of the table in docs/guarantees.md, by the name of the work."""
    table = guide.page("docs/guarantees.md").partition("\n## The table\n")[2].partition("\n## ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    return {cells[0]: (cells[3].strip("`"), cells[4]) for cells in lines[2:]}


def test_the_table_of_workloads_is_found():
    assert len(workloads()) > 10


def commands_of_questions():
    """The commands of the last column of the ten questions."""
    table = guide.page("docs/guarantees.md").partition("\n## Ten questions before production\n")[2].partition("\n## ")[0]
    cells = [line.strip("|").split("|")[-1] for line in table.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(cells) == 10
    return [command for cell in cells for command in re.findall("`(semel .*?)`", cell)]


def test_the_ten_questions_are_answered_by_commands_that_can_be_typed(semel):
    """And that find nothing wrong."""
    semel.ok("consume", "--scope", "NAME", "--topic", "order.events", "--drain", "--sql", "SELECT :id")
    semel.publish()
    semel.ok("relay", "--drain")
    semel.ok("consume", "--scope", "NAME", "--topic", "order.events", "--drain", "--sql", "SELECT :id")
    assert len(commands_of_questions()) >= 9
    for command in commands_of_questions():
        semel.ok(*command.split()[1:])


@pytest.mark.parametrize("work", workloads())
def test_a_consumer_accepts_the_settings_of_each_workload(semel, work):
    handler, settings = workloads()[work]
    options = [] if settings == "default" else re.fullmatch(r"`(.*)`", settings)[1].split()
    semel.ok("consume", "--scope", "work", "--topic", "order.events", "--drain", *HANDLERS[handler], *options)
    expected = dict(zip(options[::2], options[1::2]))
    ((guarantee, claim, poison),) = semel.sql("SELECT guarantee, claim, poison FROM semel_subscription")
    assert guarantee == expected.get("--guarantee", "effectively-once")
    assert claim == expected.get("--claim", "same-tx")
    assert poison == expected.get("--poison", "park-key")


def test_systemd_accepts_the_units(tmp_path):
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    units = TREE / "packaging" / "systemd"
    for unit in [*units.glob("*.service"), *units.glob("*.timer")]:
        text = unit.read_text(encoding="utf-8").replace("/usr/local/bin/semel", str(PROGRAM))
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    names = [path.name.replace("@.", "@billing.") for path in sorted(tmp_path.iterdir())]
    assert len(names) == 8
    shutil.copytree(units / "semel-.service.d", tmp_path / "semel-.service.d")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(f"./{name}" for name in names)],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "semel" in line]
    assert (done.returncode, complaints) == (0, [])


def test_the_config_file_of_the_units_is_accepted(bare):
    sample = (TREE / "packaging" / "systemd" / "semel.yaml").read_text(encoding="utf-8")
    (bare.folder / "semel.yaml").write_text(sample.replace("/var/lib/semel/", ""), encoding="utf-8")
    bare.ok("--config", "semel.yaml", "init")
    bare.sql("CREATE TABLE invoice(order_id, total)", database=bare.folder / "shop.db")
    for words in (["relay", "--drain"], ["consume", "--scope", "billing", "--drain"], ["prune"], ["verify"]):
        bare.ok("--config", "semel.yaml", *words)


def test_the_first_steps_of_the_help_can_be_taken(tmp_path, bare):
    steps = bare.ok("--help").partition("\nFirst steps:\n")[2].partition("\n\n")[0]
    folder = tmp_path / "steps"
    folder.mkdir()
    reader = guide.Reader(folder)
    reader.read(f"```sh\n{steps}\n```")
    assert '"aggregateId":"ord-1"' in reader.printed[0]
    assert reader.printed[0].endswith("every committed event is accounted for\n")
