"""Parses Avro schemas (version 1.12 of its specification) into types that `avro_data.py` reads by. PURE.

A schema comes from a registry or a file, and may be hostile. So its depth and the number of its types are
limited. A type that names itself becomes a circle of objects.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import attrs

from odradek.console.decoding.decoded import DecodingError, Json

__all__ = ["AvroField", "AvroType", "parse_avro_schema"]

_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_DEPTH_MAX = 64
_TYPES_MAX = 10_000


@attrs.define(eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType


@attrs.define(eq=False)
class AvroType:
    """A type: `kind` is a primitive, `record`, `enum`, `array`, `map`, `fixed` or `union`."""

    kind: str
    logical: str | None = None
    scale: int = 0
    """The digits behind the point of a decimal."""
    size: int = 0
    """The bytes of a `fixed`."""
    symbols: tuple[str, ...] = ()
    fields: list[AvroField] = attrs.field(factory=list)
    items: AvroType | None = None
    """The type of the elements of an array, or of the values of a map."""
    branches: list[AvroType] = attrs.field(factory=list)


def parse_avro_schema(text: str, references: Sequence[str] = ()) -> AvroType:
    """Parse a schema. `references` has the schemas whose named types it uses, each before its users.

    Raises `DecodingError`.
    """
    parser = _Parser()
    try:
        for each in references:
            parser.parse(json.loads(each), "", 0)
        return parser.parse(json.loads(text), "", 0)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DecodingError(f"the Avro schema cannot be read: {reason[:200]}") from None


class _Parser:
    """The named types of a schema so far."""

    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}
        self._count = 0

    def parse(self, schema: Json, namespace: str, depth: int) -> AvroType:
        self._count += 1
        if depth > _DEPTH_MAX or self._count > _TYPES_MAX:
            raise ValueError("it has too many types, or is nested too deeply")
        if isinstance(schema, str):
            return self._by_name(schema, namespace)
        if isinstance(schema, list):
            return AvroType("union", branches=[self.parse(each, namespace, depth + 1) for each in schema])
        if not isinstance(schema, dict):
            raise ValueError("a type is neither a name, nor an object, nor an array")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.parse(kind, namespace, depth + 1)
        if not isinstance(kind, str):
            raise ValueError("an object has no type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._define(kind, schema, namespace, depth)
        logical = _text_or_none(schema.get("logicalType"))
        if kind == "array":
            return AvroType("array", items=self.parse(schema.get("items"), namespace, depth + 1))
        if kind == "map":
            return AvroType("map", items=self.parse(schema.get("values"), namespace, depth + 1))
        if kind in _PRIMITIVES:
            return AvroType(kind, logical, _number(schema.get("scale")))
        return self._by_name(kind, namespace)

    def _by_name(self, name: str, namespace: str) -> AvroType:
        if name in _PRIMITIVES:
            return AvroType(name)
        found = self._named.get(_full_name(name, namespace)) or self._named.get(name)
        if found is None:
            raise ValueError(f"the type {name[:100]!r} is not defined")
        return found

    def _define(self, kind: str, schema: dict[str, Json], namespace: str, depth: int) -> AvroType:
        name = schema.get("name")
        if not isinstance(name, str):
            raise ValueError(f"a {kind} has no name")
        full = _full_name(name, _text_or_none(schema.get("namespace")) or namespace)
        inner = full.rpartition(".")[0]
        logical = _text_or_none(schema.get("logicalType"))
        found = AvroType("record" if kind == "error" else kind, logical, _number(schema.get("scale")))
        self._named[full] = found
        if kind == "fixed":
            found.size = _number(schema.get("size"))
        elif kind == "enum":
            found.symbols = tuple(str(each) for each in _listed(schema.get("symbols")))
        else:
            for each in _listed(schema.get("fields")):
                if not isinstance(each, dict) or not isinstance(each.get("name"), str):
                    raise ValueError(f"a field of {full[:100]} has no name")
                field_type = self.parse(each.get("type"), inner, depth + 1)
                found.fields.append(AvroField(str(each["name"]), field_type))
        return found


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _text_or_none(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _listed(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ValueError("a list of fields or symbols is missing")
    return value


def _number(value: Json) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ValueError("a size or scale is no number")
    return value
