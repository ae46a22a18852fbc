"""EnvelopeCodec: an envelope as the data of an entry, signed and encrypted if the app says so."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from conquiet.payload import decode_payload, encode_payload
from conquiet.tasks.envelope import (
    ENCRYPTION_KEY,
    SCHEMA_VERSION,
    STORED_ARGS,
    STORED_VERSION,
    TaskEnvelope,
)
from conquiet.tasks.errors import PayloadError, TaskTooLargeError
from conquiet.tasks.payloads import STORED_RESULT, Owner, Payloads, Reference, new_key, reference_in

if TYPE_CHECKING:
    from conquiet.tasks.security import Encryption, Signing


class Encoded(NamedTuple):
    """An envelope as the entry's data."""

    data: bytes
    #: The key of its arguments in the payload store, or empty.
    stored_key: str = ""


@dataclass(slots=True, kw_only=True)
class EnvelopeCodec:
    """Encodes and decodes the envelopes and results of one app.

    What is above `max_bytes` goes to the payload store, before what refers to it is written.
    """

    max_bytes: int
    payloads: Payloads
    signing: Signing | None = None
    encryption: Encryption | None = None

    @property
    def is_sealing(self) -> bool:
        """Whether envelopes are signed or encrypted."""
        return self.signing is not None or self.encryption is not None

    def encode(self, envelope: TaskEnvelope, *, group: tuple[str, str] | None = None) -> Encoded:
        """An envelope as the entry's data; arguments that are too large are stored.

        Args:
            group: the queue and the id of the group whose record has it until it is enqueued.

        Raises:
            TaskTooLargeError: it is above `max_bytes`.
            PayloadStoreError: the store has failed.
        """
        data = self._sealed(envelope)
        if len(data) <= self.max_bytes or not self.payloads.has_store:
            self.check_size(f"the envelope of task {envelope.name!r}", data)
            return Encoded(data)
        # It stays in Redis: when the task has ended, what follows on it is written there, decrypted.
        canvas = json.dumps(envelope.meta.get("canvas")).encode()
        self.check_size(f"what follows on task {envelope.name!r} in its canvas", canvas)
        key, content = new_key(), encode_payload(dict(envelope.args))
        if self.encryption is not None:
            content = self.encryption.encrypt_content(content, _bound_to(envelope, key))
        reference = Reference.to(key, content)
        stored = {"schemaVersion": STORED_VERSION, STORED_ARGS: reference.to_json()}
        data = self._sealed(replace(envelope, args={}, meta={**envelope.meta, **stored}))
        self.check_size(f"the envelope of task {envelope.name!r} without its arguments", data)
        owner = Owner(kind="args", task_id=envelope.id, group=group)
        self.payloads.put(envelope.queue, reference, content, owner)
        return Encoded(data, key)

    def encode_definition(self, envelope: TaskEnvelope, what: str) -> bytes:
        """As `encode`, for what is read without the payload store.

        Raises:
            TaskTooLargeError: it is above `max_bytes`.
        """
        data = self._sealed(envelope)
        if len(data) > self.max_bytes:
            raise TaskTooLargeError(what, size=len(data), limit=self.max_bytes, may_be_stored=False)
        return data

    def decode(self, data: bytes) -> TaskEnvelope:
        """The envelope in an entry's data, verified and decrypted; stored arguments are not loaded.

        Raises:
            ValueError: it is not one, its signature is wrong, or it cannot be decrypted.
        """
        envelope = TaskEnvelope.decode(data)
        if self.signing is not None:
            self.signing.verify(envelope)
        if self.encryption is not None:
            self.encryption.decrypt(envelope)
        return envelope

    def load_args(self, envelope: TaskEnvelope) -> None:
        """Put stored arguments back into their envelope.

        Raises:
            PayloadError: they are missing, are not what was stored, or cannot be decrypted.
            PayloadStoreError: the store has failed.
        """
        reference = stored_args(envelope)
        if reference is None:
            return
        content = self.payloads.get(reference)
        encryption_key = envelope.headers.get(ENCRYPTION_KEY)
        try:
            if self.encryption is not None or encryption_key is not None:
                content = self._decrypted(content, _bound_to(envelope, reference.key), encryption_key)
            envelope.args = decode_payload(content)
        except ValueError as error:
            raise PayloadError(reference.key, str(error)) from error
        meta = {name: value for name, value in envelope.meta.items() if name != STORED_ARGS}
        envelope.meta = meta | {"schemaVersion": SCHEMA_VERSION}

    def encode_result(self, envelope: TaskEnvelope, value: Any) -> bytes:
        """A result as it is written: as JSON, or as a reference if that is above `max_bytes`.

        Raises:
            TaskTooLargeError: it is, and the app has no store.
            PayloadStoreError: the store has failed.
        """
        data = encode_payload({"v": value})[5:-1]
        if len(data) <= self.max_bytes or not self.payloads.has_store:
            self.check_size(f"the result of task {envelope.name!r}", data)
            return data
        if envelope.meta.get("ignoreResult") is True:
            return b"null"
        key, encryption_key = new_key(), None
        if self.encryption is not None:
            encryption_key = self.encryption.active
            data = self.encryption.encrypt_content(data, key)
        # The group that counts the task, and keeps its result.
        canvas = envelope.meta.get("canvas")
        member = canvas.get("member") if isinstance(canvas, dict) else None
        group = (str(member["queue"]), str(member["group"])) if isinstance(member, dict) else None
        owner = Owner(kind="result", task_id=envelope.id, group=group)
        reference = Reference.to(key, data, encryption_key)
        self.payloads.put(envelope.queue, reference, data, owner)
        return STORED_RESULT + json.dumps(reference.to_json()).encode()

    def load_result(self, reference: Reference) -> Any:
        """A stored result, as JSON.

        Raises:
            PayloadError: it is missing, is not what was stored, or cannot be decrypted.
            PayloadStoreError: the store has failed.
        """
        content = self.payloads.get(reference)
        try:
            if reference.encryption_key is not None:
                content = self._decrypted(content, reference.key, reference.encryption_key)
            return json.loads(content)
        except ValueError as error:
            raise PayloadError(reference.key, str(error)) from error

    def decode_result(self, text: bytes) -> Any:
        """A result that `encode_result` has written, as JSON; raises as `load_result`."""
        reference = reference_in(text)
        return json.loads(text) if reference is None else self.load_result(reference)

    def check_size(self, what: str, data: bytes) -> None:
        """Refuse what is above `max_bytes`."""
        if len(data) > self.max_bytes:
            raise TaskTooLargeError(what, size=len(data), limit=self.max_bytes)

    def _sealed(self, envelope: TaskEnvelope) -> bytes:
        """An envelope as bytes, encrypted and then signed."""
        if self.is_sealing:
            envelope = replace(envelope)
        if self.encryption is not None:
            self.encryption.encrypt(envelope)
        if self.signing is not None:
            self.signing.sign(envelope)
        return envelope.encode()

    def _decrypted(self, content: bytes, bound_to: str, key_id: str | None) -> bytes:
        if self.encryption is None:
            raise ValueError("it is encrypted, and this app has no key")
        if key_id is None:
            raise ValueError("it is not encrypted")
        return self.encryption.decrypt_content(content, bound_to, key_id)


def stored_args(envelope: TaskEnvelope) -> Reference | None:
    """Where the arguments of an envelope are, if not in it.

    Raises:
        ValueError: it does not say.
    """
    if envelope.meta.get("schemaVersion") != STORED_VERSION:
        return None
    return Reference.of(envelope.meta.get(STORED_ARGS))


def _bound_to(envelope: TaskEnvelope, key: str) -> str:
    """What stored arguments belong to: as those of another task they cannot be decrypted."""
    return json.dumps([key, envelope.id, envelope.name, envelope.queue])
