"""The shop's servers where no URL is given: on this machine, created when first used."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, make_url

from dagster_conquiet import DatabaseResource, RedisStreamsResource
from dagster_defs.billing import metadata
from dagster_defs.embedded import DIRECTORY, embedded_url


class EmbeddedByDefault(RedisStreamsResource):
    """The server of the URL or of the parts; without a URL, the private one."""

    def server_url(self) -> str:
        """The URL, once the server answers."""
        return self.url or embedded_url(DIRECTORY)


class BillingDatabase(DatabaseResource):
    """The database with its table, which is created with the first engine."""

    def get_engine(self) -> Engine:
        """The engine of this process."""
        if self._engine is None:
            database = make_url(self.url)
            if database.drivername == "sqlite" and database.database:
                Path(database.database).parent.mkdir(parents=True, exist_ok=True)
            metadata.create_all(super().get_engine())
        return super().get_engine()
