"""Signing and encryption of envelopes, with keys that can be replaced while workers run."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from conquiet.extras import needs_extra
from conquiet.masking import remember_secret
from conquiet.tasks.envelope import ENCRYPTION_KEY, STORED_ARGS, TaskEnvelope

with needs_extra("tasks", "cryptography", part="conquiet.tasks.security"):
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

#: Headers of a signed envelope.
SIGNATURE, SIGNATURE_KEY = "signature", "signature-key"

_NONCE_BYTES = 12


class BadSignatureError(ValueError):
    """An envelope without a signature, with a wrong one, or of an unknown key."""


class SigningKey(Protocol):
    """Signs and verifies; one that can only verify raises a `ValueError` when it should sign."""

    def sign(self, data: bytes) -> bytes: ...
    def verify(self, data: bytes, signature: bytes) -> bool: ...


@dataclass(frozen=True, slots=True)
class HmacKey:
    """HMAC-SHA256: who can verify can also sign."""

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < 32:
            raise ValueError(f"an HMAC secret must have at least 32 bytes, got {len(self.secret)}")
        remember_secret(self.secret.hex())

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        return hmac.new(self.secret, data, hashlib.sha256).digest()

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is that of these bytes."""
        return hmac.compare_digest(self.sign(data), signature)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ed25519Key:
    """Ed25519: workers that only run tasks need no private key; those of a canvas enqueue, and do."""

    public: bytes
    private: bytes | None = field(default=None, repr=False)

    @classmethod
    def generate(cls) -> Ed25519Key:
        """A new pair."""
        private = Ed25519PrivateKey.generate()
        return cls(public=private.public_key().public_bytes_raw(), private=private.private_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        """The signature of these bytes."""
        if self.private is None:
            raise ValueError("this process has only the public key: it can verify tasks, and enqueue none")
        return Ed25519PrivateKey.from_private_bytes(self.private).sign(data)

    def verify(self, data: bytes, signature: bytes) -> bool:
        """Whether the signature is that of these bytes."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public).verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Signing:
    """Keys by their ids; the active one signs, all of them verify.

    To replace a key: give the new one to every process, then make it the active one, then remove the old one.
    """

    keys: Mapping[str, SigningKey] = field(repr=False)
    active: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """HMAC keys of a setting, such as "2027=BASE64 2026=BASE64": the first one is the active one.

        Raises:
            ValueError: it has none, or one of them is no key.
        """
        keys = _keys_of(text)
        return cls({key_id: HmacKey(secret) for key_id, secret in keys.items()}, next(iter(keys)))

    def __post_init__(self) -> None:
        _check_active(self.keys, self.active)

    def sign(self, envelope: TaskEnvelope) -> None:
        """Add the signature to the envelope's headers."""
        envelope.headers = {**_unsigned(envelope.headers), SIGNATURE_KEY: self.active}
        signature = self.keys[self.active].sign(_signed_bytes(envelope))
        envelope.headers = {**envelope.headers, SIGNATURE: base64.b64encode(signature).decode()}

    def verify(self, envelope: TaskEnvelope) -> None:
        """Refuse an envelope that was not signed by one of these keys.

        Raises:
            BadSignatureError: it was not, or was changed since.
        """
        key_id, signature = envelope.headers.get(SIGNATURE_KEY), envelope.headers.get(SIGNATURE)
        # Of any kind that JSON has: they come from the stream.
        if not isinstance(key_id, str) or not isinstance(signature, str):
            raise BadSignatureError("its envelope has no signature")
        key = self.keys.get(key_id)
        if key is None:
            raise BadSignatureError(
                f"its envelope is signed with the key {key_id!r}, which is not known here"
            )
        bare = replace(envelope, headers={**_unsigned(envelope.headers), SIGNATURE_KEY: key_id})
        try:
            is_valid = key.verify(_signed_bytes(bare), base64.b64decode(signature, validate=True))
        except ValueError:
            is_valid = False
        if not is_valid:
            raise BadSignatureError(f"the signature of its envelope with the key {key_id!r} is wrong")


@dataclass(frozen=True, slots=True)
class Encryption:
    """AES-GCM keys of 16, 24 or 32 bytes by their ids; the active one encrypts, all of them decrypt.

    Arguments, canvas and stored results are encrypted; id, name, queue, headers and results in Redis are not.
    """

    keys: Mapping[str, bytes] = field(repr=False)
    active: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Keys of a setting, as `Signing.parse` takes them."""
        keys = _keys_of(text)
        return cls(keys, next(iter(keys)))

    def __post_init__(self) -> None:
        _check_active(self.keys, self.active)
        for key in self.keys.values():
            AESGCM(key)
            remember_secret(key.hex())

    def encrypt(self, envelope: TaskEnvelope) -> None:
        """Put ciphertext into the place of the arguments and of the canvas."""
        meta = dict(envelope.meta)
        secret = {"args": envelope.args, "canvas": meta.pop("canvas", None)}
        envelope.headers = {**envelope.headers, ENCRYPTION_KEY: self.active}
        nonce = os.urandom(_NONCE_BYTES)
        cipher = AESGCM(self.keys[self.active]).encrypt(
            nonce, json.dumps(secret).encode(), _bound_to(envelope)
        )
        envelope.args = {"encrypted": base64.b64encode(nonce + cipher).decode()}
        envelope.meta = meta

    def decrypt(self, envelope: TaskEnvelope) -> None:
        """Put the arguments and the canvas back.

        Raises:
            BadSignatureError: it is not encrypted, not with one of these keys, or was changed since.
        """
        key_id, text = envelope.headers.get(ENCRYPTION_KEY), envelope.args.get("encrypted")
        if not isinstance(key_id, str) or not isinstance(text, str):
            raise BadSignatureError("its envelope is not encrypted")
        key = self.keys.get(key_id)
        if key is None:
            raise BadSignatureError(
                f"its envelope is encrypted with the key {key_id!r}, which is not known here"
            )
        try:
            data = base64.b64decode(text, validate=True)
            plain = AESGCM(key).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _bound_to(envelope))
            secret = json.loads(plain)
        except (ValueError, InvalidTag) as error:
            raise BadSignatureError(f"its envelope cannot be decrypted with the key {key_id!r}") from error
        envelope.args = secret["args"]
        if secret["canvas"] is not None:
            envelope.meta = {**envelope.meta, "canvas": secret["canvas"]}

    def encrypt_content(self, content: bytes, bound_to: str) -> bytes:
        """Content for the payload store, as ciphertext that cannot be decrypted under another name."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + AESGCM(self.keys[self.active]).encrypt(nonce, content, bound_to.encode())

    def decrypt_content(self, content: bytes, bound_to: str, key_id: str) -> bytes:
        """What `encrypt_content` was given.

        Raises:
            BadSignatureError: it is not encrypted with one of these keys, or was changed since.
        """
        key = self.keys.get(key_id)
        if key is None:
            raise BadSignatureError(f"it is encrypted with the key {key_id!r}, which is not known here")
        try:
            return AESGCM(key).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], bound_to.encode())
        except (ValueError, InvalidTag) as error:
            raise BadSignatureError(f"it cannot be decrypted with the key {key_id!r}") from error


def _keys_of(text: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    for number, part in enumerate(text.split(), start=1):
        key_id, _, secret = part.partition("=")
        remember_secret(secret)
        # A part without an id may be the secret itself: errors name its number alone.
        if not key_id or not secret:
            raise ValueError(f'keys are written as "ID=BASE64 ID=BASE64", number {number} is not')
        try:
            keys[key_id] = base64.b64decode(secret, validate=True)
        except ValueError:
            raise ValueError(f"the key {key_id!r} is not base64") from None
    if not keys:
        raise ValueError('there is no key: they are written as "ID=BASE64 ID=BASE64", the active one first')
    return keys


def _check_active(keys: Mapping[str, Any], active: str) -> None:
    if active not in keys:
        raise ValueError(
            f"active must be the id of a key, got {active!r}; there are {', '.join(sorted(keys))}"
        )


def _unsigned(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name not in (SIGNATURE, SIGNATURE_KEY)}


def _signed_bytes(envelope: TaskEnvelope) -> bytes:
    return json.dumps(envelope.fields(), sort_keys=True, separators=(",", ":")).encode()


def _bound_to(envelope: TaskEnvelope) -> bytes:
    """What the ciphertext belongs to: in another envelope, or with another reference, it is refused."""
    names = [envelope.id, envelope.name, envelope.queue]
    stored = envelope.meta.get(STORED_ARGS)
    return json.dumps(names if stored is None else [*names, stored], sort_keys=True).encode()
