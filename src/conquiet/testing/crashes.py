"""survives_crashes: does a handler survive when its process dies after any command?"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, MetaData

from conquiet.consume import DrainLimits, Handler, dead_letter_stream, drain, drain_stale
from conquiet.db.engine import open_engine
from conquiet.embedded import EmbeddedServer
from conquiet.payload import Sendable
from conquiet.queue import QueueConfig, RedisStreamsQueue, open_client
from conquiet.testing.crash_points import CRASHED, ENDED, Fault
from conquiet.testing.crash_process import (
    BLOCK_MS,
    GROUP,
    CrashEnd,
    CrashOrder,
    CrashProcess,
    TypedPayloads,
    handlers_engine,
)

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

#: What a test asserts of the database, after a crash and the recovery from it.
Check = Callable[..., object]
#: Makes the tables of a handler in an empty database.
Tables = MetaData | Callable[[Engine], object]

_SHOWN = 5
_DISCONNECT_S = 60.0


def survives_crashes(
    handler: Handler,
    payloads: Iterable[Sendable],
    *,
    tables: Tables,
    inbox: bool = True,
    database_url: str | None = None,
    faults: Sequence[Fault] = ("crash", "lost_answer"),
    max_points: int = 500,
    payload_type: Any = None,
) -> Callable[[Check], Callable[..., None]]:
    """Make a test of a check: a drain of the messages dies after each of its commands in turn.

    The messages are in a stream of a private server. A process of its own drains them with the handler and
    ends, without cleaning up, after the first command to Redis or the database; another drain recovers, and
    the check is called with an engine on the database. Then all of it again with an end after the second
    command, and so on to the last. In the end no message may be pending or lost, either.

    Args:
        handler: a function of a module, `handler(msg, session)`, a batch handler, or one that is `async def`.
        tables: the metadata of the handler's tables, or a function that makes them. Each crash has an empty
            SQLite database; with a `database_url` they are dropped and made anew, a function has to do both.
        inbox: drain with an inbox; without one, a message that was committed and not acked is handled twice.
        faults: "crash" ends the process; "lost_answer" executes the command and raises an error in place of
            its answer, as a connection does that breaks.
        max_points: a handler that needs more commands for these messages is refused.
        payload_type: what `msg.payload` is to be, as the argument `payload` of `drain`; with a codec of your
            own a pair, `(Order, Cents())`. Both must be of a module, as the handler.

    Raises:
        AssertionError: of the test, with the command after which the process died, and what was wrong then.

    Examples:
        >>> def create_bills(engine):
        ...     with engine.begin() as connection:
        ...         connection.execute(text("CREATE TABLE bills (order_id INTEGER)"))
        >>> @survives_crashes(bill, [{"order_id": 7}], tables=create_bills)
        ... def test_an_order_is_billed_once(engine):
        ...     with engine.connect() as connection:
        ...         assert connection.scalar(text("SELECT count(*) FROM bills")) == 1
    """
    sent, typed = list(payloads), TypedPayloads.of(payload_type)

    def decorate(check: Check) -> Callable[..., None]:
        # Its arguments are a `self` at most: pytest takes no fixtures from them.
        def test(*instance: Any) -> None:
            scene = _Scene(handler, sent, typed, tables, database_url, has_inbox=inbox)
            with scene.opened():
                for fault in faults:
                    _explore(scene, fault, functools.partial(check, *instance), max_points)

        functools.update_wrapper(test, check)
        del test.__wrapped__  # type: ignore[attr-defined]  # pytest would look for its parameters there
        return test

    return decorate


def _explore(scene: _Scene, fault: Fault, check: Check, max_points: int) -> None:
    # To the end first: what fails without any crash is no matter of crashes.
    end, problem = scene.visit(max_points, fault, check)
    if end.status == CRASHED:
        raise AssertionError(f"these messages need more than max_points={max_points} commands")
    if end.status != ENDED:
        raise AssertionError(f"the drain fails without any crash:\n{end.problem or end}")
    if problem is not None:
        raise problem
    violations: list[tuple[str, Exception]] = []
    for point in range(1, max_points):
        end, problem = scene.visit(point, fault, check)
        if end.status not in (CRASHED, ENDED):
            problem = AssertionError(f"the drain ended with status {end.status}:\n{end.problem}")
        if problem is not None:
            where = f"{fault} after command {point} ({end.point_name})"
            violations.append((where, problem))
        if end.status != CRASHED:
            break
    if violations:
        lines = [f"  {where}: {type(error).__name__}: {error}" for where, error in violations[:_SHOWN]]
        raise AssertionError(
            f"{len(violations)} of {point} commands are not survived:\n" + "\n".join(lines)
        ) from violations[0][1]


@dataclass(frozen=True, slots=True)
class _Left:
    """What is in the stream when all is done."""

    pending: int
    undelivered: int
    dead_letters: int


class _Scene:
    """The server, the process that dies and the database, for all crashes of one test."""

    def __init__(
        self,
        handler: Handler,
        payloads: Sequence[Sendable],
        typed: TypedPayloads,
        tables: Tables,
        database_url: str | None,
        *,
        has_inbox: bool,
    ) -> None:
        self._handler = handler
        self._payloads = payloads
        self._typed = typed
        self._tables = tables
        self._given_url = database_url
        self._has_inbox = has_inbox
        #: An empty SQLite database with the tables, made once and copied for each crash.
        self._empty: bytes | None = None
        #: Dead letters that the handler wants, as a drain without a crash leaves them.
        self._expected_letters: int | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Everything runs for as long as the block lasts."""
        memory = Path("/dev/shm")  # noqa: S108 -- a directory of its own in it; only processes die here
        with ExitStack() as resources:
            directory = TemporaryDirectory(dir=memory if memory.is_dir() else None)
            self._directory = Path(resources.enter_context(directory))
            self._url = resources.enter_context(EmbeddedServer()).url
            self._client: Any = resources.enter_context(open_client(self._url, decode_responses=True))
            # A short BLOCK ends at its end, and not some milliseconds later.
            self._client.config_set("hz", 500)
            self._process = resources.enter_context(CrashProcess(self._handler, self._typed))
            yield

    def visit(self, point: int, fault: Fault, check: Check) -> tuple[CrashEnd, Exception | None]:
        """One crash and the recovery from it: how the drain ended, and what is wrong now."""
        stream = f"crash:{uuid.uuid4().hex}"
        database_url = self._new_database()
        self._queue(stream, "sender").enqueue_many(self._payloads)
        order = CrashOrder(
            point=point,
            fault=fault,
            url=self._url,
            stream=stream,
            database_url=database_url,
            has_inbox=self._has_inbox,
            messages=len(self._payloads),
            directory=str(self._directory),
        )
        end = self._process.run(order)
        self._wait_until_gone(stream)
        engine = open_engine(database_url)
        try:
            self._recover(stream, handlers_engine(self._handler, database_url))
            check(engine)
        except Exception as error:  # noqa: BLE001 -- of the handler or the check: reported with its point
            return end, error
        finally:
            engine.dispose()
            self._client.delete(stream, dead_letter_stream(stream))
        return end, None

    def _new_database(self) -> str:
        if self._given_url is not None:
            self._make_tables(self._given_url)
            return self._given_url
        path = self._directory / "handler.db"
        url = f"sqlite:///{path}"
        if self._empty is None:
            self._make_tables(url)
            self._empty = path.read_bytes()
        for beside in self._directory.glob("handler.db*"):
            beside.unlink()
        path.write_bytes(self._empty)
        return url

    def _make_tables(self, url: str) -> None:
        engine = open_engine(url)
        try:
            if isinstance(self._tables, MetaData):
                self._tables.drop_all(engine)
                self._tables.create_all(engine)
            else:
                self._tables(engine)
        finally:
            engine.dispose()

    def _queue(self, stream: str, consumer: str) -> RedisStreamsQueue:
        config = QueueConfig(stream, GROUP, consumer, block_ms=BLOCK_MS)
        return RedisStreamsQueue(self._client, config, codec=self._typed.codec)

    def _wait_until_gone(self, stream: str) -> None:
        # What the process sent last may still be on its way; the server reads it before it sees the end.
        ends_at = time.monotonic() + _DISCONNECT_S
        while stream in {client["name"] for client in self._client.client_list()}:
            if time.monotonic() > ends_at:
                raise TimeoutError(f"the server still has the connection of {stream!r}")
            time.sleep(0.002)

    def _recover(self, stream: str, engine: Engine | AsyncEngine) -> None:
        work = (self._queue(stream, "recovery"), self._handler, engine)
        undelivered = self._look(stream).undelivered
        how: Any = {"inbox": self._has_inbox, "payload": self._typed.payload_type}
        drain_stale(*work, DrainLimits(on_error="raise"), min_idle_ms=0, **how)
        if undelivered:
            limits = DrainLimits(max_messages=undelivered, on_error="raise")
            drain(*work, limits, **how)
        left = self._look(stream)
        if self._expected_letters is None:
            self._expected_letters = left.dead_letters
        if left != _Left(0, 0, self._expected_letters):
            raise AssertionError(f"not all messages are handled: {left}")

    def _look(self, stream: str) -> _Left:
        client = self._client
        [group] = client.xinfo_groups(stream)
        undelivered = client.xrange(stream, min=f"({group['last-delivered-id']}")
        return _Left(group["pending"], len(undelivered), client.xlen(dead_letter_stream(stream)))
