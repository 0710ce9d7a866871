"""Values that no argument should be able to do harm with, and the methods of a client that take arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["WRONG", "parameters_of", "public_methods"]

WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "float": lambda: 1.5,
    "nan": lambda: float("nan"),
    "infinity": lambda: float("inf"),
    "text": lambda: "text",
    "empty text": lambda: "",
    "NUL": lambda: "a\0b",
    "unpaired surrogate": lambda: "\ud800",
    "long text": lambda: "x" * 70_000,
    "bytes": lambda: b"bytes",
    "bytes that are no UTF-8": lambda: b"\xff\xfe",
    "huge": lambda: 10**5000,
    "above 64 bits": lambda: 1 << 63,
    "above 32 bits": lambda: 1 << 31,
    "negative": lambda: -2,
    "very negative": lambda: -(1 << 70),
    "exhausted generator": lambda: (each for each in ()),
    "generator of text": lambda: (each for each in ("a", "b")),
    "list": list,
    "list of text": lambda: ["a", "b"],
    "list of pairs of text": lambda: [("a", "b")],
    "list of pairs of bytes": lambda: [(b"a", b"b")],
    "list of None": lambda: [None],
    "mapping": dict,
    "mapping of text": lambda: {"a": "b"},
    "mapping of partitions": lambda: {("t", -1): -1},
    "object": object,
    "class": lambda: int,
}


def public_methods(client: type) -> dict[str, Callable[..., Any]]:
    """Return a client's public methods by name."""
    return {
        name: member
        for name, member in inspect.getmembers(client, callable)
        if not name.startswith("_") and not isinstance(inspect.getattr_static(client, name), property)
    }


def parameters_of(method: Callable[..., Any]) -> Iterator[str]:
    """Yield the names of what a caller may give, without `self`."""
    for name, parameter in inspect.signature(method).parameters.items():
        if name != "self" and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            yield name
