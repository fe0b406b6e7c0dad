"""What monitoring asks for, against what the service really tells."""

import json
import re

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from service.app import create_app
from service.settings import Settings
from tests.deploy.files import MONITORING, ROOT, load

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
# What Prometheus itself adds to whatever it reads.
OF_PROMETHEUS = {"up"}
LABELS_OF_PROMETHEUS = {"instance", "job", "le"}
NAME = re.compile(r"\b(?:triwire|process)_[a-z_]+|\bup\b")
DASHBOARD = json.loads((MONITORING / "grafana/dashboards/triwire.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS = load(MONITORING / "alerts.yml")
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
EXPRESSIONS = {
    **{panel["title"]: [target["expr"] for target in panel["targets"]] for panel in PANELS},
    **{rule["alert"]: [rule["expr"]] for rule in RULES},
}


@pytest.fixture(scope="module")
def families():
    """All that /metrics has, by name of sample; nothing is loaded for it."""
    app = create_app(Settings())
    return {
        family.name + suffix: family
        for family in app.state.metrics.registry.collect()
        for suffix in SUFFIXES[family.type]
    }


@pytest.mark.parametrize("title", EXPRESSIONS)
def test_every_metric_that_is_asked_for_exists(title, families):
    names = [name for expression in EXPRESSIONS[title] for name in NAME.findall(expression)]
    # Names of labels and of the job look alike.
    asked = {name for name in names if name not in LABELS_OF_PROMETHEUS and name != "triwire"}
    assert asked
    assert asked - OF_PROMETHEUS <= families.keys()


@pytest.mark.parametrize("title", EXPRESSIONS)
def test_counters_and_histograms_are_read_as_rates_and_gauges_are_not(title, families):
    for expression in EXPRESSIONS[title]:
        rated = set(re.findall(r"(?:rate|increase)\(([a-z_]+)", expression))
        for name in NAME.findall(expression):
            family = families.get(name)
            if isinstance(family, GaugeMetricFamily):
                assert name not in rated, expression
        for name in rated:
            assert families[name].type in ("counter", "histogram"), expression


def test_every_label_that_is_asked_for_is_documented():
    table = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `[a-z_]+`[^|]*\|([^|]*)\|", table, flags=re.MULTILINE)
    known = {label.strip() for row in rows for label in row.split(",") if label.strip()}
    assert {"path", "status", "program", "kind"} <= known
    by = {
        label.strip()
        for expressions in EXPRESSIONS.values()
        for expression in expressions
        for labels in re.findall(r"by \(([^)]*)\)", expression)
        for label in labels.split(",")
    }
    legends = "".join(t["legendFormat"] for panel in PANELS for t in panel["targets"])
    texts = "".join(rule["annotations"]["summary"] for rule in RULES)
    shown = set(re.findall(r"\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}", legends + texts))
    assert by
    assert shown
    assert by | shown <= known | LABELS_OF_PROMETHEUS


def test_the_dashboard_shows_every_metric_of_ours(families):
    shown = {name for panel in PANELS for name in NAME.findall(str(EXPRESSIONS[panel["title"]]))}
    ours = {f.name for name, f in families.items() if name.startswith("triwire_")}
    missing = {name for name in ours if not any(s.startswith(name) for s in shown)}
    assert missing == set()


def test_panels_have_titles_of_their_own_and_lie_side_by_side():
    titles = [panel["title"] for panel in DASHBOARD["panels"]]
    assert len(set(titles)) == len(titles)
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(titles)
    places = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covered = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not places & covered, panel["title"]
        places |= covered


def test_the_dashboard_asks_the_source_that_one_chooses():
    kinds = {variable["name"]: variable["type"] for variable in DASHBOARD["templating"]["list"]}
    assert kinds == {"datasource": "datasource", "instance": "query"}
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in PANELS)
    (source,) = load(MONITORING / "grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_clusters_and_compose_have_the_same_alerts():
    assert load(MONITORING / "prometheusrule.yaml")["spec"] == ALERTS


def test_every_alert_says_how_bad_it_is_and_what_has_happened():
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)
    for rule in RULES:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"].endswith((".", "why."))


def test_prometheus_finds_the_containers_and_the_alerts_of_compose():
    told = load(MONITORING / "prometheus.yml")
    (job,) = told["scrape_configs"]
    (found,) = job["dns_sd_configs"]
    services = load(ROOT / "docker-compose.yml")["services"]
    assert job["job_name"] == "triwire"
    assert set(found["names"]) <= services.keys()
    assert found["port"] == 8000
    mounts = [volume.split(":") for volume in services["prometheus"]["volumes"]]
    by_target = {target: source for source, target, *_ in mounts}
    assert by_target[told["rule_files"][0]] == "./deploy/monitoring/alerts.yml"


def test_kinds_of_metrics_are_told_apart_here(families):
    """Else the test of rates would see none."""
    assert isinstance(families["triwire_ready"], GaugeMetricFamily)
    assert isinstance(families["triwire_compilations_total"], CounterMetricFamily)
    assert families["triwire_request_seconds_bucket"].type == "histogram"
