"""Names of payloads, by which a retry finds what an earlier try has enqueued, in whatever order it comes."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: A field of the payload, or a function from payload to a JSON value; `None` is the whole payload.
DedupeKey = str | Callable[[dict[str, Any]], Any]


def dedupe_names(payloads: Sequence[Mapping[str, Any]], key: DedupeKey | None) -> list[str]:
    """A name for each payload: with a key, equal keys have one; by content, equal payloads are counted.

    Raises:
        ValueError: a payload has no such key.
    """
    seen: Counter[str] = Counter()
    names = []
    for payload in payloads:
        if key is None:
            digest = _digest(payload)
            # Two equal rows of one list are two messages.
            names.append(f"content:{digest}:{seen[digest]}")
            seen[digest] += 1
        else:
            value = payload.get(key) if isinstance(key, str) else key(dict(payload))
            if value is None:
                name = repr(key) if isinstance(key, str) else getattr(key, "__name__", repr(key))
                raise ValueError(f"a payload has no {name}, which is its dedupe_key: {payload!r:.100}")
            names.append(f"key:{_digest(value)}")
    return names


def _digest(value: object) -> str:
    # A payload that is no JSON is refused where it is encoded; here it only needs a name.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
