"""Models of pydantic and msgspec, by their own rules; neither is imported before a program has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from conquiet.payload.json_object import encode_payload
from conquiet.payload.kinds import Conversion, Misfit

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError


def is_model(hint: Any) -> bool:
    """Whether it is a class of pydantic or msgspec, which is installed then."""
    return hasattr(hint, "__pydantic_validator__") or hasattr(hint, "__struct_fields__")


def conversion_of_model(hint: Any) -> Conversion:
    """The conversion of such a class."""
    return _PydanticModel(hint) if hasattr(hint, "__pydantic_validator__") else _Struct(hint)


def adapter_of(hint: Any) -> TypeAdapter[Any]:
    """Pydantic's adapter of any annotation, with NaN as it is: by itself it would be null without a word."""
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(hint, config=ConfigDict(ser_json_inf_nan="constants"))
    except PydanticUserError as error:
        if error.code != "type-adapter-config-unused":
            raise
        # A model has a config of its own.
        return TypeAdapter(hint)


def problems_of(error: ValidationError, name: str) -> str:
    """What pydantic has refused, up to five of them, each with its path."""
    texts = []
    for problem in error.errors(include_url=False, include_context=False)[:5]:
        path = "".join(f"[{part!r}]" for part in problem["loc"])
        texts.append(f"{name}{path}: {problem['msg']}, got {problem.get('input')!r:.60}")
    return "; ".join(texts)


class _PydanticModel:
    def __init__(self, hint: Any) -> None:
        self._hint = hint
        self._adapter = adapter_of(hint)

    def dump(self, value: Any, /) -> Any:
        if not isinstance(value, self._hint):
            raise Misfit(f"is a {type(value).__name__}, no {self._hint.__name__}")
        try:
            return self._adapter.dump_python(value, mode="json", by_alias=True)
        except ValueError as error:
            raise Misfit(f"cannot be written as JSON: {error}") from error

    def load(self, found: Any, /) -> Any:
        from pydantic import ValidationError

        try:
            # As JSON, in which times and decimals are texts for a strict model too.
            return self._adapter.validate_json(encode_payload({"v": found})[5:-1])
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            misfit = Misfit(f"does not fit: {first['msg']}")
            for part in reversed(first["loc"]):
                misfit.below(f"[{part}]" if isinstance(part, int) else f".{part}")
            raise misfit from error


class _Struct:
    """Of msgspec."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def dump(self, value: Any, /) -> Any:
        import msgspec

        if not isinstance(value, self._hint):
            raise Misfit(f"is a {type(value).__name__}, no {self._hint.__name__}")
        try:
            return msgspec.to_builtins(value, str_keys=True)
        except (TypeError, ValueError) as error:
            raise Misfit(f"cannot be written as JSON: {error}") from error

    def load(self, found: Any, /) -> Any:
        import msgspec

        try:
            return msgspec.convert(found, self._hint, str_keys=True)
        except msgspec.ValidationError as error:
            # Its sentence ends with the path, as "at `$.lines[3].price`".
            text, _, path = str(error).partition(" - at `$")
            raise Misfit(f"does not fit: {text}").below(path.rstrip("`")) from error
