"""One attempt to start the servers of a directory on given ports, up to the moment they serve."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from conquiet.embedded.cluster import form_cluster, is_formed
from conquiet.embedded.options import ServerOptions
from conquiet.embedded.ports import HOST
from conquiet.embedded.processes import ServerProcesses

#: Long enough to load a large append-only file.
START_TIMEOUT_S = 30.0

_PROBE_TIMEOUT_S = 0.5


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
