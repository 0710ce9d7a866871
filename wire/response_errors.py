"""Counting the error codes that responses carry, by one function per response class, written at first use.

Counting must not cost a request more than a look at the fields that could hold an error, so the walk over topics
and partitions is straight-line code, like the codecs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from wire.structure import Message, Structure

ErrorCounter: TypeAlias = Callable[[Any, dict[int, int]], None]

ERROR_FIELDS = frozenset({"error_code", "partition_error_code"})
"""`topic_config_error_code` is not among them: it only says why configs are left out."""

_counters: dict[type[Message], ErrorCounter] = {}


def error_counter(cls: type[Message]) -> ErrorCounter:
    """(response, counts) -> None: adds one to `counts[code]` for every error code of the response that is not 0."""
    found = _counters.get(cls)
    if found is None:
        names: dict[str, Any] = {}
        exec(compile(error_counter_source(cls), f"<errors of {cls.__name__}>", "exec"), names)
        found = _counters[cls] = names["count_errors"]
    return found


def error_counter_source(cls: type[Message]) -> str:
    """The source alone, to read and to test."""
    lines: list[str] = []
    _walk(cls, "r", 1, lines)
    return "\n".join(["def count_errors(r, counts):", *(lines or ["    pass"]), ""])


def _walk(cls: type[Structure], name: str, depth: int, lines: list[str]) -> None:
    """Append the look at one structure; nothing is appended when it can hold no error."""
    indent = "    " * depth
    for attribute in cls.__attrs_attrs__:
        wire_type = attribute.metadata["kafka"].type
        value = f"{name}.{attribute.name}"
        if attribute.name in ERROR_FIELDS:
            lines += [f"{indent}if {value}:", f"{indent}    counts[{value}] = counts.get({value}, 0) + 1"]
        elif isinstance(wire_type, list) and isinstance(wire_type[0], type):
            each = f"r{depth}"
            inside: list[str] = []
            _walk(wire_type[0], each, depth + 1, inside)
            if inside:
                # A null array has no errors; `or ()` costs nothing beside the loop.
                lines += [f"{indent}for {each} in {value} or ():", *inside]
