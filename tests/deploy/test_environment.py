"""Every variable that a service is given is one that its program reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from conquiet.settings import Settings
from tests.deploy.compose import ROOT, Service, services
from tests.with_airflow import home

# Before Airflow is imported, which makes its home then.
home.choose()

SERVICES = services()
with_variables = [service for service in SERVICES.values() if service.environment]
each_service = pytest.mark.parametrize("service", with_variables, ids=lambda service: service.name)

#: By whom, and what for.
OTHERS = {
    "PYTHONPATH": "Python: the modules of dagster_defs/",
    "SPARK_CONF_DIR": "Spark: spark-defaults.conf",
    "VALKEYCLI_AUTH": "valkey-cli: the password of the health check",
    "POSTGRES_PASSWORD": "the image of PostgreSQL: the superuser's",
    "GF_SECURITY_ADMIN_PASSWORD": "Grafana: [security] admin_password",
    "GF_USERS_ALLOW_SIGN_UP": "Grafana: [users] allow_sign_up",
    "GF_ANALYTICS_REPORTING_ENABLED": "Grafana: [analytics] reporting_enabled",
    "GF_ANALYTICS_CHECK_FOR_UPDATES": "Grafana: [analytics] check_for_updates",
    "GF_SERVER_HTTP_PORT": "Grafana: [server] http_port",
}


@each_service
def test_every_variable_is_read_by_somebody(service: Service, known: set[str]):
    assert set(service.environment) - known == set()


def test_no_explanation_is_left_over():
    given = {name for service in SERVICES.values() for name in service.environment}

    assert set(OTHERS) - given == set()


@each_service
def test_values_are_text(service: Service):
    assert {type(value) for value in service.environment.values()} == {str}


@each_service
def test_conquiet_takes_its_settings(service: Service, tmp_path: Path):
    settings = Settings.load(directory=tmp_path, environment=service.environment)

    if service.is_ours and "CONQUIET_REDIS_URL" in service.environment:
        assert settings.redis_url == service.environment["CONQUIET_REDIS_URL"]


def test_the_services_of_airflow_share_one_environment():
    shared = [service.environment for name, service in SERVICES.items() if name.startswith("airflow")]

    assert len(shared) == 5
    assert all(environment == shared[0] for environment in shared)


def test_the_connections_are_the_ones_that_the_dags_open():
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk import Connection

    from airflow_provider_conquiet.hooks.database import url_of_connection
    from airflow_provider_conquiet.hooks.redis_streams import RedisStreamsHook

    environment = SERVICES["airflow-scheduler"].environment
    for hook in (RedisStreamsHook, SparkSubmitHook):
        told = environment[f"AIRFLOW_CONN_{hook.default_conn_name.upper()}"]
        assert Connection.from_json(told, hook.default_conn_name).conn_type == hook.conn_type
    to_redis = json.loads(environment["AIRFLOW_CONN_REDIS_STREAMS_DEFAULT"])
    assert to_redis["extra"] == {"db_conn_id": "shop"}
    to_database = Connection.from_json(environment["AIRFLOW_CONN_SHOP"], "shop")
    assert url_of_connection(to_database, {}) == environment["CONQUIET_DATABASE_URL"]


@pytest.fixture(scope="module")
def known() -> set[str]:
    """Every name that one of the programs reads."""
    settings = {f"CONQUIET_{name.upper()}" for name in Settings.__slots__}
    connections = {"AIRFLOW_CONN_REDIS_STREAMS_DEFAULT", "AIRFLOW_CONN_SPARK_DEFAULT"}
    # What the first one names as the application's database.
    connections.add("AIRFLOW_CONN_SHOP")
    return settings | connections | _of_airflow() | _of_dagster() | _of_postgres() | set(OTHERS)


def _of_airflow() -> set[str]:
    from airflow.configuration import conf

    names = {"AIRFLOW_HOME"}
    for section, described in conf.configuration_description.items():
        names |= {f"AIRFLOW__{section}__{option}".upper() for option in described["options"]}
    return names


def _of_dagster() -> set[str]:
    names = {"DAGSTER_HOME"}
    for path in (ROOT / "deploy" / "dagster").iterdir():
        names |= set(_env_fields(yaml.safe_load(path.read_text())))
    return names


def _env_fields(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["env"]] if set(value) == {"env"} else []
        return own + [name for item in value.values() for name in _env_fields(item)]
    return [name for item in value for name in _env_fields(item)] if isinstance(value, list) else []


def _of_postgres() -> set[str]:
    scripts = "\n".join(path.read_text() for path in (ROOT / "deploy" / "postgres").iterdir())
    return set(re.findall(r"^\\getenv \w+ (\w+)$", scripts, re.MULTILINE))
