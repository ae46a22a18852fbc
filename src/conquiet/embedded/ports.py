"""Loopback ports that are free for a server and its cluster bus, and those of the last start."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

from conquiet.errors import EmbeddedServerError

HOST = "127.0.0.1"

#: Redis 6.2 cannot choose its bus port: it is always the port plus this.
BUS_OFFSET = 10_000

#: These and their bus ports lie below the ports that Linux and macOS give to outgoing connections.
PORTS = range(10_000, 20_000)

_PORTS_FILE = "ports.json"
_PROBES = 1_000


def choose_ports(count: int, *, preferred: Sequence[int] = ()) -> tuple[int, ...]:
    """Choose ports that are free now; another process may take one before the server does.

    Args:
        preferred: taken as a whole when there are `count` of them and all are free.
    """
    if len(preferred) == count and all(map(is_free, preferred)):
        return tuple(preferred)
    chosen: list[int] = []
    for _ in range(_PROBES):
        port = secrets.choice(PORTS)
        if port not in chosen and is_free(port):
            chosen.append(port)
        if len(chosen) == count:
            return tuple(chosen)
    raise EmbeddedServerError(f"no {count} free ports between {PORTS.start} and {PORTS.stop - 1} on {HOST}")


def is_free(port: int, *, has_bus: bool = True) -> bool:
    """Whether the port can be bound, and the bus port that a node of a cluster has beside it."""
    return _can_bind(port) and (not has_bus or _can_bind(port + BUS_OFFSET))


def remembered_ports(directory: Path, *, count: int) -> tuple[int, ...]:
    """The ports of the last start in this directory, or none.

    Raises:
        EmbeddedServerError: the directory belongs to another number of nodes.
    """
    try:
        ports = tuple(json.loads((directory / _PORTS_FILE).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return ()
    if len(ports) != count:
        raise EmbeddedServerError(
            f"{directory} has the data of {len(ports)} nodes, not of {count}: use another directory, "
            "or start it with the number of nodes it was made with"
        )
    return ports


def remember_ports(directory: Path, ports: Sequence[int]) -> None:
    """Store the ports for the next start: the nodes of a cluster know each other by them."""
    written = directory / f"{_PORTS_FILE}.new"
    written.write_text(json.dumps(list(ports)))
    written.replace(directory / _PORTS_FILE)


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As the server does: connections of its last run in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError):
            # Taken; or the bus port of a high port, which is none.
            return False
    return True
