"""Schemas that a file names, for topics whose records name no schema themselves. SHELL.

The file is TOML. Each `[[topic]]` has a `name`, or a `pattern` in RE2's syntax that the whole name matches, and
tables `key` and `value`:

    [[topic]]
    name = "orders"
    key = {format = "text"}
    value = {format = "avro", file = "orders.avsc"}

    [[topic]]
    pattern = "metrics-.*"
    value = {format = "protobuf", file = "metrics.proto", message = "metrics.Sample"}

Names of files are relative to the folder of this file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

import attrs
import re2

from odradek.console.decoding.avro_schema import AvroType, parse_avro_schema
from odradek.console.decoding.decoded import DecodingError, Json
from odradek.console.decoding.protobuf_schema import ProtobufSchema, compile_protobuf
from odradek.serving.patterns import CompiledPattern, compile_pattern

__all__ = ["FileSchema", "SchemaFiles"]

_FORMATS = ("text", "json", "hex", "avro", "protobuf", "json-schema")
_SCHEMA_BYTES_MAX = 1 << 20


@attrs.frozen(eq=False)
class FileSchema:
    """The format of keys or values, with the schema if the format has one."""

    format: str
    avro: AvroType | None = None
    protobuf: ProtobufSchema | None = None
    message: str | None = None
    """The full name of the Protobuf message; None is the first message."""


@attrs.frozen(eq=False)
class _Rule:
    name: str | None
    pattern: CompiledPattern | None
    parts: Mapping[str, FileSchema]


class SchemaFiles:
    """The rules of one file. `path` None is no rule."""

    def __init__(self, path: Path | None) -> None:
        """Read the file and all schemas that it names. Raises `ValueError` with a sentence that names the mistake."""
        self._rules: list[_Rule] = []
        if path is None:
            return
        try:
            document = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"the file of schemas {path} cannot be read: {error}") from None
        for number, each in enumerate(document.get("topic", ()), 1):
            try:
                self._rules.append(_rule(each, path.parent))
            except (OSError, ValueError, DecodingError, re2.error) as error:
                raise ValueError(f"[[topic]] number {number} of {path} is wrong: {error}") from None

    def schema_of(self, topic: str, part: str) -> FileSchema | None:
        """Return the schema of a topic's keys (`part` is "key") or values ("value"); None without a rule."""
        for rule in self._rules:
            if rule.name == topic or (rule.pattern is not None and rule.pattern.fullmatch(topic)):
                return rule.parts.get(part)
        return None


def _rule(table: Mapping[str, Json], folder: Path) -> _Rule:
    unknown = table.keys() - {"name", "pattern", "key", "value"}
    if unknown:
        raise ValueError(f"there is no key {sorted(unknown)[0]!r} (there are name, pattern, key, value)")
    name, pattern = table.get("name"), table.get("pattern")
    if isinstance(name, str) == isinstance(pattern, str):
        raise ValueError("give either a name or a pattern")
    compiled = compile_pattern(pattern) if isinstance(pattern, str) else None
    parts = {part: _schema(table[part], folder) for part in ("key", "value") if part in table}
    return _Rule(name if isinstance(name, str) else None, compiled, parts)


def _schema(table: Json, folder: Path) -> FileSchema:
    if not isinstance(table, dict):
        raise ValueError('key and value are tables such as {format = "avro", file = "orders.avsc"}')
    form, file, message = table.get("format"), table.get("file"), table.get("message")
    if form not in _FORMATS or not isinstance(form, str):
        raise ValueError(f"the format is one of {', '.join(_FORMATS)}")
    if form not in ("avro", "protobuf"):
        return FileSchema(form)
    if not isinstance(file, str):
        raise ValueError(f"the format {form} needs a file")
    path = folder / file
    if path.stat().st_size > _SCHEMA_BYTES_MAX:
        raise ValueError(f"{path} has more than {_SCHEMA_BYTES_MAX >> 20} MiB")
    text = path.read_text()
    if form == "avro":
        return FileSchema(form, avro=parse_avro_schema(text))
    compiled = compile_protobuf(text, _imports(path))
    name = message if isinstance(message, str) else None
    compiled.named(name)
    return FileSchema(form, protobuf=compiled, message=name)


def _imports(path: Path) -> dict[str, str]:
    """Read the other Protobuf files in the folder, which the schema may import."""
    return {
        each.name: each.read_text()
        for each in sorted(path.parent.glob("*.proto"))
        if each != path and each.stat().st_size <= _SCHEMA_BYTES_MAX
    }
