"""The text that the console shows for the bytes of a key, a value or a header. PURE.

The bytes come from anybody who may produce. So each text has a limit, and bytes that cannot be decoded are
shown in hexadecimal digits with the reason.
"""

from __future__ import annotations

import json
import math
from typing import TypeAlias

import attrs

from odradek.console.shapes.fields import about

__all__ = [
    "FORMATS",
    "CannotDecodeNow",
    "Decoded",
    "DecodingError",
    "Json",
    "as_hex",
    "as_json",
    "as_null",
    "as_text",
    "json_text",
    "looks_like_json",
    "plain",
    "structured",
]

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FORMATS = ("auto", "text", "json", "hex", "avro", "protobuf", "json-schema", "internal")
"""The formats that a reader may ask for; `auto` finds out."""
JSON_BYTES_MAX = 4 << 20
"""The most bytes that are parsed to find out whether they are JSON."""
_TEXT_CONTROLS = frozenset("\t\n\r")


class DecodingError(Exception):
    """Raised if bytes do not fit their format; the text of the error is a sentence for people."""


class CannotDecodeNow(DecodingError):
    """Raised if this machine lacks something, such as room on its disk. A later attempt may succeed."""


@attrs.frozen
class Decoded:
    """The text of a key, a value or a header's value."""

    format: str = attrs.field(
        metadata=about(
            "how the bytes were read",
            choices=("text", "json", "hex", "avro", "protobuf", "json-schema", "internal", "null"),
        )
    )
    text: str | None = attrs.field(metadata=about("the text; null for a null"))
    schema_id: int | None = attrs.field(
        default=None, metadata=about("the id of the schema in the registry that the bytes name")
    )
    error: str | None = attrs.field(
        default=None, metadata=about("the reason why the bytes were not decoded as wished")
    )
    is_cut: bool = attrs.field(default=False, metadata=about("true if the text is only the beginning"))
    size_bytes: int = attrs.field(default=0, metadata=about("bytes of the whole key or value"))


def as_null() -> Decoded:
    """Show a null, such as the value of a tombstone."""
    return Decoded("null", None)


def as_hex(data: bytes, characters_max: int, *, error: str | None = None) -> Decoded:
    """Show bytes as pairs of hexadecimal digits."""
    shown = data[: characters_max // 2]
    return Decoded("hex", shown.hex(), error=error, is_cut=len(shown) < len(data), size_bytes=len(data))


def as_text(data: bytes, characters_max: int) -> Decoded:
    """Show bytes as UTF-8; a byte that is no UTF-8 becomes U+FFFD."""
    # A character has at most four bytes, so the rest of a large value need not be decoded.
    text = data[: 4 * characters_max].decode(errors="replace")
    is_cut = len(text) > characters_max or len(data) > 4 * characters_max
    return Decoded("text", text[:characters_max], is_cut=is_cut, size_bytes=len(data))


def as_json(data: bytes, characters_max: int) -> Decoded:
    """Show a JSON document as it was written. Raises `DecodingError` if the bytes are no JSON."""
    if len(data) > JSON_BYTES_MAX:
        raise DecodingError(f"the document has more than {JSON_BYTES_MAX >> 20} MiB")
    try:
        # Numbers are not evaluated: a number of a million digits would take long.
        json.loads(data, parse_int=_number, parse_float=_number)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DecodingError(f"the bytes are no JSON: {reason[:200]}") from None
    return attrs.evolve(as_text(data, characters_max), format="json")


def looks_like_json(data: bytes) -> bool:
    """True if the bytes begin as an object or an array does."""
    return data[:1] in (b"{", b"[")


def plain(data: bytes, characters_max: int, *, error: str | None = None, may_parse: bool = True) -> Decoded:
    """Show bytes without a schema: as JSON if they are an object or an array, else as text, else in hexadecimal
    digits. Without `may_parse`, JSON is a text like any other.
    """
    if may_parse and looks_like_json(data):
        try:
            return attrs.evolve(as_json(data, characters_max), error=error)
        except DecodingError:
            pass  # Most texts that begin with a bracket are no JSON, and are shown as texts.
    if _is_text(data[: 4 * characters_max], is_whole=len(data) <= 4 * characters_max):
        return attrs.evolve(as_text(data, characters_max), error=error)
    return as_hex(data, characters_max, error=error)


def structured(
    form: str, value: Json, data: bytes, characters_max: int, schema_id: int | None = None
) -> Decoded:
    """Show a value that was decoded by a schema, as JSON."""
    text = json_text(value)
    return Decoded(
        form,
        text[:characters_max],
        schema_id=schema_id,
        is_cut=len(text) > characters_max,
        size_bytes=len(data),
    )


def json_text(value: Json) -> str:
    """Write a value as JSON; infinite numbers and NaN become texts."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_with_texts(value), ensure_ascii=False, separators=(",", ":"))


def _with_texts(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _number(_: str) -> int:
    return 0


def _is_text(data: bytes, *, is_whole: bool) -> bool:
    """True if the bytes are UTF-8 without control characters. The last character of a part may be cut."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(data) - 3:
            return False
        text = data[: error.start].decode()
    return text.isprintable() or not any(
        not character.isprintable() and character.isascii() and character not in _TEXT_CONTROLS
        for character in text
    )
