"""What a chaos run is made of: its size, its names, and what each message does to its handler."""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, Self

from sqlalchemy import BigInteger, Column, Engine, Integer, MetaData, String, Table, create_engine, event

from conquiet.mq.keys import TopicKeys

TOPIC = "orders"
GROUP = "billing"
KEYS = TopicKeys(TOPIC, "single")
LEASE_TTL_MS = 2_000
#: How long whoever takes over waits for the inbox row of a worker that is frozen.
INBOX_LOCK_S = 1
#: Enough for a message that is in the handler of many workers as they are killed; a database that refuses
#: writes would use them up within seconds if that were an attempt.
MAX_ATTEMPTS = 12

#: The share of workers that handle batches, and the most messages of one.
_IN_BATCHES = 1 / 3
BATCH_SIZE = 20

#: Threads that send, each its own keys; one of them waits for a replica with each message.
SENDERS = 4
#: Messages for each second of a run, unless it is told how many.
MESSAGES_PER_S = 30_000 / 60

#: What handlers write: one row per effect. Nothing is unique but `id`, so that doubles can be seen.
effects = Table(
    "effects",
    MetaData(),
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("entry_id", String(64), nullable=False),
    Column("attempt", Integer, nullable=False),
)

Temper = Literal["calm", "slow", "long", "raises_before", "raises_after", "asks_for_retry"]
#: A message by its key and its number there.
Message = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The size of a run; with the same seed the same messages and the same kinds of trouble."""

    seconds: float = 60.0
    #: From one trouble to the next, on average.
    trouble_every_s: float = 1.25
    messages: int = 50_000
    #: No message is sent after this time, even if some are left; `None`: all are sent, however long it takes.
    send_for_s: float | None = None
    keys: int = 500
    partitions: int = 8
    workers: int = 4
    seed: int = 1

    @classmethod
    def lasting(cls, seconds: float, *, messages: int | None = None, **size: Any) -> Self:
        """A run with as many messages as its time allows."""
        return cls(seconds=seconds, messages=messages or max(1, round(MESSAGES_PER_S * seconds)), **size)

    @property
    def noisy_s(self) -> float:
        """How long there is trouble; messages are sent all that time. The rest is for what is left over."""
        return self.seconds * 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOrder:
    """All that a worker process is told."""

    #: What it runs.
    module: ClassVar[str] = "tests.chaos.worker"

    url: str
    database: str
    name: str
    seed: int

    @property
    def concurrency(self) -> int:
        """How many messages, or batches, of a partition it handles at once: one, or four."""
        return self._rng("concurrency").choice((1, 4))

    @property
    def in_batches(self) -> bool:
        """Whether it handles many messages in one transaction."""
        return self._rng("batches").random() < _IN_BATCHES

    def _rng(self, what: str) -> random.Random:
        return random.Random(f"{self.seed}:{self.name}:{what}")

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


def temper_of(seed: int, key: str, number: int) -> Temper:
    """What the first attempt at a message is like; the same in every process."""
    draw = random.Random(f"{seed}:{key}:{number}").random()  # not hash(), which differs between processes
    kinds: dict[Temper, float] = {
        "long": 0.0001,
        "slow": 0.02,
        "raises_before": 0.005,
        "raises_after": 0.005,
        "asks_for_retry": 0.005,
    }
    for kind, share in kinds.items():
        if draw < share:
            return kind
        draw -= share
    return "calm"


def is_careful(key: str) -> bool:
    """Whether messages of this key count as sent only when a replica has them."""
    return int(key.removeprefix("key-")) % SENDERS == 0


def open_database(url: str, worker: str) -> Engine:
    """A worker's engine that does not wait for the disk: the database is never killed here."""
    # A transaction of a worker that is stopped holds SQLite's one lock: to the others it is unavailable.
    arguments = {"timeout": 1} if url.startswith("sqlite") else {"application_name": worker}
    engine = create_engine(url, connect_args=arguments, pool_size=10)
    is_sqlite = engine.dialect.name == "sqlite"
    faster = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF") if is_sqlite else ()
    settings = faster or ("SET synchronous_commit = off",)

    @event.listens_for(engine, "connect")
    def _set(connection, _record) -> None:
        cursor = connection.cursor()
        for setting in settings:
            cursor.execute(setting)
        cursor.close()
        connection.commit()

    return engine
