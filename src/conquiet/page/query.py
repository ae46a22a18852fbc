"""Query: what stands in the address, checked; and addresses of other views."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from starlette.datastructures import ImmutableMultiDict, QueryParams
from starlette.requests import Request

from conquiet.operations.values import parse_duration, parse_time
from conquiet.queue.message import is_entry_id

_LONGEST = 2_000
#: Far behind all times that people mean, and before the last one of entry ids.
_LAST_MS = 2**53
#: Before the name of an option: what its dry run was made with.
_SHOWN = "shown_"


class Query:
    """The parameters of a view or of an action's form."""

    def __init__(self, parameters: QueryParams | ImmutableMultiDict[str, str]) -> None:
        self._parameters = parameters

    def text(self, name: str) -> str | None:
        """A text; `None` if it is empty or not there.

        Raises:
            ValueError: it is too long.
        """
        value = self._parameters.get(name) or None
        if value is not None and len(value) > _LONGEST:
            raise ValueError(f"{name} is longer than {_LONGEST:,} characters")
        return value

    def needed(self, name: str) -> str:
        """A text that must be there.

        Raises:
            ValueError: it is not.
        """
        value = self.text(name)
        if value is None:
            raise ValueError(f"the address lacks {name}=…")
        return value

    def all(self, name: str) -> list[str]:
        """Every value of a parameter that may be there several times."""
        return [value for value in self._parameters.getlist(name) if value]

    def chosen(self) -> list[str]:
        """The ids that an action is for; empty for all, which a form of chosen rows never means.

        Raises:
            ValueError: no row of the form was chosen.
        """
        ids = self.all("id")
        if not ids and self.flag("chosen"):
            raise ValueError("choose at least one row")
        return ids

    def number(self, name: str, default: int, *, most: int) -> int:
        """A whole number from 1 on.

        Raises:
            ValueError: it is something else.
        """
        value = self.text(name)
        if value is None:
            return default
        if not value.isdecimal() or not 1 <= int(value) <= most:
            raise ValueError(f"{name} must be a number from 1 to {most:,}, got {value!r:.50}")
        return int(value)

    def partition(self) -> int | None:
        """The number of a partition; `None` for all.

        Raises:
            ValueError: it is no number.
        """
        value = self.text("partition")
        if value is not None and not (value.isdecimal() and len(value) < 7):
            raise ValueError(f"partition must be a number, got {value!r:.50}")
        return None if value is None else int(value)

    def rate(self, name: str) -> float | None:
        """Messages per second; `None` for as fast as it goes.

        Raises:
            ValueError: it is not a number above 0.
        """
        value = self.text(name)
        if value is None:
            return None
        rate = float(value)
        if not 0 < rate < float("inf"):
            raise ValueError(f"{name} must be above 0, got {value!r:.50}")
        return rate

    def choice(self, name: str, choices: Iterable[str]) -> str:
        """One of some words; without it the first one.

        Raises:
            ValueError: it is another one.
        """
        known = tuple(choices)
        value = self.text(name) or known[0]
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r:.50}")
        return value

    def duration(self, name: str) -> int | None:
        """Milliseconds of "30s" or "5m"."""
        value = self.text(name)
        return None if value is None else parse_duration(value)

    def time(self, name: str) -> int | None:
        """A time, ms since 1970.

        Raises:
            ValueError: it is something else, or no entry id can have it.
        """
        value = self.text(name)
        found = None if value is None else parse_time(value)
        if found is not None and not 0 <= found < _LAST_MS:
            raise ValueError(f"{name} is too far away: {value!r:.50}")
        return found

    def position(self, name: str) -> str | int | None:
        """An entry id or a time; raises as `time`."""
        value = self.text(name)
        return self.time(name) if value is None or not is_entry_id(value) else self.entry_id(name)

    def entry_id(self, name: str) -> str | None:
        """The id of an entry.

        Raises:
            ValueError: no stream can have it.
        """
        value = self.text(name)
        if value is not None and not (is_entry_id(value) and max(map(int, value.split("-"))) < 2**64):
            raise ValueError(f"{name} is no entry id that a stream can have: {value!r:.50}")
        return value

    @property
    def has_changed_options(self) -> bool:
        """Whether an option of an action is another one than the dry run was made with."""
        shown = [name for name in self._parameters if name.startswith(_SHOWN)]
        return any(
            self._parameters[name] != self._parameters.get(name.removeprefix(_SHOWN), "") for name in shown
        )

    def asked(self) -> dict[str, object]:
        """What an action was asked for, without what only its form has."""
        return {
            name: self._parameters.getlist(name)
            for name in self._parameters
            if name not in ("form_token", "question") and not name.startswith(_SHOWN)
        }

    def flag(self, name: str) -> bool:
        """A checkbox."""
        return self.text(name) in ("1", "on", "true", "yes")


@dataclass(frozen=True, slots=True)
class Place:
    """What a browser shows: a path below where the page is mounted, with its parameters."""

    root: str
    path: str
    parameters: QueryParams

    @classmethod
    def of(cls, request: Request) -> Self:
        """What was asked for."""
        root = str(request.scope.get("root_path", "")).rstrip("/")
        return cls(root, request.scope["path"].removeprefix(root), request.query_params)

    def link(self, path: str, **parameters: object) -> str:
        """The address of another view."""
        return self.root + address(path, parameters)

    def here(self, **changes: object) -> str:
        """The address of this one with other parameters; what was done before is not shown again."""
        given: dict[str, object] = {name: self.parameters.getlist(name) for name in self.parameters}
        return self.root + address(self.path, given | {"done": None} | changes)

    def __str__(self) -> str:
        """Below the root, with all parameters."""
        return address(self.path, {name: self.parameters.getlist(name) for name in self.parameters})


def address(path: str, parameters: Mapping[str, object]) -> str:
    """A path with its parameters; those that are empty are left out."""
    pairs: list[tuple[str, str]] = []
    for name, value in parameters.items():
        values = value if isinstance(value, list | tuple) else [value]
        pairs += [(name, "1" if one is True else str(one)) for one in values if one not in (None, "", False)]
    # JSON may have a lone surrogate, which UTF-8 cannot carry.
    return f"{path}?{urlencode(pairs, errors='backslashreplace')}" if pairs else path
