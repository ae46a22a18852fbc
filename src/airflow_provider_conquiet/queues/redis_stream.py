"""RedisStreamMessageQueueProvider: `MessageQueueTrigger(scheme="redis+stream", ...)`."""

from __future__ import annotations

from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
from airflow.triggers.base import BaseEventTrigger

from airflow_provider_conquiet.triggers.message import MessageTrigger


class RedisStreamMessageQueueProvider(BaseMessageQueueProvider):
    """Makes a `MessageTrigger` of `scheme="redis+stream"`; the other arguments are the trigger's.

    Examples:
        >>> RedisStreamMessageQueueProvider.scheme  # of MessageQueueTrigger(scheme=…, stream="orders")
        'redis+stream'
    """

    scheme = "redis+stream"

    def trigger_class(self) -> type[BaseEventTrigger]:
        """The trigger that the arguments go to."""
        return MessageTrigger
