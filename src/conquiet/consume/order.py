"""Order: what waits while an earlier message of its key is in a handler."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any, Generic

from conquiet.consume.channel import Channel, KeyOf, M
from conquiet.consume.limits import DrainLimits


class Order(Generic[M]):
    """Keys of messages in handlers: of messages with one key, one begins when the one before it has ended."""

    def __init__(self, key_of: KeyOf | None) -> None:
        """Without a function, and for a message without a key, there is no order."""
        self._key_of = key_of
        #: Of messages in handlers, by entry id.
        self._keys: dict[str, Hashable] = {}

    def bring_forward(self, queued: deque[M]) -> bool:
        """Move the first message that may begin to the left end; `False` if all have to wait."""
        if self._key_of is None or not self._keys:
            return bool(queued)
        busy = set(self._keys.values())
        for number, msg in enumerate(queued):
            if self._is_free(msg, busy):
                if number:
                    del queued[number]
                    queued.appendleft(msg)
                return True
        return False

    def may_begin(self, msg: M) -> bool:
        """Whether no earlier message of its key is in a handler."""
        return self._key_of is None or not self._keys or self._is_free(msg, set(self._keys.values()))

    def begin(self, messages: Sequence[M]) -> None:
        """Have their keys wait for their end; raises what the user's function raises."""
        if self._key_of is not None:
            keys = {msg.id: self._key_of(msg) for msg in messages}
            # What cannot be a key raises here, and not when it is compared with others.
            set(keys.values())
            self._keys |= {entry_id: key for entry_id, key in keys.items() if key is not None}

    def end(self, messages: Sequence[M]) -> None:
        """They are in no handler any more."""
        for msg in messages:
            self._keys.pop(msg.id, None)

    def _is_free(self, msg: M, busy: set[Hashable]) -> bool:
        assert self._key_of is not None  # noqa: S101 -- for mypy: asked with a function alone
        try:
            return self._key_of(msg) not in busy
        except Exception:  # noqa: BLE001 -- the user's; it is raised once more in `begin`, as the message's failure
            return True


def order_of(limits: DrainLimits, channel: Channel[M]) -> Order[M]:
    """The order that a drain keeps.

    Raises:
        ValueError: several messages are handled at once, and nobody has said what keeps its order.
    """
    order_by = limits.order_by
    if limits.concurrency == 1 or order_by is False:
        return Order(None)
    if order_by is None:
        if channel.key_of is None:
            raise ValueError(
                f"concurrency={limits.concurrency} handles messages of {channel} at the same time: say what "
                "keeps its order, as order_by='customer', or order_by=False if nothing has to"
            )
        return Order(channel.key_of)
    if not isinstance(order_by, str):
        return Order(order_by)

    def value_of_field(msg: Any) -> Hashable:
        # One without the field is in order with the others that lack it: a wrong name loses speed, not order.
        value = msg.payload.get(order_by) if isinstance(msg.payload, dict) else None
        return (value,) if isinstance(value, Hashable) else json.dumps(value, sort_keys=True)

    return Order(value_of_field)
