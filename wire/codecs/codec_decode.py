"""Writes the straight-line source of one decoder: one message class at one version.

Theory of operation
===================
The function reads from a memoryview `buf` at offset `o`, up to `end`. The code for inner structures is
inlined. An array is read by a loop. No function is called for a single field.

- Neighbouring fields of fixed size make up a *run*, which one `struct.Struct` reads at once. If a string or
  an array follows a run, its length or count belongs to the run. So does the count of tagged fields at the
  end of a structure.
- The first byte of a compact length belongs to the run. If the byte's high bit is set, a function reads the
  further bytes.
- Bounds: beyond the end of the buffer, `unpack_from` and `buf[o]` raise errors, which the function turns into
  MalformedMessage. A slice of a memoryview would be silently too short, so its end is compared with `end`
  first. This comparison also refuses a negative length, which means null, if the field may not be null.
- Memory: before an array is read, its count is compared with the remaining bytes. The count is refused if the
  array could not fit, even if each element had the least size.
- Elements: a decoder may have a limit for the number of elements. Then each count of an array or of tagged
  fields is subtracted from the rest of the limit. A decoder without a limit lacks this code. It is safe for a
  message with fewer bytes than the allowed number of elements, because each element takes at least one byte.
- Tagged fields get their defaults first and are then overwritten; unknown tags are skipped. A known tag must
  end where its size says.

Deliberately absent: checks of values. A decoder checks the form of a message, not its meaning.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, unpack_from
from struct import error as struct_error
from typing import Any

from odradek.wire.codecs.codec_plan import (
    FIXED,
    STRING_LENGTH_MAX,
    PlannedField,
    element_size_min,
    is_flexible,
    planned_fields,
    tagged,
    untagged,
)
from odradek.wire.errors import MalformedMessage, TooManyElements
from odradek.wire.primitives import read_uvarint_rest
from odradek.wire.structure import Message, Structure


def _skip_tags(buf: memoryview, o: int, count: int) -> int:
    """Skip `count` tagged fields that begin at `o`, and return the offset behind them. Raises IndexError at
    the end of the buffer.
    """
    end = len(buf)
    for _ in range(count):
        if buf[o] > 127:
            _, o = read_uvarint_rest(buf, o + 1, buf[o])
        else:
            o += 1
        size = buf[o]
        o += 1
        if size > 127:
            size, o = read_uvarint_rest(buf, o, size)
        o += size
        if o > end:
            raise MalformedMessage("a tagged field runs past the end of the message")
    return o


class _DecoderSource:
    """Collects the source lines of one decoder, and the objects that these lines refer to by name."""

    def __init__(
        self,
        cls: type[Message],
        version: int,
        elements_max: int | None = None,
        counts: bool = False,
    ) -> None:
        self.cls = cls
        self.version = version
        self.elements_max = elements_max
        self.counts = counts
        self.flexible = is_flexible(cls, version)
        self.indent = 2
        self.lines: list[str] = []
        self.run: list[tuple[str, str, int]] = []
        self.variables = 0
        self.names: dict[str, Any] = {
            "Malformed": MalformedMessage,
            "TooMany": TooManyElements,
            "read_rest": read_uvarint_rest,
            "skip_tags": _skip_tags,
            "unpack_from": unpack_from,
            "faults": (IndexError, struct_error, UnicodeDecodeError),
        }

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def variable(self, prefix: str) -> str:
        self.variables += 1
        return f"{prefix}_{self.variables}"

    def struct(self, layout: str) -> str:
        name = "unpack_" + layout.replace("?", "bool")
        self.names[name] = Struct(f">{layout}").unpack_from
        return name

    def class_name(self, structure: type[Structure]) -> str:
        self.names[structure.__name__] = structure
        return structure.__name__

    def flush(self) -> None:
        """Write the code that reads the fields of the current run, and begin a new run."""
        if not self.run:
            return
        targets = ", ".join(target for target, _, _ in self.run)
        layout = "".join(code for _, code, _ in self.run)
        size = sum(size for _, _, size in self.run)
        self.run.clear()
        if layout == "B":
            self.line(f"{targets} = buf[o]; o += 1")
        else:
            comma = "" if "," in targets else ","
            self.line(f"{targets}{comma} = {self.struct(layout)}(buf, o); o += {size}")

    def refuse(self, what: str) -> None:
        self.line(f"    raise Malformed({self.cls.__name__ + ': ' + what!r})")

    def structure(self, structure: type[Structure]) -> str:
        """Write the code that reads a structure's fields. Returns the expression that makes the structure
        from them.
        """
        fields = planned_fields(structure, self.version, self.flexible)
        targets = {field.name: self.variable(field.name) for field in fields if field.present}
        for field in untagged(fields):
            self.field(field, targets[field.name])
        if self.flexible:
            self.tags(tagged(fields), targets)
        self.flush()
        arguments = [targets.get(field.name) or self.default(field) for field in fields]
        return f"{self.class_name(structure)}({', '.join(arguments)})"

    def default(self, field: PlannedField) -> str:
        if field.default is list:
            return "[]"
        if field.structure is not None and field.default is field.structure:
            return f"{self.class_name(field.structure)}()"
        return repr(field.default)

    def field(self, field: PlannedField, target: str) -> None:
        fixed = field.fixed
        if fixed is not None:
            self.run.append((target, *fixed))
        elif field.is_array:
            self.array(field, target)
        elif field.structure is not None:
            self.nested(field, field.structure, target)
        else:
            self.span(field, target)

    def nested(self, field: PlannedField, structure: type[Structure], target: str) -> None:
        if not field.nullable:
            # Do not end the run here: the fields of the structure continue it.
            self.line(f"{target} = {self.structure(structure)}")
            return
        # A null struct is -1 as a plain field and 0 in a tagged field; Kafka reads any other byte as "present".
        flag = self.variable("flag")
        self.run.append((flag, "b", 1))
        self.flush()
        self.line(f"if {flag} {'< 0' if field.tag < 0 else '== 0'}:")
        self.line(f"    {target} = None")
        self.line("else:")
        self.indent += 1
        self.line(f"{target} = {self.structure(structure)}")
        self.indent -= 1

    def length(self, field: PlannedField, width: str) -> str:
        """Write the code that reads a length. Returns the variable that holds it; for a compact length, it
        holds the length plus one.
        """
        n = self.variable("n")
        if field.compact:
            self.run.append((n, "B", 1))
            self.flush()
            self.line(f"if {n} > 127:")
            if field.type == "records":
                self.records_length(n)
            else:
                self.line(f"    {n}, o = read_rest(buf, o, {n})")
            if field.type == "string" and not field.is_array:
                self.line(f"    if {n} > {STRING_LENGTH_MAX + 1}:")
                self.line(f"        raise Malformed({f'{self.cls.__name__}: {field.name} is too long'!r})")
        else:
            self.run.append((n, width, 2 if width == "h" else 4))
            self.flush()
        return n

    def records_length(self, n: str) -> None:
        """Write the code that reads the further bytes of a compact length of records. The code for lengths of
        two or three bytes is inlined, because most lengths of records have as many.
        """
        second, third = self.variable("b"), self.variable("b")
        self.indent += 1
        self.line(f"{second} = buf[o]")
        self.line(f"if {second} < 128:")
        self.line(f"    {n} += ({second} << 7) - 0x80; o += 1")
        self.line("else:")
        self.line(f"    {third} = buf[o + 1]")
        self.line(f"    if {third} < 128: {n} += ({second} << 7) + ({third} << 14) - 0x4080; o += 2")
        self.line(f"    else: {n}, o = read_rest(buf, o, {n})")
        self.indent -= 1

    def when_not_null(self, field: PlannedField, n: str, target: str) -> None:
        """Write the branch that sets the target to null, and begin the branch for a value that is not null."""
        if field.nullable:
            self.line(f"if {n} {'== 0' if field.compact else '< 0'}:")
            self.line(f"    {target} = None")
            self.line("else:")
            self.indent += 1

    def span(self, field: PlannedField, target: str) -> None:
        """Write the code that reads a string, bytes or records: a length, and that many bytes."""
        n = self.length(field, "h" if field.type == "string" else "i")
        self.when_not_null(field, n, target)
        self.bytes_of(field, n, target)
        if field.nullable:
            self.indent -= 1

    def bytes_of(self, field: PlannedField, n: str, target: str) -> None:
        e = self.variable("e")
        self.line(f"{e} = o + {n} - 1" if field.compact else f"{e} = o + {n}")
        self.line(f"if not o <= {e} <= end:")
        self.refuse(f"{field.name} is null, or runs past the end of the message")
        # tobytes().decode() needs only two thirds of the time that str(view, "utf-8") needs.
        value = {
            "string": f"buf[o:{e}].tobytes().decode()",
            "bytes": f"buf[o:{e}].tobytes()",
            "records": f"buf[o:{e}]",
        }
        self.line(f"{target} = {value[field.type]}; o = {e}")

    def array(self, field: PlannedField, target: str) -> None:
        n = self.length(field, "i")
        self.when_not_null(field, n, target)
        if field.compact:
            self.line(f"{n} -= 1")
        size = element_size_min(field, self.version, self.flexible)
        self.line(f"if not 0 <= {n}{f' * {size}' if size > 1 else ''} <= end - o:")
        self.refuse(f"{field.name} is null or has more elements than the message has bytes")
        self.take_elements(n)
        fixed = FIXED.get(field.type)
        if fixed is not None and field.type != "uuid":
            code, width = fixed
            self.line(f"{target} = list(unpack_from(f'>{{{n}}}{code}', buf, o)); o += {n} * {width}")
        else:
            self.line(f"{target} = []")
            self.line(f"for _ in range({n}):")
            self.indent += 1
            element = self.variable(field.name)
            if field.structure is not None:
                element = self.structure(field.structure)
            else:
                self.field(field._replace(is_array=False, nullable=False), element)
                self.flush()
            self.line(f"{target}.append({element})")
            self.indent -= 1
        if field.nullable:
            self.indent -= 1

    def take_elements(self, n: str) -> None:
        """Write the code that subtracts a number of elements from the remaining bound. A decoder without a
        bound gets no such code.
        """
        if self.elements_max is not None:
            self.line(f"left -= {n}")
            self.line("if left < 0:")
            text = f"{self.cls.__name__}: more than {self.elements_max} elements are in its arrays"
            self.line(f"    raise TooMany({text!r})")

    def count_tags(self, count: str) -> None:
        """Write the code that reads the further bytes of a number of tagged fields, and subtracts the number
        from the remaining bound.
        """
        self.line(f"if {count} > 127: {count}, o = read_rest(buf, o, {count})")
        self.take_elements(count)

    def tags(self, fields: list[PlannedField], targets: dict[str, str]) -> None:
        """Write the code that reads the tagged fields behind a structure."""
        count = self.variable("tags")
        self.run.append((count, "B", 1))
        self.flush()
        if not fields:
            self.line(f"if {count}:")
            self.indent += 1
            self.count_tags(count)
            self.line(f"o = skip_tags(buf, o, {count})")
            self.indent -= 1
            return
        for field in fields:
            self.line(f"{targets[field.name]} = {self.default(field)}")
        tag, size, stop = self.variable("tag"), self.variable("size"), self.variable("stop")
        self.line(f"if {count}:")
        self.indent += 1
        self.count_tags(count)
        self.line(f"for _ in range({count}):")
        self.indent += 1
        for name in (tag, size):
            self.line(f"{name} = buf[o]; o += 1")
            self.line(f"if {name} > 127: {name}, o = read_rest(buf, o, {name})")
        self.line(f"{stop} = o + {size}")
        self.line(f"if {stop} > end:")
        self.refuse("a tagged field runs past the end of the message")
        word = "if"
        for field in fields:
            self.line(f"{word} {tag} == {field.tag}:")
            self.indent += 1
            self.field(field, targets[field.name])
            self.flush()
            self.line(f"if o != {stop}:")
            self.refuse(f"the tagged field {field.name} does not have its stated size")
            self.indent -= 1
            word = "elif"
        self.line("else:")
        self.line(f"    o = {stop}")
        self.indent -= 2

    def source(self) -> str:
        """Write the source of the whole decoder."""
        result = self.structure(self.cls)
        second = f"{self.elements_max} - left" if self.counts else "o"
        head = [
            "def decode(buf, o):",
            "    if type(buf) is not memoryview: buf = memoryview(buf)",
            "    end = len(buf)",
            *([] if self.elements_max is None else [f"    left = {self.elements_max}"]),
            "    try:",
        ]
        tail = [
            f"        return {result}, {second}",
            "    except faults as fault:",
            f"        raise Malformed(f'{self.cls.__name__} version {self.version}: {{fault}}') from None",
        ]
        return "\n".join([*head, *self.lines, *tail, ""])


def decoder_source(cls: type[Message], version: int) -> str:
    """Write the source of a decoder without compiling it, so that people can read and measure it."""
    return _DecoderSource(cls, version).source()


def make_decoder(
    cls: type[Message], version: int, elements_max: int | None = None, *, counts: bool = False
) -> Callable[..., Any]:
    """Compile the decoder of one message class at one version. The decoder refuses more than `elements_max`
    array elements in all.

    The decoder returns the message and the offset behind it; with `counts`, the message and the number of its
    array elements.
    """
    source = _DecoderSource(cls, version, elements_max, counts)
    text = source.source()
    exec(compile(text, f"<decoder of {cls.__name__} version {version}>", "exec"), source.names)
    function: Callable[..., Any] = source.names["decode"]
    return function
