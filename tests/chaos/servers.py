"""The servers of a run: one that is killed, or a primary and a replica that lags; one address for clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Self

import redis

from conquiet import EmbeddedServer
from tests.chaos.plan import KEYS, Message, Plan
from tests.eventually import eventually
from tests.link import Link
from tests.services import Client

_SOCKET = "server.sock"
#: Passes a time in which somebody looks after everything else.
Pause = Callable[[float], None]


class AofServer:
    """A server that loses nothing when it is killed; it runs from the start of a `with` block to its end."""

    def __init__(self, directory: Path) -> None:
        # A link in the file system: clients follow with their next connection.
        self._address = directory / "primary.sock"
        self.url = f"unix://{self._address}"
        self._primary = _server(directory / "server-1")
        self._stack = ExitStack()

    def restart(self, *, away_s: float, pause: Pause) -> None:
        """Kill the primary, and start it again with all that it had."""
        self._primary.kill()
        pause(away_s)
        self._primary.restart()

    def fill(self) -> None:
        """Set the primary's limit of memory below what it uses: it refuses whatever adds."""
        with _client(self._primary) as client:
            memory = client.info("memory")
            counted = memory["used_memory"] - memory["mem_not_counted_for_evict"]
            client.config_set("maxmemory", round(0.95 * counted))

    def make_room(self) -> None:
        """Take the limit away."""
        with _client(self._primary) as client:
            client.config_set("maxmemory", 0)

    def _point_to_primary(self) -> None:
        new = self._address.with_suffix(".new")
        new.symlink_to(self._primary.dir / _SOCKET)
        new.rename(self._address)

    def __enter__(self) -> Self:
        self._stack.enter_context(self._primary)
        self._point_to_primary()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class ServerPair(AofServer):
    """A primary and its replica; at `url` clients find whichever is primary."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        super().__init__(directory)
        self._streams = [KEYS.stream(partition) for partition in range(plan.partitions)]
        self._replica = _server(directory / "server-2")
        self._link: Link | None = None
        #: The entries of each message that a failover has lost, as the primary had them when it was killed.
        self.lost: dict[Message, set[str]] = {}
        self.problems: list[str] = []

    def fail_over(self, *, lag_s: float, away_s: float, pause: Pause) -> None:
        """Kill the primary while its replica lags, and promote that; the killed one becomes its replica."""
        # One that has not caught up after an earlier failure is not for promotion.
        eventually(lambda: self._has_replica_after(pause))
        assert self._link is not None
        self._link.cut()
        pause(lag_s)
        self._primary.kill()
        pause(away_s)
        with _client(self._replica) as promoted:
            promoted.replicaof("NO", "ONE")
            known = {stream: promoted.xinfo_stream(stream) for stream in self._streams}
        self._primary, self._replica = self._replica, self._primary
        self._point_to_primary()
        self._replica.restart()
        self._note_lost(known)
        self._follow()

    def _has_replica_after(self, pause: Pause) -> bool:
        pause(0.05)
        # In the first moments of a run it has not been given the streams.
        return self._has_replica() and self._replica_has_streams()

    def _replica_has_streams(self) -> bool:
        with _client(self._replica) as client:
            return int(client.exists(*self._streams)) == len(self._streams)

    def _has_replica(self) -> bool:
        with _client(self._primary) as client:
            return client.info("replication").get("slave0", {}).get("state") == "online"

    def _note_lost(self, known: dict[str, dict[str, int | str]]) -> None:
        """What the former primary has, and the promoted one had not when it was promoted."""
        with _client(self._replica) as former:
            for stream, there in known.items():
                entries = former.xrange(stream, f"({there['last-generated-id']}")
                for entry_id, fields in entries:
                    payload = json.loads(fields["data"])["payload"]
                    self.lost.setdefault((payload["key"], payload["number"]), set()).add(entry_id)
                added = former.xinfo_stream(stream)["entries-added"] - int(there["entries-added"])
                if added != len(entries):
                    self.problems.append(f"a failover lost {added} entries of {stream}, {len(entries)} known")

    def _follow(self) -> None:
        self._link = self._stack.enter_context(Link("127.0.0.1", self._primary.port))
        with _client(self._replica) as replica:
            replica.replicaof("127.0.0.1", str(self._link.port))

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.enter_context(self._replica)
        self._follow()
        eventually(self._has_replica)
        return self


def _server(directory: Path) -> EmbeddedServer:
    return EmbeddedServer(
        dir=directory,
        appendonly=True,
        appendfsync="always",
        args=[
            *("--unixsocket", str(directory / _SOCKET)),
            # By default a primary waits: for more replicas to come, and for them to catch up at its end.
            *("--repl-diskless-sync-delay", "0"),
            *("--shutdown-timeout", "0"),
        ],
    )


@contextmanager
def _client(server: EmbeddedServer) -> Iterator[Client]:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        yield client
