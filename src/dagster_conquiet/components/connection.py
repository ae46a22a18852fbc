"""ConnectionComponent: the resources that the components of a project share."""

# No `from __future__ import annotations` here: the YAML schema is made from the types.

import dagster as dg
from pydantic import Field

from dagster_conquiet.components.attributes import database_of_variable, redis_of_variable


class ConnectionComponent(dg.Component, dg.Model, dg.Resolvable):
    """The resources `redis_streams` and `database`, for components and definitions that name no variables.

    Examples:
        >>> component = ConnectionComponent(redis_url_variable="VALKEY_URL")  # mostly in a defs.yaml
    """

    redis_url_variable: str = Field(
        default="REDIS_URL", description="The environment variable with the server's URL."
    )
    database_url_variable: str | None = Field(
        default="DATABASE_URL", description="The environment variable with the database's URL."
    )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The resources; nothing is connected or read."""
        resources: dict[str, object] = {"redis_streams": redis_of_variable(self.redis_url_variable)}
        if self.database_url_variable is not None:
            resources["database"] = database_of_variable(self.database_url_variable)
        return dg.Definitions(resources=resources)
