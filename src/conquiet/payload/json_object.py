"""The wire format of one entry's `data` field: a UTF-8 JSON object that comes back equal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, NoReturn

Payload = dict[str, Any]

#: The escape of a surrogate, which may be one of a pair or alone.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

#: What a user writes instead of a value of these classes, by their names: none is imported here.
_REMEDIES = {
    "Enum": "value.value",
    "datetime": "value.isoformat()",
    "date": "value.isoformat()",
    "time": "value.isoformat()",
    "timedelta": "value.total_seconds()",
    "Decimal": "str(value)",
    "UUID": "str(value)",
    "PurePath": "str(value)",
    "bytes": "base64.b64encode(value).decode()",
    "set": "sorted(value)",
    "frozenset": "sorted(value)",
}

_SCALARS = frozenset((str, int, float, bool, type(None)))


def encode_payload(payload: Payload, before: str = "", after: str = "") -> bytes:
    """Encode a payload; refuses what would not come back equal.

    Args:
        before: JSON text of an object around the payload, up to the payload.
        after: the rest of it.

    Raises:
        TypeError: not a dict, a key that is not a string, or a value that JSON does not have (bytes, dates,
            sets, tuples).
        ValueError: NaN, an infinity, a lone surrogate, a cycle or nesting too deep to read back.
    """
    if not isinstance(payload, dict):
        raise TypeError(f"payload must be a dict, not {type(payload).__name__}: {payload!r:.100}")
    try:
        lossy = _find_lossy(payload)
        if lossy is None:
            return (before + _encode(payload) + after).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"payload has a lone surrogate, which UTF-8 cannot carry: {error}") from error
    except RecursionError as error:
        raise ValueError("payload is nested too deeply, or contains itself") from error
    except (TypeError, ValueError) as error:
        refused = _find_refused(payload)
        problem = str(error) if refused is None else f"payload{refused[0]} {refused[1]}"
        raise type(error)(f"payload cannot be written as JSON: {problem}") from error
    raise TypeError(f"payload cannot be written as JSON: payload{lossy[0]} {lossy[1]}")


def encode_text(text: str | None) -> str:
    """A string, or null, as JSON text; a lone surrogate is found when the whole is encoded."""
    return "null" if text is None else _encode(text)


def decode_payload(data: bytes) -> Payload:
    """Decode the bytes of a `data` field.

    Raises:
        ValueError: not UTF-8, not JSON, not an object, or a value that `encode_payload` never writes.
    """
    try:
        text = data.decode()
        # White space around the object is rare, and skipping it takes a tenth of the time.
        payload, end = _decoder.raw_decode(text) if text.startswith("{") else (None, -1)
        if end != len(text):
            payload = _decoder.decode(text)
        # The cheap search first: our own encoder writes no such escapes.
        if b"\\u" in data and _SURROGATE.search(data):
            _encode(payload).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"`data` has a lone surrogate, which UTF-8 cannot carry: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"`data` is not UTF-8: {error}") from error
    except RecursionError as error:
        raise ValueError("`data` is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"`data` is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise ValueError(f"`data` is a JSON {type(payload).__name__}, not an object")  # noqa: TRY004 -- of data
    return payload


def _find_lossy(value: Any) -> tuple[str, str] | None:
    """The path to what would come back changed, and what is wrong there; the encoder refuses all the rest."""
    if isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str and not isinstance(key, str):
                return "", f"has the key {key!r}, which is not a string"
            if type(item) not in _SCALARS and (lossy := _find_lossy(item)) is not None:
                return f"[{key!r}]{lossy[0]}", lossy[1]
    elif isinstance(value, list):
        for item in value:
            if type(item) not in _SCALARS and (lossy := _find_lossy(item)) is not None:
                # Counted only now: an index for every item would cost every payload.
                index = next(index for index, other in enumerate(value) if other is item)
                return f"[{index}]{lossy[0]}", lossy[1]
    elif isinstance(value, tuple):
        return "", f"is a tuple, which would come back as a list: {value!r:.100}"
    return None


def _find_refused(value: Any) -> tuple[str, str] | None:
    """The path to what the encoder has refused, and what to write instead."""
    if isinstance(value, float) and not math.isfinite(value):
        return "", f"is {value}, which JSON does not have: write None"
    if value is None or isinstance(value, str | int | float):
        return None
    if not isinstance(value, dict | list):
        return "", f"is a {type(value).__name__}, which JSON does not have{_remedy(value)}"
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        refused = _find_refused(item)
        if refused is not None:
            return f"[{key!r}]{refused[0]}", refused[1]
    return None


def _remedy(value: Any) -> str:
    names = {base.__name__ for base in type(value).__mro__}
    remedy = next((text for name, text in _REMEDIES.items() if name in names), "")
    if hasattr(value, "model_dump"):
        remedy = "value.model_dump(mode='json')"
    elif is_dataclass(value):
        remedy = "dataclasses.asdict(value)"
    return f": write {remedy}" if remedy else ""


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text:.40} is beyond every float")
    return number


def _encoder() -> Callable[[Any], str]:
    # A payload that contains itself is found by `_find_lossy`, which comes first.
    encoder = json.JSONEncoder(
        ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
    )
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return encoder.encode
    # As `encoder.encode` makes it for every payload, which takes a quarter of its time.
    to_chunks = make(
        None, encoder.default, json.encoder.encode_basestring, None, ":", ",", False, False, False
    )
    return lambda value: "".join(to_chunks(value, 0))


_encode = _encoder()
_decoder = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse_constant)
