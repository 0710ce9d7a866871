r"""The text of a record: its value on a line, a template, or a JSON document.

Templates are those of kcat: %k key, %v value, %h headers, %t topic, %p partition, %o offset. %T is the timestamp in
milliseconds since 1970, %d the timestamp in ISO 8601 (UTC), and %% a percent sign. \n, \t and \\ have their usual
meaning.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.cli.failure import CliError
from odradek.cli.output import bytes_field

if TYPE_CHECKING:
    from odradek.client.consumer.consumer_types import ConsumerRecord

__all__ = ["ParsedRecord", "json_line", "key_and_value", "record_of_json", "template"]

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\\\": "\\", "%%": "%"}
_PARTS = re.compile(r"%(.)|(\\.)|([^%\\]+)|(.)", re.DOTALL)


def _headers(record: ConsumerRecord) -> bytes:
    return b",".join(name.encode() + b"=" + (value or b"") for name, value in record.headers)


def _iso(record: ConsumerRecord) -> bytes:
    from datetime import UTC, datetime, timedelta

    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=record.timestamp)
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
    """The renderer of a template; an option's type. A template without a line's end gets one."""
    parts: list[Callable[[ConsumerRecord], bytes] | bytes] = []
    for field, escape, plain, lone in _PARTS.findall(text):
        if field and field != "%":
            if field not in _FIELDS:
                known = " ".join(f"%{name}" for name in _FIELDS)
                raise argparse.ArgumentTypeError(f"there is no %{field} (but {known} and %%)")
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
    """The value on a line; with a separator, the key and it before."""
    if separator is None:
        return lambda record: (record.value or b"") + b"\n"
    between = separator.replace("\\t", "\t").encode()
    return lambda record: (record.key or b"") + between + (record.value or b"") + b"\n"


def json_line(record: ConsumerRecord) -> bytes:
    """One JSON document on a line; `odradek produce --input json` reads it back."""
    document: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        **bytes_field("key", record.key),
        **bytes_field("value", record.value),
        "headers": [{"key": name, **bytes_field("value", value)} for name, value in record.headers],
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


ParsedRecord = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]
"""Key, value, headers, timestamp."""


def record_of_json(line: bytes, line_number: int) -> ParsedRecord:
    """Key, value, headers, timestamp of a document as `json_line` writes it; its place (topic, offset) is left out.

    Raises `CliError` that names the line.
    """
    try:
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("it is no object")
        headers = _headers_of(document.get("headers") or [])
        timestamp = document.get("timestamp")
        if timestamp is not None and (not isinstance(timestamp, int) or not 0 <= timestamp < 1 << 63):
            raise ValueError("its timestamp is no number of milliseconds")
        return _bytes_of(document, "key"), _bytes_of(document, "value"), headers, timestamp
    except (ValueError, TypeError, RecursionError) as error:
        raise CliError(f"line {line_number} is not a record in JSON: {error}") from None


def _headers_of(documents: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Keys and values of headers; raises `ValueError` that shows how they are written."""
    if not isinstance(documents, list) or not all(
        isinstance(each, dict) and isinstance(each.get("key"), str) for each in documents
    ):
        raise ValueError('its headers are no list of objects like {"key": "h", "value": "v"}')
    return tuple((each["key"], _bytes_of(each, "value")) for each in documents)


def _bytes_of(document: dict[str, Any], name: str) -> bytes | None:
    """The inverse of `bytes_field`; a value that is no text is kept as JSON."""
    encoded = document.get(f"{name}_base64")
    if encoded is not None:
        from base64 import b64decode

        return b64decode(encoded, validate=True)
    value = document.get(name)
    if value is None or isinstance(value, str):
        return None if value is None else value.encode()
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
