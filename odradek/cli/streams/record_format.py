r"""The text of a record: its value on a line, a template, or a JSON document.

Templates have kcat's format: %k key, %v value, %h headers, %t topic, %p partition, %o offset. %T is the
timestamp in milliseconds since 1970, %d the timestamp in ISO 8601 (UTC), and %% a percent sign. \n, \t and \\
have their usual meaning. On a terminal, control characters of a record are escaped, because the terminal would obey them.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from odradek.cli.failure import CliError
from odradek.cli.output import bytes_field

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord

__all__ = [
    "ParsedRecord",
    "PrintedRecord",
    "for_terminal",
    "json_line",
    "key_and_value",
    "record_of_json",
    "template",
]

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\", "%%": "%"}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters except tab and newline."""
_PARTS = re.compile(r"%(.)|(\\.)|([^%\\]+)|(.)", re.DOTALL)


class PrintedRecord(Protocol):
    """The parts of a record that a line shows."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> tuple[tuple[str, bytes | None], ...]: ...


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _iso(record: ConsumerRecord) -> bytes:
    from datetime import UTC, datetime, timedelta

    if record.timestamp < 0:
        return b"-"
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=record.timestamp)
    except OverflowError:
        # The year has more than four digits: a producer may write any number.
        return b"%d" % record.timestamp
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


_FIELDS: dict[str, Callable[[ConsumerRecord], bytes]] = {
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "s": lambda record: record.value or b"",
    "h": _headers,
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "T": lambda record: b"%d" % record.timestamp,
    "d": _iso,
}


def template(text: str) -> Callable[[ConsumerRecord], bytes]:
    """Parse a template into a function that formats a record. A newline is added unless the template ends in
    one.
    """
    parts: list[Callable[[ConsumerRecord], bytes] | bytes] = []
    for field, escape, plain, lone in _PARTS.findall(text):
        if field and field != "%":
            if field not in _FIELDS:
                known = " ".join(f"%{name}" for name in _FIELDS)
                raise argparse.ArgumentTypeError(f"the format has no field %{field} (only {known} and %%)")
            parts.append(_FIELDS[field])
        elif escape:
            parts.append(_ESCAPES.get(escape, escape).encode())
        else:
            parts.append(("%" if field else plain or lone).encode())
    if not text.endswith("\\n"):
        parts.append(b"\n")

    def render(record: ConsumerRecord) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return render


def key_and_value(separator: str | None) -> Callable[[ConsumerRecord], bytes]:
    """Return a function that formats a record as its value on a line. With a separator, the line begins with key and
    separator.
    """
    if separator is None:
        return lambda record: (record.value or b"") + b"\n"
    between = separator.replace("\\t", "\t").encode()
    return lambda record: (record.key or b"") + between + (record.value or b"") + b"\n"


def json_line(record: PrintedRecord) -> bytes:
    """Format a record as one line with a JSON document, which `odradek produce --input json` can read."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"key": name, **bytes_field("value", value)} for name, value in record.headers],
    }
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # A terminal would obey control characters, which JSON allows in part.
    return (text if text.isprintable() else json.dumps(document, separators=(",", ":"))).encode() + b"\n"


def for_terminal(render: Callable[[ConsumerRecord], bytes]) -> Callable[[ConsumerRecord], bytes]:
    """Return a function that formats a record as `render` does, with control characters of key, value and headers
    escaped, except tab and newline.
    """

    def escaped(data: bytes | None) -> bytes | None:
        return None if data is None else _escaped(data.decode(errors="backslashreplace")).encode()

    def shown(record: ConsumerRecord) -> bytes:
        headers = tuple((_escaped(name), escaped(value)) for name, value in record.headers)
        return render(record._replace(key=escaped(record.key), value=escaped(record.value), headers=headers))

    return shown


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], text)


ParsedRecord = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]
"""Key, value, headers, timestamp in milliseconds."""


_FIELDS_OF_RECORD = dict.fromkeys(
    ("topic", "partition", "offset", "timestamp", "key", "key_base64", "value", "value_base64", "headers")
)
_FIELDS_OF_HEADER = dict.fromkeys(("key", "value", "value_base64"))
_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


def record_of_json(line: bytes, line_number: int) -> ParsedRecord:
    """Parse key, value, headers and timestamp from a JSON line as `json_line` writes it; topic, partition and
    offset are ignored.

    Raises `CliError`, which names the line and the field that is wrong, unknown or repeated.
    """
    try:
        document = _DECODER.decode(_text(line))
        if not isinstance(document, dict):
            raise ValueError("the line is not a JSON object")
        _check_fields(document, _FIELDS_OF_RECORD, "")
        _whole_number(document, "partition", 0, _INT32_MAX)
        _whole_number(document, "offset", 0, _INT64_MAX)
        if not isinstance(document.get("topic", ""), str):
            raise ValueError("the topic is not a string")
        headers = _headers_of(document.get("headers") or [])
        timestamp = _whole_number(document, "timestamp", 0, _INT64_MAX, " of milliseconds")
        return _bytes_of(document, "key"), _bytes_of(document, "value"), headers, timestamp
    except (ValueError, RecursionError) as error:
        reason = "the line is nested too deeply" if isinstance(error, RecursionError) else error
        raise CliError(f"line {line_number} is not a record in JSON: {reason}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dict from the pairs of a JSON object. Raises `ValueError` if a name occurs twice, because one
    value would be lost silently.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the line has {twice!r} twice")
    return found


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)
"""The decoder of JSON lines. It is made once: `json.loads` with these arguments would make a decoder for each call."""


def _text(line: bytes) -> str:
    """Decode a line of UTF-8, and remove the byte order mark that some editors write first. Raises
    `ValueError`.
    """
    try:
        return line.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise ValueError(f"the line is not UTF-8 from byte {error.start + 1} on") from None


def _check_fields(document: dict[str, Any], known: dict[str, None], where: str) -> None:
    """Raise `ValueError` if a field is unknown, or if bytes are given both as text and as base64. The text of the error
    names the most similar known field.
    """
    if not document.keys() <= known.keys():
        from difflib import get_close_matches

        name = next(name for name in document if name not in known)
        near = get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ValueError(f"there is no field {name!r}{where} ({hint})")
    for name in ("key", "value"):
        if f"{name}_base64" in document and name in document:
            raise ValueError(f"the line has both '{name}' and '{name}_base64'{where}")


def _whole_number(document: dict[str, Any], name: str, least: int, most: int, unit: str = "") -> int | None:
    value = document.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"its {name} is not a number{unit}")
    return value


def _headers_of(documents: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Parse keys and values of headers. Raises `ValueError`, which shows how to write them."""
    if not isinstance(documents, list) or not all(
        isinstance(each, dict) and isinstance(each.get("key"), str) for each in documents
    ):
        raise ValueError('its headers are not a list of objects like {"key": "h", "value": "v"}')
    for each in documents:
        _check_fields(each, _FIELDS_OF_HEADER, " of a header")
        _encoded(each["key"], "the key of a header")
    return tuple((each["key"], _bytes_of(each, "value")) for each in documents)


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    """Read bytes from the field that `bytes_field` writes. A value other than a text, such as a number, is
    kept as JSON text.
    """
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        from base64 import b64decode

        if not isinstance(encoded, str):
            raise ValueError(f"its {name}_base64 is not a string")
        return b64decode(encoded, validate=True)
    value = document.get(name)
    if value is None:
        return None
    text = (
        value
        if isinstance(value, str)
        else json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    )
    return _encoded(text, f"its {name}")


def _encoded(text: str, what: str) -> bytes:
    """Encode the text in UTF-8. Raises `ValueError` for half of a surrogate pair, which JSON can write and UTF-8
    cannot.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} has half of a surrogate pair at character {error.start + 1}") from None
