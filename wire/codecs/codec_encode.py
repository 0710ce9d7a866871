"""Writes the straight-line source of one encoder: one message class at one version.

As in `codec_decode`, neighbouring fields of fixed size make up a run, which one `struct.Struct` packs. If a
length follows the fields, it belongs to the run. So does a zero that means "no tagged fields". A tagged field
is left out when it has its default, as in Kafka. A tagged structure whose fields all have a fixed size is
packed together with its tag and size. Any other tagged field is first encoded into a buffer of its own,
because its size must be written before it.

A `records` field takes bytes, or a *spill*: any other object with a length (a range of a file, say). For a spill,
only the length is written, and its position is returned to the caller, who sends the object's bytes there.

Fields that the version does not have are left out silently, whatever their value.

A counting encoder also counts the error codes that it writes. It reads each error code anyway. Counting in a
separate pass over the response would take half as long as the whole encoding.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, pack
from struct import error as struct_error
from typing import Any

from odradek.wire.codecs.codec_plan import (
    FIXED,
    STRING_LENGTH_MAX,
    PlannedField,
    is_flexible,
    planned_fields,
    tagged,
    untagged,
)
from odradek.wire.errors import LocalProtocolError
from odradek.wire.primitives import write_uvarint
from odradek.wire.structure import Message, Structure

ERROR_FIELDS = frozenset({"error_code", "partition_error_code"})
"""The names of fields whose codes a counting encoder counts. `topic_config_error_code` is left out, because
it is no failure of a request: it only explains why configurations are missing.
"""


def _write_length(w: bytearray, n: int) -> None:
    """Append a compact length `n` that takes more than one byte."""
    if n < 0x4000:
        w.append(n & 0x7F | 0x80)
        w.append(n >> 7)
    else:
        write_uvarint(w, n)


def _write_string_length(w: bytearray, n: int) -> None:
    """Append a compact string length that takes more than one byte; on the wire it is one higher than the length."""
    if n > STRING_LENGTH_MAX + 1:
        raise LocalProtocolError(f"a string of {n - 1} bytes is too long for its field")
    _write_length(w, n)


def _tag_bytes(tag: int) -> bytes:
    """Encode a tag as a varint: one byte up to 127."""
    w = bytearray()
    write_uvarint(w, tag)
    return bytes(w)


class _EncoderSource:
    """Collects the source lines of one encoder, and the objects that these lines refer to by name."""

    def __init__(self, cls: type[Message], version: int, counts_errors: bool = False) -> None:
        self.cls = cls
        self.version = version
        self.counts_errors = counts_errors
        self.flexible = is_flexible(cls, version)
        self.indent = 2
        self.lines: list[str] = []
        self.run: list[tuple[str, str]] = []
        self.writer = "w"
        self.variables = 0
        self.names: dict[str, Any] = {
            "LocalError": LocalProtocolError,
            "write_length": _write_length,
            "write_string_length": _write_string_length,
            "pack": pack,
            "buffers": (bytes, bytearray, memoryview),
            "faults": (struct_error, TypeError, AttributeError, UnicodeEncodeError),
        }

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def variable(self, prefix: str) -> str:
        self.variables += 1
        return f"{prefix}_{self.variables}"

    def packed(self, run: list[tuple[str, str]]) -> str:
        """Write the expression that packs a run of (struct format, expression) pairs. An empty expression
        means a zero byte.
        """
        layout = "".join(code for code, _ in run)
        values = [value for _, value in run if value]
        if not values:
            return repr(bytes(len(run)))
        name = "pack_" + layout.replace("?", "bool")
        self.names[name] = Struct(f">{layout}").pack
        return f"{name}({', '.join(values)})"

    def write(self, run: list[tuple[str, str]]) -> None:
        if not run:
            return
        if len(run) == 1 and run[0][0] in "Bx":
            self.line(f"{self.writer}.append({run[0][1] or 0})")
        else:
            self.line(f"{self.writer} += {self.packed(run)}")

    def flush(self) -> None:
        self.write(self.run)
        self.run = []

    def length(self, field: PlannedField, value: str, width: str, run: list[tuple[str, str]]) -> None:
        """Write the code that encodes a run, followed by the length of `value`."""
        if not field.compact:
            self.write([*run, (width, f"len({value})")])
            return
        n = self.variable("n")
        long = "write_string_length" if field.type == "string" and not field.is_array else "write_length"
        self.line(f"{n} = len({value}) + 1")
        self.line(f"if {n} < 128:")
        self.indent += 1
        self.write([*run, ("B", n)])
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.write(run)
        self.line(f"{long}({self.writer}, {n})")
        self.indent -= 1

    def structure(self, structure: type[Structure], source: str) -> None:
        """Write the code that encodes a structure's fields, which are attributes of the variable `source`.
        The last run may stay open for further fields.
        """
        fields = planned_fields(structure, self.version, self.flexible)
        for field in untagged(fields):
            self.field(field, f"{source}.{field.name}")
        if self.flexible:
            self.tags(tagged(fields), source)

    def field(self, field: PlannedField, value: str) -> None:
        fixed = field.fixed
        if fixed is not None:
            self.run.append((fixed[0], value))
            if self.counts_errors and field.name in ERROR_FIELDS:
                self.line(f"if {value}: errors[{value}] = errors.get({value}, 0) + 1")
        elif field.structure is not None and not field.is_array:
            self.nested(field, field.structure, value)
        else:
            self.sized(field, value)

    def nested(self, field: PlannedField, structure: type[Structure], value: str) -> None:
        local = self.variable(field.name)
        self.line(f"{local} = {value}")
        if not field.nullable:
            self.structure(structure, local)
            return
        run, self.run = self.run, []
        self.line(f"if {local} is None:")
        self.indent += 1
        self.write([*run, ("b", "-1") if field.tag < 0 else ("x", "")])
        self.indent -= 1
        self.line("else:")
        self.indent += 1
        self.run = [*run, ("b", "1")]
        self.structure(structure, local)
        self.flush()
        self.indent -= 1

    def sized(self, field: PlannedField, value: str) -> None:
        """Write the code that encodes a string, bytes, records or an array: a length and the elements."""
        local = self.variable(field.name)
        width = "h" if field.type == "string" and not field.is_array else "i"
        self.line(f"{local} = {value}")
        run, self.run = self.run, []
        if field.nullable:
            self.line(f"if {local} is None:")
            self.indent += 1
            self.write([*run, ("x", "") if field.compact else (width, "-1")])
            self.indent -= 1
            self.line("else:")
            self.indent += 1
        if field.is_array:
            self.elements(field, local, run)
        else:
            if field.type == "string":
                self.line(f"{local} = {local}.encode()")
            self.length(field, local, width, run)
            if field.type == "records":
                self.records(local)
            else:
                self.line(f"{self.writer} += {local}")
        if field.nullable:
            self.indent -= 1

    def records(self, local: str) -> None:
        self.line(f"if type({local}) in buffers: {self.writer} += {local}")
        self.line(f"elif spills is not None: spills.append((len({self.writer}), {local}))")
        self.line("else: raise LocalError('records that are no bytes, and no list to note them in')")

    def elements(self, field: PlannedField, local: str, run: list[tuple[str, str]]) -> None:
        fixed = FIXED.get(field.type)
        if fixed is not None and field.type != "uuid":
            if field.compact:
                self.length(field, local, "i", run)
                self.line(f"{self.writer} += pack(f'>{{len({local})}}{fixed[0]}', *{local})")
            else:
                self.write(run)
                self.line(f"{self.writer} += pack(f'>i{{len({local})}}{fixed[0]}', len({local}), *{local})")
            return
        self.length(field, local, "i", run)
        element = self.variable(field.name)
        self.line(f"for {element} in {local}:")
        self.indent += 1
        before = len(self.lines)
        if field.structure is not None:
            self.structure(field.structure, element)
        else:
            self.field(field._replace(is_array=False, nullable=False), element)
        self.flush()
        if len(self.lines) == before:
            self.line("pass")
        self.indent -= 1

    def tags(self, fields: list[PlannedField], source: str) -> None:
        if not fields:
            self.run.append(("x", ""))
            return
        flags = []
        for field in fields:
            local, flag = self.variable(field.name), self.variable("set")
            self.line(f"{local} = {source}.{field.name}")
            self.line(f"{flag} = {self.differs(field, local)}")
            flags.append((field, local, flag))
        run, self.run = self.run, []
        total = " + ".join(flag for _, _, flag in flags)
        self.write([*run, ("B", total)])
        for field, local, flag in flags:
            self.line(f"if {flag}:")
            self.indent += 1
            self.tagged_field(field, local)
            self.indent -= 1

    def tagged_field(self, field: PlannedField, local: str) -> None:
        run = self.fixed_run(field, local)
        if run is not None:
            size = Struct(">" + "".join(code for code, _ in run)).size
            self.write([*(("B", str(byte)) for byte in _tag_bytes(field.tag)), ("B", str(size)), *run])
            return
        outer, self.writer = self.writer, self.variable("w")
        self.line(f"{self.writer} = bytearray()")
        self.field(field, local)
        self.flush()
        inner, self.writer = self.writer, outer
        n = self.variable("n")
        self.line(f"{n} = len({inner})")
        put = "; ".join(f"{outer}.append({byte})" for byte in _tag_bytes(field.tag))
        self.line(f"if {n} < 128:")
        self.line(f"    {put}; {outer}.append({n})")
        self.line("else:")
        self.line(f"    {put}; write_length({outer}, {n})")
        self.line(f"{outer} += {inner}")

    def fixed_run(self, field: PlannedField, value: str) -> list[tuple[str, str]] | None:
        """Return the run that encodes a field whose type always has the same size; None for other fields."""
        if field.fixed is not None:
            return [(field.fixed[0], value)]
        if field.structure is None or field.is_array or field.nullable:
            return None
        run: list[tuple[str, str]] = []
        parts = planned_fields(field.structure, self.version, self.flexible)
        if tagged(parts):
            return None
        for part in untagged(parts):
            inner = self.fixed_run(part, f"{value}.{part.name}")
            if inner is None:
                return None
            run += inner
        return [*run, ("x", "")]

    def differs(self, field: PlannedField, value: str) -> str:
        """Write the expression that is true if a field has another value than its default."""
        if field.default is None:
            return f"{value} is not None"
        if field.default is list:
            other = f"len({value}) != 0"
        elif field.structure is not None:
            parts = planned_fields(field.structure, self.version, self.flexible)
            other = "(" + " or ".join(self.differs(part, f"{value}.{part.name}") for part in parts) + ")"
        else:
            return f"{value} != {field.default!r}"
        return f"({value} is None or {other})" if field.nullable else other

    def source(self) -> str:
        """Write the source of the whole encoder."""
        self.structure(self.cls, "m")
        self.flush()
        parameters = "w, m, spills, errors" if self.counts_errors else "w, m, spills=None"
        head = [f"def encode({parameters}):", "    try:"]
        tail = [
            "        return",
            "    except faults as fault:",
            f"        raise LocalError(f'{self.cls.__name__} version {self.version}: {{fault}}') from fault",
        ]
        return "\n".join([*head, *self.lines, *tail, ""])


def make_encoder(cls: type[Message], version: int, counts_errors: bool = False) -> Callable[..., None]:
    """Compile the encoder of one message class at one version. With `counts_errors`, the encoder has a fourth
    argument: the dictionary in which it counts error codes.
    """
    source = _EncoderSource(cls, version, counts_errors)
    text = source.source()
    exec(compile(text, f"<encoder of {cls.__name__} version {version}>", "exec"), source.names)
    function: Callable[..., None] = source.names["encode"]
    return function
