"""64 bits for each row, the same in every process and on every machine."""

from __future__ import annotations

import pyarrow as pa
from pandas.util import hash_array  # type: ignore[import-untyped]  # pandas brings no types

from conquiet.spark.scripts import Hashes


def hash_rows(texts: pa.StringArray) -> Hashes:
    """The hash of each text: SipHash with pandas' fixed key."""
    hashes: Hashes = hash_array(texts.cast(pa.binary()).to_numpy(zero_copy_only=False), categorize=False)
    return hashes
