"""Every service runs: its own command, environment and health check, as plain processes of this machine."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from sqlalchemy import create_engine, text

from tests.deploy.compose import services
from tests.deploy.site import NOT_STARTED, Site
from tests.eventually import HANG_S, eventually

SERVERS = [name for name, service in services().items() if service.published and name not in NOT_STARTED]
ORDERS = 3


def test_the_migration_ends_and_ends_well(site: Site):
    assert site.exit_codes == {"airflow-init": 0}


@pytest.mark.parametrize("name", SERVERS)
def test_a_service_listens_on_the_ports_that_are_published(site: Site, name: str):
    published = {site.port(name, inner) for _, _, inner in site.containers[name].service.published}

    assert published <= site.listening(name)


def test_the_health_check_of_valkey_fails_where_its_password_is_wrong(site: Site):
    valkey = site.containers["valkey"]
    stranger = valkey.environment | {"REDISCLI_AUTH": "wrong", "VALKEYCLI_AUTH": "wrong"}

    assert valkey.is_healthy()
    assert not valkey.is_healthy(stranger)


def test_valkey_keeps_what_it_has_and_refuses_when_it_is_full(site: Site):
    found = site.containers["airflow-scheduler"].run(["conquiet", "doctor"])

    assert found.returncode == 0, found.stdout + found.stderr
    assert "noeviction" in found.stdout


def test_every_component_of_airflow_is_healthy(site: Site):
    health = httpx.get(f"{_airflow(site)}/api/v2/monitor/health", timeout=HANG_S).json()

    assert {name: of["status"] for name, of in health.items()} == {
        "metadatabase": "healthy",
        "scheduler": "healthy",
        "triggerer": "healthy",
        "dag_processor": "healthy",
    }


def test_the_worker_has_found_the_master(site: Site):
    master = f"http://127.0.0.1:{site.port('spark-master', 8080)}/json/"

    eventually(lambda: httpx.get(master, timeout=HANG_S).json()["aliveworkers"] == 1)


def test_orders_that_airflow_takes_are_billed_by_dagster_and_seen_by_prometheus(site: Site):
    run = _run_dag(site, "enqueue_orders", count=ORDERS)
    shop = create_engine(site.containers["dagster-code"].environment["CONQUIET_DATABASE_URL"])

    def billed() -> list[str]:
        with shop.connect() as connection:
            billed = text("SELECT order_id FROM bills WHERE order_id LIKE :run")
            return sorted(connection.scalars(billed, {"run": f"{run}/%"}))

    eventually(lambda: len(billed()) >= ORDERS, every_s=0.5)
    shop.dispose()

    assert billed() == [f"{run}/{number}" for number in range(ORDERS)]
    metrics = httpx.get(
        f"http://127.0.0.1:{site.port('conquiet-metrics', 9464)}/metrics", timeout=HANG_S
    ).text
    assert "conquiet_mq_up 1.0" in metrics
    assert 'conquiet_mq_lag{group="billing",partition="0",topic="orders"} 0.0' in metrics


def _airflow(site: Site) -> str:
    return f"http://127.0.0.1:{site.port('airflow-api-server', 8080)}"


def _run_dag(site: Site, dag_id: str, **conf: Any) -> str:
    """Start a run by the API, as a user would, and return its id."""
    token = httpx.get(f"{_airflow(site)}/auth/token", timeout=HANG_S).json()["access_token"]
    with httpx.Client(
        base_url=f"{_airflow(site)}/api/v2/dags/",
        headers={"Authorization": f"Bearer {token}"},
        timeout=HANG_S,
    ) as api:
        eventually(lambda: api.get(dag_id).is_success, every_s=0.5)
        api.patch(dag_id, json={"is_paused": False}).raise_for_status()
        answer = api.post(f"{dag_id}/dagRuns", json={"logical_date": None, "conf": conf})
        answer.raise_for_status()
    return str(answer.json()["dag_run_id"])
