"""docs/deploy.md: what it names is there, and its commands run."""

from __future__ import annotations

import re
import shlex

import pytest
from cryptography.fernet import Fernet

from tests.deploy.compose import ROOT, services, variables
from tests.deploy.site import NOT_STARTED, Site
from tests.eventually import eventually
from tests.pages.test_pages import program_of

PAGE = ROOT / "docs" / "deploy.md"
SERVICES = services()
IN_A_SERVICE = re.compile(r"docker compose exec (?P<service>\S+) (?P<command>[^\n`]+)")
COMMANDS = [
    (match["service"], shlex.split(match["command"])) for match in IN_A_SERVICE.finditer(PAGE.read_text())
]


def test_every_published_port_is_told_with_its_service():
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    told = {
        (name, int(port))
        for _, address, what, service, _ in rows
        for name, port in zip(
            re.findall(r"`([a-z-]+)`", service), re.findall(r"localhost:(\d+)", address + what), strict=False
        )
    }

    assert told == {(name, outer) for name, s in SERVICES.items() for _, outer, _ in s.published}


def test_every_service_is_told():
    assert [name for name in SERVICES if f"`{name}`" not in PAGE.read_text()] == []


def test_the_sensor_has_the_name_that_the_page_tells():
    from dagster_defs.definitions import defs

    (sensor,) = defs.sensors or ()
    assert f"`{sensor.name}`" in PAGE.read_text()


def test_the_program_makes_every_secret_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(program_of(PAGE), {})
    made = dict(line.split("=", 1) for line in (tmp_path / ".env").read_text().splitlines())

    assert set(made) == {name for name in variables() if not name.endswith("_PORT")}
    assert [name for name, value in made.items() if {value} == variables()[name]] == []
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    Fernet(made["AIRFLOW_FERNET_KEY"])


@pytest.mark.parametrize(
    ("service", "command"),
    [pair for pair in COMMANDS if pair[0] not in NOT_STARTED and pair[1][0] == "conquiet"],
)
def test_a_command_of_the_page_runs(site: Site, service: str, command: list[str]):
    if command[1] == "doctor":
        # The order that the page enqueues waits for the next run of the sensor, which is worth a warning.
        eventually(lambda: site.containers[service].run(command).returncode == 0, every_s=1.0)
    ran = site.containers[service].run(command)

    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_every_command_of_the_page_is_for_a_service():
    assert COMMANDS
    assert {service for service, _ in COMMANDS} <= set(SERVICES)
