"""A service of docker-compose.yml as a plain process: its command and environment, rewritten for here.

Mounts become links below a directory that stands for the container's root; a host name with its port becomes
127.0.0.1 with a private port; a database becomes a private one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.deploy import dockerfile
from tests.deploy.compose import Service
from tests.eventually import HANG_S
from tests.services import redis_binary, unavailable

_DATABASE = re.compile(r"//(?P<role>\w+):(?P<password>[^@]*)@postgres:5432/(?P<name>\w+)")
_JSON_SERVER = re.compile(r'"host": "(?P<host>[\w-]+)", "port": (?P<port>\d+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the services are on this machine."""

    directory: Path
    #: The private port of a service's own port.
    ports: Mapping[tuple[str, int], int]
    #: The server in which the private databases are, and what is added to their names.
    postgres: URL
    suffix: str

    def database(self, name: str) -> str:
        """The private name of a role and its database."""
        return f"{name}_{self.suffix}"


class Container:
    """The rewriting of one service."""

    def __init__(self, service: Service, place: Place) -> None:
        self.service = service
        self.place = place
        self.root = place.directory / service.name

    def mount(self) -> None:
        """Make the container's directories, and a link for each mount."""
        self.workdir.mkdir(parents=True)
        for mount in self.service.mounts:
            source = mount.path if mount.is_bind else self.place.directory / "volumes" / mount.source
            if not mount.is_bind:
                source.mkdir(parents=True, exist_ok=True)
            link = self.root / mount.target.relative_to("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
        for target, text in self.service.configs.items():
            path = self.root / target.relative_to("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    @property
    def workdir(self) -> Path:
        """Where the process is started."""
        return self.root / Path(dockerfile.last("WORKDIR")).relative_to("/")

    @property
    def command(self) -> list[str]:
        """The command, with a binary of this machine."""
        return self._local_command(self.service.command)

    @property
    def health_command(self) -> list[str]:
        """The command of the health check."""
        assert self.service.healthcheck is not None, f"{self.service.name} has no health check"
        return self._local_command(self.service.healthcheck.command)

    @property
    def environment(self) -> dict[str, str]:
        """The service's variables and nothing of the tests' own but what any process needs."""
        needed = {name: os.environ[name] for name in ("USER", "JAVA_HOME") if name in os.environ}
        variables = {name: self._variable(name, value) for name, value in self.service.environment.items()}
        if "VALKEYCLI_AUTH" in variables:
            # As Redis' client calls it.
            variables["REDISCLI_AUTH"] = variables["VALKEYCLI_AUTH"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        home = {"HOME": str(self.place.directory), "PATH": path, "LANG": "C.UTF-8"}
        return needed | home | variables

    def is_healthy(self, environment: Mapping[str, str] | None = None) -> bool:
        """Whether the service's own health check says so, in the service's environment unless given."""
        assert self.service.healthcheck is not None
        try:
            done = self.run(self.health_command, environment, timeout_s=self.service.healthcheck.timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def run(
        self, command: list[str], environment: Mapping[str, str] | None = None, *, timeout_s: float = HANG_S
    ) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec` does it."""
        return subprocess.run(
            [_binary(command[0]), *command[1:]],
            env=dict(environment or self.environment),
            cwd=self.workdir,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def rewrite(self, value: str) -> str:
        """Hosts, ports, databases and paths of the containers to those of this machine."""
        own = {str(port): str(self.place.ports[self.service.name, port]) for port in self.service.ports}
        if value in own:
            return own[value]
        value = _DATABASE.sub(self._private_database, value)
        value = _JSON_SERVER.sub(self._private_server, value)
        for (host, port), private in self.place.ports.items():
            value = re.sub(rf"(?<![\w-]){host}:{port}\b", f"127.0.0.1:{private}", value)
            value = "127.0.0.1" if value == host else value
        for inner, outer in own.items():
            value = re.sub(rf"(localhost:|0\.0\.0\.0:){inner}\b", rf"\g<1>{outer}", value)
        return self._local_path(value.replace("0.0.0.0", "127.0.0.1"))

    def _variable(self, name: str, value: str) -> str:
        host = self.service.environment.get(name.removesuffix("_PORT") + "_HOST")
        if name.endswith("_PORT") and host is not None:
            return str(self.place.ports[host, int(value)])
        return self.rewrite(value)

    def _local_command(self, command: list[str]) -> list[str]:
        program, *arguments = command
        return [_binary(program), *map(self.rewrite, arguments)]

    def _local_path(self, value: str) -> str:
        targets = [str(target) for target in self.service.targets] + [dockerfile.last("WORKDIR")]
        # The longest first, and each place once: /opt/conquiet is in most of them.
        pattern = "|".join(sorted(map(re.escape, set(targets)), key=len, reverse=True))
        return re.sub(rf"(?<![\w.])({pattern})(?=/|$)", rf"{self.root}\g<1>", value)

    def _private_database(self, match: re.Match[str]) -> str:
        server = self.place.postgres
        role, name = self.place.database(match["role"]), self.place.database(match["name"])
        return f"//{role}:{match['password']}@{server.host}:{server.port or 5432}/{name}"

    def _private_server(self, match: re.Match[str]) -> str:
        return f'"host": "127.0.0.1", "port": {self.place.ports[match["host"], int(match["port"])]}'


def _binary(program: str) -> str:
    if program == "valkey-server":
        return str(redis_binary("valkey"))
    if program == "valkey-cli":
        return _valkey_cli()
    found = shutil.which(program, path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert found, f"{program} is not on this machine"
    return found


def _valkey_cli() -> str:
    """It, or Redis' client from 7 on, which has the same options."""
    directories = os.environ["PATH"].split(os.pathsep)
    programs = [shutil.which(name, path=path) for name in ("valkey-cli", "redis-cli") for path in directories]
    for found in filter(None, programs):
        if " 6." not in subprocess.check_output([found, "--version"], text=True):
            return found
    return unavailable("redis", "neither valkey-cli nor redis-cli 7 is on PATH")
