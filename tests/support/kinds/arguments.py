"""What can go into a tool."""

from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from tests.support.kinds.shelf import Shelf

SHELF: Final = Shelf("Arguments")


class Colour(enum.Enum):
    """An argument of a closed set."""

    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    """An argument and a result with an alias and a constraint."""

    x_axis: float = Field(alias="xAxis")
    y: float | None = None


class Circle(BaseModel):
    """One of two shapes."""

    kind: Literal["circle"]
    radius: float


class Square(BaseModel):
    """The other one."""

    kind: Literal["square"]
    side: float


class Node(BaseModel):
    """A model that contains itself."""

    name: str
    children: list[Node] = []


@SHELF.tool("integers, one with a default", {"a": 2})
async def add(a: int, b: int = 1) -> int:
    return a + b


SHELF.call("add", "numbers given as text", {"a": "2", "b": "3"})
SHELF.call("add", "an argument that the tool does not have", {"a": 2, "colour": "red"})
SHELF.refuse("add", "a missing argument", {})
SHELF.refuse("add", "an argument of the wrong type", {"a": "x"})


@SHELF.tool("none")
async def without_arguments() -> str:
    return "none"


@SHELF.tool("any JSON at all", {"value": {"n": 1.0, "e": [], "o": {}, "t": None, "s": "ß"}})
async def untyped(value: Any) -> Any:
    return value


SHELF.call("untyped", "an integer beyond 2**53", {"value": 9007199254740993})
SHELF.call("untyped", "an emoji", {"value": "\U0001f600"})


@SHELF.tool("no annotations", {"first": "1", "second": "2"})
async def not_annotated(first, second="x"):  # type: ignore[no-untyped-def]
    return [first, second]


@SHELF.tool("a model and an enumeration", {"point": {"xAxis": 1.5}, "colour": "blue"})
async def model(point: Point, colour: Colour = Colour.RED) -> Point:
    return Point(xAxis=point.x_axis * 2, y=1.5 if colour is Colour.BLUE else None)


SHELF.call("model", "a model given as JSON text", {"point": '{"xAxis": 2}'})
SHELF.refuse("model", "an incomplete model", {"point": {}})


@SHELF.tool("a model that contains itself", {"tree": {"name": "a", "children": [{"name": "b", "children": []}]}})
async def tree(tree: Node) -> Node:
    return tree


@SHELF.tool(
    "a union told apart by a member", {"shapes": [{"kind": "circle", "radius": 1}, {"kind": "square", "side": 2}]}
)
async def union(shapes: list[Annotated[Circle | Square, Field(discriminator="kind")]]) -> list[str]:
    return [type(shape).__name__ for shape in shapes]


@SHELF.tool("a literal", {"which": "b"})
async def literal(which: Literal["a", "b"]) -> Literal["a", "b"]:
    return which


SHELF.refuse("literal", "a value outside the literal", {"which": "c"})


@SHELF.tool("an optional one, left out")
async def optional(name: str | None = None) -> str | None:
    return name


SHELF.call("optional", "an optional one, null", {"name": None})


@SHELF.tool(
    "dates, times, decimals, UUIDs, bytes",
    {
        "day": "2026-11-30",
        "when": "2026-11-30T12:00:00+01:00",
        "price": "1.10",
        "id": "00000000-0000-0000-0000-000000000007",
        "data": "aGk=",
        "span": "PT1H",
    },
)
async def rich_types(
    day: datetime.date,
    when: datetime.datetime,
    price: decimal.Decimal,
    id: uuid.UUID,
    data: bytes,
    span: datetime.timedelta,
) -> list[str]:
    return [repr(day), repr(when), repr(price), repr(id), repr(data), repr(span)]


@SHELF.tool("sets, tuples and mappings", {"tags": ["b", "a", "b"], "pair": [1, "x"], "counts": {"k": 2}})
async def collections_in(tags: set[str], pair: tuple[int, str], counts: Mapping[str, int]) -> list[Any]:
    return [sorted(tags), list(pair), dict(counts)]


@SHELF.tool(
    "constraints, descriptions and other names on the wire",
    {"spelling": "abc", "class": 3},
    name="renamed",
    title="Renamed",
)
async def original_name(
    spelling: Annotated[str, Field(max_length=5, description="Up to five")],
    klass: Annotated[int, Field(alias="class", ge=1)],
) -> str:
    return spelling * klass


SHELF.refuse("renamed", "a value that breaks its constraint", {"spelling": "too long", "class": 1})


@SHELF.tool("a validator of the tool's own", {"word": " spaced "})
async def validated(word: Annotated[str, BeforeValidator(lambda value: str(value).strip())]) -> str:
    return f"[{word}]"


@SHELF.tool("names that the SDK's models use themselves", {"json": "a", "copy": "b", "schema": "c"})
async def shadowing(json: str, copy: str, schema: str) -> str:
    return json + copy + schema


@SHELF.tool("one of several names", {"colour": "red"})
async def either_name(color: Annotated[str, Field(validation_alias=AliasChoices("colour", "color"))]) -> str:
    return color


@SHELF.tool("keyword-only ones", {"a": 1, "b": 2})
async def keyword_only(*, a: int, b: int = 5) -> int:
    return a * b
