"""docker-compose.yml by itself: what it names is there, and fits together."""

from __future__ import annotations

import re

import pytest

from tests.deploy.compose import ROOT, Service, document, services, variables

SERVICES = services()
each_service = pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)

#: Directories that an image reads or writes by itself, without being told.
OF_IMAGES = {
    "postgres": {"/docker-entrypoint-initdb.d", "/var/lib/postgresql/data"},
    "grafana": {"/etc/grafana/provisioning", "/var/lib/grafana"},
}


def test_every_service_is_there():
    assert set(SERVICES) == {
        "valkey",
        "postgres",
        *("airflow-init", "airflow-api-server", "airflow-scheduler"),
        *("airflow-dag-processor", "airflow-triggerer"),
        *("dagster-code", "dagster-webserver", "dagster-daemon"),
        *("spark-master", "spark-worker"),
        *("conquiet-metrics", "conquiet-page", "prometheus", "grafana"),
    }


@each_service
def test_an_image_has_a_version(service: Service):
    assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*", service.fields["image"])


def test_our_image_has_the_version_of_the_package():
    from conquiet import __version__

    assert {service.fields["image"] for service in SERVICES.values() if service.is_ours} == {
        f"conquiet:{__version__}"
    }


@each_service
def test_a_service_comes_back_unless_it_is_done(service: Service):
    is_done_once = "service_completed_successfully" in _conditions_on(service.name)

    assert service.fields["restart"] == ("no" if is_done_once else "unless-stopped")
    assert (service.healthcheck is None) == is_done_once


@each_service
def test_what_a_service_waits_for_is_there_and_can_happen(service: Service):
    for other, condition in service.depends_on.items():
        assert other in SERVICES
        assert (condition == "service_healthy") == (SERVICES[other].healthcheck is not None)


def test_ports_are_published_on_loopback_only_and_once():
    published = [entry for service in SERVICES.values() for entry in service.published]

    assert {address for address, _, _ in published} == {"127.0.0.1"}
    outer = [port for _, port, _ in published]
    assert sorted(set(outer)) == sorted(outer)


def test_every_named_volume_is_declared_and_used():
    used = {mount.source for service in SERVICES.values() for mount in service.mounts if not mount.is_bind}

    assert used == set(document()["volumes"])


@each_service
def test_what_is_mounted_is_in_the_repository_and_cannot_be_written(service: Service):
    for mount in service.mounts:
        if mount.is_bind:
            assert mount.path.exists(), f"{mount.source} is not in the repository"
            assert mount.is_read_only, mount


@each_service
def test_what_is_mounted_is_used(service: Service):
    told = [*service.command, *service.environment.values()]
    for target in service.targets:
        places = {str(target), str(target.parent)}
        is_told = any(re.search(rf"(^|=){re.escape(place)}(/|$)", text) for text in told for place in places)
        is_known = any(str(target).startswith(place) for place in OF_IMAGES.get(service.name, ()))
        assert is_told or is_known, f"nothing reads {target}"


@each_service
def test_a_server_that_is_named_with_its_port_listens_on_it(service: Service):
    told = " ".join([*service.command, *service.environment.values()])
    hosts = "|".join(map(re.escape, SERVICES))
    named = {(host, int(port)) for host, port in re.findall(rf"(?<![\w-])({hosts}):(\d+)", told)}
    named |= {(host, int(port)) for host, port in re.findall(r'"host": "([\w-]+)", "port": (\d+)', told)}

    assert [(host, port) for host, port in named if port not in SERVICES[host].ports] == []


@each_service
def test_a_service_waits_for_the_server_and_the_database_that_it_talks_to(service: Service):
    talks_to = {
        server
        for server in ("valkey", "postgres")
        if re.search(rf"@{server}:|\"{server}\"", str(service.environment))
    }

    if service.name == "airflow-init":  # a migration has no tasks
        talks_to.remove("valkey")
    assert talks_to <= _waits_for(service.name)


def test_every_variable_is_explained_in_the_example_with_its_default():
    lines = (ROOT / ".env.example").read_text().splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))

    assert {name: {value} for name, value in example.items()} == variables()


def test_a_secret_of_the_file_says_that_it_is_for_development():
    import base64

    secrets = {name: value for name, (value,) in variables().items() if re.search("PASSWORD|SECRET", name)}
    (fernet_key,) = variables()["AIRFLOW_FERNET_KEY"]

    assert secrets
    assert [name for name, value in secrets.items() if not value.startswith("development-only")] == []
    assert base64.urlsafe_b64decode(fernet_key).startswith(b"development-only")


def _waits_for(name: str) -> set[str]:
    others = set(SERVICES[name].depends_on)
    return others.union(*map(_waits_for, others))


def _conditions_on(name: str) -> set[str]:
    return {service.depends_on[name] for service in SERVICES.values() if name in service.depends_on}
