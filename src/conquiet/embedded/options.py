"""The options of a private server, and its command line for Valkey 9, Redis 7 and Redis 6.2 alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from conquiet.embedded.ports import HOST

#: Short, so that a killed node is noticed while a test waits.
CLUSTER_NODE_TIMEOUT_MS = 2_000

_SMALLEST_CLUSTER = 3
_FSYNC_POLICIES = ("always", "everysec", "no")


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
