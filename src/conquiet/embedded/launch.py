"""The options of a private server, and one attempt to start it on given ports until it serves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.embedded.cluster import form_cluster, is_formed
from conquiet.embedded.ports import HOST
from conquiet.embedded.processes import ServerProcesses

#: Long enough to load a large append-only file.
START_TIMEOUT_S = 30.0

#: Short, so that a killed node is noticed while a test waits.
CLUSTER_NODE_TIMEOUT_MS = 2_000

_SMALLEST_CLUSTER = 3
_FSYNC_POLICIES = ("always", "everysec", "no")
_PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The same for every node and for every restart."""

    binary: Path
    appendonly: bool
    appendfsync: str
    cluster: int
    args: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.cluster != 0 and self.cluster < _SMALLEST_CLUSTER:
            raise ValueError(f"cluster must be 0 or at least {_SMALLEST_CLUSTER}, not {self.cluster!r}")
        if self.appendfsync not in _FSYNC_POLICIES:
            raise ValueError(f"appendfsync must be one of {_FSYNC_POLICIES}, not {self.appendfsync!r}")

    @property
    def node_count(self) -> int:
        return self.cluster or 1

    def node_dirs(self, directory: Path) -> list[Path]:
        """Where each node keeps its data; a single server keeps it in the directory itself."""
        if not self.cluster:
            return [directory]
        return [directory / f"node-{number}" for number in range(1, self.cluster + 1)]

    def command(self, *, port: int, node_dir: Path, log: Path) -> list[str]:
        """The command line of one node: `args` changes any setting but where it listens and writes."""
        cluster = (
            *("--cluster-enabled", "yes"),
            *("--cluster-config-file", "nodes.conf"),
            *("--cluster-node-timeout", str(CLUSTER_NODE_TIMEOUT_MS)),
            *("--cluster-announce-ip", HOST),
        )
        return [
            str(self.binary),
            *("--save", ""),
            # How often it looks for blocking reads whose time is up: by default, up to 0.1 s late.
            *("--hz", "100"),
            *("--maxmemory-policy", "noeviction"),
            *("--appendonly", "yes" if self.appendonly else "no"),
            *("--appendfsync", self.appendfsync),
            *(cluster if self.cluster else ()),
            *self.args,
            *("--port", str(port)),
            *("--bind", HOST),
            *("--dir", str(node_dir)),
            *("--logfile", str(log)),
            *("--daemonize", "no"),
        ]


def launch(
    options: ServerOptions, *, directory: Path, is_temporary: bool, ports: Sequence[int]
) -> tuple[ServerProcesses, str]:
    """Start every node and wait until it has loaded its data and serves, in a cluster every slot.

    Returns the processes and the version of the server. After an error nothing runs.

    Raises:
        PortTakenError: a port is in use by now.
        EmbeddedServerError: any other reason.
    """
    log, node_dirs = directory / "server.log", options.node_dirs(directory)
    for node_dir in node_dirs:
        node_dir.mkdir(exist_ok=True)
    commands = [
        options.command(port=port, node_dir=node_dir, log=log)
        for port, node_dir in zip(ports, node_dirs, strict=True)
    ]
    processes = ServerProcesses(commands, directory=directory, log=log, is_temporary=is_temporary)
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        for port, pid in zip(ports, processes.pids, strict=True):
            processes.wait_until(partial(_answers, port, pid), deadline=deadline, goal="answer")
        with ExitStack() as connections:
            nodes = [connections.enter_context(_client(port)) for port in ports]
            if options.cluster:
                form_cluster(nodes, ports)
                is_done = partial(is_formed, nodes, ports)
                processes.wait_until(is_done, deadline=deadline, goal="form a cluster")
            facts = nodes[0].info("server")
    except BaseException as error:
        processes.kill()
        if isinstance(error, redis.RedisError):
            raise processes.failure(f"the server started but cannot be used: {error}") from error
        raise
    # Valkey gives the Redis version it is compatible with as redis_version.
    return processes, str(facts.get("valkey_version", facts["redis_version"]))


def _client(port: int, *, timeout_s: float = 5.0) -> redis.Redis:
    return redis.Redis(
        host=HOST, port=port, socket_timeout=timeout_s, protocol=2, retry=Retry(NoBackoff(), 0)
    )


def _answers(port: int, pid: int) -> bool:
    with _client(port, timeout_s=_PROBE_TIMEOUT_S) as node:
        try:
            # Another server that took the port would answer a PING, too.
            return node.info("server")["process_id"] == pid and bool(node.ping())
        except redis.AuthenticationError:
            # A kind of ConnectionError, but waiting does not help.
            raise
        except (redis.ConnectionError, redis.TimeoutError):
            return False
