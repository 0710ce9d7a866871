"""Reproducible values for every message class and version, for tests that cover all of them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from random import Random
from typing import Any

import attrs

from odradek.wire.error_codes import ErrorCode
from odradek.wire.schema.generate import module_of
from odradek.wire.schema.table import messages
from odradek.wire.structure import Message, Structure, WireField, version_range

INTEGERS = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
    "int64": (-(2**63), 2**63 - 1),
}
TIME_MAX_MS = 4_102_444_800_000
"""The year 2100. Later times lose milliseconds in oracles that use floating point."""
ERROR_CODES = [code for code in ErrorCode if code <= ErrorCode.REBOOTSTRAP_REQUIRED]


@attrs.frozen
class Shape:
    """The sizes and probabilities from which a message's values are drawn."""

    name: str
    array_sizes: tuple[int, ...]
    string_sizes: tuple[int, ...]
    null: float
    """The probability that a nullable field is null."""
    tagged: float
    """The probability that a tagged field gets a value."""


SHAPES = (
    Shape("empty", array_sizes=(0,), string_sizes=(0,), null=1.0, tagged=0.0),
    Shape("single", array_sizes=(1,), string_sizes=(1, 5, 40), null=0.0, tagged=1.0),
    Shape("several", array_sizes=(0, 1, 2, 3), string_sizes=(0, 1, 30, 127, 128), null=0.3, tagged=0.5),
)
OWN_TAG_MIN = 79
"""Tagged fields with this tag or higher belong to Odradek."""

LONG = Shape("long", array_sizes=(1, 130), string_sizes=(126, 127, 128, 300, 20_000), null=0.1, tagged=0.7)


def all_classes() -> Iterator[type[Message]]:
    """Yield every message class in the tables."""
    for fact in messages():
        yield getattr(import_module(f"odradek.wire.messages.{module_of(fact)}"), fact.name)


def all_versions() -> Iterator[tuple[type[Message], int]]:
    """Yield every message class with each of its versions."""
    for cls in all_classes():
        first, last = cls.VALID_VERSIONS
        for version in range(first, last + 1):
            yield cls, version


def contains(text: str, version: int) -> bool:
    first, last = version_range(text)
    return first <= version <= last


class Values:
    """A generator of messages of one version.

    With `foreign`, other implementations can read them: only existing error codes and plausible times, and no fields of
    Odradek.
    """

    def __init__(self, version: int, shape: Shape, seed: str, foreign: bool = False) -> None:
        self.version = version
        self.shape = shape
        self.random = Random(seed)
        self.foreign = foreign
        self.depth = 0

    def structure(self, cls: type[Structure]) -> Any:
        return cls(
            **{
                attribute.name: self.field(attribute.name, attribute.metadata["kafka"])
                for attribute in attrs.fields(cls)
                if self.chosen(attribute.metadata["kafka"])
            }
        )

    def chosen(self, fact: WireField) -> bool:
        if not contains(fact.versions, self.version) or (self.foreign and fact.tag >= OWN_TAG_MIN):
            return False
        return not contains(fact.tagged, self.version) or self.random.random() < self.shape.tagged

    def field(self, name: str, fact: WireField) -> Any:
        if contains(fact.nullable, self.version) and self.random.random() < self.shape.null:
            return None
        if isinstance(fact.type, (str, type)):
            return self.value(name, fact.type)
        # Only outermost arrays may be large, so that sizes do not multiply.
        size = min(self.random.choice(self.shape.array_sizes), 3 if self.depth else 1000)
        self.depth += 1
        elements = [self.value(name, fact.type[0]) for _ in range(size)]
        self.depth -= 1
        return elements

    def value(self, name: str, kind: str | type[Structure]) -> Any:
        if not isinstance(kind, str):
            return self.structure(kind)
        random = self.random
        if kind in INTEGERS:
            return self.integer(name, kind)
        match kind:
            case "bool":
                return random.random() < 0.5
            case "float64":
                return random.choice((0.0, -1.5, 1e300, random.random()))
            case "uuid":
                return random.choice((bytes(16), random.randbytes(16)))
            case "string":
                size = random.choice(self.shape.string_sizes)
                return "".join(random.choices("abc-._09é水", k=size))[: self.characters(size)]
            case _:
                return random.randbytes(random.choice(self.shape.string_sizes))

    def characters(self, size: int) -> int:
        return size if size < 10_000 else size // 3

    def integer(self, name: str, kind: str) -> int:
        low, high = INTEGERS[kind]
        random = self.random
        if self.foreign:
            if "error_code" in name and kind == "int16":
                return random.choice(ERROR_CODES)
            if name.endswith(("_ms", "timestamp")):
                low, high = 0, min(high, TIME_MAX_MS)
        return random.choice((low, high, 0, 1, random.randint(low, high), random.randint(0, min(high, 1000))))


def generated(
    cls: type[Message], version: int, shapes: tuple[Shape, ...] = SHAPES, foreign: bool = False
) -> list[Any]:
    """Return a message with default values, and one for each shape."""
    made = [
        Values(version, shape, f"{cls.__name__} {version} {shape.name}", foreign).structure(cls)
        for shape in shapes
    ]
    return [cls(), *made]
