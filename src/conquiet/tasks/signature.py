"""TaskSignature: what a task function takes and returns, as JSON on the wire and typed in Python."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring as quoted
from typing import Any, get_type_hints

from conquiet.db import DbSession
from conquiet.extras import needs_extra
from conquiet.payload import encode_payload
from conquiet.payload.models import adapter_of, problems_of
from conquiet.tasks.context import TaskContext
from conquiet.tasks.errors import TaskArgumentsError, TaskResultError

with needs_extra("tasks", "pydantic", part="conquiet.tasks"):
    from pydantic import (
        PydanticSchemaGenerationError,
        PydanticUserError,
        TypeAdapter,
        ValidationError,
    )

#: Types whose values are JSON as they are, so that nothing needs to be asked.
_PLAIN = (int, str, bool)


class TaskSignature:
    """The parameters of one function, each with its converter; made once, when the task is declared."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        self._return = _Converter(f"the result of {name}", hints.get("return", Any))
        #: The parameter that gets a session, and the one that gets the `TaskContext`, if there are any.
        self.session_parameter: str | None = None
        #: Whether it is an `AsyncSession`, not a `DbSession`.
        self.takes_async_session = False
        self.context_parameter: str | None = None
        self._converters: dict[str, _Converter] = {}
        self._has_any_keyword = False
        for parameter in self._signature.parameters.values():
            hint = hints.get(parameter.name, Any)
            if hint is DbSession or _is_async_session(hint):
                self.session_parameter = parameter.name
                self.takes_async_session = hint is not DbSession
            elif hint is TaskContext:
                self.context_parameter = parameter.name
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._has_any_keyword = True
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.POSITIONAL_ONLY):
                raise TypeError(
                    f"task {name!r} must take its arguments by name: {parameter} cannot be given by name"
                )
            else:
                self._converters[parameter.name] = _Converter(
                    f"{name}({parameter.name})", hint, parameter.name
                )
        self._given = {self.session_parameter, self.context_parameter} - {None}
        #: What must be given.
        self._required = {
            one
            for one in self._converters
            if self._signature.parameters[one].default is inspect.Parameter.empty
        }

    def takes(self, argument: str) -> bool:
        """Whether a caller may give an argument of this name."""
        return argument in self._converters or self._has_any_keyword

    def dump(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments of a call as JSON values by name, validated.

        Raises:
            TaskArgumentsError: one is missing, unknown or not of its type, or JSON cannot carry it.
        """
        if args:
            kwargs = self._by_name(args, kwargs)
        return self._complete(self._convert(kwargs, _Converter.dump))

    def dump_json(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """As `dump`, as the text of a JSON object, in half the time; `None`: `dump` has to say what is wrong.

        That is so too where it would be no faster.
        """
        if args:
            kwargs = self._by_name(args, kwargs)
        if not self._required <= kwargs.keys():
            return None
        texts = []
        for name, value in kwargs.items():
            converter = self._converters.get(name)
            if converter is None:
                return None
            try:
                texts.append(converter.json_key + converter.dump_json(value))
            except (ValidationError, ValueError, TypeError):
                return None
        text = f"{{{','.join(texts)}}}"
        # Most often inside of a string; else what JSON does not have.
        return None if "NaN" in text or "Infinity" in text else text

    def dump_partial(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """As `dump`, for a call that lacks one argument; returns the name of that, too.

        Args:
            args: for the parameters behind the first one.
        """
        names = [name for name in self._signature.parameters if name in self._converters]
        given = self._by_name(args, kwargs, names[1:]) if args else kwargs
        converted = self._convert(given, _Converter.dump)
        missing = [name for name in names if name in self._required and name not in converted]
        if len(missing) > 1 or not names:
            lacks = ", ".join(missing) or "nothing that could take a result"
            raise TaskArgumentsError(
                self.name, f"a partial call must lack one argument, this one lacks {lacks}"
            )
        return converted, missing[0] if missing else names[0]

    def load(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """JSON values as the function takes them.

        Raises:
            TaskArgumentsError: as of `dump`.
        """
        return self._complete(self._convert(args, _Converter.load))

    def dump_result(self, value: Any) -> Any:
        """What the function returned as a JSON value.

        Raises:
            TaskResultError: it is not of the annotated type, or JSON cannot carry it.
        """
        if value is None:
            return None
        try:
            return self._return.dump(value)
        except (ValidationError, ValueError, TypeError) as error:
            raise TaskResultError(self.name, str(error)) from error

    def load_result(self, value: Any) -> Any:
        """A result as the function returned it."""
        return None if value is None else self._return.load(value)

    def _by_name(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: list[str] | None = None
    ) -> dict[str, Any]:
        if names is None:
            names = [name for name in self._signature.parameters if name in self._converters]
        if len(args) > len(names):
            raise TaskArgumentsError(self.name, f"{len(args)} arguments were given, it takes {len(names)}")
        by_name = dict(zip(names, args, strict=False))
        if twice := by_name.keys() & kwargs.keys():
            raise TaskArgumentsError(self.name, f"{', '.join(sorted(twice))} was given twice")
        return {**by_name, **kwargs}

    def _convert(self, given: Mapping[str, Any], convert: Callable[[_Converter, Any], Any]) -> dict[str, Any]:
        converters, converted = self._converters, {}
        for name, value in given.items():
            converter = converters.get(name)
            if converter is None:
                if not self._has_any_keyword or name in self._given:
                    raise TaskArgumentsError(self.name, f"it has no parameter {name!r}")
                converter = _ANY
            try:
                converted[name] = convert(converter, value)
            except ValidationError as error:
                raise TaskArgumentsError(self.name, problems_of(error, name)) from error
            except (ValueError, TypeError) as error:
                raise TaskArgumentsError(self.name, f"{name}: {error}") from error
        return converted

    def _complete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        if not self._required <= arguments.keys():
            missing = ", ".join(sorted(self._required - arguments.keys()))
            raise TaskArgumentsError(self.name, f"{missing} is missing")
        return arguments


def _is_async_session(hint: Any) -> bool:
    # By its name: to import it takes an extra, which a function that has it as its hint has imported.
    return getattr(hint, "__module__", "") == "sqlalchemy.ext.asyncio.session" and (
        getattr(hint, "__name__", "") == "AsyncSession"
    )


class _Converter:
    """Between one Python type and JSON."""

    def __init__(self, what: str, hint: Any, name: str = "") -> None:
        #: What stands before its value in the arguments.
        self.json_key = f"{quoted(name)}:"
        self._plain = hint if hint in _PLAIN else None
        self._is_any = hint is Any
        try:
            self._adapter: TypeAdapter[Any] | None = None if self._is_any else adapter_of(hint)
        except (PydanticSchemaGenerationError, PydanticUserError) as error:
            raise TypeError(
                f"{what} has the type {hint!r}, which cannot be written as JSON: {error}"
            ) from error

    def dump(self, value: Any) -> Any:
        if type(value) is self._plain:
            return value
        if self._adapter is None:
            encode_payload({"value": value})
            return value
        # Not by the adapter's own methods: they take longer than what they call.
        validated = self._adapter.validator.validate_python(value)
        return self._adapter.serializer.to_python(validated, mode="json")

    def dump_json(self, value: Any) -> str:
        """As `dump`, as JSON text; NaN and infinities are for the caller to find.

        Raises:
            ValueError: `dump` may say something else.
        """
        if self._adapter is None or type(value) is self._plain:
            return encode_payload({"v": value})[5:-1].decode()
        if value is None:
            return encode_payload({"v": self.dump(None)})[5:-1].decode()
        text = self._adapter.serializer.to_json(self._adapter.validator.validate_python(value)).decode()
        if "null" in text:
            # A model, which has a config of its own, writes so what is no number, and `dump` refuses that.
            raise ValueError("it may have lost a number")
        return text

    def load(self, value: Any) -> Any:
        if type(value) is self._plain or self._adapter is None:
            return value
        return self._adapter.validate_json(encode_payload({"v": value})[5:-1])


_ANY = _Converter("any", Any)
