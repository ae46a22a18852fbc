"""Crash points: every command that reaches Redis or the database, named and counted up to the last one."""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, NoReturn

from redis.asyncio.connection import AbstractConnection as AwaitingConnection
from redis.connection import AbstractConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from conquiet.db.psycopg_begin import StatementWithBegin

#: "crash": the process is gone, no `finally` runs. "lost_answer": the command was executed, but an error is
#: raised in place of its answer, and the process lives on to clean up.
Fault = Literal["crash", "lost_answer"]

#: The exit status of a child that came to its point; a shell says the same of SIGKILL.
CRASHED = 137
#: Of one that came to its end, and of one that failed before its point.
ENDED = 0
FAILED = 1


def status_of_child(run: Callable[[], int], *, timeout_s: int, errors: Path | None = None) -> int:
    """Fork a child that runs this and ends; its exit status, negative if a signal has ended it.

    The process must have no threads. A child that takes longer is killed, even in a call that never returns.

    Args:
        errors: where the traceback of a child that fails is written; else to stderr.
    """
    pid = os.fork()
    if pid == 0:
        _be_child(run, timeout_s, errors)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _be_child(run: Callable[[], int], timeout_s: int, errors: Path | None) -> NoReturn:
    # Nothing handles SIGALRM: it ends the process.
    signal.alarm(timeout_s)
    status = FAILED
    try:
        status = run()
    except BaseException:  # noqa: BLE001 -- the exit status says it, and the traceback
        if errors is None:
            traceback.print_exc()
        else:
            errors.write_text(traceback.format_exc())
    finally:
        os._exit(status)


def last_point(trace: Path) -> str:
    """The name of the point at which a child ended."""
    *_, last = ["the start", *trace.read_text().splitlines()]
    return last


class CrashPoints:
    """Lets the fault happen right after the n-th point, in a process of its own or until `unwatch`."""

    def __init__(self, last: int, fault: Fault, *, trace: Path, has_replies: bool = True) -> None:
        self._left = last
        self._lock = threading.Lock()
        self._fault = fault
        # Without replies half the points: the server has executed what was sent, answer or no answer.
        self._has_replies = has_replies
        self._trace = trace.open("a", buffering=1)
        self._lost_sql_answer: Callable[[str], Exception] = RuntimeError
        self._restore: list[Callable[[], None]] = []

    @property
    def is_reached(self) -> bool:
        """Whether the fault has happened."""
        return self._left <= 0

    def watch(self, engine: Engine | AsyncEngine) -> None:
        """Count from now on what goes to Redis, and to the database of this engine."""
        self._watch_redis()
        self._watch_awaiting_redis()
        self._watch_sql(engine if isinstance(engine, Engine) else engine.sync_engine)

    def unwatch(self) -> None:
        """Leave redis-py and SQLAlchemy as they were."""
        for restore in self._restore:
            restore()
        self._trace.close()

    def pass_step(self, name: str) -> None:
        """Between two steps of the process that nobody answers: it can crash there, and lose no answer."""
        if self._fault == "crash":
            self._pass(name, RuntimeError(name))

    def _pass(self, name: str, lost_answer: Exception) -> None:
        # Handlers may run in several threads.
        with self._lock:
            if self.is_reached:
                return
            self._trace.write(f"{name}\n")
            self._left -= 1
            if not self.is_reached:
                return
        if self._fault == "crash":
            os._exit(CRASHED)
        raise lost_answer

    def _pass_redis(self, connection: AbstractConnection, name: str) -> None:
        try:
            self._pass(name, RedisConnectionError(f"the answer was lost at: {name}"))
        except RedisConnectionError:
            connection.disconnect()
            raise

    def _watch_redis(self) -> None:
        # redis-py has no types for them.
        send: Any = AbstractConnection.send_packed_command
        read: Any = AbstractConnection.read_response
        unanswered: deque[str] = deque()

        def send_each(
            connection: AbstractConnection, packed: Sequence[bytes], check_health: bool = True
        ) -> None:
            for command in commands_in(packed):
                send(connection, [command], check_health)
                # "*3\r\n$4\r\nXACK\r\n…": the number of words, the length of the first, the first.
                unanswered.append(command.split(b"\r\n", 3)[2].decode())
                self._pass_redis(connection, f"redis {unanswered[-1]} sent")

        def read_one(connection: AbstractConnection, *args: Any, **options: Any) -> Any:
            try:
                return read(connection, *args, **options)
            finally:
                answered = unanswered.popleft()
                if self._has_replies:
                    self._pass_redis(connection, f"redis {answered} replied")

        self._replace(
            AbstractConnection,
            {"pack_commands": _pack_each, "send_packed_command": send_each, "read_response": read_one},
        )

    def _watch_awaiting_redis(self) -> None:
        # The same for connections of an event loop, whose methods await.
        send: Any = AwaitingConnection.send_packed_command
        read: Any = AwaitingConnection.read_response
        unanswered: deque[str] = deque()

        async def pass_redis(connection: AwaitingConnection, name: str) -> None:
            try:
                self._pass(name, RedisConnectionError(f"the answer was lost at: {name}"))
            except RedisConnectionError:
                await connection.disconnect(nowait=True)
                raise

        async def send_each(
            connection: AwaitingConnection, packed: Sequence[bytes] | bytes, check_health: bool = True
        ) -> None:
            for command in commands_in([packed] if isinstance(packed, bytes) else packed):
                await send(connection, [command], check_health)
                unanswered.append(command.split(b"\r\n", 3)[2].decode())
                await pass_redis(connection, f"redis {unanswered[-1]} sent")

        async def read_one(connection: AwaitingConnection, *args: Any, **options: Any) -> Any:
            try:
                return await read(connection, *args, **options)
            finally:
                answered = unanswered.popleft()
                if self._has_replies:
                    await pass_redis(connection, f"redis {answered} replied")

        self._replace(
            AwaitingConnection,
            {"pack_commands": _pack_each, "send_packed_command": send_each, "read_response": read_one},
        )

    def _replace(self, kind: type, methods: dict[str, Any]) -> None:
        for name, method in methods.items():
            self._restore.append(partial(setattr, kind, name, getattr(kind, name)))
            setattr(kind, name, method)

    def _watch_sql(self, engine: Engine) -> None:
        # What the driver raises when its connection is gone.
        dialect: Any = engine.dialect
        self._lost_sql_answer = dialect.dbapi.OperationalError
        names = {"do_execute": None, "do_executemany": None, "do_commit": "COMMIT", "do_rollback": "ROLLBACK"}
        for method, name in names.items():
            setattr(engine.dialect, method, self._counted(getattr(engine.dialect, method), name=name))
            self._restore.append(partial(delattr, engine.dialect, method))
        # psycopg's, which no dialect sees.
        watched: Any = StatementWithBegin
        execute = watched.execute

        def execute_counted(statement: StatementWithBegin, driver: Any, values: Mapping[str, Any]) -> bool:
            is_done: bool = execute(statement, driver, values)
            if is_done:
                point = "sql BEGIN with the inbox row"
                self._pass(point, self._lost_sql_answer(f"the answer was lost at: {point}"))
            return is_done

        watched.execute = execute_counted
        self._restore.append(partial(setattr, watched, "execute", execute))

    def _counted(self, method: Callable[..., None], *, name: str | None = None) -> Callable[..., None]:
        def call(target: Any, *args: Any, **options: Any) -> None:
            try:
                method(target, *args, **options)
            finally:
                point = f"sql {name or args[0].split()[0].upper()}"
                self._pass(point, self._lost_sql_answer(f"the answer was lost at: {point}"))

        return call


# redis-py sends a pipeline as one packet; one by one, a crash can come between its commands.
def _pack_each(connection: Any, commands: Sequence[Sequence[Any]]) -> list[bytes]:
    return [b"".join(connection.pack_command(*command)) for command in commands]


def commands_in(packed: Iterable[bytes]) -> Iterator[bytes]:
    """The commands of what is sent at once: several of them may be in one packet, and one in several."""
    data, end = b"".join(packed), 0

    def number() -> int:
        nonlocal end
        begin, end = end + 1, data.index(b"\r\n", end) + 2
        return int(data[begin : end - 2])

    while end < len(data):
        begin = end
        for _ in range(number()):
            # Not in one line: the length is read first.
            length = number()
            end += length + 2
        yield data[begin:end]
