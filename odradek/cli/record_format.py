r"""How a record becomes text: its value on a line, a template, or a JSON document.

Templates are those of kcat: %k key, %v value, %h headers, %t topic, %p partition, %o offset, %T timestamp in
milliseconds since 1970, %d timestamp in ISO 8601 (UTC), %% a percent sign; \n, \t and \\ as usual.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from odradek.cli.output import bytes_field

if TYPE_CHECKING:
    from odradek.client.consumer_types import ConsumerRecord

__all__ = ["json_line", "key_and_value", "template"]

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
