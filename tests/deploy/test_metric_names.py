"""Alert rules, the dashboard and the documentation name metrics and labels that real processes emit."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import redis
import yaml

from conquiet import EmbeddedServer
from tests.deploy.emitting import emit_everything, scraped
from tests.deploy.promql import named_in

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((ROOT / "deploy/grafana/dashboards/conquiet.json").read_text())
PAGE = (ROOT / "docs/observability.md").read_text()

#: What Prometheus itself adds.
OF_PROMETHEUS: dict[str, frozenset[str]] = {"up": frozenset()}
ON_EVERY_SERIES = frozenset(("job", "instance"))

ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in ALERTS] + [
    (panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]
]
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]


@pytest.fixture(scope="module")
def emitted(tmp_path_factory):
    """Samples and labels after a real run, as Prometheus gets them."""
    with EmbeddedServer() as server, redis.Redis.from_url(server.url) as client:
        emit_everything(client, tmp_path_factory.mktemp("databases"))
        return scraped(server.url)


def problems_of(expression, emitted):
    """What an expression names and nobody emits."""
    named, known = named_in(expression), emitted | OF_PROMETHEUS
    assert named.metrics, expression
    found = [metric for metric, _ in named.metrics if metric not in known]
    for metric, labels in named.metrics:
        wrong = (labels | named.groupings) - known.get(metric, frozenset()) - ON_EVERY_SERIES
        found += [f"{metric}: {label}" for label in sorted(wrong)]
    return found


def test_every_expression_names_only_what_is_emitted(emitted):
    found = {title: problems_of(expression, emitted) for title, expression in EXPRESSIONS}

    assert {title: problems for title, problems in found.items() if problems} == {}
    assert len(EXPRESSIONS) > 50


def test_the_dashboards_variables_are_labels_of_what_is_emitted(emitted):
    for variable in VARIABLES:
        query = re.fullmatch(r"label_values\((?P<selector>.*), (?P<label>\w+)\)", variable["query"]["query"])
        assert query
        assert problems_of(query["selector"], emitted) == []
        ((metric, _),) = named_in(query["selector"]).metrics
        assert query["label"] in emitted[metric]


def test_every_metric_is_in_the_documentation_with_its_labels_and_no_other_is(emitted):
    rows = re.findall(r"^\| `(conquiet_\w+)` \| (\w+) \| ([^|]*)\|", PAGE, re.MULTILINE)
    told = {name: frozenset(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
    suffixes = re.compile(r"_(bucket|count|sum)$")
    real = {suffixes.sub("", name): labels - {"le"} for name, labels in emitted.items()}

    assert told == real


def test_every_metric_is_on_the_dashboard(emitted):
    targets = [target["expr"] for panel in PANELS for target in panel["targets"]]
    shown = {metric for expression in targets for metric, _ in named_in(expression).metrics}

    assert {name for name in emitted if not name.endswith(("_count", "_sum"))} - shown == set()


@pytest.mark.parametrize(
    ("expression", "problems"),
    [
        ("rate(conquiet_mq_lagg[5m])", ["conquiet_mq_lagg"]),
        ('conquiet_mq_lag{topc="a"}', ["conquiet_mq_lag: topc"]),
        ("sum by (topic, result) (conquiet_mq_lag)", ["conquiet_mq_lag: result"]),
        ("sum(conquiet_mq_lag) by (stream)", ["conquiet_mq_lag: stream"]),
        ('1 - (conquiet_mq_lag{topic="x}"} or sum without (group) (up))', ["up: group"]),
        ("sum by (le) (rate(conquiet_mq_handle_seconds_bucket[$__rate_interval]))", []),
        ("sum by (le) (conquiet_mq_handle_seconds_count)", ["conquiet_mq_handle_seconds_count: le"]),
    ],
)
def test_a_wrong_name_would_be_found(emitted, expression, problems):
    assert problems_of(expression, emitted) == problems


def test_what_is_no_promql_is_refused():
    with pytest.raises(ValueError, match="not PromQL at 4"):
        named_in("sum ? by")
