"""All services at once, each started when docker-compose.yml says so, watched by its own health check."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event

import psutil

from tests.deploy.compose import Service
from tests.deploy.container import Container, Place
from tests.eventually import HANG_S
from tests.services import free_port
from tests.sessions import kill_sessions, processes_of

#: PostgreSQL is the machine's own; the last two are programs that the project does not install.
NOT_STARTED = {"postgres", "prometheus", "grafana"}


class Site:
    """Containers by name, and the processes that they have."""

    def __init__(self, services: Mapping[str, Service], place: Place) -> None:
        self.place = place
        self.containers = {name: Container(service, place) for name, service in services.items()}
        self.exit_codes: dict[str, int] = {}
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self._stopping = Event()

    def start(self) -> None:
        """Start everything side by side, in the order of `depends_on`; return when all is healthy."""
        names = [name for name in self.containers if name not in NOT_STARTED]
        futures: dict[str, Future[None]] = {}
        known = Event()
        with ThreadPoolExecutor(len(names)) as pool:

            def bring_up(name: str) -> None:
                known.wait()
                for other in self.containers[name].service.depends_on:
                    if other in futures:
                        futures[other].result()
                self._bring_up(self.containers[name])

            futures |= {name: pool.submit(bring_up, name) for name in names}
            known.set()
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            if any(future.exception() for future in done):
                self._stopping.set()
        for future in futures.values():
            future.result()

    def stop(self) -> None:
        """Kill every process; nothing is left afterwards."""
        self._stopping.set()
        left = kill_sessions(self._sessions, "HOME", self.place.directory)
        for process in self._started.values():
            process.wait(timeout=HANG_S)
        assert left == [], f"these processes of {self.place.directory} are left: {left}"

    def port(self, name: str, port: int) -> int:
        """The private port of a service's port."""
        return self.place.ports[name, port]

    def listening(self, name: str) -> set[int]:
        """The ports that processes of this service listen on."""
        pid = self._started[name].pid
        ports = set()
        for process in processes_of({pid}, "NO_VARIABLE", self.place.directory):
            connections = process.net_connections(kind="tcp")
            ports |= {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        return ports

    def log(self, name: str) -> str:
        """What a service printed."""
        return (self.place.directory / f"{name}.log").read_text(errors="replace")

    @property
    def _sessions(self) -> set[int]:
        return {process.pid for process in self._started.values()}

    def _bring_up(self, container: Container) -> None:
        name = container.service.name
        container.mount()
        with (self.place.directory / f"{name}.log").open("wb") as log:
            process = self._started[name] = subprocess.Popen(
                container.command,
                env=container.environment | self._private(name),
                cwd=container.workdir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            if container.service.healthcheck is None:
                self.exit_codes[name] = process.wait(timeout=HANG_S)
                assert self.exit_codes[name] == 0, f"{name} ended with {self.exit_codes[name]}"
            else:
                self._wait_for_health(container, process)
        except BaseException as error:
            error.add_note(f"{name}: {self.log(name)[-5_000:]}")
            raise

    def _wait_for_health(self, container: Container, process: subprocess.Popen[bytes]) -> None:
        name, check = container.service.name, container.service.healthcheck
        assert check is not None
        deadline = time.monotonic() + HANG_S
        # As Docker does it, the first look after one interval.
        while not self._stopping.wait(check.start_interval_s):
            assert process.poll() is None, f"{name} ended by itself with {process.returncode}"
            if container.is_healthy():
                return
            assert time.monotonic() < deadline, f"{name} is not healthy after {HANG_S:.0f} s"
        raise InterruptedError(f"{name}: another service did not start")

    def _private(self, name: str) -> dict[str, str]:
        # Servers of logs, which have a container's address of their own in production.
        if not name.startswith("airflow"):
            return {}
        ports = ("AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT", "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT")
        return {variable: str(free_port()) for variable in ports}


def private_ports(services: Mapping[str, Service]) -> dict[tuple[str, int], int]:
    """A free port for each port of each service."""
    return {(name, port): free_port() for name, service in services.items() for port in service.ports}
