"""What a step returns survives its record: the same value, of the same type."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field
from typing_extensions import TypedDict

from mcptasks.errors import BadPayload, ConfigurationError
from mcptasks.runtime.result_types import ResultType
from tests.requirements import covers

T = TypeVar("T")


class Colour(enum.Enum):
    RED = "red"


class Receipt(BaseModel):
    """Strict, closed, with an alias and a computed field: all that makes a round trip hard."""

    model_config = ConfigDict(strict=True, extra="forbid")

    number: int = Field(alias="receiptNumber")
    at: datetime
    lines: tuple[str, ...] = ()

    @computed_field
    @property
    def title(self) -> str:
        return f"No. {self.number}"


@dataclass
class Point:
    x: int
    colour: Colour


class Row(TypedDict):
    when: datetime


class Pair(NamedTuple):
    left: int
    right: str


RECEIPT = Receipt(receiptNumber=7, at=datetime(2026, 1, 2, tzinfo=UTC), lines=("a", "b"))


def there_and_back(kind: ResultType, value: Any) -> Any:
    """The value after its record."""
    return kind.read(kind.write(value, "The result"), "The record")


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Receipt, RECEIPT),
        (list[Receipt], [RECEIPT]),
        (dict[str, Receipt | None], {"a": RECEIPT, "b": None}),
        (Point, Point(1, Colour.RED)),
        (Row, {"when": datetime(2026, 1, 2, tzinfo=UTC)}),
        (Pair, Pair(1, "x")),
        (Colour, Colour.RED),
        (tuple[int, str], (1, "x")),
        (set[int], {1, 2}),
        (dict[int, str], {1: "x"}),
        (bytes, b"\xff\x00\xfe"),
        (datetime, datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)),
        (timedelta, timedelta(days=1, microseconds=3)),
        (Decimal, Decimal("0.10")),
        (UUID, UUID(int=5)),
        (int | str, "5"),
        (Literal["a", "b"], "a"),
        (Annotated[int, Field(ge=0)], 10**30),
        (type(None), None),
    ],
    ids=str,
)
def test_a_result_comes_back_in_its_type(type_: Any, value: Any) -> None:
    """Any JSON or pydantic type, whatever its configuration."""
    back = there_and_back(ResultType.of(lambda: None, type_), value)
    assert back == value
    assert type(back) is type(value)


def annotated() -> Receipt:
    return RECEIPT


async def annotated_async() -> Receipt:
    return RECEIPT


class Shop:
    def sell(self) -> Receipt:
        return RECEIPT

    async def __call__(self) -> Receipt:
        return RECEIPT


@pytest.mark.parametrize(
    "fn",
    [annotated, annotated_async, functools.partial(annotated), Shop().sell, Shop(), lambda: RECEIPT],
    ids=["sync", "async", "partial", "method", "object", "lambda"],
)
def test_the_annotation_of_the_function_says_the_type(fn: Callable[[], Any]) -> None:
    """Nobody writes it twice."""
    kind = ResultType.of(fn, Receipt if fn.__class__.__name__ == "function" and fn.__name__ == "<lambda>" else None)
    assert there_and_back(kind, RECEIPT) == RECEIPT


def test_a_class_is_the_type_of_what_it_makes() -> None:
    """`step("receipt", Receipt, ...)`."""
    assert there_and_back(ResultType.of(Receipt, None), RECEIPT) == RECEIPT


def nothing(value: Any = None):
    return value


def anything() -> Any: ...
def an_object() -> object: ...
def generic(value: T) -> T:
    return value


def awaitable() -> Awaitable[int]: ...
def unknown() -> "NoSuchName": ...  # noqa: F821, UP037  # pyright: ignore[reportUndefinedVariable, reportUnknownParameterType]


@pytest.mark.parametrize("fn", [nothing, anything, an_object, generic, awaitable, unknown, len, print])
def test_without_a_usable_annotation_a_result_is_plain_json(fn: Callable[..., Any]) -> None:
    """As before there were types: what goes in comes out, and a tuple is a list."""
    kind = ResultType.of(fn, None)
    assert there_and_back(kind, {"a": [1, 2.5, None, True, "x"]}) == {"a": [1, 2.5, None, True, "x"]}
    assert there_and_back(kind, (1, 2)) == [1, 2]


def test_a_model_without_a_type_is_refused_with_what_to_do() -> None:
    """A dictionary in its place would be another thing."""
    with pytest.raises(BadPayload, match=r"not JSON serializable.*Annotate the function's return type"):
        ResultType.of(nothing, None).write(RECEIPT, "The result")


@covers("F01")
@pytest.mark.parametrize("value", [math.nan, math.inf], ids=str)
@pytest.mark.parametrize("type_", [None, Any, list[float], list[Any]], ids=str)
def test_what_json_has_no_number_for_is_refused(value: float, type_: Any) -> None:
    """F01: no record may hold what no parser reads, and none may say null for it."""
    with pytest.raises(BadPayload, match=r"NaN and Infinity do not exist in JSON"):
        ResultType.of(nothing, type_).write([value], "The result")


def test_a_result_that_is_not_of_its_type_is_refused_and_not_shown() -> None:
    """Its replay would give something else; the value may be a secret."""
    with pytest.raises(BadPayload) as found:
        ResultType.of(annotated, None).write("hunter2", "The result of step 'x'")
    assert str(found.value).startswith("The result of step 'x' is not what its type says")
    assert "hunter2" not in str(found.value)


def test_a_record_that_does_not_fit_any_more_is_refused_and_not_shown() -> None:
    """E08: the type got a new field while the task waited."""
    with pytest.raises(BadPayload, match=r"^The record does not fit its type \(number: missing\)$"):
        ResultType.of(annotated, None).read('{"at":"2026-01-02T00:00:00Z","secret":"hunter2"}', "The record")


@covers("F03")
def test_half_an_emoji_costs_one_character_where_the_type_cannot_hold_it() -> None:
    """F03: plain JSON keeps it."""
    assert there_and_back(ResultType.of(nothing, str), "a\ud83d") == "a\ufffd"
    assert there_and_back(ResultType.of(nothing, None), "a\ud83d") == "a\ud83d"


def test_too_deep_a_result_is_refused() -> None:
    """Whoever looks first."""
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    for type_ in (None, Any, list[Any]):
        with pytest.raises(BadPayload):
            ResultType.of(nothing, type_).write(deep, "The result")


def test_a_type_that_pydantic_cannot_restore_is_refused_before_anything_is_done() -> None:
    """At the call, not after the effect."""
    with pytest.raises(ConfigurationError, match=r"result_type=.*Opaque.*pydantic cannot restore it"):
        ResultType.of(nothing, type("Opaque", (), {}))
