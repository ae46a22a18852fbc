"""PayloadStoreContract: what an app relies on, whichever store keeps its large arguments and results."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor

from conquiet.tasks import PayloadStore
from conquiet.tasks.payloads import new_key

#: Of every kind: nothing, all bytes, what is no text, and more than one block of a file or a packet.
_CONTENTS = (b"", bytes(range(256)), b"\x00\xff\n\r\x1a", b'{"a": "\xc3\xbc"}', os.urandom(5_000_000))


class PayloadStoreContract(ABC):
    """Inherit from it in a class that pytest collects, and say how your store is made.

    Examples:
        >>> class TestMyPayloads(PayloadStoreContract):
        ...     def make_store(self):
        ...         return MyPayloads(bucket)
    """

    @abstractmethod
    def make_store(self) -> PayloadStore:
        """A store; each call returns another object for the same content, as another process has it."""

    def test_content_comes_back_as_it_was_written(self) -> None:
        """Bytes of every kind, large ones too."""
        store = self.make_store()
        keys = [new_key() for _ in _CONTENTS]

        for key, content in zip(keys, _CONTENTS, strict=True):
            store.put(key, content)

        found = [store.get(key) for key in keys]
        assert [type(content) for content in found] == [bytes] * len(_CONTENTS)
        assert found == list(_CONTENTS)

    def test_another_process_reads_what_was_written(self) -> None:
        """As a worker does, which did not enqueue the task."""
        key = new_key()

        self.make_store().put(key, b"content")

        assert self.make_store().get(key) == b"content"

    def test_what_was_never_written_is_none(self) -> None:
        """Not an error, which would be tried again, and not empty content."""
        assert self.make_store().get(new_key()) is None

    def test_what_was_deleted_is_none(self) -> None:
        """For other processes too; what is beside it stays."""
        store, deleted, kept = self.make_store(), new_key(), new_key()
        store.put(deleted, b"deleted")
        store.put(kept, b"kept")

        store.delete(deleted)

        assert [self.make_store().get(deleted), self.make_store().get(kept)] == [None, b"kept"]

    def test_deleting_what_is_not_there_is_no_error(self) -> None:
        """A purge that died in between deletes twice."""
        store, key = self.make_store(), new_key()
        store.put(key, b"content")

        store.delete(key)
        store.delete(key)
        store.delete(new_key())

    def test_many_threads_use_it_at_once(self) -> None:
        """As those of a worker do."""
        store, together = self.make_store(), threading.Barrier(8)

        def use(number: int) -> bytes | None:
            key, content = new_key(), str(number).encode() * 10_000
            together.wait(60)
            store.put(key, content)
            found = store.get(key)
            store.delete(key)
            return found if found != content or store.get(key) is not None else None

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(use, range(8))) == [None] * 8
