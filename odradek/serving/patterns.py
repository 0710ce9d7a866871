"""Regular expressions from clients: which expressions a node accepts, and which names they match.

RE2 matches in linear time. But it may take up to a second to read a pattern of 30 KB that was made to be
slow. Meanwhile RE2 holds Python's interpreter lock, in whatever thread it runs. So a node first estimates the
time, and refuses a pattern that would take longer than some milliseconds. Properties of Unicode (`\\pL`) take
longest, and so do parts that are repeated a thousand times.

A pattern's automaton grows to at most `AUTOMATON_BYTES_MAX`. `re2` keeps 128 patterns in a cache, which is
emptied after each use.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

import re2

__all__ = ["compile_pattern", "forget_compiled", "is_pattern", "matching_names", "reading_microseconds"]

READING_MICROSECONDS_MAX = 10_000
"""If RE2 needs more than this time to read a pattern, by our estimate, the pattern is refused. In measurements,
patterns with this estimate took at most 5 ms.
"""
AUTOMATON_BYTES_MAX = 1 << 20
_REPEATS_MAX = 1_000
"""The maximum number of repetitions that RE2 accepts. The limit also holds for the product of nested repetitions."""
_PROPERTY_MICROSECONDS, _CLASS_MICROSECONDS, _LARGE_CLASS_MICROSECONDS = 500.0, 2.5, 12.0
_DOT_MICROSECONDS, _CHARACTER_MICROSECONDS = 3.0, 0.6
_PROPERTY = re.compile(r"\\[pP]")
_REPEAT = re.compile(r"(?s)(.)(?<!\\x)\{(\d+)(?:,(\d*))?\}")

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False
_OPTIONS.max_mem = AUTOMATON_BYTES_MAX


def reading_microseconds(pattern: str) -> float:
    """Estimate the microseconds in which RE2 reads a pattern; most patterns take less.

    A repetition of a group counts as a repetition of the whole pattern. A repetition of a class or character
    counts as a repetition of the text since the previous repetition. If the pattern has Unicode properties,
    every repetition counts as a repetition of the whole pattern.
    """
    properties = len(_PROPERTY.findall(pattern))
    is_small = pattern.isascii() and "(?" not in pattern and "\\x" not in pattern
    of_class = _CLASS_MICROSECONDS if is_small else _LARGE_CLASS_MICROSECONDS

    def once(text: str) -> float:
        return (
            text.count(".") * _DOT_MICROSECONDS
            + text.count("[") * of_class
            + text.count("\\") * _DOT_MICROSECONDS
            + len(text) * _CHARACTER_MICROSECONDS
        )

    total, repeats, behind = once(pattern) + properties * _PROPERTY_MICROSECONDS, 1, 0
    for found in _REPEAT.finditer(pattern):
        count = max(1, int(found[3] or found[2]))
        if found[1] == ")" or properties:
            repeats = min(_REPEATS_MAX, repeats * count)
        else:
            total += once(pattern[behind : found.start(2)]) * min(_REPEATS_MAX, count)
        behind = found.end()
    return total * repeats


class CompiledPattern(Protocol):
    """A pattern of `re2`, which has no types."""

    def fullmatch(self, text: str, /) -> object | None: ...

    def search(self, text: str, /) -> object | None: ...


def compile_pattern(pattern: str) -> CompiledPattern:
    """Return the compiled pattern of `re2`. The caller must call `forget_compiled` after its last use.

    Raises `re2.error` for a pattern that RE2 cannot read, or that would take too long to read.
    """
    if reading_microseconds(pattern) > READING_MICROSECONDS_MAX:
        raise re2.error("the pattern takes too long to read: it is too long, or repeats too much")
    compiled: CompiledPattern = re2.compile(pattern, _OPTIONS)
    return compiled


def forget_compiled() -> None:
    """Drop the patterns in the cache of `re2`, which clients could fill otherwise."""
    re2.purge()


def is_pattern(pattern: str) -> bool:
    """True if a node accepts the pattern."""
    try:
        compile_pattern(pattern)
    except re2.error:
        return False
    finally:
        forget_compiled()
    return True


def matching_names(pattern: str, names: Sequence[str]) -> set[str]:
    """Return those names that an accepted pattern matches from the first character to the last."""
    expression = compile_pattern(pattern)
    try:
        return {name for name in names if expression.fullmatch(name) is not None}
    finally:
        forget_compiled()
