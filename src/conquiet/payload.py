"""The wire format of one entry's `data` field: a UTF-8 JSON object that comes back equal."""

from __future__ import annotations

import json
from typing import Any, NoReturn

Payload = dict[str, Any]

_SCALARS = frozenset((str, int, float, bool, type(None)))


def encode_payload(payload: Payload) -> bytes:
    """Encode a payload, refusing whatever would not come back equal.

    Raises:
        TypeError: not a dict, a key that is no string, or a value that JSON has no word for (bytes, dates,
            sets, tuples).
        ValueError: NaN, an infinity, a lone surrogate, a cycle or nesting too deep to read back.
    """
    if not isinstance(payload, dict):
        raise TypeError(f"payload must be a dict, not {type(payload).__name__}: {payload!r:.100}")
    try:
        if _is_lossy(payload):
            _refuse_lossy(payload, "payload")
        return _encode(payload).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"payload has a lone surrogate, which UTF-8 cannot carry: {error}") from error
    except RecursionError as error:
        raise ValueError("payload is nested too deeply, or contains itself") from error
    except ValueError as error:
        raise ValueError(f"payload cannot be written as JSON: {error}") from error
    except TypeError as error:
        raise TypeError(f"payload cannot be written as JSON: {error}") from error


def decode_payload(data: bytes) -> Payload:
    """Decode the bytes of a `data` field.

    Raises:
        ValueError: not UTF-8, not JSON, or not an object; the sentence says which.
    """
    try:
        payload = _decode(data.decode())
    except UnicodeDecodeError as error:
        raise ValueError(f"`data` is not UTF-8: {error}") from error
    except RecursionError as error:
        raise ValueError("`data` is nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"`data` is not JSON: {error}") from error
    if not isinstance(payload, dict):
        raise ValueError(f"`data` is a JSON {type(payload).__name__}, not an object")  # noqa: TRY004 -- of data
    return payload


def _is_lossy(value: Any) -> bool:
    # The encoder itself refuses everything else; keys and tuples it would change without a word.
    kind = type(value)
    if kind is dict or isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str and not isinstance(key, str):
                return True
            if type(item) not in _SCALARS and _is_lossy(item):
                return True
        return False
    if kind is list or isinstance(value, list):
        for item in value:  # noqa: SIM110 -- a generator would cost more than the look itself
            if type(item) not in _SCALARS and _is_lossy(item):
                return True
        return False
    return isinstance(value, tuple)


def _refuse_lossy(value: Any, path: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{path} has the key {key!r}, which is no string")
            _refuse_lossy(item, f"{path}[{key!r}]")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_lossy(item, f"{path}[{index}]")
    elif isinstance(value, tuple):
        raise TypeError(f"{path} is a tuple, which would come back as a list: {value!r:.100}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON value")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder(parse_constant=_refuse_constant).decode
