"""What deploy/postgres makes of an empty server, under names of the tests' own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import create_engine, text

from tests.deploy.compose import ROOT
from tests.deploy.container import Place

DATABASES = ("airflow", "dagster", "shop")
_NAME = re.compile(rf"\b({'|'.join(DATABASES)})\b")


@contextmanager
def initialised(place: Place, environment: Mapping[str, str]) -> Iterator[None]:
    """Run the scripts as the image does; roles and databases are dropped at the end of the block."""
    url = place.postgres.set(drivername="postgresql").render_as_string(hide_password=False)
    try:
        for path in sorted((ROOT / "deploy" / "postgres").iterdir()):
            script = _NAME.sub(lambda match: place.database(match[1]), path.read_text())
            subprocess.run(
                ["psql", "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--dbname", url],
                input=script,
                env=dict(environment),
                text=True,
                check=True,
            )
        yield
    finally:
        _drop(place)


def _drop(place: Place) -> None:
    admin = create_engine(place.postgres, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        for name in map(place.database, DATABASES):
            connection.execute(text(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
            connection.execute(text(f"DROP ROLE IF EXISTS {name}"))
    admin.dispose()
