"""One attempt to start the servers of a directory on given ports, up to the moment they serve."""

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
from conquiet.embedded.log import ServerLog
from conquiet.embedded.options import ServerOptions
from conquiet.embedded.ports import HOST
from conquiet.embedded.processes import ServerProcesses

#: Long enough to load a large append-only file.
START_TIMEOUT_S = 30.0

_PROBE_TIMEOUT_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedServers:
    """Servers that answer and have loaded their data; in a cluster, every slot is served."""

    processes: ServerProcesses
    ports: tuple[int, ...]
    version: str


def launch(
    options: ServerOptions, *, directory: Path, is_temporary: bool, ports: Sequence[int]
) -> LaunchedServers:
    """Start every node and wait until it serves; after an error nothing runs.

    Raises:
        PortTakenError: a port is in use by now.
        EmbeddedServerError: any other reason.
    """
    log = ServerLog.opened(directory / "server.log")
    node_dirs = options.node_dirs(directory)
    for node_dir in node_dirs:
        node_dir.mkdir(exist_ok=True)
    commands = [
        options.command(port=port, node_dir=node_dir, log=log.path)
        for port, node_dir in zip(ports, node_dirs, strict=True)
    ]
    processes = ServerProcesses(commands, directory=directory, log=log, is_temporary=is_temporary)
    with ExitStack() as on_failure:
        on_failure.callback(processes.kill)
        version = _wait_until_serving(processes, ports, is_cluster=options.cluster > 0)
        on_failure.pop_all()
    return LaunchedServers(processes=processes, ports=tuple(ports), version=version)


def _wait_until_serving(processes: ServerProcesses, ports: Sequence[int], *, is_cluster: bool) -> str:
    deadline = time.monotonic() + START_TIMEOUT_S
    try:
        for port, pid in zip(ports, processes.pids, strict=True):
            processes.wait_until(partial(_answers, port, pid), deadline=deadline, goal="answer")
        with ExitStack() as connections:
            nodes = [connections.enter_context(_client(port)) for port in ports]
            if is_cluster:
                form_cluster(nodes, ports)
                is_done = partial(is_formed, nodes, ports)
                processes.wait_until(is_done, deadline=deadline, goal="form a cluster")
            return _version(nodes[0])
    except redis.RedisError as error:
        raise processes.failure(f"the server started but cannot be used: {error}") from error


def _client(port: int, *, timeout_s: float = 5.0) -> redis.Redis:
    return redis.Redis(
        host=HOST, port=port, socket_timeout=timeout_s, protocol=2, retry=Retry(NoBackoff(), 0)
    )


def _answers(port: int, pid: int) -> bool:
    with _client(port, timeout_s=_PROBE_TIMEOUT_S) as node:
        try:
            # Somebody else who took the port would answer a PING, too.
            return node.info("server")["process_id"] == pid and bool(node.ping())
        except redis.AuthenticationError:
            # A kind of ConnectionError, but one that no waiting heals.
            raise
        except (redis.ConnectionError, redis.TimeoutError):
            return False


def _version(node: redis.Redis) -> str:
    facts = node.info("server")
    # Valkey gives the Redis version it is compatible with as redis_version.
    return str(facts.get("valkey_version", facts["redis_version"]))
