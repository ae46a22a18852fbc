"""Prometheus and Grafana, which the project does not install: their files and flags fit the services."""

from __future__ import annotations

import json
import re
from pathlib import PurePosixPath

import yaml

from tests.deploy.compose import ROOT, services

SERVICES = services()
#: Of `prometheus --help`, in version 2 and 3.
FLAGS = {
    "--config.file",
    "--storage.tsdb.path",
    "--storage.tsdb.retention.time",
    "--web.listen-address",
}


def test_prometheus_knows_its_flags():
    assert {argument.split("=")[0] for argument in SERVICES["prometheus"].command} == FLAGS


def test_prometheus_scrapes_services_on_ports_that_they_listen_on():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = [
        target
        for job in config["scrape_configs"]
        for group in job.get("static_configs", [])
        for target in group["targets"]
    ]

    assert "conquiet-metrics:9464" in targets
    for target in targets:
        host, port = target.split(":")
        host = "prometheus" if host == "localhost" else host
        assert int(port) in SERVICES[host].ports, target


def test_the_rules_of_prometheus_are_where_it_looks():
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())

    assert config["rule_files"]
    for name in config["rule_files"]:
        path = PurePosixPath("/etc/prometheus") / name
        assert yaml.safe_load((ROOT / "deploy/prometheus" / path.name).read_text())["groups"]


def test_grafana_asks_prometheus():
    (path,) = (ROOT / "deploy/grafana/provisioning/datasources").iterdir()
    urls = [source["url"] for source in yaml.safe_load(path.read_text())["datasources"]]

    for url in urls:
        address = re.fullmatch(r"http://([\w-]+):(\d+)/?", url)
        assert address
        assert int(address[2]) in SERVICES[address[1]].ports


def test_grafana_finds_its_dashboards():
    (path,) = (ROOT / "deploy/grafana/provisioning/dashboards").iterdir()
    mounts = {str(mount.target): mount.path for mount in SERVICES["grafana"].mounts if mount.is_bind}

    for provider in yaml.safe_load(path.read_text())["providers"]:
        found = sorted(mounts[provider["options"]["path"]].glob("*.json"))
        assert found
        for dashboard in found:
            assert json.loads(dashboard.read_text())["panels"]
