"""docker-compose.yml, read as Docker Compose reads it: variables with their defaults, anchors merged."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docker-compose.yml"

_VARIABLE = re.compile(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}")
_PORT = re.compile(r"(?:--(?:webui-)?port |localhost:|127\.0\.0\.1:|0\.0\.0\.0:|-p )(\d+)")
_UNITS = {"s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One entry of `volumes`; `source` is a path of the repository or the name of a volume."""

    source: str
    target: PurePosixPath
    is_read_only: bool

    @property
    def is_bind(self) -> bool:
        return self.source.startswith(".")

    @property
    def path(self) -> Path:
        """Where a bind mount's files are."""
        return ROOT / self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class Healthcheck:
    """The command, its times in seconds."""

    command: list[str]
    start_interval_s: float
    timeout_s: float
    start_period_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One service, everything in the form that the tests ask for."""

    name: str
    fields: Mapping[str, Any]
    command: list[str]
    environment: dict[str, str]
    mounts: list[Mount]
    #: The text of each file that Compose writes, by its place in the container.
    configs: dict[PurePosixPath, str]
    #: Address, port of the machine, port of the container.
    published: list[tuple[str, int, int]]
    #: The condition for each service that must be there before.
    depends_on: dict[str, str]
    healthcheck: Healthcheck | None

    @property
    def is_ours(self) -> bool:
        """Whether it runs in the image of the Dockerfile."""
        return "build" in self.fields

    @property
    def targets(self) -> list[PurePosixPath]:
        """Every place of the container at which something is mounted."""
        return [*(mount.target for mount in self.mounts), *self.configs]

    @property
    def ports(self) -> set[int]:
        """Every port that it listens on: published, or told by command, health check or environment."""
        health = self.healthcheck.command if self.healthcheck else []
        spoken = {int(port) for port in _PORT.findall(" ".join([*self.command, *health]))}
        named = {int(value) for name, value in self.environment.items() if _is_own_port(name, self)}
        return spoken | named | {inner for _, _, inner in self.published}


def text() -> str:
    """The file as it stands."""
    return FILE.read_text()


def variables() -> dict[str, set[str]]:
    """Every variable of the file, with the defaults that it is given."""
    found: dict[str, set[str]] = {}
    for match in _VARIABLE.finditer(text()):
        found.setdefault(match["name"], set()).add(match["default"])
    return found


@functools.cache
def document() -> Any:
    """The whole file, with every variable at its default; read once, nobody changes it."""
    return _filled(yaml.safe_load(text()))


def services() -> dict[str, Service]:
    """Every service by its name."""
    whole = document()
    return {name: _service(name, fields, whole["configs"]) for name, fields in whole["services"].items()}


def _filled(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item) for item in value]
    # After parsing, as Compose does it: a default `True` is text.
    return _VARIABLE.sub(lambda match: match["default"], value) if isinstance(value, str) else value


def _is_own_port(variable: str, service: Service) -> bool:
    """`…_PORT` is a port of its own, unless `…_HOST` says whose it is."""
    host = variable.removesuffix("_PORT") + "_HOST"
    return variable.endswith("_PORT") and host not in service.environment


def _service(name: str, fields: Mapping[str, Any], configs: Mapping[str, Any]) -> Service:
    command = fields.get("command", [])
    health = fields.get("healthcheck")
    return Service(
        name=name,
        fields=fields,
        command=shlex.split(command) if isinstance(command, str) else list(command),
        environment=dict(fields.get("environment", {})),
        mounts=[_mount(entry) for entry in fields.get("volumes", [])],
        configs={
            PurePosixPath(entry["target"]): configs[entry["source"]]["content"]
            for entry in fields.get("configs", [])
        },
        published=[_published(entry) for entry in fields.get("ports", [])],
        depends_on={of: entry["condition"] for of, entry in fields.get("depends_on", {}).items()},
        healthcheck=_healthcheck(health) if health else None,
    )


def _mount(entry: str) -> Mount:
    source, target, *mode = entry.split(":")
    return Mount(source=source, target=PurePosixPath(target), is_read_only=mode == ["ro"])


def _published(entry: str) -> tuple[str, int, int]:
    address, outer, inner = entry.split(":")
    return address, int(outer), int(inner)


def _healthcheck(fields: Mapping[str, Any]) -> Healthcheck:
    kind, *command = fields["test"]
    assert kind == "CMD", "a list of arguments, which no shell reads"
    return Healthcheck(
        command=command,
        start_interval_s=_seconds(fields["start_interval"]),
        timeout_s=_seconds(fields["timeout"]),
        start_period_s=_seconds(fields["start_period"]),
    )


def _seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]
