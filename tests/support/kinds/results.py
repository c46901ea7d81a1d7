"""What can come out of a tool as data."""

from __future__ import annotations

import base64
import datetime
import decimal
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypedDict, TypeVar

from mcp_types import CallToolResult
from pydantic import BaseModel, computed_field

from tests.support.kinds.arguments import Colour, Point
from tests.support.kinds.shelf import Differs, Shelf

SHELF: Final = Shelf("Results: data")
T = TypeVar("T")


class Opaque:
    """A result that no JSON can carry; it looks the same in every process."""

    def __repr__(self) -> str:
        return "<opaque>"


class Station:
    """A class with annotations, from which the SDK makes a schema."""

    name: str
    online: bool

    def __init__(self, name: str, online: bool) -> None:
        self.name, self.online = name, online

    def __repr__(self) -> str:
        return f"<station {self.name}>"


class Row(TypedDict):
    """A result as a typed dict."""

    city: str
    count: int


@dataclass
class Pair:
    """A result as a dataclass."""

    left: int
    right: str


class Place(NamedTuple):
    """A result as a named tuple."""

    street: str
    number: int


class Page(BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]
    more: bool = False


class Area(BaseModel):
    """A model with a member that is computed."""

    width: int
    height: int

    @computed_field
    @property
    def square(self) -> int:
        """Width times height."""
        return self.width * self.height


class Special(Point):
    """More than the tool promises."""

    extra: str = "more"


@SHELF.tool("nothing")
async def nothing() -> None:
    return None


@SHELF.tool("text, with characters that tools trip over")
async def text() -> str:
    return "zwölf \u2028 lines \0 \x1b[1m \U0001f600"


@SHELF.tool("empty text")
async def empty_text() -> str:
    return ""


@SHELF.tool("much text")
async def much_text() -> str:
    return "0123456789" * 10_000


@SHELF.tool(
    "text over 256 KiB",
    differs=Differs(
        live="the end of it",
        task="resource_link",
        why="The task's result is a summary and a link to the whole one, which `mcptasks.client` follows by itself; a "
        "waiting call gets the live answer.",
        waiting_is_live=True,
    ),
)
async def very_much_text() -> str:
    return "0123456789" * 20_000 + "the end of it"


@SHELF.tool("a boolean", {"on": True})
async def flag(on: bool) -> bool:
    return on


@SHELF.tool("floats and integers of every size")
async def numbers() -> dict[str, Any]:
    return {"big": 9007199254740993, "huge": 10**30, "least": -(2**63), "one": 1.0, "small": 1e-7, "e": [[], {}]}


@SHELF.tool("NaN and infinities in typed data")
async def not_a_number() -> dict[str, float]:
    return {"high": float("inf"), "nan": float("nan")}


@SHELF.tool("NaN in data of the tool's own making")
async def raw_nan() -> CallToolResult:
    return CallToolResult(content=[], structured_content={"nan": float("nan")})


@SHELF.tool(
    "half a surrogate pair",
    differs=Differs(
        live="half \ud83d an",
        task="half \ufffd an",
        why="Live it goes out as an escape that strict readers of JSON refuse, and to an older client as -32603. As a "
        "task it costs that one character (U+FFFD), not the result.",
    ),
)
async def lone_surrogate() -> str:
    return "half \ud83d an emoji"


@SHELF.tool("data nested 300 deep")
async def deep() -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(300):
        value = {"in": value}
    return value


@SHELF.tool("a dict")
async def plain_dict() -> dict[str, Any]:
    return {"a": 1, "b": None, "c": {"d": []}}


@SHELF.tool("a dict of floats", {"cities": ["Ulm", "Bonn"]})
async def temperatures(cities: list[str]) -> dict[str, float]:
    return dict.fromkeys(cities, 16.25)


@SHELF.tool("a dict with numbers for keys")
async def keyed() -> dict[int, str]:
    return {1: "one", 2: "two"}


@SHELF.tool("a typed dict")
async def typed_dict() -> Row:
    return {"city": "Ulm", "count": 3}


@SHELF.tool("a dataclass")
async def plain_dataclass() -> Pair:
    return Pair(1, "two")


@SHELF.tool("a named tuple")
async def named_tuple() -> Place:
    return Place("Elm Street", 7)


@SHELF.tool("a list")
async def plain_list() -> list[str]:
    return ["a", "b"]


@SHELF.tool("an empty list")
async def empty_list() -> list[str]:
    return []


@SHELF.tool("models in a list")
async def many_points() -> list[Point]:
    return [Point(xAxis=1), Point(xAxis=2, y=0.0)]


@SHELF.tool("a tuple")
async def plain_tuple() -> tuple[int, str, None]:
    return 1, "two", None


@SHELF.tool("a generic model")
async def generic() -> Page[Point]:
    return Page[Point](items=[Point(xAxis=1)])


@SHELF.tool("a model with a computed member")
async def computed() -> Area:
    return Area(width=2, height=3)


@SHELF.tool("a subclass of what was promised")
async def subclass() -> Point:
    return Special(xAxis=1)


@SHELF.tool("a model given as a dict")
async def model_as_dict() -> Point:
    return {"xAxis": 4}  # type: ignore[return-value]


@SHELF.tool("a union")
async def union_out() -> Point | Area | None:
    return Area(width=1, height=1)


@SHELF.tool("an enumeration")
async def enumeration() -> Colour:
    return Colour.BLUE


@SHELF.tool("dates, decimals, UUIDs, sets and paths")
async def odd_types() -> dict[str, Any]:
    when = datetime.datetime(2026, 11, 30, 12, tzinfo=datetime.UTC)
    values = {"when": when, "price": decimal.Decimal("1.10"), "id": uuid.UUID(int=7), "set": {1}, "pair": (1, 2)}
    return {**values, "path": pathlib.PurePosixPath("/a/b"), "span": datetime.timedelta(minutes=90)}


@SHELF.tool("bytes")
async def raw_bytes() -> bytes:
    return b"plain"


@SHELF.tool("bytes in base64")
async def base64_bytes() -> dict[str, str]:
    return {"data": base64.b64encode(bytes(range(256))).decode()}


@SHELF.tool("an object of a class with annotations")
async def annotated_class() -> Station:
    return Station("Ulm", online=True)


@SHELF.tool("an object that has no JSON form")
async def not_serializable() -> Any:
    return {"value": Opaque()}


@SHELF.tool("a generator")
async def generator() -> Any:
    return (n for n in range(3))


@SHELF.tool("data without a schema", structured_output=False)
async def unstructured() -> dict[str, int]:
    return {"n": 1}


@SHELF.tool("no promise at all")
async def not_promised():
    return {"n": 1}
