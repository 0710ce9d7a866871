"""The output of commands: tables and named values for people, JSON documents for scripts, texts for bytes,
numbers and spans, progress.

On a terminal, headers are bold and problems are red. The output is at most as wide as the terminal (80 columns if that
is unknown). Less important columns are left out, long cells are cut with an ellipsis, named values continue on the next
line. In a file or a pipe everything is complete and plain.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import time
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TextIO

__all__ = [
    "BOLD",
    "RED",
    "YELLOW",
    "Progress",
    "bytes_field",
    "bytes_text",
    "columns_of",
    "counted",
    "paint",
    "plain",
    "print_json",
    "print_table",
    "print_values",
    "say",
    "span_text",
    "table",
    "wrapped",
]

BOLD = "1"
RED = "31"
YELLOW = "33"
_CELL_LEAST = 8
_READABLE = 24
_PROGRESS_SECONDS = 0.25
_WIDE = ("F", "W")
"""The widths of letters that take two columns: full, and wide."""
_WITHOUT_WIDTH = ("Me", "Mn")
"""The categories of marks that enclose a letter or stand upon it. Some of them are not in a class of combining ones."""
_OUR_PAINT = re.compile(f"(\033\\[(?:0|{BOLD}|{RED}|{YELLOW})m)")
_PAINT = re.compile("\033\\[[0-9;]*m")


def plain(text: str) -> str:
    """Replace unprintable characters by escapes, except the colour codes of this module.

    Names of groups, clients and transactions come from other people. A terminal would execute control
    characters in them.
    """
    if text.isprintable():
        return text
    return "".join(
        part if is_paint or part.isprintable() else "".join(map(_printable, part))
        for is_paint, part in ((bool(_OUR_PAINT.fullmatch(part)), part) for part in _OUR_PAINT.split(text))
    )


def _printable(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


def say(text: str = "") -> None:
    """Print a line for people. Control characters in it are escaped: see `plain`."""
    sys.stdout.write(plain(text) + "\n")


def print_json(document: Any) -> None:
    """Print one document on one line; keys keep their order. A number that JSON cannot express becomes a text:
    "Infinity", "NaN".
    """
    try:
        text = _json(document)
    except ValueError:
        text = _json(_with_texts(document))
    sys.stdout.write(text + "\n")


def _json(document: Any) -> str:
    """Format a document as JSON. Raises `ValueError` for a number that JSON cannot express."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text if text.isprintable() else json.dumps(document, allow_nan=False, separators=(",", ":"))


def _with_texts(document: Any) -> Any:
    """Copy the document with texts in place of infinite numbers and NaN."""
    if isinstance(document, Mapping):
        return {key: _with_texts(value) for key, value in document.items()}
    if isinstance(document, list | tuple):
        return [_with_texts(value) for value in document]
    return json.dumps(document) if isinstance(document, float) and not math.isfinite(document) else document


def print_table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    less: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Print a table with its header; numbers are aligned to the right. For `less` and `whole` see `table`."""
    head, newline, body = table(header, rows, _width(), less=less, whole=whole).partition("\n")
    sys.stdout.write(paint(BOLD, head) + newline + body)


def print_values(pairs: Sequence[tuple[str, object]]) -> None:
    """Print names and values, one pair per line. On a terminal a long value continues on the next line, below its
    beginning.
    """
    width = max(columns_of(name) for name, _ in pairs)
    columns = _width()
    room = None if columns is None else columns - width - 2
    for name, value in pairs:
        lines = wrapped(_text(value), room)
        sys.stdout.write(f"{paint(BOLD, _padded(name, width))}  {lines[0]}".rstrip() + "\n")
        for line in lines[1:]:
            sys.stdout.write(f"{'':<{width}}  {line}\n")


def wrapped(text: str, room: int | None) -> list[str]:
    """Break a text into lines, each at most `room` columns wide. A longer word has a line of its own; colours have
    no width.
    """
    if room is None or columns_of(_PAINT.sub("", text)) <= room:
        return [text]
    lines: list[str] = []
    for word in text.split(" "):
        if lines and columns_of(_PAINT.sub("", f"{lines[-1]} {word}")) <= room:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def paint(code: str, text: str, stream: TextIO | None = None) -> str:
    """Return the text in a colour or weight, if `stream` (by default standard output) is a terminal that shows it."""
    out = sys.stdout if stream is None else stream
    if not out.isatty() or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{code}m{text}\033[0m"


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    width: int | None = None,
    *,
    less: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> str:
    """Format a table as text: columns two spaces apart, each as wide as necessary, trailing blanks removed.

    If the table is wider than `width`, the columns `less` are left out, one by one in this order. If it is
    still too wide, cells of text are cut, first in the last column (`_shrink`). Numbers, headers and the
    columns `whole` are never cut, because a part of an id is useless.
    """
    body = list(rows)
    numeric = [_is_numeric([row[i] for row in body]) for i in range(len(header))]
    lines = [list(header), *([_text(cell) for cell in row] for row in body)]
    widths = [max(columns_of(line[i]) for line in lines) for i in range(len(header))]
    if width is not None:
        shown = list(range(len(header)))
        for name in less:
            if _excess([widths[i] for i in shown], width) > 0:
                shown.remove(header.index(name))
        lines = [[line[i] for i in shown] for line in lines]
        widths, numeric = [widths[i] for i in shown], [numeric[i] for i in shown]
        fixed = [right or name in whole for name, right in zip(lines[0], numeric, strict=True)]
        _shrink(widths, [max(columns_of(name), _CELL_LEAST) for name in lines[0]], fixed, width)
    return "".join(
        "  ".join(
            _padded(_cut(cell, room), room, right=right)
            for cell, room, right in zip(line, widths, numeric, strict=True)
        ).rstrip()
        + "\n"
        for line in lines
    )


def _is_numeric(cells: list[object]) -> bool:
    numbers = [cell for cell in cells if cell is not None]
    return bool(numbers) and all(type(cell) is int for cell in numbers)


def _excess(widths: Sequence[int], width: int) -> int:
    return sum(widths) + 2 * (len(widths) - 1) - width


def _shrink(widths: list[int], least: list[int], fixed: list[bool], width: int) -> None:
    """Narrow columns that are not fixed, by changing `widths`, until the table fits or no column can be
    narrowed further.

    The last column is narrowed first, as long as it stays readable, because names are in the first columns.
    Then the widest column is narrowed.
    """
    excess = _excess(widths, width)
    last = len(widths) - 1
    if excess > 0 and not fixed[last]:
        step = max(0, min(excess, widths[last] - _READABLE))
        widths[last] -= step
        excess -= step
    while excess > 0:
        able = [i for i, stays in enumerate(fixed) if not stays and widths[i] > least[i]]
        if not able:
            return
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1


def _cut(cell: str, room: int) -> str:
    """Cut a cell to so many columns, with an ellipsis in the last one."""
    if columns_of(cell) <= room:
        return cell
    shown, left = "", room - 1
    for character in cell:
        left -= columns_of(character)
        if left < 0:
            break
        shown += character
    return f"{shown}\u2026"


def _padded(cell: str, room: int, *, right: bool = False) -> str:
    """Fill a cell with blanks up to so many columns, on its left if `right`."""
    blanks = " " * (room - columns_of(cell))
    return blanks + cell if right else cell + blanks


def columns_of(text: str) -> int:
    """Return the number of columns that a text takes on a terminal.

    A wide letter of East Asia or an emoji takes two (Unicode's annex 11). An accent upon another letter takes none.
    """
    if text.isascii():
        return len(text)
    return sum(map(_columns_of_character, text))


def _columns_of_character(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in _WITHOUT_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _width() -> int | None:
    """Return the number of columns of the terminal on standard output; None if standard output is not a
    terminal.
    """
    if not sys.stdout.isatty():
        return None
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80


def bytes_text(count: int | None) -> str | None:
    """Format a number of bytes for people, as three digits and a unit. An unknown number (None or negative)
    stays None.
    """
    if count is None or count < 0:
        return None
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1000 or unit == "TiB":
            break
        amount /= 1024
    return f"{count} B" if unit == "B" else f"{amount:.{0 if amount >= 100 else 1}f} {unit}"


def counted(number: int, noun: str) -> str:
    """Format a number with its noun for people: 1 partition, 2 partitions."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"


def span_text(milliseconds: int | None) -> str | None:
    """Format a span of time for people, in its two largest units. An unknown span (None) stays None."""
    if milliseconds is None:
        return None
    if milliseconds < 1000:
        return f"{milliseconds} ms" if milliseconds else "0"
    seconds = milliseconds // 1000
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0"))


def bytes_field(name: str, data: bytes | None) -> dict[str, str | None]:
    """Make the JSON field for bytes: as text if they are UTF-8, otherwise in base64 under the name
    `NAME_base64`.
    """
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
        return plain(",".join(map(str, value))) or "-"
    return plain(str(value))


class Progress:
    """A line on a terminal that shows the progress of long work. The line goes to standard error, and is left
    out if standard error is not a terminal. It is also left out if standard output is a terminal, where the
    output itself shows the progress; `always` shows it even then. Use it as a context manager, which removes
    the line at the end.
    """

    def __init__(self, what: str, *, always: bool = False) -> None:
        self.count = 0
        self._what = what
        self._shown = sys.stderr.isatty() and (always or not sys.stdout.isatty())
        self._started = self._last = time.monotonic()
        self._written = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()

    def add(self, count: int) -> None:
        """Add to the count, and show it from time to time."""
        self.count += count
        if not self._shown:
            return
        now = time.monotonic()
        if now - self._last >= _PROGRESS_SECONDS:
            self._last = now
            rate = self.count / (now - self._started)
            sys.stderr.write(f"\r\033[K{self.count:,} {self._what}, {rate:,.0f}/s")
            sys.stderr.flush()
            self._written = True
