"""Chooses the decoder of each key and value, and keeps compiled schemas.

A reader may ask for one format. Otherwise they are tried in this order:

1. the decoder of an internal topic;
2. the format that the file of schemas gives;
3. the schema of the registry that the bytes name;
4. JSON, text, hexadecimal digits.

If a schema does not fit, the bytes are shown in the last way, with the reason. The same holds for a bug of a decoder,
since a hostile record must not end the search of its reader. The first bug is logged with its traceback.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import attrs

from odradek.console.decoding.avro_data import read_avro
from odradek.console.decoding.avro_schema import AvroType, parse_avro_schema
from odradek.console.decoding.decoded import (
    CannotDecodeNow,
    Decoded,
    DecodingError,
    as_hex,
    as_json,
    as_null,
    as_text,
    looks_like_json,
    plain,
    structured,
)
from odradek.console.decoding.internal import INTERNAL_TOPICS, internal_record
from odradek.console.decoding.protobuf_data import read_message_path, read_protobuf
from odradek.console.decoding.protobuf_schema import ProtobufSchema, compile_protobuf
from odradek.console.decoding.registry import RegisteredSchema, Registry, RegistrySettings
from odradek.console.decoding.schema_files import FileSchema, SchemaFiles
from odradek.console.decoding.steps import Steps, may_parse_json, steps_for
from odradek.env.ports import Log

__all__ = ["Decoders", "DecodingSettings"]

STRUCTURED_BYTES_MAX = 4 << 20
"""The most bytes of a key or value that are decoded by a schema."""
_COMPILED_MAX = 100
RETRY_SECONDS = 10.0
"""The time after which a schema is compiled again, if this machine lacked something."""
_NEVER = float("inf")
_FRAME_SIZE = 5
_Compiled: TypeAlias = "AvroType | ProtobufSchema"


@attrs.frozen
class DecodingSettings:
    """Where schemas come from."""

    registry: RegistrySettings | None = None
    schemas_file: Path | None = None
    """The file that gives topics their schemas: see `schema_files.py`."""


@attrs.define(eq=False)
class _Slot:
    """A compiled schema, or the reason why there is none, and the lock of the thread that compiles it."""

    lock: threading.Lock = attrs.field(factory=threading.Lock)
    found: _Compiled | DecodingError | None = None
    retry_at: float = _NEVER
    """When it is compiled again, in monotonic seconds."""


class Decoders:
    """All decoders of a console. Methods may be called from any thread."""

    def __init__(self, settings: DecodingSettings, log: Log | None = None) -> None:
        """Read the file of schemas. The first bug goes to `log`. Raises `ValueError` if it, or the address of the registry, is wrong."""
        self._files = SchemaFiles(settings.schemas_file)
        self._registry = None if settings.registry is None else Registry(settings.registry)
        self._log = log
        self._bugs = 0
        self._lock = threading.Lock()
        self._compiled: OrderedDict[int, _Slot] = OrderedDict()

    def statistics(self) -> dict[str, int]:
        """Return counters by name: compiled schemas, bugs of decoders, and those of the registry's client."""
        counts = {} if self._registry is None else self._registry.statistics()
        return {
            **{f"registry_{name}": count for name, count in counts.items()},
            "compiled": len(self._compiled),
            "bugs": self._bugs,
        }

    def key_and_value(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        formats: tuple[str, str] = ("auto", "auto"),
        characters_max: int = 4096,
        stream: Steps | None = None,
    ) -> tuple[Decoded, Decoded]:
        """Show key and value of a record. `formats` has a format of `FORMATS` for each. `stream` limits the work."""
        if topic in INTERNAL_TOPICS and any(each in ("auto", "internal") for each in formats):
            internal = self._internal(topic, key, value, characters_max)
        else:
            internal = (None, None)
        shown = []
        for part, data, form, found in zip(("key", "value"), (key, value), formats, internal, strict=True):
            if found is not None and form in ("auto", "internal"):
                shown.append(found)
            else:
                shown.append(self.decode(topic, part, data, form, characters_max, stream))
        return shown[0], shown[1]

    def decode(
        self,
        topic: str,
        part: str,
        data: bytes | None,
        form: str = "auto",
        characters_max: int = 4096,
        stream: Steps | None = None,
    ) -> Decoded:
        """Show a key (`part` is "key") or a value ("value"). Bytes that cannot be decoded have an `error`."""
        if data is None:
            return as_null()
        try:
            return self._decode(topic, part, data, form, characters_max, stream)
        except DecodingError as error:
            found = _plain(data, characters_max, stream, str(error))
        except Exception:  # noqa: BLE001 - `_report_bug` logs it
            found = _plain(data, characters_max, stream, self._report_bug())
        return attrs.evolve(found, schema_id=self._schema_id(data))

    def header(self, data: bytes | None, characters_max: int = 4096, stream: Steps | None = None) -> Decoded:
        """Show the value of a header. `stream` limits the work."""
        return as_null() if data is None else _plain(data, characters_max, stream)

    def _report_bug(self) -> str:
        """Log the exception that is being handled, if it is the first one. Return the sentence for readers."""
        self._bugs += 1
        if self._bugs == 1 and self._log is not None:
            self._log.exception("console.decoder_bug")
        return "a decoder has a bug here; the console's log has more about the first such bug"

    def _internal(
        self, topic: str, key: bytes | None, value: bytes | None, characters_max: int
    ) -> tuple[Decoded | None, Decoded | None]:
        try:
            shown_key, shown_value = internal_record(topic, key, value)
        except DecodingError as error:
            reason = str(error)
        except Exception:  # noqa: BLE001 - `_report_bug` logs it
            reason = self._report_bug()
        else:
            return (
                structured("internal", shown_key, key or b"", characters_max),
                as_null() if value is None else structured("internal", shown_value, value, characters_max),
            )
        first, second = (
            as_null() if data is None else plain(data, characters_max, error=reason) for data in (key, value)
        )
        return first, second

    def is_structured(self, topic: str, data: bytes | None) -> bool:
        """True if a schema decides how the value is shown, so that its bytes are not what a reader sees."""
        return data is not None and (
            topic in INTERNAL_TOPICS
            or self._files.schema_of(topic, "value") is not None
            or self._schema_id(data) is not None
        )

    def _decode(
        self, topic: str, part: str, data: bytes, form: str, characters_max: int, stream: Steps | None
    ) -> Decoded:
        match form:
            case "text":
                return as_text(data, characters_max)
            case "hex":
                return as_hex(data, characters_max)
            case "json":
                return _json(data, characters_max, stream)
            case "internal":
                raise DecodingError(f"{topic} is no internal topic")
        by_file = self._files.schema_of(topic, part)
        if by_file is not None and form in ("auto", by_file.format):
            return _by_file(by_file, data, characters_max, stream)
        schema_id = self._schema_id(data)
        if schema_id is not None and self._registry is not None:
            return self._by_registry(schema_id, data, form, characters_max, stream)
        if form != "auto":
            raise DecodingError(
                f"no schema is known: the {part} names none of the registry, and no file gives one"
                if self._registry is not None
                else "no schema is known: the console has no registry, and no file gives one"
            )
        return _plain(data, characters_max, stream)

    def _schema_id(self, data: bytes) -> int | None:
        """Return the id of the schema that the bytes name by Confluent's frame: a zero, then four bytes."""
        if self._registry is None or len(data) < _FRAME_SIZE or data[0] != 0:
            return None
        return int.from_bytes(data[1:_FRAME_SIZE], "big")

    def _by_registry(
        self, schema_id: int, data: bytes, form: str, characters_max: int, stream: Steps | None
    ) -> Decoded:
        assert self._registry is not None
        registered = self._registry.schema(schema_id)
        kind = {"JSON": "json-schema"}.get(registered.kind, registered.kind.lower())
        if form not in ("auto", kind):
            raise DecodingError(f"schema {schema_id} of the registry is of the kind {kind}")
        if kind == "json-schema":
            found = _json(data[_FRAME_SIZE:], characters_max, stream)
            return attrs.evolve(found, format=kind, schema_id=schema_id, size_bytes=len(data))
        _refuse_large(data)
        steps = steps_for(characters_max, stream)
        if kind == "avro":
            value = read_avro(self._avro_schema(schema_id, registered), data[_FRAME_SIZE:], steps)
        elif kind == "protobuf":
            protobuf = self._protobuf_schema(schema_id, registered)
            path, position = read_message_path(data, _FRAME_SIZE)
            value = read_protobuf(protobuf.at(path), data[position:], steps)
        else:
            raise DecodingError(
                f"schema {schema_id} is of the kind {kind[:40]}, which the console cannot read"
            )
        return structured(kind, value, data, characters_max, schema_id)

    def _avro_schema(self, schema_id: int, registered: RegisteredSchema) -> AvroType:
        texts = [text for _, text in registered.references]
        found = self._compiled_once(schema_id, lambda: parse_avro_schema(registered.text, texts))
        assert isinstance(found, AvroType), "a registry never changes the kind of a schema"
        return found

    def _protobuf_schema(self, schema_id: int, registered: RegisteredSchema) -> ProtobufSchema:
        imports = dict(registered.references)
        found = self._compiled_once(schema_id, lambda: compile_protobuf(registered.text, imports))
        assert isinstance(found, ProtobufSchema), "a registry never changes the kind of a schema"
        return found

    def _compiled_once(self, schema_id: int, compile_schema: Callable[[], _Compiled]) -> _Compiled:
        """Return a compiled schema. A schema that cannot be compiled is remembered, too, for a while at least. Raises
        `DecodingError`.

        Threads that want the same schema wait for the first of them. Other threads go on.
        """
        with self._lock:
            slot = self._compiled.setdefault(schema_id, _Slot())
            if len(self._compiled) > _COMPILED_MAX:
                self._compiled.popitem(last=False)
        with slot.lock:
            if slot.found is None or time.monotonic() >= slot.retry_at:
                try:
                    slot.found, slot.retry_at = compile_schema(), _NEVER
                except DecodingError as error:
                    is_for_now = isinstance(error, CannotDecodeNow)
                    slot.found = error
                    slot.retry_at = time.monotonic() + RETRY_SECONDS if is_for_now else _NEVER
            found = slot.found
        if isinstance(found, DecodingError):
            raise DecodingError(str(found))
        return found


def _json(data: bytes, characters_max: int, stream: Steps | None) -> Decoded:
    if not may_parse_json(stream, len(data)):
        raise DecodingError("this search has parsed as much JSON as it may: open the record")
    return as_json(data, characters_max)


def _plain(data: bytes, characters_max: int, stream: Steps | None, error: str | None = None) -> Decoded:
    may_parse = not looks_like_json(data) or may_parse_json(stream, len(data))
    return plain(data, characters_max, error=error, may_parse=may_parse)


def _by_file(schema: FileSchema, data: bytes, characters_max: int, stream: Steps | None) -> Decoded:
    match schema.format:
        case "text":
            return as_text(data, characters_max)
        case "hex":
            return as_hex(data, characters_max)
        case "json" | "json-schema":
            return attrs.evolve(_json(data, characters_max, stream), format=schema.format)
    _refuse_large(data)
    steps = steps_for(characters_max, stream)
    if schema.avro is not None:
        return structured("avro", read_avro(schema.avro, data, steps), data, characters_max)
    assert schema.protobuf is not None
    message_type = schema.protobuf.named(schema.message)
    return structured("protobuf", read_protobuf(message_type, data, steps), data, characters_max)


def _refuse_large(data: bytes) -> None:
    if len(data) > STRUCTURED_BYTES_MAX:
        raise DecodingError(f"it has more than {STRUCTURED_BYTES_MAX >> 20} MiB, so it is not decoded")
