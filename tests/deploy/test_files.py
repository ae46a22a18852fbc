"""deploy/: the files are whole, and point to each other and to the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana/dashboards/conquiet.json").read_text())
RUNBOOK = (
    *("redis-is-down", "database-is-down", "poison-message", "backlog-grows"),
    *("failover", "dead-letters", "a-handler-hangs", "upgrade", "tasks-fail", "tasks-wait"),
    "schedules-are-late",
)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_happened_and_where_to_read_on(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Conquiet[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert (page, anchor in RUNBOOK) == ("docs/operations.md", True)
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    used = re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values()))
    known = {"topic", "group", "partition", "stream", "task", "queue", "job", "instance", "namespace", "step"}
    assert set(used) <= known


def test_alerts_have_names_of_their_own_and_each_page_of_the_runbook_has_one():
    names = [rule["alert"] for rule in ALERTS]

    assert len(set(names)) == len(names)
    assert {rule["annotations"]["runbook_url"].partition("#")[2] for rule in ALERTS} == set(RUNBOOK)


def test_an_alert_tells_only_labels_that_its_expression_keeps():
    for rule in ALERTS:
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
        used = set(re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values())))
        assert used <= kept or not kept, rule["alert"]


def test_prometheus_loads_the_rules_and_scrapes_the_services_of_the_demo():
    config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())

    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert jobs["conquiet-metrics"]["static_configs"] == [{"targets": ["conquiet-metrics:9464"]}]
    down = next(rule["expr"] for rule in ALERTS if rule["alert"] == "ConquietTargetDown")
    pattern = re.search(r'job=~"([^"]*)"', down)
    assert pattern
    assert all(re.fullmatch(pattern[1], name) for name in jobs)


def test_grafana_finds_the_data_source_that_the_dashboard_begins_with():
    provisioning = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/conquiet.yml").read_text())["providers"]

    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == source["uid"]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
    assert set(variables) == {"datasource", "topic", "group", "stream", "queue"}


def test_panels_have_ids_and_places_of_their_own_and_describe_themselves():
    panels = DASHBOARD["panels"]
    taken: set[Any] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["description"].endswith(".")
        names = [target["refId"] for target in panel["targets"]]
        assert names == sorted(set(names))
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_dagster_ends_a_run_that_was_killed_and_frees_its_slot_of_the_pool():
    from dagster_conquiet import DrainConfig

    settings = yaml.safe_load((DEPLOY / "dagster/dagster.yaml").read_text())

    monitoring = settings["run_monitoring"]
    assert settings["concurrency"]["pools"]["default_limit"] == 1
    assert monitoring["enabled"]
    assert monitoring["max_runtime_seconds"] > DrainConfig().max_duration_s
    assert monitoring["free_slots_after_run_end_seconds"] > 0
