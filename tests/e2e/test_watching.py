# SPDX-License-Identifier: Apache-2.0
"""Alert rules and dashboard: promtool accepts them; every metric and every runbook that they name exists."""
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from program import wait_for
from story import HANDLER, prepare, publish, words
from test_run import ask

TREE = Path(__file__).resolve().parent.parent.parent
RULES = TREE / "packaging" / "prometheus" / "semel-alerts.yaml"
SCENARIOS = TREE / "packaging" / "prometheus" / "semel-alerts-test.yaml"
DASHBOARD = TREE / "packaging" / "grafana" / "semel-dashboard.json"
needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="alert rules: promtool (package prometheus) is not installed")
# Values of Grafana's variables, which promtool does not know.
VARIABLES = {"$__rate_interval": "5m", "$job": "semel", "$scope": ".*"}


def promtool(*words):
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alerts():
    return re.findall(r"^      - alert: (\w+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)


def expressions():
    """Every query of the dashboard."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            yield text


def series_of(metrics):
    """Every name that a scrape may return, by the types that /metrics declares."""
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", metrics, re.MULTILINE):
        yield from (f"{name}_{part}" for part in ("bucket", "sum", "count")) if kind == "histogram" else (name,)


@pytest.fixture
def metrics(semel):
    """The metrics of a process that has delivered an event."""
    prepare(semel)
    config = semel.folder / "semel.yaml"
    config.write_text(json.dumps({
        "relay": {}, "admin": {"listen": "127.0.0.1:0"},
        "subscriptions": [{"scope": "billing", "topics": ["order.events"], "sql": [HANDLER.format(scope="billing")]}],
    }))
    child = semel.spawn("--config", str(config), "run")
    url = child.stdout.readline().split()[2]
    publish(semel, "good")
    wait_for(lambda: words(semel) == ["good"], timeout=60)
    return ask(f"{url}/metrics")[1]


def test_every_metric_of_the_alerts_and_the_dashboard_is_exported_by_a_real_process(metrics):
    known = set(series_of(metrics))
    queries = RULES.read_text(encoding="utf-8") + " ".join(expressions())
    names = set(re.findall(r"\bsemel_\w+", queries))
    assert names and names <= known, names - known


@needs_promtool
def test_prometheus_accepts_the_metrics_of_a_real_process(metrics):
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_prometheus_accepts_the_alert_rules():
    assert f"{len(alerts())} rules found" in promtool("check", "rules", RULES)


@pytest.mark.slow
@needs_promtool
def test_every_alert_fires_in_its_scenario_and_none_in_a_healthy_one():
    promtool("test", "rules", SCENARIOS)
    text = SCENARIOS.read_text(encoding="utf-8")
    for name in alerts():
        assert re.search(rf"alertname: {name}\n +exp_alerts:", text), f"{name} has no scenario in which it fires"
        assert re.search(rf"alertname: {name}}}", text), f"{name} has no scenario in which it is silent"


@needs_promtool
def test_prometheus_accepts_every_query_of_the_dashboard(tmp_path):
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    path = tmp_path / "dashboard.yaml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_every_alert_names_a_runbook_that_exists():
    named = re.findall(r"^ +runbook: (\S+)$", RULES.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(named) == len(alerts()) > 0
    mentioned = re.findall(r"docs/runbooks/[\w-]+\.md", DASHBOARD.read_text(encoding="utf-8"))
    for page in {*named, *mentioned}:
        assert (TREE / page).is_file(), page


def test_panels_of_the_dashboard_do_not_overlap():
    taken = set()
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)
