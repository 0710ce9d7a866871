"""Wrong values for arguments, which must do no harm, and the methods of a client that take arguments."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

__all__ = ["WRONG", "public_methods", "wrong_calls"]

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


def wrong_calls(
    method: Callable[..., Any], good: Mapping[str, Any]
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Yield calls of a bound method in which one parameter has a wrong value.

    Required parameters have good values. Each call comes with the parameter's name and the kind of its value.
    """
    parameters = inspect.signature(method).parameters
    needed = {
        name: good[name] for name, each in parameters.items() if each.default is each.empty and name in good
    }
    for (name, parameter), (kind, make) in itertools.product(parameters.items(), WRONG.items()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield name, kind, partial(method, make())
        else:
            yield name, kind, partial(method, **{**needed, name: make()})
