"""What a topic keeps: of its messages, and of its dead letters."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict, dataclass
from functools import lru_cache

from conquiet.arguments import check_positive_int

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterPolicy:
    """Which dead letters are kept: those that either of the two keeps; without any, all of them.

    Examples:
        >>> month = DeadLetterPolicy(retention_ms=30 * 86_400_000)
        >>> policies = TopicPolicies(dead_letters=month, trim_every_s=3_600)
    """

    #: So many of the youngest; on a cluster of each partition.
    retention_length: int | None = None
    #: Those that are younger than this.
    retention_ms: int | None = None

    def __post_init__(self) -> None:
        if self.retention_length is None and self.retention_ms is None:
            raise ValueError("a DeadLetterPolicy needs retention_length or retention_ms: what is to be kept")
        for name in ("retention_length", "retention_ms"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicPolicies:
    """What is kept; without a policy everything is. Nothing is removed that some group has not finished.

    Examples:
        >>> policies = TopicPolicies(retention_length=100_000, trim_every_s=60)
        >>> topic = Topics(client).create("clicks", partitions=2, policies=policies)
    """

    #: Entries that `trim` keeps in each partition, finished or not.
    retention_length: int | None = None
    #: Age below which `trim` keeps entries.
    retention_ms: int | None = None
    #: Which dead letters are kept; `None` for all.
    dead_letters: DeadLetterPolicy | None = None
    #: How often consumers trim the partitions they own; `None` leaves it to `MqAdmin.trim`.
    trim_every_s: int | None = None

    def __post_init__(self) -> None:
        for name in ("retention_length", "retention_ms", "trim_every_s"):
            if getattr(self, name) is not None:
                check_positive_int(name, getattr(self, name))
        if self.dead_letters is not None and not isinstance(self.dead_letters, DeadLetterPolicy):
            raise TypeError(f"dead_letters must be a DeadLetterPolicy, got {self.dead_letters!r}")
        if self.trim_every_s is not None and not self.has_retention and self.dead_letters is None:
            raise ValueError(
                "trim_every_s needs retention_length, retention_ms or dead_letters: what to keep"
            )

    @property
    def has_retention(self) -> bool:
        """Whether messages are trimmed by it."""
        return self.retention_length is not None or self.retention_ms is not None

    @staticmethod
    @lru_cache(maxsize=1_000)
    def read(text: bytes | None) -> TopicPolicies:
        """The policies in a topic's meta; a later version's may keep more, so with those all is kept."""
        try:
            values = json.loads(text or b"{}")
            if values.get("dead_letters") is not None:
                values["dead_letters"] = DeadLetterPolicy(**values["dead_letters"])
            return TopicPolicies(**values)
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            # Once for each text: a topic is opened each second.
            _log.warning("this version trims nothing by the policies %r: %s", text, error)
            return TopicPolicies()

    def encode(self) -> str:
        """As a topic's meta has them: only what is set, since an earlier version knows no more."""
        return json.dumps(
            asdict(
                self, dict_factory=lambda pairs: {name: value for name, value in pairs if value is not None}
            )
        )
