"""Settings: code over config file over environment; the only module that reads the last two."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from conquiet.errors import SettingsError
from conquiet.masking import mask, remember_secret, remember_url

SERVER_BIN_VARIABLE = "CONQUIET_SERVER_BIN"
CONFIG_VARIABLE = "CONQUIET_CONFIG"

_PREFIX = "CONQUIET_"
#: Of this project's own tests.
_NOT_SETTINGS = ("CONQUIET_TEST_", "CONQUIET_CHAOS_")
_CONFIG_NAME = "conquiet.toml"
_CHOICES = {
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "tracing": ("off", "on", "0", "1", "false", "true"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a process; its `repr` shows URLs without their passwords.

    Examples:
        >>> settings = Settings.load(environment={"CONQUIET_GROUP": "billing"}, log_level="info")
        >>> settings.group, settings.log_level, settings.redis_url
        ('billing', 'info', 'redis://127.0.0.1:6379/0')
    """

    #: The Redis or Valkey server, in any form that `open_client` takes.
    redis_url: str = "redis://127.0.0.1:6379/0"
    #: The database of handlers, as SQLAlchemy writes URLs.
    database_url: str | None = None
    #: The consumer group of commands that are not given one.
    group: str | None = None
    #: The server binary that `EmbeddedServer` runs.
    server_bin: str | None = None
    #: From which level on the command line tool logs to stderr: debug, info, warning or error.
    log_level: str = "warning"
    #: How it logs: text, or one JSON object per line.
    log_format: str = "text"
    #: Whether messages are traced with OpenTelemetry: on or off, also as 1 and 0.
    tracing: str = "off"
    #: The member of a plain stream's payload that carries the trace's context; without one, nothing does.
    tracing_field: str | None = None
    #: Where the page is served, for links that lead there: http://queues.example.com
    page_url: str | None = None
    #: The page: the token of its operators; without one, each start makes a new one and prints it.
    page_token: str | None = None
    #: The token of those who may look, and not change anything.
    page_viewer_token: str | None = None
    #: Instead of tokens: a file of users, with a line name:role:hash for each.
    page_users: str | None = None
    #: Or the header in which a proxy says who is logged in, and the addresses of proxies that are believed.
    page_user_header: str | None = None
    page_proxies: str = "127.0.0.1"
    #: With the header: the names of operators, with commas between them; * for everybody.
    page_operators: str = ""
    #: Signs what the page has a browser keep; without one, a restart logs everybody out.
    page_secret: str | None = None
    #: Names of fields whose values the page does not show, with commas between them.
    page_mask: str = ""
    #: Where a trace is shown: a URL with {trace_id} in it.
    page_trace_url: str | None = None
    #: A Prometheus with the figures of `conquiet metrics serve`, for the page's charts.
    page_prometheus_url: str | None = None

    def __post_init__(self) -> None:
        for name in ("redis_url", "database_url"):
            remember_url(getattr(self, name))
        for name in ("page_token", "page_viewer_token", "page_secret"):
            remember_secret(getattr(self, name))
        for name, choices in _CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                raise SettingsError(f"{name} must be one of {', '.join(choices)}, got {value!r}", key=name)

    @property
    def is_tracing(self) -> bool:
        return self.tracing in ("on", "1", "true")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={mask(repr(getattr(self, name)))}" for name in _keys())
        return f"Settings({values})"

    @classmethod
    def load(
        cls,
        *,
        config: Path | str | None = None,
        directory: Path | str = ".",
        environment: Mapping[str, str] | None = None,
        **given: str | None,
    ) -> Self:
        """What the code gives, then the config file, then `CONQUIET_*`, then the defaults.

        Args:
            config: the file to read, TOML or YAML; else CONQUIET_CONFIG, else `conquiet.toml` in `directory`,
                else `[tool.conquiet]` of its `pyproject.toml`.
            given: settings by name; `None` counts as not given.

        Raises:
            SettingsError: a key is unknown or of the wrong kind, or the file cannot be read.
        """
        variables = os.environ if environment is None else environment
        _refuse_unknown(given, "the call")
        code = {key: value for key, value in given.items() if value is not None}
        from_file = _read_config(config or variables.get(CONFIG_VARIABLE) or None, Path(directory))
        return cls(**{**_of_environment(variables, is_strict=True), **from_file, **code})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Self:
        """`CONQUIET_*` variables alone; an empty one counts as not set, an unknown one as none of ours."""
        return cls(**_of_environment(os.environ if environment is None else environment, is_strict=False))


def _keys() -> list[str]:
    return [field.name for field in fields(Settings)]


def _of_environment(variables: Mapping[str, str], *, is_strict: bool) -> dict[str, str]:
    names = {f"{_PREFIX}{key.upper()}": key for key in _keys()}
    if is_strict:
        ours = (name for name in variables if name.startswith(_PREFIX) and not name.startswith(_NOT_SETTINGS))
        _refuse_unknown(ours, "the environment", known=[*names, CONFIG_VARIABLE])
    return {key: variables[name] for name, key in names.items() if variables.get(name)}


def _read_config(named: Path | str | None, directory: Path) -> dict[str, Any]:
    if named is not None:
        return _checked(_parsed(Path(named)), str(named))
    own, shared = directory / _CONFIG_NAME, directory / "pyproject.toml"
    if own.is_file():
        return _checked(_parsed(own), _CONFIG_NAME)
    if shared.is_file():
        tools = _parsed(shared).get("tool")
        values = tools.get("conquiet", {}) if isinstance(tools, dict) else {}
        return _checked(values, "[tool.conquiet] of pyproject.toml")
    return {}


def _parsed(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        is_yaml = path.suffix in (".yaml", ".yml")
        values: Any = import_module("yaml").safe_load(text) if is_yaml else tomllib.loads(text)
        problem = None if isinstance(values, dict) else "it must have keys and values"
    except ImportError:
        values, problem = None, "YAML needs PyYAML: pip install 'conquiet[cli]', or write it as TOML"
    except OSError as error:
        values, problem = None, error.strerror or type(error).__name__
    except Exception as error:  # noqa: BLE001 -- of tomllib, or of PyYAML, which may not be installed
        mark = getattr(error, "problem_mark", None)
        line = getattr(error, "lineno", None) or (mark.line + 1 if mark is not None else None)
        values, problem = None, f"it is not well-formed (line {line})" if line else "it is not well-formed"
    # Outside of the handlers: a parser's error quotes the line, which may have a password.
    if problem is not None:
        raise SettingsError(f"the config file {path} cannot be read: {problem}")
    return values  # type: ignore[no-any-return]  # a dict, since there is no problem


def _checked(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    _refuse_unknown(values, source)
    for key, value in values.items():
        if not isinstance(value, str):
            raise SettingsError(f"{key} in {source} must be text, got {type(value).__name__}", key=key)
    return dict(values)


def _refuse_unknown(names: Any, source: str, *, known: list[str] | None = None) -> None:
    expected = known or _keys()
    for name in names:
        if name not in expected:
            near = get_close_matches(str(name), expected, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(expected)}"
            raise SettingsError(f"{name} in {source} is not a setting; {hint}", key=str(name))
