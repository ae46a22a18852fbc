"""The process that forks for each crash of a handler: it has no threads, and one import of the handler."""

from __future__ import annotations

import base64
import functools
import json
import logging
import os
import pickle
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import redis.utils
from sqlalchemy import Engine, make_url

from conquiet.consume import DrainLimits, Handler, drain, load_handler
from conquiet.consume.handler_kinds import PayloadType
from conquiet.consume.handling import is_async
from conquiet.db.engine import open_engine
from conquiet.payload import PayloadCodec
from conquiet.queue import QueueConfig, RedisStreamsQueue, open_client
from conquiet.testing.crash_points import CRASHED, ENDED, CrashPoints, Fault, last_point, status_of_child

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncEngine

GROUP = "test"
_WORKER = "worker-1"
_TIMEOUT_S = 600
#: Drivers that await, by the kind of database.
_AWAITING = {
    "sqlite": "sqlite+aiosqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+asyncmy",
    "mariadb": "mysql+asyncmy",
}
#: What a read waits; nothing waits for messages here, as it is known how many there are.
BLOCK_MS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashOrder:
    """One drain that ends at a point; all that crosses the pipe."""

    point: int
    fault: Fault
    url: str
    stream: str
    database_url: str
    has_inbox: bool
    messages: int
    #: Where the child writes which points it passed, and why it failed.
    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashEnd:
    """How that drain ended."""

    status: int
    #: The name of the last point that it passed.
    point_name: str
    #: The traceback of a drain that failed by itself.
    problem: str


@dataclass(frozen=True, slots=True)
class TypedPayloads:
    """What the handler's messages have as their payload; a dict unless a type is given."""

    payload_type: Any = None
    codec: PayloadCodec | None = None

    @classmethod
    def of(cls, given: Any) -> TypedPayloads:
        """A type, or a pair of it and a codec."""
        made = cls(*given) if isinstance(given, tuple) else cls(given)
        PayloadType.of(made.payload_type, made.codec)
        return made

    def pickled(self) -> str:
        """For another process, in which classes are found by their names."""
        try:
            return base64.b64encode(pickle.dumps((self.payload_type, self.codec))).decode()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"payload_type cannot be imported by another process: {error}") from error

    @classmethod
    def unpickled(cls, text: str) -> TypedPayloads:
        """Of the process that forked this one's."""
        return cls(*pickle.loads(base64.b64decode(text)))  # noqa: S301 -- from our own parent, by its pipe


class CrashProcess:
    """Runs from the start of a `with` block to its end, and imports the handler when it starts."""

    def __init__(self, handler: Handler, payloads: TypedPayloads) -> None:
        module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", "<none>")
        if module in (None, "__main__") or "<" in name:
            raise ValueError(
                f"{handler!r} cannot be imported by another process; make it a module's function"
            )
        self._reference = f"{module}:{name}"
        self._file = getattr(sys.modules.get(str(module)), "__file__", None)
        self._payloads = payloads.pickled()

    def run(self, order: CrashOrder) -> CrashEnd:
        """Have one drain end at its point."""
        return CrashEnd(**self._ask(asdict(order)))

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # A Ctrl-C in the terminal ends it by the end of its input.
            start_new_session=True,
        )
        try:
            start = {"handler": self._reference, "file": self._file, "payloads": self._payloads}
            self._ask({**start, "sys_path": sys.path})
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()
        # Waits for it, and closes the pipes.
        self._process.communicate()

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: said below
        answer = stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that imports {self._reference} ended: {self._process.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found


def handlers_engine(handler: Handler, url: str) -> Engine | AsyncEngine:
    """What a drain of the handler needs: of an `async def` one an AsyncEngine on the same database."""
    if not is_async(handler):
        return open_engine(url)
    from sqlalchemy.ext.asyncio import create_async_engine

    # An option of pymysql alone.
    given = make_url(url).difference_update_query(["ssl_disabled"])
    return create_async_engine(
        given.set(drivername=_AWAITING.get(given.get_backend_name(), given.drivername))
    )


def run_to_point(order: CrashOrder, handler: Handler, payloads: TypedPayloads, trace: Path) -> int:
    """In the child: drain, and end at the point."""
    engine = handlers_engine(handler, order.database_url)
    with open_client(order.url, client_name=order.stream) as client:
        config = QueueConfig(order.stream, GROUP, _WORKER, block_ms=BLOCK_MS)
        queue = RedisStreamsQueue(client, config, codec=payloads.codec)
        points = CrashPoints(order.point, order.fault, trace=trace)
        points.watch(engine)
        limits = DrainLimits(max_messages=order.messages, max_failures=None)
        try:
            drain(queue, handler, engine, limits, inbox=order.has_inbox, payload=payloads.payload_type)
        except BaseException:
            # Of a lost answer anything may come.
            if not points.is_reached:
                raise
    return CRASHED if points.is_reached else ENDED


def _load(reference: str, file: str | None) -> Handler:
    module = reference.partition(":")[0]
    try:
        return load_handler(reference, may_be_async=True)
    except ModuleNotFoundError as error:
        # pytest may have imported a test module from its file alone.
        if error.name != module or file is None:
            raise
    spec = spec_from_file_location(module, file)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[module] = loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return load_handler(reference, may_be_async=True)


def _visit(order: CrashOrder, handler: Handler, payloads: TypedPayloads) -> CrashEnd:
    trace, errors = Path(order.directory, "trace"), Path(order.directory, "errors")
    trace.write_text("")
    errors.write_text("")
    run = functools.partial(run_to_point, order, handler, payloads, trace)
    status = status_of_child(run, timeout_s=_TIMEOUT_S, errors=errors)
    return CrashEnd(status=status, point_name=last_point(trace), problem=errors.read_text())


def main() -> None:
    """Answer each line of the input with a line; what a handler prints goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # Failures are planned here, hundreds of them.
    logging.disable()
    # redis-py looks it up among the installed packages for every connection, and each point has some.
    redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
    start = json.loads(sys.stdin.readline())
    sys.path[:] = start["sys_path"]
    handler = _load(start["handler"], start["file"])
    # After the handler, whose module may have been imported from its file.
    payloads = TypedPayloads.unpickled(start["payloads"])
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        end = _visit(CrashOrder(**json.loads(line)), handler, payloads)
        print(json.dumps(asdict(end)), file=answers, flush=True)


if __name__ == "__main__":
    main()
