"""Payloads: a JSON object on the wire, in Python a dict or a value of a type that both sides know."""

from conquiet.payload.codec import (
    PayloadCodec,
    Sendable,
    StandardCodec,
    as_json_object,
    as_json_objects,
    check_codec,
    is_sendable,
)
from conquiet.payload.json_object import Payload, decode_payload, encode_payload, encode_text

__all__ = [
    "Payload",
    "PayloadCodec",
    "Sendable",
    "StandardCodec",
    "as_json_object",
    "as_json_objects",
    "check_codec",
    "decode_payload",
    "encode_payload",
    "encode_text",
    "is_sendable",
]
