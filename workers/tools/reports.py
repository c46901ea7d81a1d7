"""`csv_report`: a Markdown report about a CSV, a synchronous tool."""

import csv
import io
import math
import re
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

import mcptasks

_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+", re.ASCII)
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_BOOLEANS: Final = frozenset({"true", "false", "yes", "no"})
#: A larger one is text: sums of numbers below it cannot overflow a float.
_LARGEST_NUMBER: Final = 1e300
_DELIMITERS: Final = ",;\t|"
_COMMON: Final = 5
_CELL: Final = 60
_ROWS_BETWEEN_CANCEL_CHECKS: Final = 1_000


@dataclass(frozen=True)
class Column:
    """A column of the CSV; `values` are its filled cells, without surrounding white space."""

    name: str
    values: list[str]

    @cached_property
    def kind(self) -> str:
        """`integer`, `number`, `date`, `boolean`, `text` or `empty`: the narrowest that fits every filled cell."""
        if not self.values:
            return "empty"
        if all(_is_number(value) for value in self.values):
            return "integer" if all(_INTEGER.fullmatch(value) for value in self.values) else "number"
        if all(_DATE.fullmatch(value) for value in self.values):
            return "date"
        return "boolean" if all(value.casefold() in _BOOLEANS for value in self.values) else "text"

    def statistics(self) -> list[str]:
        """Minimum, maximum, mean and median as far as the kind has them, as table cells."""
        match self.kind:
            case "integer" | "number":
                numbers = [float(value) for value in self.values]
                return [
                    f"{min(numbers):.15g}",
                    f"{max(numbers):.15g}",
                    f"{statistics.fmean(numbers):.6g}",
                    f"{statistics.median(numbers):.6g}",
                ]
            case "date":
                return [min(self.values), max(self.values), "", ""]
            case _:
                return ["", "", "", ""]


def _is_number(value: str) -> bool:
    return bool(_NUMBER.fullmatch(value)) and math.fabs(float(value)) < _LARGEST_NUMBER


def _read(csv_text: str) -> tuple[list[str], list[list[str]]]:
    """Header and rows; every row as long as the header.

    Raises:
        ToolError: it is not such a CSV; the message names the line.
    """
    text = csv_text.removeprefix("\ufeff")
    # Not splitlines(): it also cuts at characters that are ordinary content in a CSV, such as U+2028.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text), strict=True)
    header: list[str] = []
    rows: list[list[str]] = []
    try:
        for cells in reader:
            if not cells:
                continue
            if not header:
                header = _checked_header(cells, reader.line_num)
            elif len(cells) != len(header):
                raise ToolError(f"CSV line {reader.line_num}: {len(cells)} fields, but the header has {len(header)}.")
            else:
                rows.append(cells)
            if reader.line_num % _ROWS_BETWEEN_CANCEL_CHECKS == 0:
                mcptasks.raise_if_cancelled()
    except csv.Error as error:
        raise ToolError(f"CSV line {reader.line_num}: {error}.") from error
    if not header:
        raise ToolError("CSV line 1: there is no header; the text is empty.")
    return header, rows


def _delimiter(text: str) -> str:
    header = text.lstrip("\r\n").partition("\n")[0]
    return max(_DELIMITERS, key=header.count)


def _checked_header(cells: list[str], line: int) -> list[str]:
    names = [cell.strip() for cell in cells]
    if not all(names):
        raise ToolError(f"CSV line {line}: column {names.index('') + 1} has no name.")
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise ToolError(f"CSV line {line}: the column name {twice!r} is used twice.")
    return names


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(text: str) -> str:
    """The text as one Markdown table cell on one line."""
    line = " ".join(text.split())
    short = line if len(line) <= _CELL else f"{line[: _CELL - 1]}…"
    return short.replace("\\", "\\\\").replace("|", "\\|")


def _column_table(columns: list[Column]) -> list[str]:
    head = ["Column", "Type", "Filled", "Distinct", "Min", "Max", "Mean", "Median"]
    body: list[str] = []
    for column in columns:
        mcptasks.raise_if_cancelled()
        counts = [str(len(column.values)), str(len(set(column.values)))]
        body.append(_row([_cell(column.name), column.kind, *counts, *column.statistics()]))
    return [_row(head), _row(["---"] * len(head)), *body]


def _common_values(columns: list[Column]) -> list[str]:
    lines = [_row(["Column", "Value", "Times"]), _row(["---"] * 3)]
    for column in columns:
        mcptasks.raise_if_cancelled()
        ranked = sorted(Counter(column.values).items(), key=lambda entry: (-entry[1], entry[0]))
        lines += [_row([_cell(column.name), _cell(value), str(count)]) for value, count in ranked[:_COMMON]]
    return lines


def csv_report(csv_text: str, title: Annotated[str, Field(max_length=200)] = "Report") -> str:
    """Render a Markdown report about a CSV: for each column its type, how many cells are filled and distinct, minimum,
    maximum, mean and median of numbers, the range of dates, and the most common values.

    Args:
        csv_text: The CSV itself, not a path. The first line names the columns; the delimiter (comma, semicolon, tab
            or bar) is recognised. A malformed line is an error that names it.
        title: The heading of the report.
    """
    header, rows = _read(csv_text)
    cells = [[row[place].strip() for row in rows] for place in range(len(header))]
    columns = [Column(name, [cell for cell in column if cell]) for name, column in zip(header, cells, strict=True)]
    return "\n".join(
        [
            f"# {_cell(title) or 'Report'}",
            "",
            f"{len(rows):,} rows, {len(columns):,} columns.",
            "",
            "## Columns",
            "",
            *_column_table(columns),
            "",
            "## Most common values",
            "",
            *_common_values(columns),
            "",
        ]
    )
