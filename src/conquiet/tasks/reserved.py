"""Reserved: tasks that a loop has read and not begun, which another thread may release."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from conquiet.queue.connection import Client
from conquiet.tasks.message import TaskMessage

#: Frees tasks for other workers; raises if the server did not answer.
HandBack = Callable[[Client, Sequence[TaskMessage]], None]
#: The queue, the priority and the entry.
_Key = tuple[str, int, str]


class Reserved:
    """The tasks behind the one that runs; for any thread."""

    def __init__(self, hand_back: HandBack) -> None:
        self._hand_back = hand_back
        self._lock = threading.Lock()
        # By their places: another program may have given two of them one id.
        self._messages: dict[_Key, TaskMessage] = {}
        #: Released by another thread, and not met by the loop yet.
        self._released: set[_Key] = set()
        #: Released, and not known to be handed back.
        self._to_hand_back: dict[_Key, TaskMessage] = {}
        #: One thread hands back at a time: late, it would hand back what the loop has read again.
        self._handing_back = threading.Lock()

    def replace(self, messages: Iterable[TaskMessage]) -> None:
        """These were read; what was read before has begun, or was released."""
        with self._lock:
            self._messages = {_key_of(msg): msg for msg in messages}

    def add(self, msg: TaskMessage) -> None:
        """One more, that was set aside."""
        with self._lock:
            self._messages[_key_of(msg)] = msg

    def take(self, msg: TaskMessage) -> bool:
        """It is about to begin; `False` if it was released."""
        with self._lock:
            key = _key_of(msg)
            self._messages.pop(key, None)
            is_released = key in self._released
            self._released.discard(key)
            return not is_released

    def take_all(self, queued: Sequence[TaskMessage]) -> list[TaskMessage]:
        """Of these, those that were not released."""
        with self._lock:
            self._messages.clear()
            return [msg for msg in queued if _key_of(msg) not in self._released]

    def release(self, client: Client) -> None:
        """Release all of them: the loop begins none any more, and they are free for other workers.

        Raises:
            QueueError: they may not be free yet; see `finish_release`.
        """
        with self._lock:
            released, self._messages = self._messages, {}
            self._released |= released.keys()
            self._to_hand_back |= released
        self.finish_release(client)

    def finish_release(self, client: Client) -> None:
        """Hand back what a release before could not, for want of an answer; the loop does it before it reads.

        Else no worker would run them: the loop does not, and its consumer is alive.
        """
        if not self._to_hand_back:
            return
        with self._handing_back:
            with self._lock:
                left = list(self._to_hand_back.values())
            self._hand_back(client, left)
            with self._lock:
                for msg in left:
                    self._to_hand_back.pop(_key_of(msg), None)

    def messages(self) -> list[TaskMessage]:
        """What they are."""
        with self._lock:
            return list(self._messages.values())


def _key_of(msg: TaskMessage) -> _Key:
    return msg.place.keys.queue, msg.place.priority, msg.place.entry_id
