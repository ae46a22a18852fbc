"""The provider's registration; Airflow reads it at start-up, so it imports no other module."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_PACKAGE = "airflow_provider_conquiet"
_NAME = "conquiet"


#: What the provider's modules import, with the first version that has it.
_NEEDED = {
    "apache-airflow-core": (3, 1),
    "apache-airflow-providers-common-compat": (1, 7),
    "apache-airflow-providers-common-messaging": (2, 0),
}


def get_provider_info() -> dict[str, Any]:
    """The provider's registration, found through the entry point `apache_airflow_provider`.

    Beside an older Airflow, or without the extra `airflow`, it is a name and nothing else: Airflow goes on.
    """
    # Airflow refuses to start if `package-name` is not the distribution's name.
    name = {"package-name": "conquiet", "name": "Redis Streams (conquiet)"}
    if missing := missing_requirements():
        words = f"Not active: pip install 'conquiet[airflow]', for {', '.join(missing)}."
        return name | {"description": words}
    return name | {
        "description": "Redis Streams queues where one message is one database transaction.",
        "integrations": [
            {
                "integration-name": _NAME,
                "external-doc-url": "https://redis.io/docs/latest/develop/data-types/streams/",
                "tags": ["service"],
            }
        ],
        "hooks": [_modules("hooks.redis_streams")],
        "operators": [
            _modules(
                "operators.claim_stale",
                "operators.consumers",
                "operators.dead_letters",
                "operators.drain",
                "operators.enqueue",
                "operators.spark",
                "operators.take",
                "operators.task",
                "operators.trim",
            )
        ],
        "sensors": [_modules("sensors.ack_by_run", "sensors.backlog", "sensors.drain", "sensors.message")],
        "triggers": [
            _modules(
                "triggers.backlog", "triggers.match", "triggers.message", "triggers.run", "triggers.task"
            )
        ],
        "task-decorators": [
            {"name": "conquiet_task", "class-name": f"{_PACKAGE}.decorators.conquiet_task.conquiet_task"},
            {"name": "drain", "class-name": f"{_PACKAGE}.decorators.drain.drain_task"},
            {"name": "enqueue", "class-name": f"{_PACKAGE}.decorators.enqueue.enqueue_task"},
        ],
        "queues": [f"{_PACKAGE}.queues.redis_stream.RedisStreamMessageQueueProvider"],
        "extra-links": [f"{_PACKAGE}.links.DocumentationLink"],
        "plugins": [{"name": _NAME, "plugin-class": f"{_PACKAGE}.plugins.conquiet.ConquietPlugin"}],
        "asset-uris": [
            {
                "schemes": ["redis+stream"],
                "handler": f"{_PACKAGE}.assets.redis_stream.sanitize_uri",
                "factory": f"{_PACKAGE}.assets.redis_stream.create_asset",
                "to_openlineage_converter": (f"{_PACKAGE}.assets.redis_stream.convert_asset_to_openlineage"),
            }
        ],
        "connection-types": [_CONNECTION_TYPE],
    }


def missing_requirements() -> list[str]:
    """What is not installed, or too old, of what the provider's modules import."""
    return [needed for needed, first in _NEEDED.items() if _installed(needed) < first]


def _installed(distribution: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in re.findall(r"\d+", version(distribution))[:2])
    except PackageNotFoundError:
        return ()


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _text(label: str, description: str, **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["string", "null"], **schema}}


def _number(label: str, description: str) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": ["number", "null"]}}


_CONNECTION_TYPE: dict[str, Any] = {
    "connection-type": "redis_streams",
    "hook-class-name": f"{_PACKAGE}.hooks.redis_streams.RedisStreamsHook",
    "hook-name": "Redis Streams (conquiet)",
    "ui-field-behaviour": {
        "hidden-fields": ["schema", "extra"],
        "relabeling": {"login": "ACL user"},
        "placeholders": {"host": "redis.example.com, or a,b,c for sentinels", "port": "6379"},
    },
    "conn-fields": {
        "db_conn_id": _text(
            "Application database",
            "The connection (postgres, mysql, sqlite) that handlers write to; never Airflow's own database.",
        ),
        "db_url_secret": _text(
            "Application database, as a URL",
            "Instead of a connection: a SQLAlchemy URL. Airflow does not show it again.",
            format="password",
        ),
        "mode": _text(
            "Mode",
            "How the server is reached.",
            enum=["standalone", "cluster", "sentinel"],
            default="standalone",
        ),
        "db": {
            "label": "Redis database",
            "description": "Its number; a cluster has only 0.",
            "schema": {"type": ["integer", "null"], "default": 0},
        },
        "startup_nodes": _text("Further nodes", "Of a cluster: host:port,host:port."),
        "service": _text("Sentinel service", "The master's name; for mode sentinel."),
        "sentinel_username": _text("Sentinel user", "If sentinels ask for one."),
        "sentinel_password": _text("Sentinel password", "If sentinels ask for one.", format="password"),
        "tls": {
            "label": "TLS",
            "description": "Whether the server is reached by TLS.",
            "schema": {"type": ["boolean", "null"], "default": False},
        },
        "ca_path": _text("CA file", "Path of the certificate authority's file on the workers; for TLS."),
        "cert_path": _text("Certificate file", "Path on the workers, if the server asks for one; for TLS."),
        "key_path": _text("Key file", "Path on the workers, of the certificate's key; for TLS."),
        "key_password": _text("Password of the key", "If the key file has one.", format="password"),
        "ssl_cert_reqs": _text(
            "Server's certificate",
            "Whether it is checked; none accepts any server.",
            enum=["required", "optional", "none"],
            default="required",
        ),
        "ssl_check_hostname": {
            "label": "Check the host's name",
            "description": "Whether the certificate must be of this host.",
            "schema": {"type": ["boolean", "null"], "default": True},
        },
        "socket_timeout": _number("Timeout", "Seconds for one reply; above what one read waits."),
        "socket_connect_timeout": _number("Timeout of connecting", "Seconds."),
    },
}
