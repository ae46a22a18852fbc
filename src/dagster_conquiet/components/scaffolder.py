"""What `dg scaffold defs` writes: a component's YAML, and a handler that runs as it stands."""

# No `from __future__ import annotations` here: the command's options are made from the types.

from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dagster_conquiet.asset_keys import plain_name

_HANDLER = '''"""The handler of messages: change `handle` to what your messages mean."""

import json

from sqlalchemy import Column, MetaData, String, Table, Text, insert

handled = Table(
    "handled_messages",
    MetaData(),
    Column("entry_id", String(100), nullable=False),
    Column("payload", Text, nullable=False),
)


def handle(msg, session):
    """One message, one transaction; it commits when this returns."""
    handled.create(session.connection, checkfirst=True)
    session.execute(insert(handled), {"entry_id": msg.id, "payload": json.dumps(msg.payload)})
'''


class DrainParams(BaseModel):
    """The options of `dg scaffold defs`; the component's folder names what is not given."""

    group: str = Field(default="main", description="The consumer group.")
    redis_url_variable: str = Field(default="REDIS_URL", description="The variable with the server's URL.")
    database_url_variable: str = Field(
        default="DATABASE_URL", description="The variable with the database's URL."
    )


class StreamDrainParams(DrainParams):
    """Those of a stream."""

    stream: str | None = Field(default=None, description="The key of the stream.")


class TopicDrainParams(DrainParams):
    """Those of a topic."""

    topic: str | None = Field(default=None, description="The topic.")


def write_component(request: dg.ScaffoldRequest[Any], source: str) -> None:
    """Write `defs.yaml` and `handlers.py`."""
    params = request.params if isinstance(request.params, DrainParams) else DrainParams()
    name = getattr(params, source, None) or request.target_path.name
    (request.target_path / "handlers.py").write_text(_HANDLER)
    attributes = {
        source: name,
        "group": params.group,
        "handler": ".handlers:handle",
        "asset": {"key": f"{plain_name(name)}_{plain_name(params.group)}"},
        "redis_url_variable": params.redis_url_variable,
        "database_url_variable": params.database_url_variable,
    }
    dg.scaffold_component(request, attributes)


class StreamDrainScaffolder(dg.Scaffolder[StreamDrainParams]):
    """Of a StreamDrainComponent."""

    @classmethod
    def get_scaffold_params(cls) -> type[StreamDrainParams]:
        return StreamDrainParams

    def scaffold(self, request: dg.ScaffoldRequest[StreamDrainParams]) -> None:
        write_component(request, "stream")


class TopicDrainScaffolder(dg.Scaffolder[TopicDrainParams]):
    """Of a TopicDrainComponent."""

    @classmethod
    def get_scaffold_params(cls) -> type[TopicDrainParams]:
        return TopicDrainParams

    def scaffold(self, request: dg.ScaffoldRequest[TopicDrainParams]) -> None:
        write_component(request, "topic")
