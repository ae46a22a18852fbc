"""Where a span's message is, in OpenTelemetry's names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Where:
    """A stream or topic, and who consumes it."""

    #: The stream, or the topic.
    destination: str
    group: str | None = None
    consumer: str | None = None
    partition: int | None = None

    @cached_property
    def attributes(self) -> dict[str, str]:
        """What every span of it has."""
        found = {
            "messaging.system": "redis",
            "messaging.destination.name": self.destination,
            "messaging.consumer.group.name": self.group,
            "messaging.client.id": self.consumer,
            "messaging.destination.partition.id": None if self.partition is None else str(self.partition),
        }
        return {name: value for name, value in found.items() if value is not None}
