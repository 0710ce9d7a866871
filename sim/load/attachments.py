"""The key and headers that belong to a record's value, so that a reader can check whether the record is complete.
PURE.

The third part of such a value has the record's key number and its number of headers: `name:serial:k3h2:`, followed by
filler. Values of another form belong to records without key and headers.
"""

from __future__ import annotations

import re

from odradek.wire.batches.records import Header
from sim.history import SafetyViolation

__all__ = ["attached_to", "must_be_whole", "value_with"]

_WORDS = re.compile(rb"([^:]*):(\d+):k(\d*)h(\d+):")


def value_with(name: str, serial: int, key: int | None, headers: int, filler: bytes = b"") -> bytes:
    """Make the value of a record. The value states the record's key number and number of headers. With `key` None the
    record has no key.
    """
    word = b"" if key is None else b"%d" % key
    return b"%s:%d:k%sh%d:" % (name.encode(), serial, word, headers) + filler


def attached_to(value: bytes) -> tuple[bytes | None, tuple[Header, ...]]:
    """Return the key and the headers that the record with this value must have."""
    found = _WORDS.match(value)
    if found is None:
        return None, ()
    _, serial, key, count = found.groups()
    headers = tuple((f"header-{index}", serial if index % 2 else None) for index in range(int(count)))
    return (b"key-" + key if key else None), headers


def must_be_whole(where: str, key: bytes | None, value: bytes, headers: tuple[Header, ...]) -> None:
    """Raise `SafetyViolation` unless the record has the key and headers that belong to its value. `where` begins the
    error's text.
    """
    wanted = attached_to(value)
    if (key, headers) != wanted:
        raise SafetyViolation(
            f"{where}: {value[:40]!r} came with {(key, headers)}, and was sent with {wanted}"
        )
