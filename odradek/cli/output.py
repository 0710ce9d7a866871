"""What commands print: aligned tables and named values for people, one JSON document per line for scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["bytes_field", "print_json", "print_table", "print_values", "table"]


def print_json(document: Any) -> None:
    """One document on one line; keys keep their order."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")) + "\n")


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table with its header; numbers stand on the right."""
    sys.stdout.write(table(header, rows))


def print_values(pairs: Sequence[tuple[str, object]]) -> None:
    """Names and values, one pair per line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        sys.stdout.write(f"{name:<{width}}  {_text(value)}".rstrip() + "\n")


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The lines of a table: columns two spaces apart, none wider than it must be, no trailing blanks."""
    body = list(rows)
    numeric = [bool(body) and all(type(row[i]) is int for row in body) for i in range(len(header))]
    lines = [list(header), *([_text(cell) for cell in row] for row in body)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    return "".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Bytes for JSON: text as it is, other bytes in base64 under a name that says so."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        from base64 import b64encode

        return {f"{name}_base64": b64encode(data).decode()}


def _text(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        return ",".join(map(str, value)) or "-"
    return str(value)
