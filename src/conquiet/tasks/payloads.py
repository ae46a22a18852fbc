"""Payloads: content in the payload store of an app, indexed before it is written, checked when it is read."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

from conquiet.logs import MessageLog
from conquiet.queue.connection import Client, run_command
from conquiet.tasks import clock
from conquiet.tasks.errors import PayloadError, PayloadStoreError
from conquiet.tasks.keys import QueueKeys
from conquiet.tasks.payload_store import PayloadStore
from conquiet.tasks.scripts.payloads import index_payload

_log = MessageLog(logging.getLogger(__name__))

_KEY = re.compile(r"[0-9a-f]{32}")
_DIGEST = re.compile(r"[0-9a-f]{64}")

#: A result that is stored is written as this and the JSON of its reference: no JSON, so that no reader takes
#: the reference for the result.
STORED_RESULT = b"@"


@dataclass(frozen=True, slots=True)
class Reference:
    """Where content is, and what it must be."""

    key: str
    #: Of the content as it is stored: of ciphertext, if it is encrypted.
    sha256: str
    size: int
    #: The id of the key by which a result is encrypted; arguments say so in the headers of their envelope.
    encryption_key: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it is written."""
        fields = {"key": self.key, "sha256": self.sha256, "bytes": self.size}
        return fields if self.encryption_key is None else fields | {"encryptionKey": self.encryption_key}

    @classmethod
    def to(cls, key: str, content: bytes, encryption_key: str | None = None) -> Self:
        """A reference to content that is stored under this key."""
        return cls(key, hashlib.sha256(content).hexdigest(), len(content), encryption_key)

    @classmethod
    def of(cls, carried: object) -> Self:
        """The reference that was written.

        Raises:
            ValueError: it is not one.
        """
        fields = carried if isinstance(carried, Mapping) else {}
        key, digest, size = fields.get("key"), fields.get("sha256"), fields.get("bytes")
        if (
            not (isinstance(key, str) and _KEY.fullmatch(key))
            or not (isinstance(digest, str) and _DIGEST.fullmatch(digest))
            or not isinstance(size, int)
        ):
            raise ValueError(f"this is no reference to stored content: {carried!r:.200}")
        encryption_key = fields.get("encryptionKey")
        return cls(key, digest, size, None if encryption_key is None else str(encryption_key))


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """For whom content is kept."""

    kind: Literal["args", "result"]
    task_id: str
    #: The queue and the id of a group that needs it too, for as long as that has a record.
    group: tuple[str, str] | None = None


def reference_in(text: bytes) -> Reference | None:
    """The reference in a result as it was written, if it is stored.

    Raises:
        ValueError: it cannot be read.
    """
    return Reference.of(json.loads(text[1:])) if text[:1] == STORED_RESULT else None


def new_key() -> str:
    """The key of new content; no other has it."""
    return secrets.token_hex(16)


class StoringApp(Protocol):
    """What this needs of an app."""

    payload_store: PayloadStore | None

    @property
    def client(self) -> Client: ...
    def keys(self, queue: str) -> QueueKeys: ...


class Payloads:
    """The content of one app; lives as long as that.

    Redis has an index of it, by which a purge finds what is not needed any more. A key is in the index before
    its content is stored: a process that dies in between leaves nothing that no purge would find.
    """

    def __init__(self, app: StoringApp) -> None:
        self._app = app

    @property
    def has_store(self) -> bool:
        """Whether the app has a store."""
        return self._app.payload_store is not None

    def put(self, queue: str, reference: Reference, content: bytes, owner: Owner) -> None:
        """Store the content of a reference.

        Raises:
            QueueError: the index could not be written, and nothing is stored.
            PayloadStoreError: the store has failed; what it may have written is left to a purge.
        """
        key = reference.key
        facts = {"at": clock.now_ms(), "kind": owner.kind, "task": owner.task_id, "group": owner.group}
        # The result of a task that was accepted must be kept, on a full server too.
        must_write = owner.kind == "result"
        index_payload(self._app.client, self._app.keys(queue), key, json.dumps(facts), must_write=must_write)
        store = self._store(key)
        try:
            store.put(key, content)
        except Exception as error:
            raise PayloadStoreError("write", key, error) from error

    def get(self, reference: Reference) -> bytes:
        """The content of a reference.

        Raises:
            PayloadError: it is not there, or is not what was stored.
            PayloadStoreError: the store has failed.
        """
        if not reference.key:
            raise PayloadError("", "the reference to it cannot be read")
        store = self._store(reference.key)
        try:
            content = store.get(reference.key)
        except Exception as error:
            raise PayloadStoreError("read", reference.key, error) from error
        if content is None:
            raise PayloadError(reference.key, "it is not in the payload store: deleted, or another store's")
        if hashlib.sha256(content).hexdigest() != reference.sha256:
            reason = f"its {len(content):,} bytes have a wrong SHA-256; {reference.size:,} were stored"
            raise PayloadError(reference.key, reason)
        return content

    def remove(self, queue: str, key: str) -> None:
        """Delete content that nothing refers to any more.

        Raises:
            PayloadStoreError: the store has failed; it stays in the index.
        """
        store = self._store(key)
        try:
            store.delete(key)
        except Exception as error:
            raise PayloadStoreError("delete", key, error) from error
        keys = self._app.keys(queue)
        run_command(self._app.client, "HDEL", keys.payloads, key, stream=keys.prefix, group=None)

    def remove_unneeded(self, queue: str, key: str) -> None:
        """As `remove`, as far as possible: what stays is left to a purge."""
        try:
            self.remove(queue, key)
        except Exception as error:  # noqa: BLE001 -- the task is settled: its content must not fail it
            _log.warning("stored content %s of queue %r is left to a purge: %s", key, queue, error)

    def _store(self, key: str) -> PayloadStore:
        if self._app.payload_store is None:
            raise PayloadError(key, "this app has no payload_store: give it that of the app which stored it")
        return self._app.payload_store
