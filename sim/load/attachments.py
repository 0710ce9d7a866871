"""The key and the headers that belong to a value, so that a reader can check whether a record is whole. PURE.

A value of `value_with` says in its third part which key and how many headers its record has: `name:serial:k3h2:` and a
filler. Records of other producers have neither key nor headers.
"""

from __future__ import annotations

import re

from odradek.wire.batches.records import Header
from sim.history import SafetyViolation

__all__ = ["attached_to", "must_be_whole", "value_with"]

_WORDS = re.compile(rb"([^:]*):(\d+):k(\d*)h(\d+):")


def value_with(name: str, serial: int, key: int | None, headers: int, filler: bytes = b"") -> bytes:
    """Make the value of a producer's record, which names its key (a number, or none) and its number of headers."""
    word = b"" if key is None else b"%d" % key
    return b"%s:%d:k%sh%d:" % (name.encode(), serial, word, headers) + filler


def attached_to(value: bytes) -> tuple[bytes | None, tuple[Header, ...]]:
    """Find the key and the headers of the record with this value."""
    found = _WORDS.match(value)
    if found is None:
        return None, ()
    _, serial, key, count = found.groups()
    headers = tuple((f"header-{index}", serial if index % 2 else None) for index in range(int(count)))
    return (b"key-" + key if key else None), headers


def must_be_whole(where: str, key: bytes | None, value: bytes, headers: tuple[Header, ...]) -> None:
    """Raise `SafetyViolation` unless a record that was read has the key and the headers that it was sent with."""
    wanted = attached_to(value)
    if (key, headers) != wanted:
        raise SafetyViolation(
            f"{where}: {value[:40]!r} came with {(key, headers)}, and was sent with {wanted}"
        )
