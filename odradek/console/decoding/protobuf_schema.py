"""Compiles Protobuf schemas at run time. SHELL.

Google's compiler (`grpcio-tools`) reads the text of a schema in a process of its own. Whatever a hostile
schema does to it, the console lives on. Its result, a set of descriptors, is read here. Each schema has a pool
of its own, so that schemas of different subjects may define the same names.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from odradek.console.decoding.decoded import CannotDecodeNow, DecodingError

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
    from google.protobuf.message import Message

__all__ = ["ProtobufSchema", "compile_protobuf"]

COMPILE_SECONDS_MAX = 10.0
_MAIN = "odradek_main.proto"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,15}")
_NAME_MAX = 200
_OF_NAMES = frozenset((errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ENOTDIR))
"""The errors of a schema whose import has the name of another one's directory."""


@attrs.frozen(eq=False)
class ProtobufSchema:
    """A compiled schema."""

    _file: FileDescriptorProto
    _messages: Mapping[str, type[Message]]
    """A class for each message of the schema's own file, by its full name."""

    def at(self, path: Sequence[int]) -> type[Message]:
        """Return the class of a message by its place: the index in the file, then in each enclosing message.

        Raises `DecodingError`.
        """
        names = [self._file.package] if self._file.package else []
        level: Sequence[DescriptorProto] = self._file.message_type
        for index in path:
            if not 0 <= index < len(level):
                raise DecodingError(f"the Protobuf schema has no message at the place {list(path)}")
            names.append(level[index].name)
            # Confluent's Java serializer numbers the messages that the text defines, so entries of maps do not count.
            level = [each for each in level[index].nested_type if not each.options.map_entry]
        return self.named(".".join(names))

    def named(self, name: str | None) -> type[Message]:
        """Return the class of a message by its full name; None is the first message. Raises `DecodingError`."""
        if name is None:
            return self.at([0])
        found = self._messages.get(name)
        if found is None:
            known = ", ".join(list(self._messages)[:20])
            raise DecodingError(f"the Protobuf schema has no message {name[:200]!r} (it has {known})")
        return found


def compile_protobuf(text: str, imports: Mapping[str, str] | None = None) -> ProtobufSchema:
    """Compile a schema. `imports` has the text of each imported file by its name. Raises `DecodingError`, and
    `CannotDecodeNow` if the compiler lacks time, memory, or room for its files.
    """
    files = {**(imports or {}), _MAIN: text}
    for name in files:
        if len(name) > _NAME_MAX or not _NAME.fullmatch(name):
            raise DecodingError(f"the Protobuf schema imports {name[:100]!r}, which is no name of a file")
    try:
        with tempfile.TemporaryDirectory(prefix="odradek-console-") as directory:
            root = Path(directory)
            for name, content in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content, encoding="utf-8", errors="replace")
            compiled = _compiled(root)
    except OSError as error:
        kind = DecodingError if error.errno in _OF_NAMES else CannotDecodeNow
        raise kind(f"the Protobuf schema cannot be compiled: {error.strerror}") from None
    return _read(compiled)


def _compiled(root: Path) -> bytes:
    result = root / "odradek_result.bin"
    words = ["-I", str(root), "--include_imports", f"--descriptor_set_out={result}", _MAIN]
    command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, stdin=subprocess.DEVNULL, timeout=COMPILE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise CannotDecodeNow("the Protobuf schema was not compiled in time") from None
    if done.returncode < 0:
        raise CannotDecodeNow(f"the Protobuf compiler was ended by the signal {-done.returncode}")
    if done.returncode != 0:
        reason = done.stderr.decode(errors="replace").replace(_MAIN, "the schema").strip()
        if "No module named" in reason:
            reason = "grpcio-tools is not installed (pip install 'odradek[console-protobuf]')"
        kind = CannotDecodeNow if os.strerror(errno.ENOSPC) in reason else DecodingError
        raise kind(f"the Protobuf schema cannot be compiled: {reason[:400]}")
    return result.read_bytes()


def _read(data: bytes) -> ProtobufSchema:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
        from google.protobuf.message import DecodeError
    except ImportError:
        raise DecodingError("protobuf is not installed (pip install 'odradek[console-protobuf]')") from None
    pool = descriptor_pool.DescriptorPool()
    try:
        described = descriptor_pb2.FileDescriptorSet.FromString(data)
        for file in described.file:
            pool.AddSerializedFile(file.SerializeToString())
    except (TypeError, ValueError, DecodeError) as error:
        raise DecodingError(f"the Protobuf schema cannot be used: {error}") from None
    main = next(file for file in described.file if file.name == _MAIN)
    messages: dict[str, type[Message]] = {}
    found = pool.FindFileByName(_MAIN)
    pending: list[Descriptor] = list(found.message_types_by_name.values())
    while pending:
        each = pending.pop(0)
        messages[each.full_name] = message_factory.GetMessageClass(each)
        pending += each.nested_types
    return ProtobufSchema(main, messages)
