"""One start of everything for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

from tests.deploy.compose import Service, services
from tests.deploy.container import Place
from tests.deploy.databases import initialised
from tests.deploy.site import Site, private_ports
from tests.services import database, unavailable


@pytest.fixture(scope="package")
def compose() -> dict[str, Service]:
    """The services by name."""
    return services()


# Of the package: it ends with the last test of this folder, and leaves the cores to the others.
@pytest.fixture(scope="package")
def site(compose: dict[str, Service], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Every service that this machine can run, healthy; stopped at the end."""
    for program, service in {"java": "java", "psql": "postgres", "curl": "curl"}.items():
        if shutil.which(program) is None:
            unavailable(service, f"no {program} on PATH")
    directory = tmp_path_factory.mktemp("deploy")
    suffix = uuid.uuid4().hex[:12]
    with database("postgres", directory) as url:
        server = make_url(url)
        place = Place(directory=directory, ports=private_ports(compose), postgres=server, suffix=suffix)
        passwords = compose["postgres"].environment
        with initialised(place, os.environ | passwords):
            site = Site(compose, place)
            try:
                site.start()
                yield site
            finally:
                site.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One start, on the worker of `pytest -n` that runs the other Airflow: two at once starve each other."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and "site" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("orchestrators"))
