"""The stream or topic of a span, with OpenTelemetry's attribute names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, kw_only=True)
class Where:
    """A stream or topic, and its consumer."""

    #: The stream, or the topic.
    destination: str
    group: str | None = None
    consumer: str | None = None
    partition: int | None = None

    @cached_property
    def attributes(self) -> dict[str, str]:
        """The attributes of each of its spans."""
        values = {
            "messaging.system": "redis",
            "messaging.destination.name": self.destination,
            "messaging.consumer.group.name": self.group,
            "messaging.client.id": self.consumer,
            "messaging.destination.partition.id": None if self.partition is None else str(self.partition),
        }
        return {name: value for name, value in values.items() if value is not None}
