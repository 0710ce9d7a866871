"""Checks the arguments of public calls in the caller's thread, so that a wrong argument fails only this call.
PURE.

All callers share the client's thread, so a wrong argument must not reach it. Each function gets the argument's name
for error texts. It returns the argument converted to the type that the client uses. It raises `TypeError` for another
type, and `ValueError` for a value that Kafka's protocol cannot express.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from odradek.wire.batches.records import Header
from odradek.wire.topic_partition import TopicPartition

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "NO_HEADERS",
    "TIMESTAMP_MS_MAX",
    "as_bytes",
    "as_callback",
    "as_headers",
    "as_integer",
    "as_partition",
    "as_seconds",
    "as_text",
    "as_timestamp",
    "as_topic_partition",
    "as_topic_partitions",
    "by_partition",
    "kind_of",
]

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
TEXT_BYTES_MAX = (1 << 15) - 1
"""The maximum number of bytes of a string in Kafka's protocol."""
TIMESTAMP_MS_MAX = 1 << 62
"""The greatest timestamp in milliseconds. It is half of the 64-bit range, so that the difference of any two
timestamps fits into a batch.
"""
NO_TIMESTAMP = -1
NO_HEADERS: tuple[Header, ...] = ()
SECONDS_MAX = 2_000_000.0
"""The longest timeout in seconds (23 days), because requests have 32 bits for milliseconds. A longer timeout
is reduced to this value.
"""


def as_bytes(what: str, value: Any) -> bytes | None:
    """Check a record's key or value, and return it as bytes or None. A mutable buffer is copied, because the caller
    may still change it.
    """
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"{what} is {kind_of(value)}, expected bytes or None (or set {what}.serializer)")


def as_integer(what: str, value: Any, least: int = 0, most: int = INT32_MAX) -> int:
    """Check an integer (also of numpy or pandas), and return it as an int from `least` to `most`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {kind_of(value)}, expected an integer") from None
    if not least <= number <= most:
        shown = str(number) if abs(number) <= INT64_MAX else "too large"
        raise ValueError(f"{what} is {shown}, expected a number from {least} to {most}")
    return number


def as_partition(what: str, value: Any) -> int:
    """Check a partition number, and return it as an int."""
    return as_integer(what, value)


def as_timestamp(what: str, value: Any) -> int:
    """Check a record's timestamp in milliseconds since 1970, and return it. The value -1 means that there is
    no timestamp.
    """
    if isinstance(value, float):
        raise TypeError(f"{what} is a float, expected whole milliseconds: int({what})")
    return as_integer(what, value, NO_TIMESTAMP, TIMESTAMP_MS_MAX)


def as_text(what: str, value: Any, bytes_max: int = TEXT_BYTES_MAX, *, may_be_empty: bool = False) -> str:
    """Check that a string has at most `bytes_max` bytes in UTF-8, and return it."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is {kind_of(value)}, expected a str")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} has a character that UTF-8 cannot express: {value[:100]!a}") from None
    if size > bytes_max:
        raise ValueError(f"{what} has {size} bytes, but Kafka's protocol allows at most {bytes_max}")
    if not value and not may_be_empty:
        raise ValueError(f"{what} is empty")
    return value


def as_seconds(what: str, value: Any) -> float | None:
    """Check a timeout in seconds, and return it as a float. None means no limit, and stays None."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{what} is {kind_of(value)}, expected a number of seconds or None") from None
    except OverflowError:
        raise ValueError(f"{what} is too large for a number of seconds") from None
    if not seconds >= 0 or isinstance(value, str):
        raise ValueError(f"{what} is {value!r:.100}, expected 0 or more seconds, or None for no limit")
    return min(seconds, SECONDS_MAX)


def as_callback(what: str, value: Any) -> Any:
    """Check that a callback can be called, or is None, and return it."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} is {kind_of(value)}, expected a callable or None")
    return value


def as_headers(what: str, values: Any) -> tuple[Header, ...]:
    """Check the headers of a record, and return them as a tuple. The argument is iterated once; None means no
    headers.
    """
    if values is None:
        return ()
    if isinstance(values, Mapping):
        raise TypeError(f"{what} is {kind_of(values)}, expected pairs, such as {what}.items()")
    if isinstance(values, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is {kind_of(values)}, expected pairs of a str and bytes")
    try:
        pairs = list(values)
    except TypeError:
        raise TypeError(f"{what} is {kind_of(values)}, expected pairs of a str and bytes") from None
    return tuple(_header(f"{what}[{place}]", pair) for place, pair in enumerate(pairs))


def _header(what: str, pair: Any) -> Header:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise TypeError(f"{what} is {kind_of(pair)}, expected a pair of a str and bytes")
    name, value = pair
    if type(name) is not str or not name.isascii():
        name = as_text(f"the key of {what}", name, INT32_MAX, may_be_empty=True)
    if value is not None and type(value) is not bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError(f"the value of {what} is {kind_of(value)}, expected bytes or None")
        value = bytes(value)
    return name, value


def by_partition(what: str, values: Any, judge: Callable[[str, Any], Any]) -> dict[TopicPartition, Any]:
    """Check a mapping from partitions to values, and return it. A key is a pair of topic and number. The
    function `judge` checks each value.
    """
    if not hasattr(values, "items"):
        raise TypeError(f"{what} is {kind_of(values)}, expected a mapping with a partition for each key")
    found = {}
    for key, value in values.items():
        partition = as_topic_partition(f"a key of {what}", key)
        found[partition] = judge(f"{what}[{partition}]", value)
    return found


def as_topic_partition(what: str, value: Any) -> TopicPartition:
    """Check a partition, given as a pair of topic and number, and return it."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{what} is {kind_of(value)}, expected a pair of topic and partition")
    return TopicPartition(
        as_text(f"the topic of {what}", value[0]), as_partition(f"the partition of {what}", value[1])
    )


def as_topic_partitions(what: str, values: Any) -> list[TopicPartition]:
    """Check partitions, given as pairs of topic and number, and return them. The argument is iterated once."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} is {kind_of(values)}, expected pairs of topic and partition")
    return [as_topic_partition(f"one of {what}", each) for each in values]


def kind_of(value: Any) -> str:
    """Describe the type of a value for an error text: "a str", "None"."""
    return "None" if value is None else f"a {type(value).__name__}"
