"""What the environment says; the one place that reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

SERVER_BIN_VARIABLE = "CONQUIET_SERVER_BIN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The environment's settings, read once when made."""

    #: The server binary that `EmbeddedServer` runs: CONQUIET_SERVER_BIN.
    server_bin: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """Read `CONQUIET_*` variables; an empty one counts as not set."""
        variables = os.environ if environment is None else environment
        return cls(server_bin=variables.get(SERVER_BIN_VARIABLE) or None)
