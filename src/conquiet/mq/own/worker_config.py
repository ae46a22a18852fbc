"""How one worker of a partition behaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from conquiet.arguments import check_positive_int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How one worker reads and waits."""

    batch_size: int = 100
    block_ms: int = 1_000
    #: "strict": while a message waits for its retry, later ones of the same key wait behind it.
    ordering: Literal["default", "strict"] = "default"
    #: With strict ordering: messages that may wait behind others before the partition reads no more.
    max_parked: int = 1_000

    def __post_init__(self) -> None:
        for name in ("batch_size", "block_ms", "max_parked"):
            check_positive_int(name, getattr(self, name))
        if self.ordering not in ("default", "strict"):
            raise ValueError(f"ordering must be 'default' or 'strict', got {self.ordering!r}")
