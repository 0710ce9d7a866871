"""Builds the most expensive legal frame of any API and version, from the message classes.

A `Costly` object names the field of a request that fills the frame, an array or bytes, and the values of the other
fields. The rest comes from the schema: `costly_request` makes the smallest request that has the field. Then it
enlarges the field until the frame has the wanted size, or holds as many elements as a node decodes (`ELEMENTS_MAX`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import attrs

from odradek.wire.api import request_class, request_header_version
from odradek.wire.api_keys import ApiKey
from odradek.wire.codec import ELEMENTS_MAX, encode
from odradek.wire.messages.headers import RequestHeader
from odradek.wire.schema.anatomy_rows import ROWS
from odradek.wire.structure import Message, Structure, WireField, version_range

CLIENT_ID = "judge"
FRAME_OVERHEAD = 64

Value = Any
"""The value of a field: a constant, or a function that returns the value for a `Stage` and the index of the element."""


@attrs.frozen
class Stage:
    """Names and ids of things that exist on the measured node. Expensive frames refer to them."""

    wide: str
    """The name of a topic with half of the node's partitions."""
    wide_id: bytes
    wide_partitions: int
    narrow: tuple[str, ...]
    """The names of topics with one partition each."""
    narrow_ids: tuple[bytes, ...]
    group: str
    """The id of a group with a committed offset for each partition of `wide`."""
    groups: tuple[str, ...]
    member_id: str
    """The id of the only member of the group `groups[0]`, in the group's generation `generation_id`."""
    generation_id: int
    cluster_id: str
    second_broker_epoch: int
    """The epoch of broker 2, which is registered but does not exist."""
    log_dir: str
    transactional_id: str
    producer_id: int
    """The producer id that belongs to `transactional_id`. Its epoch is 0."""


THINGS = ("*",)
"""In `Costly.grow`, stands for the innermost arrays of a request. `odradek.wire.schema.anatomy_rows` lists these arrays
by API.
"""


def paths_of_things(api_key: int) -> tuple[str, ...]:
    """Return the paths of the innermost arrays in an API's requests, such as `topics.partitions`. The paths in the
    newest versions come first.
    """
    found = []
    for row in reversed(ROWS.get(ApiKey(api_key), ())):
        within = "" if row.within is None else f" / {row.within.things}"
        for things in row.things.split("+"):
            found.append(".".join(step.split()[0] for step in (things + within).split("/") if step.strip()))
    return tuple(path for path in found if path)


@attrs.frozen
class Costly:
    """The recipe of an expensive request of one API."""

    why: str
    """A sentence for the table: the work that the frame causes, and the element that the frame repeats."""
    grow: tuple[str, ...] = ()
    """Paths of arrays, strings or bytes (`topics.partitions`). The first of them that exists in a version fills the
    frame. `THINGS` means the paths from `paths_of_things`. With `body`, a path may also be an array of large
    elements.
    """
    values: Mapping[str, Value] = attrs.field(factory=dict)
    """Values by path. An array that is missing here has one element; other missing fields have their defaults."""
    name: str = ""
    """A name that distinguishes several expensive requests of one API."""
    body: Callable[[Stage, int], bytes] | None = None
    """A function that makes the bytes of the last field of `grow`, of about the given size; None if any bytes will
    do.
    """
    count: int = 0
    """An upper limit for the number of elements; 0 means no limit. It is set if more elements cost nothing more, or
    would change the node for good.
    """
    since: int = 0
    """The first version that can express this request."""
    needs_login: bool = False
    """True if only logged-in clients get an answer: the frame is then sent to the listener with logins."""


def _wire_field(attribute: attrs.Attribute[Any]) -> WireField:
    found: WireField = attribute.metadata["kafka"]
    return found


def _has(versions: str, version: int) -> bool:
    low, high = version_range(versions)
    return low <= version <= high


def fields_of(cls: type[Structure], version: int) -> Iterator[tuple[str, WireField]]:
    """Yield name and wire format of the fields that a version encodes."""
    for attribute in attrs.fields(cls):
        facts = _wire_field(attribute)
        if _has(facts.versions, version):
            yield attribute.name, facts


_Plan: TypeAlias = list[tuple[str, WireField, bool, "str | type[Structure]"]]
_plans: dict[tuple[type[Structure], int], _Plan] = {}
_growing_names: dict[type[Structure], list[str]] = {}


def _plan(cls: type[Structure], version: int) -> _Plan:
    """List the fields that a version encodes: (name, wire format, True for an array, type of the field or of the
    array's elements).
    """
    found = _plans.get((cls, version))
    if found is None:
        found = [(name, facts, *_element(facts)) for name, facts in fields_of(cls, version)]
        _plans[cls, version] = found
    return found


def _element(facts: WireField) -> tuple[bool, str | type[Structure]]:
    """Return (True for an array, type of the field or of the array's elements)."""
    if isinstance(facts.type, (str, type)):
        return False, facts.type
    return True, facts.type[0]


def paths_of(cls: type[Structure], version: int, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """Yield (path, True for an array) for each field that can grow in this version."""
    for name, facts in fields_of(cls, version):
        is_array, element = _element(facts)
        path = prefix + name
        if is_array or element in ("bytes", "records", "string"):
            yield path, is_array
        if not isinstance(element, str):
            yield from paths_of(element, version, path + ".")


class _Maker:
    """Makes one request, in which the field at the path `grown` has `count` elements or bytes."""

    def __init__(self, version: int, stage: Stage, line: Costly, grown: str, count: int) -> None:
        self.version = version
        self.stage = stage
        self.line = line
        self.grown = grown
        self.count = count

    def structure(self, cls: type[Structure], prefix: str, number: int) -> Structure:
        made = cls()
        for name, facts, is_array, element in _plan(cls, self.version):
            path = prefix + name
            if path in self.line.values and path != self.grown:
                value = self.value(path, number)
                setattr(made, name, [value] if is_array and isinstance(value, (str, int, bytes)) else value)
                continue
            if is_array:
                if facts.tagged and not self.grown.startswith(path):
                    continue
                count = self.count if path == self.grown else 1
                setattr(made, name, [self.element(element, path, number + each) for each in range(count)])
            elif path == self.grown:
                setattr(made, name, self.room(path, element))
            elif not isinstance(element, str) and not facts.nullable:
                setattr(made, name, self.structure(element, path + ".", number))
        return made

    def element(self, element: str | type[Structure], path: str, number: int) -> Any:
        if not isinstance(element, str):
            return self.structure(element, path + ".", number)
        if path in self.line.values:
            return self.value(path, number)
        return {"string": "", "bytes": b"", "uuid": bytes(16), "records": b""}.get(element, 0)

    def value(self, path: str, number: int) -> Any:
        value = self.line.values[path]
        return value(self.stage, number) if callable(value) else value

    def room(self, path: str, element: str | type[Structure]) -> Any:
        if self.line.body is not None:
            return self.line.body(self.stage, self.count)
        return "x" * self.count if element == "string" else bytes(self.count)


def growing(line: Costly, cls: type[Message]) -> tuple[str, ...]:
    """Return the paths in `line.grow` for requests of this class, with `THINGS` resolved."""
    if line.grow != THINGS:
        return line.grow
    assert cls.API_KEY is not None
    return paths_of_things(cls.API_KEY)


def grown_path(line: Costly, cls: type[Message], version: int) -> str | None:
    """Return the first path of `grow` that exists in this version; None if there is none."""
    present = {path for path, _ in paths_of(cls, version)}
    return next((path for path in growing(line, cls) if path in present), None)


def costly_request(line: Costly, api_key: int, version: int, bytes_max: int, stage: Stage) -> Message:
    """Build an expensive request whose frame has at most about `bytes_max` bytes. (The smallest possible one may have
    more.)
    """
    return _costly(line, api_key, version, bytes_max, stage)[0]


def costly_frame(
    line: Costly, api_key: int, version: int, bytes_max: int, stage: Stage
) -> tuple[bytes, Message]:
    """Build an expensive request as `costly_request` does; return its frame and the request."""
    request, body = _costly(line, api_key, version, bytes_max, stage)
    return _frame(api_key, version, 7, body), request


def _costly(line: Costly, api_key: int, version: int, bytes_max: int, stage: Stage) -> tuple[Message, bytes]:
    """Build an expensive request, and return it with its encoded body."""
    cls = request_class(api_key)
    grown = grown_path(line, cls, version)

    def make(count: int) -> Message:
        made = _Maker(version, stage, line, grown or "", count).structure(cls, "", 0)
        assert isinstance(made, Message)
        return made

    def encoded(count: int) -> tuple[Message, bytes]:
        made = make(count)
        return made, encode(made, version)

    if grown is None:
        return encoded(1)
    is_array = dict(paths_of(cls, version))[grown]
    room = bytes_max - FRAME_OVERHEAD
    if not is_array:
        smallest = len(encode(make(0), version)) if line.body is None else 0
        room = min(room, 32_767 + smallest) if _type_at(cls, grown, version) == "string" else room
        return encoded(max(0, room - smallest - 8))
    few, many = (len(encode(make(count), version)) for count in (1, 65))
    elements = (count_elements(make(65)) - count_elements(make(1))) // 64
    most = (ELEMENTS_MAX - 64) // max(1, elements)
    if line.count:
        most = min(most, line.count)
    count = max(1, min(most, (room - few) * 64 // max(1, many - few)))
    while True:
        made, body = encoded(count)
        if len(body) <= room or count == 1:
            return made, body
        count = max(1, min(count - 1, count * room // len(body)))


def _type_at(cls: type[Structure], path: str, version: int) -> str | type[Structure]:
    name, _, rest = path.partition(".")
    element = _element(dict(fields_of(cls, version))[name])[1]
    if not rest:
        return element
    assert not isinstance(element, str)
    return _type_at(element, rest, version)


def framed(message: Message, version: int, correlation_id: int = 7) -> bytes:
    """Encode a request as a frame, with size and header."""
    assert message.API_KEY is not None
    return _frame(message.API_KEY, version, correlation_id, encode(message, version))


def _frame(api_key: int, version: int, correlation_id: int, body: bytes) -> bytes:
    header = RequestHeader(api_key, version, correlation_id, CLIENT_ID)
    payload = encode(header, request_header_version(api_key, version)) + body
    return len(payload).to_bytes(4, "big") + payload


def _growing(cls: type[Structure]) -> list[str]:
    """Return the names of the fields of a class that are arrays or structures."""
    names = _growing_names.get(cls)
    if names is None:
        names = _growing_names[cls] = []
        for attribute in attrs.fields(cls):
            is_array, element = _element(_wire_field(attribute))
            if is_array or not isinstance(element, str):
                names.append(attribute.name)
    return names


def count_elements(message: Any) -> int:
    """Count the array elements of a message, including nested ones."""
    found = 0
    for name in _growing(type(message)):
        value = getattr(message, name)
        if isinstance(value, list):
            found += len(value)
            if value and isinstance(value[0], Structure) and _growing(type(value[0])):
                found += sum(map(count_elements, value))
        elif isinstance(value, Structure):
            found += count_elements(value)
    return found
