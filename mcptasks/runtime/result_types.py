"""A step's result to JSON and back to its type: what JSON has, and what pydantic can write and read."""

from __future__ import annotations

import functools
import inspect
import json
import types
from collections.abc import Callable
from typing import Any, Final, TypeVar, get_type_hints

from pydantic import ConfigDict, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from mcptasks.errors import BadPayload, ConfigurationError
from mcptasks.strict_json import check_depth, clean, dumps

#: For results that are not models with a configuration of their own. "constants": NaN is to be refused, not to be null.
_CONFIG: Final = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
#: Annotations that say nothing about how to restore a result.
_UNTYPED: Final = (Any, object, inspect.Signature.empty)


class ResultType:
    """How the results of one function are written and read."""

    def __init__(self, adapter: TypeAdapter[Any] | None) -> None:
        self._adapter = adapter

    @classmethod
    def of(cls, fn: Callable[..., Any], explicit: Any | None) -> ResultType:
        """By the given type, else by the function's return annotation, else plain JSON.

        Raises:
            ConfigurationError: pydantic cannot restore the given type.
        """
        if explicit not in (None, Any):
            try:
                return cls(_adapter(explicit))
            except (PydanticSchemaGenerationError, PydanticUserError) as exc:
                raise ConfigurationError(
                    f"result_type={explicit!r}: pydantic cannot restore it ({exc.message})"
                ) from None
        annotated = _annotation(fn)
        if any(annotated is nothing for nothing in _UNTYPED) or isinstance(annotated, TypeVar):
            return cls(None)
        try:
            return cls(_adapter(annotated))
        except (PydanticSchemaGenerationError, PydanticUserError):
            return cls(None)

    def write(self, value: Any, what: str) -> str:
        """The value as JSON that `read` takes.

        Raises:
            BadPayload: it is not JSON, or not of the type.
        """
        if self._adapter is None:
            try:
                return dumps(value, what)
            except BadPayload as exc:
                raise BadPayload(f"{exc}. Annotate the function's return type, or give result_type=") from None
        try:
            plain = self._adapter.dump_python(value, mode="json", by_alias=False, round_trip=True, warnings="error")
        except (PydanticSerializationError, ValueError, RecursionError) as exc:
            # By its type only: pydantic's text repeats what it could not take.
            raise BadPayload(f"{what} is not what its type says ({type(exc).__name__})") from None
        check_depth(plain, what)
        text = dumps(clean(plain), what)
        # Nothing is recorded that a replay could not restore.
        self.read(text, what)
        return text

    def read(self, text: str, what: str) -> Any:
        """The value of that JSON, in its type.

        Raises:
            BadPayload: it does not fit the type.
        """
        if self._adapter is None:
            return json.loads(text)
        try:
            return self._adapter.validate_json(text, by_alias=False, by_name=True)
        except ValidationError as exc:
            first = exc.errors(include_input=False, include_url=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the whole of it"
            raise BadPayload(f"{what} does not fit its type ({where}: {first['type']})") from None


def _annotation(fn: Callable[..., Any]) -> Any:
    while isinstance(fn, functools.partial):
        fn = fn.func
    if not isinstance(fn, (types.FunctionType, types.MethodType, type)):
        fn = type(fn).__call__
    try:
        return fn if isinstance(fn, type) else get_type_hints(fn, include_extras=True).get("return", Any)
    except Exception:  # a name that only the type checker sees; whatever else an annotation may raise
        return Any


def _adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return _cached_adapter(kind)
    except TypeError:  # not hashable
        return _new_adapter(kind)


def _new_adapter(kind: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(kind, config=_CONFIG)
    except PydanticUserError as exc:
        if exc.code != "type-adapter-config-unused":
            raise
        return TypeAdapter(kind)


_cached_adapter: Final = functools.lru_cache(maxsize=256)(_new_adapter)
