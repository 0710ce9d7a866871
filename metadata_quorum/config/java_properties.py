"""Java's properties format, in which Kafka's configuration files and `meta.properties` are written. PURE."""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["MalformedProperties", "escape_value", "parse_properties"]

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {char: f"\\{letter}" for letter, char in _ESCAPES.items()} | {
    char: f"\\{char}" for char in "\\:=#!"
}
_UNICODE = re.compile(r"[0-9a-fA-F]{4}")


class MalformedProperties(ValueError):
    """Raised for a malformed unicode escape. The text names the line."""


def parse_properties(text: str) -> dict[str, str]:
    """Parse a properties file, and return the values by key. If a key is repeated, the last value is used.

    A line that ends with a backslash is continued on the next line. '#' and '!' begin comments. '=', ':' or white space
    separates key and value. Raises `MalformedProperties`.
    """
    values = {}
    for number, line in _logical_lines(text):
        end = 0
        while end < len(line) and line[end] not in "=: \t\f":
            end += 2 if line[end] == "\\" else 1
        rest = line[end:].lstrip(" \t\f")
        if rest[:1] in ("=", ":"):
            rest = rest[1:].lstrip(" \t\f")
        values[_unescape(line[:end], number)] = _unescape(rest, number)
    return values


def escape_value(text: str) -> str:
    """Escape a value, so that `parse_properties` and Java read it back unchanged.

    The result is ASCII, so Java reads it correctly in any encoding.
    """
    units = text.encode("utf-16-be")
    whole = [chr(int.from_bytes(units[at : at + 2], "big")) for at in range(0, len(units), 2)]
    escaped = [
        _ESCAPED.get(char) or (char if " " <= char <= "~" else f"\\u{ord(char):04X}") for char in whole
    ]
    # A reader would skip white space before a value, so escape it.
    return "".join(f"\\{char}" if char == " " and not at else char for at, char in enumerate(escaped))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    pending = ""
    continues = False
    first = 0
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), 1):
        line = raw.lstrip(" \t\f")
        if not continues:
            if not line or line[0] in "#!":
                continue
            first, pending = number, ""
        backslashes = len(line) - len(line.rstrip("\\"))
        continues = backslashes % 2 == 1
        pending += line[:-1] if continues else line
        if not continues:
            yield first, pending
    if continues:
        yield first, pending


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    out = []
    has_units = False
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char == "\\" and position < len(text):
            char = text[position]
            position += 1
            if char == "u":
                digits = text[position : position + 4]
                if not _UNICODE.fullmatch(digits):
                    raise MalformedProperties(
                        f"line {number}: \\u must be followed by four hexadecimal digits"
                    )
                position += 4
                char = chr(int(digits, 16))
                has_units = True
            else:
                char = _ESCAPES.get(char, char)
        out.append(char)
    found = "".join(out)
    if has_units:
        # Java escapes UTF-16 code units. Two code units may form one character, so join them.
        found = found.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return found
