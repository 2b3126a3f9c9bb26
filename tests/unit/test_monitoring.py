"""deploy/prometheus and deploy/grafana: promtool takes them, every alert has a runbook, every metric
is on the dashboard, every panel says what it shows. tests/live/test_monitoring.py scrapes the real
ones.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from equipoise.cli.watched_metrics import WatchedCollector
from equipoise.lead.metrics import LeadCollector
from equipoise.member.http.metrics import MemberCollector
from equipoise.worker.metrics import WorkerMetrics
from tests.prometheus import DEPLOY, RULES, dashboard, metrics_in, promtool, queries, rules, yaml
from tests.unit.test_docs import anchors
from tools.dashboard import render

ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
UNITS = {"none", "short", "s", "percentunit"}
"""Units of Grafana that the dashboard uses, beside ``suffix: ...``."""
ALERTS = rules()
PANELS = dashboard()


def exported() -> str:
    """The metrics of a worker without groups, of a member that has just begun, and of no seat."""
    metrics, registry = WorkerMetrics(), CollectorRegistry()
    registry.register(LeadCollector(list))
    registry.register(WatchedCollector(SimpleNamespace(rebalances={}, unavailable_s={}, counted_to_ms=0)))  # type: ignore[arg-type]  # of no group
    metrics.observe(list, list, lambda: 1, lambda: 0.0)
    registry.register(MemberCollector("g", "m1", lambda: None))
    return metrics.text().decode() + generate_latest(registry).decode()


def names() -> set[str]:
    stream = (ROOT / "equipoise" / "cli" / "spark" / "stream.py").read_text(encoding="utf-8")
    assert 'f"equipoise_stream_{name}"' in stream
    of_stream = set(re.findall(r'"(\w+)": 0', stream.partition("totals = {")[2].partition("}")[0]))
    declared = {re.sub(r"_total$", "", name) for name in re.findall(r"^# TYPE (equipoise_\w+)", exported(), re.MULTILINE)}
    declared.add(*re.findall(r"^_READY.*TYPE (\w+)", (ROOT / "equipoise" / "hosting" / "serving.py").read_text(encoding="utf-8"), re.MULTILINE))
    return {name for name in declared if not name.endswith("_created")} | {f"equipoise_stream_{name}" for name in of_stream}


def test_dashboard_is_generated_from_its_table() -> None:
    assert (DEPLOY / "grafana" / "equipoise.json").read_text(encoding="utf-8") == render(), "run `make dashboard`"


def test_dashboard_shows_every_metric_and_no_other() -> None:
    assert metrics_in(queries(PANELS)) == names()


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["title"]
    assert len(panel["description"]) > len("Tasks by state.")
    defaults = panel["fieldConfig"]["defaults"]
    assert defaults["unit"] in UNITS or re.fullmatch(r"suffix: \S.*", defaults["unit"])
    assert panel["targets"]
    assert all(target["expr"] for target in panel["targets"])
    for page, fragment in re.findall(r"(docs/[a-z-]+\.md)(?:#([a-z0-9-]+))?", panel["description"]):
        assert not fragment or fragment in anchors(ROOT / page), f"{page}#{fragment}"


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    every = json.loads((DEPLOY / "grafana" / "equipoise.json").read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    cells = [(x, y) for panel in every for x, y in _cells(**panel["gridPos"])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24


def _cells(x: int, y: int, w: int, h: int) -> list[tuple[int, int]]:
    return [(x + right, y + down) for right in range(w) for down in range(h)]


def test_queries_of_the_dashboard_parse(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(queries(PANELS))]
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": recorded}]}), encoding="utf-8")
    promtool("check", "rules", str(path))


def test_alerts_are_sound_and_their_tests_pass() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))
    promtool("test", "rules", str(RULES.with_name("rules_test.yml")))


def test_alert_of_a_gauge_bridges_a_takeover() -> None:
    forgets = r"\bup\{|increase\(|histogram_quantile|fenced_commits"
    assert {each["alert"] for each in ALERTS if "keep_firing_for" in each} == {
        each["alert"] for each in ALERTS if not re.search(forgets, each["expr"])
    }


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alert_says_what_to_do(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    told = alert["annotations"]
    assert set(told) == {"summary", "description", "runbook"}
    assert len(told["description"]) > len("Restart it.")
    page, _, fragment = told["runbook"].partition("#")
    assert fragment in anchors(ROOT / page)
    assert metrics_in([alert["expr"]]) <= names()
    table = OPERATIONS.partition("### Alerts")[2].partition("\n## ")[0]
    mark = {"critical": "(c)", "warning": "", "info": "(i)"}[alert["labels"]["severity"]]
    assert re.findall(rf"`{alert['alert']}`(?: (\([ci]\)))?", table) == [mark]


def test_exported_metrics_are_named_by_the_conventions() -> None:
    promtool("check", "metrics", stdin=exported())
